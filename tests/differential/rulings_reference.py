"""Where onnx.reference, of onnx 1.23.2, contradicts the specification."""

from __future__ import annotations

import numpy as np

from tercet.runtime.ir.dtypes import FLOATS, float32

from .ruling import Ruling, has, starts_before, transformed

RULINGS: tuple[Ruling, ...] = (
    Ruling(
        "Add And Div Equal Greater Less Mul Or Pow Sub Xor",
        "onnx.reference",
        lambda s: s.opset < 7 and "axis" in s.attributes,
        "opset 6, `axis` given",
        "axis: If set, defines the broadcast dimensions. See doc for details.",
    ),
    Ruling(
        "Erf Gelu HardSwish",
        "onnx.reference",
        has(*FLOATS),
        "computed in float32, or with constants rounded to it",
        "T: Constrain input and output types to float tensors. [tensor(double)]",
        precise=float32,
    ),
    Ruling(
        "ConvTranspose",
        "onnx.reference",
        lambda s: s.attributes.get("group", 1) > 1,
        "groups, of which it computes the first one only",
        "group: number of groups input channels and output channels are divided into.",
    ),
    Ruling(
        "AveragePool",
        "onnx.reference",
        lambda s: "dilations" in s.attributes and s.attributes.get("auto_pad") == "VALID",
        "dilations with VALID, which it forgets where it counts the positions",
        "VALID: output_spatial_shape[i] = floor((input_spatial_shape[i] - "
        "((kernel_spatial_shape[i] - 1) * dilations[i] + 1)) / strides_spatial_shape[i]) + 1.",
    ),
    Ruling(
        "Unique",
        "onnx.reference",
        lambda s: s.attributes.get("sorted") == 0,
        "sorted=0, where it picks from the first axis",
        "sorted: [...] If 0, the unique elements are in the order they first occur in X.",
    ),
    Ruling(
        "AveragePool",
        "onnx.reference",
        lambda s: s.opset < 7,
        "opset 1, where it counts what pads",
        "The output of each pooling window is divided by the number of elements exclude pad.",
    ),
    Ruling(
        "AveragePool",
        "onnx.reference",
        lambda s: s.attributes.get("ceil_mode") == 1,
        "ceil_mode, which shifts its windows",
        "pad_shape[i] is the sum of pads along axis i: what ceil_mode adds is behind the image.",
    ),
    Ruling(
        "MaxPool",
        "onnx.reference",
        lambda s: s.outputs == 2 or not {"auto_pad", "pads"}.isdisjoint(s.attributes),
        "indices wanted or pads, where it confuses axes, sides and pads",
        "Indices: The values are the indices as flatten 1-D tensor, and the indices do not "
        "consider padding.",
    ),
    Ruling(
        "BatchNormalization",
        "onnx.reference",
        lambda s: s.opset < 14,
        "opset 7 and 9, where it takes the moments of the batch",
        "Output case #2: Y (test mode): Y = (X - mean) / sqrt(var + epsilon) * scale + B.",
    ),
    Ruling(
        "LRN",
        "onnx.reference",
        lambda s: True,
        "it loops over the batch where it should over the channels",
        "square_sum[n, c, d1, ..., dk] = sum(X[n, i, d1, ..., dk] ^ 2), where max(0, c - "
        "floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2)).",
    ),
    Ruling(
        "LpNormalization",
        "onnx.reference",
        lambda s: s.attributes.get("p") == 1,
        "p=1, where it sums without taking magnitudes",
        "Given a matrix, apply Lp-normalization along the provided axis.",
    ),
    Ruling(
        "GlobalMaxPool",
        "onnx.reference",
        lambda s: s.data(0).ndim != 4,
        "other ranks than 4",
        "The first two dimensions of output shape are the same as the input (N x C), while the "
        "other dimensions are all 1.",
    ),
    Ruling(
        "Hardmax LogSoftmax Softmax",
        "onnx.reference",
        lambda s: s.opset < 13,
        "opset 1 and 11, along one axis only",
        "The input is coerced into a 2-dimensional tensor [a_0 * ... * a_{k-1}, a_k * ... * "
        "a_{n-1}] where k is the axis provided.",
    ),
    Ruling(
        "MatMulInteger",
        "onnx.reference",
        lambda s: s.inputs[2] is not None and s.data(2).ndim > 0,
        "one zero point per row of A, which it subtracts column by column",
        "If the input is 2D of shape [M, K] then zero point tensor may be an M element vector "
        "[zp_1, zp_2, ..., zp_M].",
    ),
    Ruling(
        "QLinearConv QLinearMatMul",
        "onnx.reference",
        lambda s: True,
        "rounded after the zero point is added, so that ties go to the even result",
        "y = saturate((x / y_scale) + y_zero_point). For (x / y_scale), it is rounding to nearest "
        "ties to even.",
    ),
    Ruling(
        "OneHot",
        "onnx.reference",
        lambda s: s.data(2).dtype.kind in "fVc",
        "off + hit·(on - off), which rounds",
        "Locations represented by the index values in the 'indices' input tensor will have "
        "'on_value' and the other locations will have 'off_value'.",
    ),
    Ruling(
        "Shape",
        "onnx.reference",
        lambda s: min(s.attributes.values(), default=0) < -s.data(0).ndim,
        "`start` or `end` before the first axis",
        "Note that axes will be clamped to the range [0, r] [...] if they are out-of-range (after "
        "adding r in the case of negative axis).",
    ),
    Ruling(
        "Slice",
        "onnx.reference",
        starts_before,
        "a negative step from before the first element",
        "The clamping for an adjusted starts[i] [...] [0, dims[axes[i]]-1] for negative stepping.",
    ),
    Ruling(
        "RNN GRU LSTM",
        "onnx.reference",
        lambda s: (
            s.inputs[4] is not None
            or not {"activations", "clip", "input_forget", "direction"}.isdisjoint(s.attributes)
        ),
        "clip, activations, input_forget, lengths or directions, all of which it leaves out",
        "f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi): the attributes say which f, clipped by what.",
    ),
    Ruling(
        "NegativeLogLikelihoodLoss",
        "onnx.reference",
        lambda s: len(s.inputs) < 3 or s.inputs[2] is None,
        "a mean without weights over targets that are ignored, which it counts",
        "ignore_index: Specifies a target value that is ignored and does not contribute to the "
        "input gradient. [...] mean(loss), if reduction = 'mean' and weight is not provided",
    ),
    Ruling(
        "Attention",
        "onnx.reference",
        lambda s: s.output_names[3:4] == ["y3"] and "softcap" in s.attributes,
        "qk_matmul_output_mode 0 with softcap, which it applies",
        "If set to 0, qk_matmul_output is the output of qk matmul. If set to 1, "
        "qk_matmul_output is the output after the softcap operation.",
    ),
    Ruling(
        "RoiAlign",
        "onnx.reference",
        lambda s: s.opset < 16,
        "opset 10, which it computes as opset 16",
        "Use the value 'output_half_pixel' to omit the pixel shift for the input (use this for a "
        "backward-compatible behavior).",
    ),
    Ruling(
        "Resize",
        "onnx.reference",
        transformed("pytorch_half_pixel"),
        "one pixel, which it takes from elsewhere",
        "x_original = length_resized > 1 ? (x_resized + 0.5) / scale - 0.5 : 0.",
    ),
    Ruling(
        "Resize",
        "onnx.reference",
        lambda s: s.data(0).dtype in FLOATS,
        "positions in float32",
        "T1: Constrain input 'X' and output 'Y' to all tensor types. [tensor(double)]",
        precise=float32,
    ),
    Ruling(
        "GridSample",
        "onnx.reference",
        lambda s: (
            s.attributes["mode"][-5:] == "cubic" and s.attributes.get("padding_mode") == "border"
        ),
        "cubic at the border, where it moves the location inside, but only there: PyTorch and "
        "onnxruntime give each neighbour that is outside the border's value, as they give it 0",
        "zeros: use 0 for out-of-bound grid locations, border: use border values for out-of-bound "
        "grid locations.",
    ),
    Ruling(
        "PRelu",
        "onnx.reference",
        lambda s: s.opset < 7,
        "opset 1 and 6, one slope per channel, which it gives to the last axis",
        "If `Slope` is of size 1, the value is shared across different channels.",
    ),
    Ruling(
        "Squeeze Unsqueeze",
        "onnx.reference",
        lambda s: s.opset < 13 and len(s.attributes.get("axes", ())) > 1,
        "opset 11, axes in any order, which it takes one after the other",
        "The order of values in `axes` does not matter and can come in any order.",
    ),
    Ruling(
        "ReduceLogSumExp",
        "onnx.reference",
        lambda s: s.data(0).dtype in FLOATS and not bool(np.isfinite(s.data(0)).all()),
        "infinite elements, where it subtracts infinity from itself",
        "Computes the log sum exponent of the input tensor's elements: log(exp(inf)) is inf.",
    ),
)
