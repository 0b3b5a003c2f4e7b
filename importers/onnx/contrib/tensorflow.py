"""Operators of TensorFlow that tf2onnx does not convert, but leaves in the file as they are.

They are defined by the documentation of ``tf.raw_ops``. tf2onnx says that they are unsupported and
writes them without a domain; with ``--custom-ops`` they are in a domain of its own. Attributes that
only repeat a dtype, and are left as well, are of no use here.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import TO_ONNX
from .builder import NodeBuilder
from .declaration import Anything, Index, Int32, Kind, T
from .tensorflow_names import operator

#: Any dtype, the same for all such inputs.
Same = Annotated[str, Kind("S", frozenset(dtypes.TO_ONNX))]
#: Whole numbers.
Whole = Annotated[str, Kind("W", dtypes.INTEGERS)]
_INT32, _INT64 = TO_ONNX[dtypes.int32], TO_ONNX[dtypes.int64]


# ── elementwise ──────────────────────────────────────────────────────────────────────────────────


@operator("Erfc")
def erfc(b: NodeBuilder, x: T) -> str:
    """Return 1 - erf(x), to within rounding of 1: the form of which a Gelu is made."""
    return b.Sub(b.number(1, x), b.Erf(x))


@operator("Expm1")
def expm1(b: NodeBuilder, x: T) -> str:
    """Return exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which loses no digits near 0."""
    return b.Mul(b.Tanh(b.scaled(x, 0.5)), b.Add(b.Exp(x), b.number(1, x)))


@operator("Log1p")
def log1p(b: NodeBuilder, x: T) -> str:
    """Return log(1 + x); near 0 as 2 atanh(x / (2 + x)), which loses no digits there."""
    near = b.scaled(b.Atanh(b.Div(x, b.Add(x, b.number(2, x)))), 2)
    far = b.Log(b.Add(x, b.number(1, x)))
    return b.Where(b.Less(b.Abs(x), b.number(0.5, x)), near, far)


@operator("Xlogy")
def xlogy(b: NodeBuilder, x: T, y: T) -> str:
    """Return x log(y), and 0 where x is."""
    return _unless_zero(b, x, b.Mul(x, b.Log(y)))


@operator("Xlog1py")
def xlog1py(b: NodeBuilder, x: T, y: T) -> str:
    """Return x log(1 + y), and 0 where x is."""
    return _unless_zero(b, x, b.Mul(x, log1p(b, y)))


@operator("Xdivy")
def xdivy(b: NodeBuilder, x: T, y: T) -> str:
    """Return x / y, and 0 where x is."""
    return _unless_zero(b, x, b.Div(x, y))


@operator("MulNoNan")
def mul_no_nan(b: NodeBuilder, x: T, y: T) -> str:
    """Return x y, and 0 where y is."""
    return _unless_zero(b, y, b.Mul(x, y))


def _unless_zero(b: NodeBuilder, x: str, y: str) -> str:
    zero = b.number(0, x)
    return b.Where(b.Equal(x, zero), zero, y)


@operator("TruncateMod")
def truncate_mod(b: NodeBuilder, x: Same, y: Same) -> str:
    """Return the remainder with the sign of x."""
    return b.Mod(x, y, fmod=1)


@operator("ApproximateEqual")
def approximate_equal(b: NodeBuilder, x: T, y: T, *, tolerance: float = 1e-5) -> str:
    """Return whether |x - y| < tolerance."""
    return b.Less(b.Abs(b.Sub(x, y)), b.number(tolerance, x))


@operator("Bucketize")
def bucketize(b: NodeBuilder, x: T, *, boundaries: tuple[float, ...] = ()) -> str:
    """Return how many of the ascending boundaries are not greater than an element, as int32."""
    limits = b.constant(np.array(boundaries, b.dtype(x)))
    return _count(b, b.GreaterOrEqual(b.Unsqueeze(x, b.ints(-1)), limits), _INT32)


@operator("LowerBound")
def lower_bound(b: NodeBuilder, rows: T, values: T, *, out_type: int = _INT32) -> str:
    """Return where [n, v] values would be inserted in n sorted rows, before equal elements."""
    return _count(b, _pairs(b, "Less", rows, values), out_type)


@operator("UpperBound")
def upper_bound(b: NodeBuilder, rows: T, values: T, *, out_type: int = _INT32) -> str:
    """Return where [n, v] values would be inserted in n sorted rows, behind equal elements."""
    return _count(b, _pairs(b, "LessOrEqual", rows, values), out_type)


def _pairs(b: NodeBuilder, compare: str, rows: str, values: str) -> str:
    """Compare every element of each row with every value for it: bool [n, v, elements]."""
    return getattr(b, compare)(b.Unsqueeze(rows, b.ints(1)), b.Unsqueeze(values, b.ints(-1)))


def _count(b: NodeBuilder, x: str, dtype: int) -> str:
    """Return how many elements along the last axis are true, in a dtype of ONNX's number."""
    if dtype not in (_INT32, _INT64):
        raise b.error(f"counts of dtype {dtype}; expected {_INT32} (int32) or {_INT64} (int64)")
    return b.ReduceSum(b.Cast(x, to=dtype), b.ints(-1), keepdims=0)


