"""Where onnxruntime 1.31.1 contradicts the specification."""

from __future__ import annotations

import numpy as np

from tercet.runtime.ir.dtypes import FLOATS, float16, float32

from .ruling import Ruling, has, transformed

REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)


def _product(x: np.ndarray) -> float:
    """Return a bound of what products, sums and squares of elements can be."""
    sizes = np.maximum(np.abs(x.astype(np.float64)), 1)
    return max(float(sizes.prod()), float(np.square(sizes).sum()))


def _power(x: np.ndarray, y: np.ndarray) -> float:
    """Return the greatest power of an element."""
    with np.errstate(all="ignore"):
        return float(
            np.abs(np.power(np.abs(x.astype(np.float64)), y.astype(np.float64))).max(initial=0)
        )


RULINGS: tuple[Ruling, ...] = (
    Ruling(
        "Clip",
        "onnxruntime",
        lambda s: sum(x is not None for x in s.inputs) < 3 and bool(np.isinf(s.data(0)).any()),
        "an infinite element beyond a bound that is left out becomes the greatest finite number",
        "The function body is Identity without bounds, and one Where per bound that is given; the "
        "text says that bounds default to numeric_limits.",
    ),
    Ruling(
        "GlobalMaxPool MaxPool",
        "onnxruntime",
        lambda s: bool(np.isneginf(s.data(0)).any()),
        "a window of nothing but -inf, whose maximum becomes the lowest finite number",
        "Max pooling consisting of computing the max on all values of a subset of the input tensor "
        "according to the kernel size.",
    ),
    Ruling(
        "Gelu",
        "onnxruntime",
        has(np.float64),
        "float64, computed with constants rounded to float32",
        "T: Constrain input and output types to float tensors. [tensor(double)]",
        precise=float32,
    ),
    Ruling(
        "Mod",
        "onnxruntime",
        lambda s: s.data(0).dtype.itemsize == 8 and s.data(0).dtype.kind in "iu",
        "integers of 64 bits with fmod=1, computed as float64",
        "The result is exactly the value x - n * y, where n is x / y with its fractional part "
        "truncated.",
    ),
    Ruling(
        "Col2Im",
        "onnxruntime",
        lambda s: len(s.data(1)) > 2,
        "three spatial axes",
        "image_shape: [...] containing the value [H_img, W_img] for a 2-D image or [dim_i1, "
        "dim_i2, ..., dim_iN] for a N-D image.",
    ),
    Ruling(
        "MaxUnpool",
        "onnxruntime",
        lambda s: len(s.inputs) > 2,
        "output_shape, which it also takes to be what the indices count in",
        "ONNX's case test_maxunpool_export_with_output_shape: the indices are those of the result "
        "without output_shape, which then adds zeros behind it.",
    ),
    Ruling(
        "MeanVarianceNormalization",
        "onnxruntime",
        lambda s: True,
        "E[X²] - E[X]², which may be less than 0 and is inexact",
        "Perform mean variance normalization on the input tensor X using formula: "
        "(X-EX)/sqrt(E(X-EX)^2).",
    ),
    Ruling(
        "MatMul MatMulInteger QLinearMatMul",
        "onnxruntime",
        lambda s: s.data(0).shape[-1] == 0,
        "products over no elements, where it leaves the result as the memory was",
        "Matrix product that behaves like numpy.matmul.",
    ),
    Ruling(
        "ReduceSum",
        "onnxruntime",
        lambda s: s.data(0).dtype == np.int64 and bool((abs(s.data(0) >> 1) > 2**51).any()),
        "int64 beyond 2^53, summed as float64",
        "Computes the sum of the input tensor's elements: T: tensor(int64).",
    ),
    Ruling(
        "ReduceL1 ReduceProd ReduceSumSquare",
        "onnxruntime",
        lambda s: s.data(0).dtype == np.int64 and _product(s.data(0)) > 2**53,
        "int64 beyond 2^53, computed as float64",
        "Computes the product [...] of the input tensor's elements: T: tensor(int64).",
    ),
    Ruling(
        "Pow",
        "onnxruntime",
        lambda s: s.data(0).dtype in (np.int32, np.int64) and _power(s.data(0), s.data(1)) >= 2**31,
        "integers of large powers, computed as float64: int64 is rounded, int32 does not wrap",
        "The function f(x) = x^exponent is applied to the data tensor elementwise: T: "
        "tensor(int32), tensor(int64).",
    ),
    Ruling(
        REDUCTIONS,
        "onnxruntime",
        lambda s: s.data(0).size == 0,
        "an axis of size 0, where its result has sizes of 0 and 1 that do not belong there",
        "The resulting tensor has the same rank as the input if keepdims equals 1. If keepdims "
        "equals 0, then the resulting tensor has the reduced dimension pruned.",
    ),
    Ruling(
        "ReduceLogSumExp",
        "onnxruntime",
        lambda s: s.data(0).dtype.kind in "iu",
        "integers, where each function's result becomes an integer",
        "Not said; the real result is cut to an integer, as by onnx.reference.",
    ),
    Ruling(
        "ReduceLogSumExp ReduceMax ReduceMin",
        "onnxruntime",
        lambda s: s.data(0).dtype in FLOATS and bool(np.isnan(s.data(0)).any()),
        "NaN among the elements, where the result depends on the layout",
        "Not said; NaN is passed on as by numpy, Max and onnx.reference.",
    ),
    Ruling(
        "Slice",
        "onnxruntime",
        lambda s: len(s.inputs) > 4 and bool((s.data(4) < 0).any()),
        "negative steps as far as the greatest integer, and the least integer as a step",
        "It is recommended to pass in INT_MAX when slicing forward and 'INT_MIN' when slicing "
        "backward: [...] ends[i] is clamped to [-1, dims[axes[i]]-1] for negative stepping.",
    ),
    Ruling(
        "BlackmanWindow HammingWindow HannWindow MelWeightMatrix",
        "onnxruntime",
        lambda s: s.attributes.get("output_datatype") == 11,
        "float64, computed in float32",
        "output_datatype: The data type of the output tensor. [tensor(double)]",
        precise=float32,
    ),
    Ruling(
        "Attention",
        "onnxruntime",
        lambda s: s.attributes.get("is_causal") == 1,
        "causal masks where past keys or a cache move the diagonal",
        "Query i attends key j iff j <= i + offset: [...] offset = past_sequence_length when "
        "past_key is provided. (Errata, corrected in version 1.23)",
    ),
    Ruling(
        "Resize",
        "onnxruntime",
        transformed("tf_crop_and_resize"),
        "regions: nearest misses them, others extrapolate the first image only",
        "When coordinate_transformation_mode is 'tf_crop_and_resize' and x_original is outside the "
        "range [0, length_original - 1], this value is used as the corresponding output value.",
    ),
    Ruling(
        "Resize",
        "onnxruntime",
        transformed("align_corners"),
        "a length that is a fraction, of which it takes the whole part",
        "ONNX's case test_resize_downsample_scales_linear_align_corners: output_width [...] can be "
        "a fractional number when it is calculated out of a scale factor.",
    ),
    Ruling(
        "Resize",
        "onnxruntime",
        lambda s: (
            s.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
            and min(s.attributes["axes"]) < 0
        ),
        "an aspect ratio to keep and axes counted from the end, which it does not resize",
        "axes: Negative value means counting dimensions from the back.",
    ),
    Ruling(
        "QuantizeLinear",
        "onnxruntime",
        has(float16),
        "float16, which it divides as float32",
        "The type of `y_scale` determines the precision of the division operation between `x` and "
        "`y_scale`, unless the `precision` attribute is specified.",
    ),
    Ruling(
        "Squeeze",
        "onnxruntime",
        lambda s: len(s.inputs) > 1 and s.data(1).size == 0,
        "an empty list of axes, which it takes for none given",
        "If axes is not provided, all the single dimensions will be removed from the shape.",
    ),
    Ruling(
        "NonZero",
        "onnxruntime",
        lambda s: s.data(0).ndim == 0,
        "a scalar",
        "For scalar input, NonZero produces output shape (0, N) instead of (1, N).",
    ),
    Ruling(
        "Attention",
        "onnxruntime",
        lambda s: s.attributes.get("qk_matmul_output_mode") == 2,
        "qk_matmul_output_mode 2, where what a mask forbids is the least number",
        "A boolean attn_mask intersects the allowed set (its disallowed positions contribute "
        "-inf to the bias).",
    ),
    Ruling(
        "STFT",
        "onnxruntime",
        lambda s: s.data(0).shape[-1] == 2,
        "complex signals, where it reads uninitialized memory",
        "The input can be real or complex valued: [batch_size][signal_length][2].",
    ),
)
