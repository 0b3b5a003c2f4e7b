"""Range rules of elementwise operators; see `range_rules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, inf, isfinite, log, pi, sqrt, trunc
from types import MappingProxyType

import numpy as np

from ...ir.dtypes import DType, bool_
from ...ir.graph import Node, Value
from ...ir.op import Op
from ...ops import elementwise as ew
from ...ops import shape as sh
from ...ops.cuts import reduced_axes
from ...ops.gather import ScatterElements, ScatterND
from ...ops.reduce import Reduce, ReduceL1, ReduceL2, ReduceMax, ReduceSum
from ..editing import dtype_of, number, shape_of
from .ranges import (
    BYTE_LIMITS,
    LIKELY,
    UNBOUNDED,
    Ranges,
    Rule,
    ValueRange,
    fixed,
    input_of,
    monotone,
    of_union,
    power_of,
    spread,
    times,
    unbounded,
)


def _add(node: Node, ranges: Ranges) -> ValueRange:
    first, *rest = ranges.inputs(node)
    for other in rest:
        counted = first.counted and (other.counted or other.bound < inf)
        low, high = first.low + other.low, first.high + other.high
        first = ValueRange(first.size + other.size, low, high, counted or other.counted)
    return replace(first, shares=False)


def _sub(node: Node, ranges: Ranges) -> ValueRange:
    a, b = (ranges[input_of(node, i)] for i in (0, 1))
    low, high = a.low - b.high, a.high - b.low
    greatest = input_of(node, 1).producer
    if greatest is not None and _is_maximum(greatest):
        least = input_of(node, 0)
        while (made := least.producer) is not None and isinstance(made.op, ew.Sub):
            if ranges[input_of(made, 1)].low < 0:
                break
            least = input_of(made, 0)  # random features: x - |x|² / 2 - max(x)
        high = min(high, 0.0) if greatest.inputs[0] is least else high
    return ValueRange(a.size + b.size, low, high, a.counted or b.counted)


def _is_maximum(node: Node) -> bool:
    """Whether results are maxima of what they are beside: without kept axes they may be others'."""
    is_beside = isinstance(node.op, ReduceMax) and (node.op.keepdims or shape_of(node.output) == ())
    return bool(is_beside)


def _mul(node: Node, ranges: Ranges) -> ValueRange:
    a, b = (ranges[input_of(node, i)] for i in (0, 1))
    low, high = spread((a.low, a.high), (b.low, b.high))
    if node.inputs[0] is node.inputs[1]:
        low = max(low, 0.0)
    counted = any(
        x.counted and (y.counted or other.data is not None)
        for x, y, other in ((a, b, input_of(node, 1)), (b, a, input_of(node, 0)))
    )
    shares = (a.shares and 0 <= b.low <= b.high <= 1) or (b.shares and 0 <= a.low <= a.high <= 1)
    return ValueRange(times(a.size, b.size), low, high, counted, shares)


def _div(node: Node, ranges: Ranges) -> ValueRange:
    a, b = (ranges[input_of(node, i)] for i in (0, 1))
    divisor = input_of(node, 1).data
    if divisor is not None:
        minimum = float(np.abs(divisor.astype(np.float64)).min(initial=1))
        inverse = 1 / minimum if minimum else inf
        below = 0.0 if (divisor > 0).all() else -inverse
        ends = spread((a.low, a.high), (below, inverse))
        size = a.size / b.size if b.size else inf
        return ValueRange(size, *ends, a.counted)
    total = _total_of(input_of(node, 1), input_of(node, 0), positive=a.low >= 0)
    if total is not None:
        sums = isinstance(total.op, ReduceSum | ReduceL1)
        return ValueRange(1.0, 0.0 if a.low >= 0 else -1.0, 1.0, shares=sums and a.low >= 0)
    bound = a.bound / b.distance if b.distance else inf
    if isfinite(a.size) and b.distance:
        size = a.size / max(b.distance, min(b.size, b.bound))
    else:  # numerator and denominator grow at the same rate, as in a mean
        size = inf if isfinite(b.size) and not isfinite(a.size) else LIKELY
    return ValueRange(size, 0.0 if a.low >= 0 and b.low >= 0 else -bound, bound)


def _total_of(divisor: Value, x: Value, *, positive: bool) -> Node | None:
    """Return the reduction of rows that a divisor of their elements is at least, if it bounds them.

    It is a sum of these, if they are not negative, or of their sizes, a length, or the greatest
    size.
    """
    value, shape = divisor, shape_of(x)
    if not shape or shape_of(divisor) != (*shape[:-1], 1):
        return None
    while (node := value.producer) is not None and node.inputs[0] is not None:
        if isinstance(node.op, Reduce):
            is_last = reduced_axes(node) == (len(shape) - 1,)
            return node if is_last and _bounds(node, x, positive=positive) else None
        kept = _not_below(node)
        if kept is None:
            return None
        value = kept
    return None


