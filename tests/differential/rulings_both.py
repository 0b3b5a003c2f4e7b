"""Where onnxruntime 1.31.1 and onnx.reference 1.23.2 do what the specification does not say."""

from __future__ import annotations

import numpy as np

from tercet.runtime.ir.dtypes import FLOATS, float32

from .ruling import Ruling, has

RULINGS: tuple[Ruling, ...] = (
    Ruling(
        "Clip",
        "onnxruntime onnx.reference",
        lambda s: s.opset < 11 and bool(np.isinf(s.data(0)).any()),
        "opset 6, infinite elements: the outermost float32 numbers, defaults of `min` and `max`, "
        "limit nothing in tercet, as in opset 11",
        "Not a fault of theirs: the text says that these numbers are the defaults.",
    ),
    Ruling(
        "AffineGrid Attention DFT DeformConv Erf GridSample HardSigmoid HardSwish LeakyRelu Shrink",
        "onnxruntime onnx.reference",
        has(np.float64),
        "float64, computed in float32 or with constants rounded to it",
        "T: Constrain input and output types to float tensors. [tensor(double)]",
        precise=float32,
    ),
    Ruling(
        "LpPool",
        "onnxruntime onnx.reference",
        lambda s: s.attributes.get("ceil_mode") == 1 or "dilations" in s.attributes,
        "ceil_mode or dilations: onnx.reference shifts windows, onnxruntime forgets dilations "
        "where auto_pad counts the positions",
        "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / "
        "strides_spatial_shape[i]).",
    ),
    Ruling(
        "AveragePool MaxPool",
        "onnxruntime onnx.reference",
        lambda s: "dilations" in s.attributes and "SAME" in s.attributes.get("auto_pad", ""),
        "dilations with auto_pad: onnxruntime forgets them where it counts the positions",
        "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / "
        "strides_spatial_shape[i]).",
    ),
    Ruling(
        "GroupNormalization LayerNormalization RMSNormalization",
        "onnxruntime onnx.reference",
        has(*FLOATS),
        "moments in float32 even of float64, as they may be",
        "stash_type: The floating-point precision used in stage one of the computation.",
        precise=float32,
    ),
    Ruling(
        "OneHot",
        "onnxruntime onnx.reference",
        lambda s: s.opset < 11,
        "opset 9, negative indices count from the end",
        "Any entries in the 'indices' input tensor with values outside the range [0, depth) will "
        "result in one-hot representation with all 'off_value' values in the output tensor.",
    ),
    Ruling(
        "AffineGrid",
        "onnxruntime onnx.reference",
        lambda s: s.attributes.get("align_corners") == 1 and 1 in s.data(1)[2:],
        "one pixel between the corners: -1 in onnx.reference, 1 in onnxruntime, 0 in tercet",
        "Not said, as -1 and 1 refer to the centers of the corner pixels; 0 is what PyTorch does.",
    ),
    Ruling(
        "BlackmanWindow HammingWindow HannWindow",
        "onnxruntime onnx.reference",
        lambda s: not s.attributes.get("periodic", 1) and int(s.data(0)) == 1,
        "one element of a symmetric window, where they divide by 0",
        "Not said; 1 is what numpy and PyTorch give.",
    ),
    Ruling(
        "GroupNormalization InstanceNormalization",
        "onnxruntime onnx.reference",
        lambda s: s.data(0)[0].size < 8 * s.attributes.get("num_groups", s.data(0).shape[1]),
        "a few elements that are almost equal, of which float32 leaves no difference to the mean",
        "y = scale * (x - mean) / sqrt(variance + epsilon) + B.",
    ),
)
