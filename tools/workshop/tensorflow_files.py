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


def all_of_them(tf: Any, x: Any, y: Any) -> dict[str, Any]:
    """Return what the operators compute of two matrices [3, 4], by name."""
    raw = tf.raw_ops
    square, colours = x[:, :3], tf.sigmoid(x[:, :3])
    positive = tf.matmul(square, square, transpose_b=True) + tf.eye(3)
    numbers, whole = raw.Complex(real=x, imag=y), tf.cast(4 * x, tf.int32)
    picture, window = tf.reshape(x, [1, 3, 4, 1]), tf.reshape(y[:2, :2], [2, 2, 1])
    half, sizes = tf.signal.rfft(x, [6]), [3, 4]
    return {
        "angle": raw.Angle(input=numbers),
        "approximate_equal": raw.ApproximateEqual(x=x, y=y, tolerance=0.5),
        "bessel_i": tf.stack(
            [
                raw.BesselI0(x=4 * x),
                raw.BesselI0e(x=9 * x),
                raw.BesselI1(x=4 * x),
                raw.BesselI1e(x=9 * x),
            ]
        ),
        "bessel_j": tf.stack([raw.BesselJ0(x=9 * x), raw.BesselJ1(x=9 * x)]),
        "bessel_k": tf.stack(
            [
                raw.BesselK0(x=2 * y),
                raw.BesselK0e(x=9 * y),
                raw.BesselK1(x=2 * y + 1),
                raw.BesselK1e(x=9 * y + 0.1),
            ]
        ),
        "bessel_y": tf.stack([raw.BesselY0(x=9 * y), raw.BesselY1(x=9 * y + 0.1)]),
        "betainc": raw.Betainc(a=y + 0.1, b=y[::-1] + 0.3, x=tf.sigmoid(x)),
        "bincount": raw.Bincount(arr=tf.abs(whole[0]), size=3, weights=y[0]),
        "bitcast": raw.Bitcast(input=x, type=tf.int32),
        "bucketize": raw.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]),
        "cholesky": raw.Cholesky(input=positive),
        "complex_abs": raw.ComplexAbs(x=raw.FFT(input=numbers)),
        "conj": raw.Imag(input=raw.Conj(input=raw.IFFT(input=numbers))),
        "cosines": tf.signal.dct(x),
        "cross": raw.Cross(a=square, b=x[:, 1:]),
        "diag": raw.Diag(diagonal=x[:2, :2]),
        "diag_part": raw.DiagPart(input=square),
        "digamma": raw.Digamma(x=3 * x),
        "dense_bincount": raw.DenseBincount(
            input=tf.abs(whole), size=4, weights=y, binary_output=False
        ),
        "dilation": raw.Dilation2D(
            input=picture,
            filter=window,
            strides=[1, 1, 2, 1],
            rates=[1, 1, 2, 1],
            padding="SAME",
        ),
        "erfc": raw.Erfc(x=x),
        "erfinv": raw.Erfinv(x=tf.tanh(x)),
        "euclidean_norm": raw.EuclideanNorm(input=x, axis=[1], keep_dims=True),
        "expm1": raw.Expm1(x=x),
        "fft_2d": raw.Real(input=raw.FFT2D(input=numbers)),
        "fft_3d": raw.Real(input=raw.IFFT3D(input=raw.FFT3D(input=numbers[None])[:, :, 1:3])),
        "filtered": tf.signal.irfft(tf.transpose(half * tf.math.conj(half[::-1])), [5]),
        "histogram": raw.HistogramFixedWidth(values=x, value_range=[-1.0, 1.0], nbins=5),
        "hsv_to_rgb": raw.HSVToRGB(images=colours),
        "ifft_2d": raw.Imag(input=raw.IFFT2D(input=numbers / (numbers[:, ::-1] - 2.0))),
        "igamma": raw.Igamma(a=y + 0.1, x=x * x),
        "igammac": raw.Igammac(a=y + 0.1, x=x * x),
        "invert": raw.Invert(x=whole),
        "irfft_2d": tf.signal.irfft2d(tf.signal.rfft2d(x), sizes),
        "in_top_k": raw.InTopKV2(predictions=x, targets=[0, 1, 2], k=2),
        "l2_loss": raw.L2Loss(t=x),
        "lgamma": raw.Lgamma(x=3 * x),
        "log1p": raw.Log1p(x=y),
        "log_determinant": raw.LogMatrixDeterminant(input=positive)[1],
        "lower_bound": raw.LowerBound(sorted_inputs=[[-1.0, 0.0, 0.0, 1.0]] * 3, values=y),
        "matrix_inverse": raw.MatrixInverse(input=square, adjoint=True),
        "matrix_solve": raw.MatrixSolve(matrix=square + tf.eye(3), rhs=x, adjoint=True),
        "matrix_set_diag": raw.MatrixSetDiag(input=x, diagonal=y[:, 0]),
        "mul_no_nan": raw.MulNoNan(x=1 / y, y=y),
        "ndtri": raw.Ndtri(x=colours),
        "nth_element": raw.NthElement(input=x, n=1, reverse=True),
        "polygamma": raw.Polygamma(a=tf.round(y), x=x),
        "population_count": raw.PopulationCount(x=whole),
        "qr": tf.matmul(*raw.Qr(input=x)) + raw.Qr(input=x)[0][:, :1],
        "resized": tf.image.resize(picture, [2, 6], "lanczos3", antialias=True),
        "rfft_3d": tf.signal.irfft3d(tf.signal.rfft3d(picture[..., 0]), [1, *sizes]),
        "rgb_to_hsv": raw.RGBToHSV(images=colours),
        "triangular_solve": raw.MatrixTriangularSolve(matrix=positive, rhs=x, lower=False),
        "truncate_mod": raw.TruncateMod(x=x, y=tf.constant(0.7)),
        "upper_bound": raw.UpperBound(sorted_inputs=[[-1.0, 0.0, 0.0, 1.0]] * 3, values=y),
        "xdivy": raw.Xdivy(x=y, y=y),
        "xlog1py": raw.Xlog1py(x=y, y=x * x),
        "xlogy": raw.Xlogy(x=y, y=y),
        "zeta": raw.Zeta(x=y + 1.1, q=tf.abs(x)),
    }


def write(target: Path) -> None:
    """Write the model and its arrays.

    Args:
        target: their name without extension.
    """
    tf, tf2onnx = import_module("tensorflow"), import_module("tf2onnx")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4)).astype(np.float32)
    feeds = {"x": x, "y": np.where(x < -0.5, 0, rng.uniform(0.1, 2, (3, 4))).astype(np.float32)}

    def together(x: Any, y: Any) -> dict[str, Any]:
        return all_of_them(tf, x, y)

    kinds = [tf.TensorSpec([3, 4], tf.float32, name=name) for name in feeds]
    function = tf.function(together, input_signature=kinds)
    results = {name: found.numpy() for name, found in function(*feeds.values()).items()}
    model, _ = tf2onnx.convert.from_function(function, input_signature=kinds, opset=17)
    arrays = {f"input/{name}": array for name, array in feeds.items()}
    arrays |= {f"output/{name}": array for name, array in results.items()}
    np.savez_compressed(target.with_suffix(".npz"), allow_pickle=False, **arrays)
    target.with_suffix(".onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
