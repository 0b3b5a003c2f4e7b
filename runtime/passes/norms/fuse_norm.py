"""Fuses LayerNormalization and RMSNormalization that exporters decompose."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt

import numpy as np

from ...ir.dtypes import FLOATS, bfloat16, float16, float32, float64
from ...ir.graph import Graph, Node, Value
from ...ops.cuts import reduced_axes
from ...ops.elementwise import Add, Cast, Div, Max, Mul, Neg, Pow, Reciprocal, Sqrt, Sub
from ...ops.movement import Transpose
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.pool import GlobalAveragePool
from ...ops.reduce import ReduceMean, ReduceSum
from ..driver import Context, Reason
from ..editing import dtype_of, first_input, rank_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..pattern import Apply, Number, OneOf, Pattern, Var, perhaps

#: What `mean_axis` gives for the channels of an image.
CHANNELS = 1


def mean_axis(mean: Node) -> int | None:
    """Return the first axis of a mean or sum over the last axes, from the end, or `CHANNELS`.

    None for means over others.
    """
    source = first_input(mean)
    rank = rank_of(source)
    if isinstance(mean.op, GlobalAveragePool):  # tf2onnx's for a mean over all axes but two
        return None if rank is None or rank < 3 else 2 - rank
    if not isinstance(mean.op, ReduceMean | ReduceSum) or not mean.op.keepdims or source is None:
        return None
    along = reduced_axes(mean)
    if rank is None or not along:
        return None
    if along == tuple(range(rank - len(along), rank)):
        return -len(along)
    return CHANNELS if along == (CHANNELS,) else None


def _is_mean(node: Node) -> bool:
    return mean_axis(node) is not None


def _is_of_rows(node: Node) -> bool:
    return mean_axis(node) == -1


_MEANS = (ReduceMean, GlobalAveragePool)
_MEAN = Apply(_MEANS, "x", name="mean", where=_is_mean)
#: x - mean(x), or x itself.
_CENTRED = OneOf(Apply(Sub, "x", _MEAN), "x", name="d")
_D = OneOf(Apply(Sub, "x", _MEAN), Var("d"), name="d")
_SQUARE = OneOf(Apply(Pow, _D, 2), Apply(Mul, _D, "d"))
_VARIANCE = Apply(_MEANS, _SQUARE, name="variance", where=_is_mean)
#: mean(x²) - mean(x)², which is not less than 0 if it is exact.
_X_SQUARE = OneOf(Apply(Pow, "x", 2), Apply(Mul, "x", "x"))
_MOMENT = Apply(_MEANS, _X_SQUARE, name="variance", where=_is_mean)
_MEAN_SQUARE = OneOf(Apply(Pow, _MEAN, 2), Apply(Mul, _MEAN, "mean"))
#: The square of a row's length, which is as many times the mean as it has elements.
_LENGTH = Apply(ReduceSum, _X_SQUARE, name="variance", where=_is_of_rows)
_MOMENTS = perhaps(Max, Apply(Sub, _MOMENT, _MEAN_SQUARE), 0)
_EPSILON = Number("epsilon", lambda epsilon: epsilon >= 0)
#: PyTorch's exporter drops an epsilon of 1e-8 or less: to its optimizer the sum is the variance.
_SHIFTED = perhaps(Add, OneOf(_VARIANCE, _MOMENTS, _LENGTH), _EPSILON)
_SQRT = Apply(Sqrt, _SHIFTED, name="root")
_POWER = Apply(Pow, _SHIFTED, -0.5, name="root")
_INVERSE = OneOf(Apply(Reciprocal, "root"), Apply(Div, 1, "root"))


def _build(found: Found) -> Outcome:
    match, x, mean = found.match, found["x"], found.match.get("mean")
    axis, shape = mean_axis(match.made("variance")), shape_of(x)
    if axis is None or (mean is not None and not _is_mean_of(mean, x, axis, match.get("d"))):
        return None
    if dtype_of(x) not in FLOATS:
        return found.refuse(Reason.TYPE, f"no normalization of {x.type}")
    normed = () if shape is None else shape[axis : axis + 1 if axis == CHANNELS else None]
    sizes = tuple(n for n in normed if isinstance(n, int))
    if not normed or len(sizes) != len(normed):
        return found.refuse(Reason.SHAPE, f"the axes of {x.type} have no known sizes")
    if match.get("rounded") is not None:
        wide, x = x, _narrow(x)
        if x is None or dtype_of(x) != dtype_of(match["rounded"]) or dtype_of(wide) != float32:
            return None
    scale, shift = match.get("scale"), match.get("shift")
    if shift is not None and (mean is None or (scale is None and shift.data is None)):
        return None
    given = [value for value in (scale, shift) if value is not None]
    rank = len(shape or ())
    behind = rank - 2 if axis == CHANNELS else 0
    if any(not _has_shape(value, sizes, behind, rank) or _depends(found, value) for value in given):
        return None
    if any(dtype_of(value) != dtype_of(x) for value in given):
        return None
    dtype = x.tensor.dtype
    given = [_in_shape(found, value, sizes) for value in given]
    if scale is None:
        given.insert(0, found.graph.constant(np.ones(sizes, dtype), f"{found.top.name}.scale"))
    epsilon = match.numbers.get("epsilon", 0.0)
    if isinstance(match.made("variance").op, ReduceSum):
        data, count = given[0].data, prod(sizes)
        if mean is not None or data is None or not count:
            return None
        shrunk = (data.astype(np.float64) / sqrt(count)).astype(dtype)
        given[0] = found.graph.constant(shrunk, f"{found.top.name}.scale")
        epsilon /= count
    kind = LayerNormalization if mean is not None else RMSNormalization
    stash = float64 if dtype == float64 else float32
    op = kind(axis=min(axis, -1), epsilon=epsilon, stash_type=stash)
    if axis != CHANNELS:
        return Replacement(op, (x, *given))
    add = found.builder(found.top.name, found.graph.in_order(match.nodes))
    pixels = found.builder(f"{found.top.name}.pixels")(Transpose(perm=(0, *range(2, rank), 1)), x)
    return Replacement(
        Transpose(perm=(0, rank - 1, *range(1, rank - 1))), (add(op, pixels, *given),)
    )


def _is_mean_of(mean: Value, x: Value, axis: int, centred: Value | None) -> bool:
    """Whether a value is the mean of x, and subtracted from it where squares are of that."""
    node, less = mean.producer, None if centred is None else centred.producer
    if node is None or not isinstance(node.op, _MEANS) or node.inputs[0] is not x:
        return False
    is_less = less is not None and isinstance(less.op, Sub) and [*less.inputs] == [x, mean]
    return mean_axis(node) == axis and (centred is None or is_less)


def _narrow(wide: Value) -> Value | None:
    """Return the value that is cast to float32 for a norm and rounded afterwards."""
    node = wide.producer
    source = node.inputs[0] if node is not None and isinstance(node.op, Cast) else None
    return source if dtype_of(source) in (float16, bfloat16) else None


def _depends(found: Found, value: Value) -> bool:
    """Whether a parameter depends on the nodes of its own norm."""
    return value.producer in found.match.nodes


def _has_shape(value: Value, sizes: tuple[int, ...], behind: int, rank: int) -> bool:
    """Whether a parameter has these sizes and axes of 1 behind them; a constant, before as well.

    It has no more axes than the tensor that is normalized, or the result would have them, too.
    """
    shape, wanted = shape_of(value), sizes + (1,) * behind
    ones = len(shape or ()) - len(wanted)
    fits = value.data is not None and 0 <= ones <= rank - len(wanted)
    fits = fits and shape == ((1,) * ones + wanted)
    return (shape == wanted and not behind) or fits


def _in_shape(found: Found, value: Value, sizes: tuple[int, ...]) -> Value:
    if value.data is None or value.data.shape == sizes:
        return value
    return found.graph.constant(value.data.reshape(sizes), value.name)


def _whole(inverse: Pattern, quotient: Pattern) -> Pattern:
    """Return the pattern of everything after the root.

    That is the quotient, optionally rounded, scaled and shifted; or the scale is multiplied by the
    inverse of the root first, and the mean may be subtracted when both are so scaled.
    """
    rounded = OneOf(Apply(Cast, quotient, name="rounded"), quotient)
    factor = Apply(Mul, inverse, "scale", name="factor")
    product = Apply(Mul, "x", OneOf(factor, inverse, name="factor"))
    offset = Apply(Mul, Apply(Neg, "mean"), "factor")
    scaled_mean = Apply(Mul, "mean", "factor")
    return OneOf(
        perhaps(Add, perhaps(Mul, rounded, "scale"), "shift"),
        perhaps(Add, Apply(Mul, _CENTRED, factor), "shift"),
        Apply(Add, product, perhaps(Add, offset, "shift")),
        Apply(Add, product, Apply(Sub, "shift", scaled_mean)),
        Apply(Sub, product, scaled_mean),
    )


_QUOTIENT = OneOf(Apply(Div, _CENTRED, "root"), Apply(Mul, _CENTRED, _INVERSE))
FUSIONS = (
    Fusion(_SQRT, _build, _whole(_INVERSE, _QUOTIENT), reach=5),
    Fusion(_POWER, _build, _whole(Var("root"), Apply(Mul, _CENTRED, "root")), reach=5),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``d / sqrt(mean(d²) + epsilon) * scale + shift`` by one node.

    With ``d = x - mean(x)`` this is LayerNormalization, with ``d = x`` and no shift
    RMSNormalization. The means are over the last axes and keep them; the square is a Pow or a Mul,
    the division a Div, or a Mul with a reciprocal or a power of -0.5. With ``mean(x²) - mean(x)²``
    as the variance (flax), or ``x * f + (shift - mean(x) * f)`` with ``f = scale / root`` (Keras),
    it is the same. An epsilon that is left out is 0. Scale and shift must have the shape of the
    axes; a missing scale is ones. With the sum over the last axis in place of the mean, where rows
    are divided by their lengths (queries and keys of linear attention), the scale is constant. A
    norm of half precision may be computed in float32 and rounded before its scale, as the operators
    do. Channels of images are normalized between two transposes, which are free in channels last.
    """
    return fuse(graph, context, FUSIONS)
