"""Range rules of elementwise operators; see `range_rules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, inf, isfinite, sqrt
from types import MappingProxyType

import numpy as np

from ..ir.graph import Node, Value
from ..ir.op import Op
from ..ir.types import TensorType
from ..ops import elementwise as ew
from ..ops import shape as sh
from ..ops.gather import ScatterElements, ScatterND
from ..ops.reduce import ReduceMax, ReduceSum
from .editing import number, shape_of
from .ranges import (
    BYTE_LIMITS,
    LIKELY,
    UNBOUNDED,
    Ranges,
    Rule,
    ValueRange,
    fixed,
    input_of,
    of_first,
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
    if a.low >= 0 and _sums(input_of(node, 1), input_of(node, 0)):
        return ValueRange(1.0, 0.0, 1.0, shares=True)
    bound = a.bound / b.distance if b.distance else inf
    if isfinite(a.size) and b.distance:
        size = a.size / max(b.distance, min(b.size, b.bound))
    else:  # numerator and denominator grow at the same rate, as in a mean
        size = inf if isfinite(b.size) and not isfinite(a.size) else LIKELY
    return ValueRange(size, 0.0 if a.low >= 0 and b.low >= 0 else -bound, bound)


def _sums(divisor: Value, x: Value) -> bool:
    """Whether a value is at least the sum of another one along its last axis."""
    shape, value = shape_of(x), divisor
    if not shape or shape_of(divisor) != (*shape[:-1], 1):
        return False
    while (node := value.producer) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
        if isinstance(node.op, ReduceSum):
            axes = node.operands[1].data if len(node.inputs) > 1 else None
            last = [] if axes is None else axes.reshape(-1).tolist()
            return value is x and last in ([-1], [len(shape) - 1])
        if isinstance(node.op, ew.Add) and node.operands[1].data is not None:
            if (node.operands[1].data < 0).any():
                return False
        elif not isinstance(node.op, ew.Cast | sh.Unsqueeze | sh.Reshape):
            return False
    return False


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
    if power < 0:
        return ValueRange(x.distance**power, 0.0, x.distance**power) if x.distance else UNBOUNDED
    low = 0.0 if power % 2 != 1 else -inf
    return ValueRange(
        power_of(x.size, power), max(low, -power_of(x.bound, power)), power_of(x.bound, power)
    )


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
    limits = [number(value, 64) for value in (*node.inputs[1:], None, None)[:2]]
    low = x.low if limits[0] is None else max(x.low, limits[0])
    high = x.high if limits[1] is None else min(x.high, limits[1])
    return ValueRange(x.size, min(low, high), max(high, min(low, high)), x.counted)


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


def _gated(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of x times a factor between 0 and 1."""
    x = ranges[input_of(node, 0)]
    return ValueRange(x.size, min(x.low, 0.0), max(x.high, 0.0))


def _leaky(node: Node, ranges: Ranges) -> ValueRange:
    slope = getattr(node.op, "alpha", 1.0)
    if isinstance(node.op, ew.PRelu):
        slope = ranges[input_of(node, 1)].bound
    x = ranges[input_of(node, 0)]
    return x.union(x.scaled(slope)) if isfinite(slope) else UNBOUNDED


def _swiglu(node: Node, ranges: Ranges) -> ValueRange:
    sizes = [r.size for r in ranges.inputs(node)]
    return ValueRange(times(sizes[0], sizes[-1]))


def _cast(node: Node, ranges: Ranges) -> ValueRange:
    source = input_of(node, 0)
    x, type_ = ranges[source], source.type
    if source.data is not None or not isinstance(type_, TensorType):
        return replace(x, counted=False)
    limits = BYTE_LIMITS.get(type_.dtype)
    if limits is not None:
        return ValueRange(LIKELY, max(limits[0], x.low), min(limits[1], x.high))
    return replace(x, counted=True) if type_.dtype.kind in "iu" else x


def _build() -> Mapping[type[Op], Rule]:
    rules: dict[type[Op], Rule] = {}

    def put(rule: Rule, *kinds: type[Op]) -> None:
        rules.update(dict.fromkeys(kinds, rule))

    put(of_first, ew.Floor, ew.Ceil, ew.Round, ew.Mod)
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
    put(_relu, ew.Relu, ew.ThresholdedRelu, ew.Softplus)
    put(_gated, ew.Gelu, ew.Swish, ew.HardSwish, ew.Mish)
    put(_leaky, ew.LeakyRelu, ew.PRelu)
    put(_swiglu, ew.SwiGLU)
    put(_cast, ew.Cast)
    put(fixed(0.0, 1.0), ew.Sigmoid, ew.HardSigmoid)
    put(fixed(-1.0, 1.0), ew.Tanh, ew.Erf, ew.Sin, ew.Cos, ew.Softsign, ew.Sign, ew.Atan)
    put(fixed(-104.0, 89.0, 16.0), ew.Log)
    put(unbounded, ew.Tan, ew.Sinh, ew.Cosh)
    return MappingProxyType(rules)


RULES = _build()