def _bounds(reduction: Node, x: Value, *, positive: bool) -> bool:
    """Whether no element of a tensor is greater than a reduction of it."""
    value = input_of(reduction, 0)
    maker = value.producer
    if maker is not None and isinstance(maker.op, ew.Abs) and maker.inputs[0] is x:
        return isinstance(reduction.op, ReduceSum | ReduceMax | ReduceL1 | ReduceL2)
    kinds = ReduceL1 | ReduceL2 | ReduceSum if positive else ReduceL1 | ReduceL2
    return value is x and isinstance(reduction.op, kinds)


def _not_below(node: Node) -> Value | None:
    """Return what the result of a node is at least, element by element; None if that is unknown."""
    if isinstance(node.op, ew.Cast | sh.Unsqueeze | sh.Reshape):
        return node.inputs[0]
    if isinstance(node.op, ew.Clip):
        return None if any(node.inputs[2:]) else node.inputs[0]
    if not isinstance(node.op, ew.Add | ew.Max) or len(node.inputs) != 2:
        return None
    for value, other in (node.operands, reversed(node.operands)):
        data = other.data
        if data is not None and (isinstance(node.op, ew.Max) or (data >= 0).all()):
            return value
    return None


def _exp(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    if x.high > 88:
        return ValueRange(inf, 0.0)
    return ValueRange(exp(x.high), exp(x.low), exp(x.high))


def _reciprocal(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    if not x.distance:
        return UNBOUNDED
    bound = 1 / x.distance
    low = -bound if x.high < 0 else 0.0
    return ValueRange(1 / max(x.distance, min(x.size, x.bound)), low, bound, steep=True)


def _pow(node: Node, ranges: Ranges) -> ValueRange:
    x, power = ranges[input_of(node, 0)], number(input_of(node, 1), 64)
    if power is None:
        return UNBOUNDED
    if power < 0 and not x.distance:
        return UNBOUNDED
    bound = power_of(x.distance if power < 0 else x.bound, power)
    size = bound if power < 0 else power_of(x.size, power)
    return ValueRange(size, -bound if power % 2 == 1 and x.low < 0 else 0.0, bound)


def _root(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    low, high = (sqrt(max(end, 0.0)) for end in (x.low, x.high))
    return ValueRange(sqrt(x.size), low, high)


def _abs(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    return ValueRange(x.size, x.distance, x.bound, x.counted)


def _neg(node: Node, ranges: Ranges) -> ValueRange:
    return ranges[input_of(node, 0)].scaled(-1.0)


def _clip(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    least, most = (
        ValueRange(x.size, end, end) if value is None else ranges[value]
        for value, end in zip((*node.inputs[1:], None, None), (-inf, inf), strict=False)
    )
    low, high = x.clipped(least.low, most.low).low, x.clipped(least.high, most.high).high
    return ValueRange(x.size, low, high, x.counted)


def _max(node: Node, ranges: Ranges) -> ValueRange:
    found = list(ranges.inputs(node))
    low, high = max(r.low for r in found), max(r.high for r in found)
    return ValueRange(max(r.size for r in found), low, high)


def _min(node: Node, ranges: Ranges) -> ValueRange:
    found = list(ranges.inputs(node))
    low, high = min(r.low for r in found), min(r.high for r in found)
    return ValueRange(max(r.size for r in found), low, high)


def _where(node: Node, ranges: Ranges) -> ValueRange:
    a, b = ranges[input_of(node, 1)], ranges[input_of(node, 2)]
    if _is_of_counts(node, ranges):
        return ValueRange(1.0, min(a.low, 0.0), max(a.high, 1.0))
    shares = (a.shares and b.bound == 0) or (b.shares and a.bound == 0)
    return replace(a.union(b), shares=shares)


def _is_of_counts(node: Node, ranges: Ranges) -> bool:
    """Whether a Where replaces a negative power of counts that are 0 (degrees of nodes: GCN).

    The others are at least 1.
    """
    found, other, value = node.operands[0].producer, *node.operands[1:]
    power = value.producer
    if found is None or power is None or not isinstance(power.op, ew.Pow) or other.data is None:
        return False
    x, exponent = power.operands[0], number(power.operands[1], 64)
    if exponent is None or exponent >= 0:
        return False
    if isinstance(found.op, ew.Equal):
        pole = next((number(v, 64) for v in found.operands if v.is_constant), None)
        tested = next((v for v in found.operands if not v.is_constant), None)
        is_pole = (tested is x and pole == 0) or (tested is value and pole == inf)
    else:
        is_pole = isinstance(found.op, ew.IsInf) and found.operands[0] is value
    return is_pole and _are_counts(x, ranges)


def _are_counts(value: Value, ranges: Ranges) -> bool:
    """Whether elements are sums of as many ones as there are updates, from 0 on."""
    node = value.producer
    if node is None or not isinstance(node.op, ScatterElements | ScatterND):
        return False
    begin, one = ranges[node.operands[0]], ranges[node.operands[2]]
    return node.op.reduction == "add" and (begin.low, begin.high, one.low, one.high) == (0, 0, 1, 1)


def _relu(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    return ValueRange(x.size, max(x.low, 0.0), max(x.high, 0.0), x.counted)


def _thresholded(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of what is greater than a number, and of 0 instead of the others."""
    x = ranges[input_of(node, 0)]
    above = replace(x, low=max(x.low, min(getattr(node.op, "alpha", 1.0), x.high)))
    return above.or_zero()


def _softplus(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    low, high = np.logaddexp(0, (x.low, x.high)).tolist()
    return ValueRange(x.size + log(2), low, high)


def _mod(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of remainders: with the signs of what is divided, or of the divisor."""
    x, y = (ranges[input_of(node, i)] for i in (0, 1))
    if getattr(node.op, "fmod", 0):
        return replace(x.or_zero().clipped(-y.bound, y.bound), shares=False)
    return replace(y.or_zero(), size=x.size, counted=x.counted, shares=False)


def _gated(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of x times a factor between 0 and 1."""
    x = ranges[input_of(node, 0)]
    return ValueRange(x.size, min(x.low, 0.0), max(x.high, 0.0))


def _leaky(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of x where it is positive, and of x times a slope elsewhere."""
    slope = getattr(node.op, "alpha", 1.0)
    slopes = ValueRange(abs(slope), slope, slope)
    if isinstance(node.op, ew.PRelu):
        slopes = ranges[input_of(node, 1)]
    x = ranges[input_of(node, 0)]
    if not isfinite(slopes.bound):
        return UNBOUNDED
    below = spread((min(x.low, 0.0), min(x.high, 0.0)), (slopes.low, slopes.high))
    size = max(x.size, times(x.size, slopes.bound))
    return ValueRange(size, *below, x.counted).union(x.clipped(0.0, inf))


def _swiglu(node: Node, ranges: Ranges) -> ValueRange:
    sizes = [r.size for r in ranges.inputs(node)]
    return ValueRange(times(sizes[0], sizes[-1]))


def _cast(node: Node, ranges: Ranges) -> ValueRange:
    source, wanted = input_of(node, 0), dtype_of(node.output)
    x, given = ranges[source], dtype_of(source)
    if wanted is not None and wanted.kind in "biu" and not (given and np.can_cast(given, wanted)):
        x = _of_integers(x, wanted)
    if source.data is not None or given is None:
        return replace(x, counted=False)
    if given in BYTE_LIMITS:
        return replace(_of_integers(x, given), size=LIKELY, counted=False)
    return replace(x, counted=True) if given.kind in "iu" else x


def _of_integers(x: ValueRange, dtype: DType) -> ValueRange:
    """Return the range of integers: numbers that their type does not hold may become any."""
    low, high = BYTE_LIMITS.get(dtype, (-inf, inf))
    if dtype != bool_:
        limits = np.iinfo(dtype)
        if limits.min <= x.low <= x.high <= limits.max:
            low, high = float(trunc(x.low)), float(trunc(x.high))
    return replace(x, low=low, high=high)


def _build() -> Mapping[type[Op], Rule]:
    rules: dict[type[Op], Rule] = {}

    def put(rule: Rule, *kinds: type[Op]) -> None:
        rules.update(dict.fromkeys(kinds, rule))

    put(monotone(np.floor), ew.Floor)
    put(monotone(np.ceil), ew.Ceil)
    put(monotone(np.round), ew.Round)
    put(_mod, ew.Mod)
    put(of_union, ew.Mean)
    put(_add, ew.Add, ew.Sum)
    put(_sub, ew.Sub)
    put(_mul, ew.Mul)
    put(_div, ew.Div)
    put(_exp, ew.Exp)
    put(_reciprocal, ew.Reciprocal)
    put(_pow, ew.Pow)
    put(_root, ew.Sqrt)
    put(_abs, ew.Abs)
    put(_neg, ew.Neg)
    put(_clip, ew.Clip)
    put(_max, ew.Max)
    put(_min, ew.Min)
    put(_where, ew.Where)
    put(_relu, ew.Relu)
    put(_thresholded, ew.ThresholdedRelu)
    put(_softplus, ew.Softplus)
    put(_gated, ew.Gelu, ew.Swish, ew.HardSwish, ew.Mish)
    put(_leaky, ew.LeakyRelu, ew.PRelu)
    put(_swiglu, ew.SwiGLU)
    put(_cast, ew.Cast)
    put(fixed(0.0, 1.0), ew.Sigmoid, ew.HardSigmoid)
    put(fixed(-1.0, 1.0), ew.Tanh, ew.Erf, ew.Sin, ew.Cos, ew.Softsign, ew.Sign)
    put(fixed(-pi / 2, pi / 2), ew.Atan)
    put(fixed(-104.0, 89.0, 16.0), ew.Log)
    put(unbounded, ew.Tan, ew.Sinh, ew.Cosh)
    return MappingProxyType(rules)


RULES = _build()