@operator("HistogramFixedWidth")
def histogram_fixed_width(
    b: NodeBuilder, values: T, value_range: T, nbins: Int32, *, dtype: int = _INT32
) -> str:
    """Return how many values are in each of equal bins; those outside are in the outer ones."""
    low, high = (b.slice(value_range, 0, at, at + 1) for at in (0, 1))
    bins = b.Cast(nbins, to=TO_ONNX[b.dtype(values)])
    share = b.Div(b.Sub(b.Reshape(values, b.ints(-1)), low), b.Sub(high, low))
    last = b.Sub(bins, b.number(1, values))
    at = b.Min(b.Max(b.Floor(b.Mul(share, bins)), b.number(0, values)), last)
    places = b.Range(b.number(0, values), bins, b.number(1, values))
    return _count(b, b.Equal(b.Unsqueeze(places, b.ints(-1)), b.Unsqueeze(at, b.ints(0))), dtype)


@operator("Bincount")
@operator("DenseBincount")
def bincount(
    b: NodeBuilder,
    x: Whole,
    size: Whole,
    weights: Same,
    *,
    binary_output: int = 0,
    Tidx: int = _INT32,
) -> str:
    """Return how often each number below `size` is in a vector, or in each row of a matrix.

    Without elements, the weights are 1. With `binary_output`, results are 1 for all that is there.
    """
    places = b.Range(b.number(0, x), b.Squeeze(b.cast(size, b.dtype(x))), b.number(1, x))
    found = b.Equal(b.Unsqueeze(x, b.ints(-1)), places)
    dtype = b.dtype(weights)
    zero, one = b.number(0, weights), b.number(1, weights)
    if binary_output:
        there = b.ReduceMax(b.Cast(found, to=_INT32), b.ints(-2), keepdims=0)
        return b.cast(there, dtype)
    share = one
    if b.rank(weights, 1, 2) == 2:
        share = b.Unsqueeze(weights, b.ints(-1))
    elif b.rank(x, 1, 2) == 1:
        behind = b.Concat(weights, b.Expand(one, b.Shape(x)), axis=0)
        share = b.Unsqueeze(b.Slice(behind, b.ints(0), b.size(x, 0)), b.ints(-1))
    return b.ReduceSum(b.Where(found, share, zero), b.ints(-2), keepdims=0)


@operator("Invert")
def invert(b: NodeBuilder, x: Whole) -> str:
    """Return the complement of all bits."""
    return b.BitwiseNot(x)


@operator("PopulationCount")
def population_count(b: NodeBuilder, x: Whole) -> str:
    """Return how many bits of each element are 1, as uint8."""
    width = b.dtype(x).itemsize * 8
    unsigned = np.dtype(f"u{b.dtype(x).itemsize}")
    bits = b.Unsqueeze(b.BitCast(x, to=TO_ONNX[unsigned]), b.ints(-1))
    masks = b.constant(np.left_shift(np.array(1, unsigned), np.arange(width, dtype=unsigned)))
    is_set = b.Not(b.Equal(b.BitwiseAnd(bits, masks), b.constant(np.array(0, unsigned))))
    return b.cast(_count(b, is_set, _INT32), dtypes.uint8)


@operator("Bitcast")
def bitcast(b: NodeBuilder, x: Anything, *, type: int) -> str:
    """Return the bits of elements as another dtype of the same width."""
    return b.BitCast(x, to=type)


# ── norms and orders ─────────────────────────────────────────────────────────────────────────────


@operator("L2Loss")
def l2_loss(b: NodeBuilder, x: T) -> str:
    """Return half the sum of all squares."""
    return b.scaled(b.ReduceSumSquare(x, keepdims=0), 0.5)


@operator("EuclideanNorm")
def euclidean_norm(
    b: NodeBuilder, x: T, axes: Index, *, keep_dims: int = 0, Tidx: int = _INT32
) -> str:
    """Return the root of sums of squares over some axes."""
    several = b.Reshape(b.cast(axes, dtypes.int64), b.ints(-1))
    return b.ReduceL2(x, several, keepdims=keep_dims, noop_with_empty_axes=1)


@operator("NthElement")
def nth_element(b: NodeBuilder, x: T, n: Int32, *, reverse: int = 0) -> str:
    """Return the n-th smallest element of each row, from 0; the n-th largest if `reverse`."""
    count = b.Add(b.Reshape(b.cast(n, dtypes.int64), b.ints(-1)), b.ints(1))
    first, _ = b.several("TopK", 2, x, count, largest=reverse)
    return b.Squeeze(b.slice(first, -1, -1, np.iinfo(np.int64).max), b.ints(-1))


