"""Recognise LayerNormalization and RMSNormalization that exporters spell out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.dtypes import FLOATS, bfloat16, float16, float32, float64
from ..ir.graph import Graph, Node, Value
from ..ops.elementwise import Add, Cast, Div, Mul, Pow, Reciprocal, Sqrt, Sub
from ..ops.norm import LayerNormalization, RMSNormalization
from ..ops.reduce import ReduceMean
from .driver import Context, Reason
from .editing import dtype_of, rank_of, shape_of
from .fusion import Found, Fusion, Outcome, Replacement, fuse
from .pattern import Apply, Number, OneOf, Pattern, Var, perhaps


def axis_of(mean: Node) -> int | None:
    """Return the first axis of a mean over the last axes, from after; None for another node."""
    source, rank = mean.inputs[0], rank_of(mean.inputs[0])
    if not isinstance(mean.op, ReduceMean) or not mean.op.keepdims or source is None:
        return None
    given = mean.inputs[1] if len(mean.inputs) > 1 else None
    if rank is None or (given is not None and given.data is None):
        return None
    axes = None if given is None or given.data is None else tuple(map(int, given.data.reshape(-1)))
    along = mean.op.axes(axes, rank)
    first = rank - len(along)
    return -len(along) if along and sorted(along) == list(range(first, rank)) else None


def _is_mean(node: Node) -> bool:
    return axis_of(node) is not None


_D = Var("d")
_SQUARE = OneOf(Apply(Pow, _D, 2), Apply(Mul, _D, _D))
_VARIANCE = Apply(ReduceMean, _SQUARE, name="variance", where=_is_mean)
_SHIFTED = Apply(Add, _VARIANCE, Number("epsilon", lambda epsilon: epsilon >= 0))
_SQRT = Apply(Sqrt, _SHIFTED, name="root")
_POWER = Apply(Pow, _SHIFTED, -0.5, name="root")

#: x - mean(x), or x itself; "d" is known by then.
_CENTRED = OneOf(
    Apply(Sub, "x", Apply(ReduceMean, "x", name="mean", where=_is_mean)), "x", name="d"
)
_QUOTIENT = OneOf(
    Apply(Div, _CENTRED, "root"),
    Apply(Mul, _CENTRED, Apply(Reciprocal, "root")),
    Apply(Mul, _CENTRED, Apply(Div, 1, "root")),
)
_PRODUCT = Apply(Mul, _CENTRED, "root")


def _build(found: Found) -> Outcome:
    match, x, mean = found.match, found["x"], found.match.get("mean")
    axis, shape = axis_of(match.made("variance")), shape_of(x)
    if axis is None or (mean is not None and axis_of(match.made("mean")) != axis):
        return None
    if dtype_of(x) not in FLOATS:
        return found.refuse(Reason.TYPE, f"no normalization of {x.type}")
    sizes = () if shape is None else tuple(n for n in shape[axis:] if isinstance(n, int))
    if len(sizes) != -axis:
        return found.refuse(Reason.SHAPE, f"the axes of {x.type} have no known sizes")
    if match.get("rounded") is not None:
        wide, x = x, _narrow(x)
        if x is None or dtype_of(x) != dtype_of(match["rounded"]) or dtype_of(wide) != float32:
            return None
    parameters = [match.get("scale"), match.get("shift")]
    if parameters[1] is not None and (mean is None or parameters[0] is None):
        return None
    given = [value for value in parameters if value is not None]
    if any(shape_of(value) != sizes or _depends(found, value) for value in given):
        return None
    if any(dtype_of(value) != dtype_of(x) for value in given):
        return None
    dtype = x.tensor.dtype
    if not given:
        given = [found.graph.constant(np.ones(sizes, dtype), f"{found.top.name}.scale")]
    kind = LayerNormalization if mean is not None else RMSNormalization
    stash = float64 if dtype == float64 else float32
    op = kind(axis=axis, epsilon=match.numbers["epsilon"], stash_type=stash)
    return Replacement(op, (x, *given))


def _narrow(wide: Value) -> Value | None:
    """Return what is widened to float32 for a norm, and rounded after it."""
    node = wide.producer
    source = node.inputs[0] if node is not None and isinstance(node.op, Cast) else None
    return source if dtype_of(source) in (float16, bfloat16) else None


def _depends(found: Found, value: Value) -> bool:
    """Whether a parameter depends on the nodes that it is a parameter of."""
    return value.producer in found.match.nodes


def _whole(quotient: Pattern) -> Pattern:
    """Return the quotient, perhaps rounded, perhaps with a scale and a shift after it."""
    rounded = OneOf(Apply(Cast, quotient, name="rounded"), quotient)
    return perhaps(Add, perhaps(Mul, rounded, "scale"), "shift")


FUSIONS = tuple(
    Fusion(root, _build, _whole(quotient), reach=5)
    for root, quotient in ((_SQRT, _QUOTIENT), (_POWER, _PRODUCT))
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Put one node in place of ``d / sqrt(mean(d²) + epsilon) * scale + shift``.

    With ``d = x - mean(x)`` that is LayerNormalization, with ``d = x`` and no shift it is
    RMSNormalization. The means are over the last axes and keep them; the square is a Pow or a
    Mul, the division a Div, or a Mul with a reciprocal or with a power of -0.5. Scale and shift
    must have the shape of the axes; where there is no scale, it is ones. A norm of half precision
    may be computed in float32 and rounded before its scale, which is what the operators do.
    """
    return fuse(graph, context, FUSIONS)
