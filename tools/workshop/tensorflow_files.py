"""Write a sample of TensorFlow's operators that tf2onnx leaves as they are.

    pip install tensorflow tf2onnx
    python tools/workshop/tensorflow_files.py tests/contrib/tensorflow

The model has each of them once; next to it is an .npz file with its inputs and what TensorFlow
computes. This script imports nothing of tercet, so it runs in environments without it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def write(target: Path) -> None:
    """Write the model and its arrays.

    Args:
        target: their name without extension.
    """
    tf, tf2onnx = import_module("tensorflow"), import_module("tf2onnx")
    raw = tf.raw_ops
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4)).astype(np.float32)
    feeds = {"x": x, "y": np.where(x < -0.5, 0, rng.uniform(0.1, 2, (3, 4))).astype(np.float32)}

    def all_of_them(x: Any, y: Any) -> dict[str, Any]:
        square, colours = x[:, :3], tf.sigmoid(x[:, :3])
        return {
            "approximate_equal": raw.ApproximateEqual(x=x, y=y, tolerance=0.5),
            "bucketize": raw.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]),
            "cross": raw.Cross(a=square, b=x[:, 1:]),
            "diag": raw.Diag(diagonal=x[:2, :2]),
            "diag_part": raw.DiagPart(input=square),
            "erfc": raw.Erfc(x=x),
            "euclidean_norm": raw.EuclideanNorm(input=x, axis=[1], keep_dims=True),
            "expm1": raw.Expm1(x=x),
            "histogram": raw.HistogramFixedWidth(values=x, value_range=[-1.0, 1.0], nbins=5),
            "hsv_to_rgb": raw.HSVToRGB(images=colours),
            "in_top_k": raw.InTopKV2(predictions=x, targets=[0, 1, 2], k=2),
            "l2_loss": raw.L2Loss(t=x),
            "log1p": raw.Log1p(x=y),
            "lower_bound": raw.LowerBound(sorted_inputs=[[-1.0, 0.0, 0.0, 1.0]] * 3, values=y),
            "matrix_inverse": raw.MatrixInverse(input=square, adjoint=True),
            "matrix_set_diag": raw.MatrixSetDiag(input=x, diagonal=y[:, 0]),
            "mul_no_nan": raw.MulNoNan(x=1 / y, y=y),
            "nth_element": raw.NthElement(input=x, n=1, reverse=True),
            "rgb_to_hsv": raw.RGBToHSV(images=colours),
            "truncate_mod": raw.TruncateMod(x=x, y=tf.constant(0.7)),
            "upper_bound": raw.UpperBound(sorted_inputs=[[-1.0, 0.0, 0.0, 1.0]] * 3, values=y),
            "xdivy": raw.Xdivy(x=y, y=y),
            "xlog1py": raw.Xlog1py(x=y, y=x * x),
            "xlogy": raw.Xlogy(x=y, y=y),
        }

    kinds = [tf.TensorSpec([3, 4], tf.float32, name=name) for name in feeds]
    function = tf.function(all_of_them, input_signature=kinds)
    results = {name: found.numpy() for name, found in function(*feeds.values()).items()}
    model, _ = tf2onnx.convert.from_function(function, input_signature=kinds, opset=17)
    arrays = {f"input/{name}": array for name, array in feeds.items()}
    arrays |= {f"output/{name}": array for name, array in results.items()}
    np.savez_compressed(target.with_suffix(".npz"), allow_pickle=False, **arrays)
    target.with_suffix(".onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