@operator("InTopK")
@operator("InTopKV2")
def in_top_k(b: NodeBuilder, predictions: T, targets: Index, k: Index) -> str:
    """Return whether fewer than k classes of a row are predicted above the target's; no if NaN."""
    own = b.GatherElements(predictions, b.Unsqueeze(targets, b.ints(-1)), axis=1)
    above = b.Cast(b.Greater(predictions, own), to=_INT64)
    few = b.Less(b.ReduceSum(above, b.ints(-1), keepdims=0), b.cast(k, dtypes.int64))
    finite = b.Less(b.Abs(predictions), b.number(np.inf, predictions))
    lost = b.Cast(b.Not(finite), to=_INT64)
    return b.And(few, b.Equal(b.ReduceSum(lost, b.ints(-1), keepdims=0), b.ints(0)))


# ── matrices ─────────────────────────────────────────────────────────────────────────────────────


@operator("Diag")
def diag(b: NodeBuilder, diagonal: Anything) -> str:
    """Return zeros but for the given tensor on the diagonal, of twice the rank."""
    row = b.Reshape(diagonal, b.ints(-1))
    size = b.size(row, 0)
    matrix = b.Where(_eye(b, size, size), b.Unsqueeze(row, b.ints(-1)), b.number(0, diagonal))
    return b.Reshape(matrix, b.Concat(b.Shape(diagonal), b.Shape(diagonal), axis=0))


@operator("DiagPart")
def diag_part(b: NodeBuilder, x: T) -> str:
    """Return the diagonal of a tensor whose axes are the same twice."""
    axes = b.rank(x, 2, 4, 6) // 2
    half = b.Shape(x, end=axes)
    size = b.ReduceProd(half, keepdims=1)
    matrix = b.Reshape(x, b.Concat(size, size, axis=0))
    kept = b.Where(_eye(b, size, size), matrix, b.number(0, x))
    return b.Reshape(b.ReduceSum(kept, b.ints(0), keepdims=0), half)


@operator("MatrixSetDiag")
def matrix_set_diag(b: NodeBuilder, x: Same, diagonal: Same) -> str:
    """Return matrices with other elements on their diagonals."""
    beside = b.ints(-1 if b.need_extent(x, -2) <= b.need_extent(x, -1) else -2)
    on = _eye(b, b.size(x, -2), b.size(x, -1))
    return b.Where(on, b.Unsqueeze(diagonal, beside), x)


def _eye(b: NodeBuilder, rows: str, columns: str) -> str:
    """Return where the diagonal of a matrix is, of sizes as `NodeBuilder.size` returns them."""
    down, along = (
        b.Range(b.constant(np.array(0)), b.Squeeze(size), b.constant(np.array(1)))
        for size in (rows, columns)
    )
    return b.Equal(b.Unsqueeze(down, b.ints(-1)), b.Unsqueeze(along, b.ints(0)))


@operator("Cross")
def cross(b: NodeBuilder, x: Same, y: Same) -> str:
    """Return cross products of vectors of three elements along the last axis."""
    next_, last = b.ints(1, 2, 0), b.ints(2, 0, 1)
    plus = b.Mul(b.Gather(x, next_, axis=-1), b.Gather(y, last, axis=-1))
    return b.Sub(plus, b.Mul(b.Gather(x, last, axis=-1), b.Gather(y, next_, axis=-1)))


# ── colours ──────────────────────────────────────────────────────────────────────────────────────


@operator("RGBToHSV")
def rgb_to_hsv(b: NodeBuilder, x: T) -> str:
    """Return hue, saturation and value of colours along the last axis, all within [0, 1]."""
    red, green, blue = (b.slice(x, -1, at, at + 1) for at in range(3))
    zero, one = b.number(0, x), b.number(1, x)
    value = b.ReduceMax(x, b.ints(-1), keepdims=1)
    spread = b.Sub(value, b.ReduceMin(x, b.ints(-1), keepdims=1))
    grey, black = b.Equal(spread, zero), b.LessOrEqual(value, zero)
    scale = b.Where(grey, one, b.scaled(spread, 6))
    turns = [
        b.Add(b.Div(b.Sub(p, q), scale), b.number(third / 3, x))
        for third, (p, q) in enumerate(((green, blue), (blue, red), (red, green)))
    ]
    hue = b.Where(b.Equal(green, value), turns[1], turns[2])
    hue = b.Where(grey, zero, b.Where(b.Equal(red, value), turns[0], hue))
    hue = b.Where(b.Less(hue, zero), b.Add(hue, one), hue)
    saturation = b.Where(black, zero, b.Div(spread, b.Where(black, one, value)))
    return b.Concat(hue, saturation, value, axis=-1)


@operator("HSVToRGB")
def hsv_to_rgb(b: NodeBuilder, x: T) -> str:
    """Return colours of this hue, saturation and value, which are along the last axis."""
    hue, saturation, value = (b.slice(x, -1, at, at + 1) for at in range(3))
    zero, one = b.number(0, x), b.number(1, x)
    centre = b.constant(np.array([3, 2, 4], b.dtype(x)))
    away = b.Abs(b.Sub(b.scaled(hue, 6), centre))
    slope, start = (b.constant(np.array(each, b.dtype(x))) for each in ([1, -1, -1], [-1, 2, 2]))
    pure = b.Min(b.Max(b.Add(b.Mul(away, slope), start), zero), one)
    share = b.Add(b.Sub(one, saturation), b.Mul(saturation, pure))
    return b.Mul(share, value)
