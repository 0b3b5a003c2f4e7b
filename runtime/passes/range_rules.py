"""Range rules: the range of each operator's result from those of its inputs (see `ranges`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, hypot, inf, isfinite, sqrt

import numpy as np

from ..ir.dtypes import DType, bool_, int8, uint8
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.types import Shape, TensorType
from ..ops import attention, conv, gather, matmul, movement, norm, pool, quantize, recurrent, reduce
from ..ops import elementwise as ew
from ..ops import shape as sh
from .editing import number
from .ranges import (
    DOUBT,
    GREAT,
    LIKELY,
    UNBOUNDED,
    UNKNOWN,
    Ranges,
    ValueRange,
    count_along,
    norm_of,
    spread,
    times,
)

Rule = Callable[[Node, Ranges], ValueRange | tuple[ValueRange, ...]]


def of_unknown(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range for operators without a rule: that of an activation, or of the inputs."""
    sizes = [r.size for r in ranges.inputs(node)]
    return ValueRange(max([LIKELY, *sizes]))


def _first(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of the first input, for operators that move, select or average elements."""
    return replace(ranges[_input(node, 0)], shares=False)


def _view(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of the first input; rows of equal length remain rows."""
    source = _input(node, 0)
    before, after = (_shape(value) for value in (source, node.output))
    same = before is not None and after is not None and before[-1:] == after[-1:] != (None,)
    return replace(ranges[source], shares=ranges[source].shares and same)


def _shape(value: Value) -> Shape | None:
    return value.type.shape if isinstance(value.type, TensorType) else None


def _union(node: Node, ranges: Ranges) -> ValueRange:
    first, *rest = ranges.inputs(node)
    for other in rest:
        first = first.union(other)
    return replace(first, shares=False)


def _input(node: Node, place: int) -> Value:
    value = node.inputs[place]
    assert value is not None
    return value


def _fixed(low: float, high: float, size: float = inf) -> Rule:
    return lambda node, ranges: ValueRange(min(size, max(abs(low), abs(high))), low, high)


def _unbounded(node: Node, ranges: Ranges) -> ValueRange:
    return UNBOUNDED


# ── elementwise ──────────────────────────────────────────────────────────────────────────────────


def _monotone(function: Callable[[float], float], grows: float = 1.0) -> Rule:
    """Return the rule of a non-decreasing function that scales sizes by this factor."""

    def rule(node: Node, ranges: Ranges) -> ValueRange:
        x = ranges[_input(node, 0)]
        return ValueRange(x.size * grows, function(x.low), function(x.high))

    return rule


def _add(node: Node, ranges: Ranges) -> ValueRange:
    first, *rest = ranges.inputs(node)
    for other in rest:
        counted = first.counted and (other.counted or other.bound < inf)
        low, high = first.low + other.low, first.high + other.high
        first = ValueRange(first.size + other.size, low, high, counted or other.counted)
    return replace(first, shares=False)


def _sub(node: Node, ranges: Ranges) -> ValueRange:
    a, b = (ranges[_input(node, i)] for i in (0, 1))
    low, high = a.low - b.high, a.high - b.low
    greatest = _input(node, 1).producer
    if greatest is not None and isinstance(greatest.op, reduce.ReduceMax):
        high = min(high, 0.0) if greatest.inputs[0] is node.inputs[0] else high
    return ValueRange(a.size + b.size, low, high, a.counted or b.counted)


def _mul(node: Node, ranges: Ranges) -> ValueRange:
    a, b = (ranges[_input(node, i)] for i in (0, 1))
    low, high = spread((a.low, a.high), (b.low, b.high))
    if node.inputs[0] is node.inputs[1]:
        low = max(low, 0.0)
    counted = any(
        x.counted and (y.counted or other.data is not None)
        for x, y, other in ((a, b, _input(node, 1)), (b, a, _input(node, 0)))
    )
    shares = (a.shares and 0 <= b.low <= b.high <= 1) or (b.shares and 0 <= a.low <= a.high <= 1)
    return ValueRange(times(a.size, b.size), low, high, counted, shares)


def _div(node: Node, ranges: Ranges) -> ValueRange:
    a, b = (ranges[_input(node, i)] for i in (0, 1))
    divisor = _input(node, 1).data
    if divisor is not None:
        minimum = float(np.abs(divisor.astype(np.float64)).min(initial=1))
        inverse = 1 / minimum if minimum else inf
        ends = spread((a.low, a.high), (-inverse, inverse))
        size = a.size / b.size if b.size else inf
        return ValueRange(size, *ends, a.counted)
    bound = a.bound / b.distance if b.distance else inf
    if isfinite(a.size) and b.distance:
        size = a.size / max(b.distance, min(b.size, b.bound))
    else:  # numerator and denominator grow alike, as in a mean
        size = inf if isfinite(b.size) and not isfinite(a.size) else LIKELY
    return ValueRange(size, 0.0 if a.low >= 0 and b.low >= 0 else -bound, bound)


def _exp(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[_input(node, 0)]
    if x.high > 88:
        return ValueRange(inf, 0.0)
    return ValueRange(exp(x.high), exp(x.low), exp(x.high))


def _reciprocal(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[_input(node, 0)]
    if not x.distance:
        return UNBOUNDED
    bound = 1 / x.distance
    low = -bound if x.high < 0 else 0.0
    return ValueRange(1 / max(x.distance, min(x.size, x.bound)), low, bound, steep=True)


def _pow(node: Node, ranges: Ranges) -> ValueRange:
    x, power = ranges[_input(node, 0)], number(_input(node, 1), 64)
    if power is None:
        return UNBOUNDED
    if power < 0:
        return ValueRange(x.distance**power, 0.0, x.distance**power) if x.distance else UNBOUNDED
    low = 0.0 if power % 2 != 1 else -inf
    return ValueRange(
        _power(x.size, power), max(low, -_power(x.bound, power)), _power(x.bound, power)
    )


def _power(x: float, power: float) -> float:
    try:
        return x**power
    except OverflowError:
        return inf


def _root(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[_input(node, 0)]
    low, high = (sqrt(max(end, 0.0)) for end in (x.low, x.high))
    return ValueRange(sqrt(x.size), low, high)


def _abs(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[_input(node, 0)]
    return ValueRange(x.size, x.distance, x.bound, x.counted)


def _neg(node: Node, ranges: Ranges) -> ValueRange:
    return ranges[_input(node, 0)].scaled(-1.0)


def _clip(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[_input(node, 0)]
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
    a, b = ranges[_input(node, 1)], ranges[_input(node, 2)]
    shares = (a.shares and b.bound == 0) or (b.shares and a.bound == 0)
    return replace(a.union(b), shares=shares)


def _relu(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[_input(node, 0)]
    return ValueRange(x.size, max(x.low, 0.0), max(x.high, 0.0), x.counted)


def _gated(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of x times a factor between 0 and 1."""
    x = ranges[_input(node, 0)]
    return ValueRange(x.size, min(x.low, 0.0), max(x.high, 0.0))


def _leaky(node: Node, ranges: Ranges) -> ValueRange:
    slope = getattr(node.op, "alpha", 1.0)
    if isinstance(node.op, ew.PRelu):
        slope = ranges[_input(node, 1)].bound
    x = ranges[_input(node, 0)]
    return x.union(x.scaled(slope)) if isfinite(slope) else UNBOUNDED


def _swiglu(node: Node, ranges: Ranges) -> ValueRange:
    sizes = [r.size for r in ranges.inputs(node)]
    return ValueRange(times(sizes[0], sizes[-1]))


def _cast(node: Node, ranges: Ranges) -> ValueRange:
    source = _input(node, 0)
    x, type_ = ranges[source], source.type
    if source.data is not None or not isinstance(type_, TensorType):
        return replace(x, counted=False)
    limits = _INTEGERS.get(type_.dtype)
    if limits is not None:
        return ValueRange(LIKELY, max(limits[0], x.low), min(limits[1], x.high))
    return replace(x, counted=True) if type_.dtype.kind in "iu" else x


_INTEGERS: dict[DType, tuple[float, float]] = {
    bool_: (0.0, 1.0),
    uint8: (0.0, 255.0),
    int8: (-128.0, 127.0),
}


def _range(node: Node, ranges: Ranges) -> ValueRange:
    return ValueRange(float(UNKNOWN), counted=True)


# ── layers ───────────────────────────────────────────────────────────────────────────────────────


def layer(
    x: ValueRange, weight: Value, channels: int, bias: ValueRange | None, factor: float = 1
) -> ValueRange:
    """Return the range of a product with constant weights."""
    assert weight.data is not None
    data = weight.data
    wide = data if data.dtype.kind == "f" and data.itemsize > 2 else data.astype(np.float32)
    gain = norm_of(wide) / sqrt(max(channels, 1)) * abs(factor)
    promised = times(min(x.size, GREAT), gain)
    if promised <= LIKELY * DOUBT:
        size = min(promised * DOUBT, LIKELY)
    else:  # weights of such a norm do not preserve magnitudes
        size = promised / DOUBT if gain <= DOUBT else promised
    size = max(size, bias.size) if bias is not None else size
    if size == LIKELY or not isfinite(x.bound):
        return ValueRange(size)
    with np.errstate(over="ignore"):
        maximum = float(np.abs(wide).sum(dtype=np.float64)) * abs(factor)
    bound = times(x.bound, maximum) + (bias.bound if bias is not None else 0.0)
    return ValueRange(size, -bound, bound)


def _conv(node: Node, ranges: Ranges) -> ValueRange:
    weight = _input(node, 1)
    x = ranges[_input(node, 0)]
    bias = ranges[_input(node, 2)] if len(node.inputs) > 2 and node.inputs[2] else None
    if weight.data is None:
        shape = weight.type.shape if isinstance(weight.type, TensorType) else None
        terms = count_along(weight, tuple(range(1, len(shape)))) if shape else UNKNOWN
        size = times(times(x.size, ranges[weight].size), terms)
        return ValueRange(max(size, bias.size if bias else 0.0))
    is_transposed = isinstance(node.op, conv.ConvTranspose)
    channels = weight.data.shape[0]
    if is_transposed:
        channels = weight.data.shape[1] * getattr(node.op, "group", 1)
    return layer(x, weight, channels, bias)


def _gemm(node: Node, ranges: Ranges) -> ValueRange:
    op = node.op
    assert isinstance(op, matmul.Gemm)
    addend = node.inputs[2] if len(node.inputs) > 2 else None
    bias = None if addend is None else ranges[addend].scaled(op.beta)
    a, b = _input(node, 0), _input(node, 1)
    if b.data is not None and a.data is None:
        channels = b.data.shape[0 if op.transB else 1]
        return layer(ranges[a], b, channels, bias, op.alpha)
    terms = count_along(a, (0 if op.transA else 1,))
    size = times(times(ranges[a].size, ranges[b].size), terms * abs(op.alpha))
    return ValueRange(size + (0.0 if bias is None else bias.size))


def _matmul(node: Node, ranges: Ranges) -> ValueRange:
    a, b = _input(node, 0), _input(node, 1)
    for x, weight, axis in ((a, b, -1), (b, a, -2)):
        if weight.data is not None and x.data is None and weight.data.ndim >= 2:
            inner = weight.data.shape[-2 if axis == -1 else -1]
            return layer(ranges[x], weight, weight.data.size // max(inner, 1), None)
    left, right = ranges[a], ranges[b]
    if left.shares:  # weighted means of the rows of b
        return replace(right, shares=False, counted=False)
    rank = a.type.rank if isinstance(a.type, TensorType) else None
    terms = count_along(a, (-1,)) if rank else UNKNOWN
    low, high = spread((left.low, left.high), (right.low, right.high))
    size = times(times(left.size, right.size), sqrt(terms))
    counted = left.counted or right.counted
    return ValueRange(size, min(times(low, terms), 0.0), max(times(high, terms), 0.0), counted)


def _einsum(node: Node, ranges: Ranges) -> ValueRange:
    size = 1.0
    for each in ranges.inputs(node):
        size = times(size, each.size)
    return ValueRange(times(size, UNKNOWN))


def _attention(node: Node, ranges: Ranges) -> tuple[ValueRange, ...]:
    values = replace(ranges[_input(node, 2)], shares=False, counted=False)
    return (values, *[ValueRange()] * (len(node.outputs) - 1))


def _quantized(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of integers times a scale."""
    scale = ranges[_input(node, 1)]
    type_ = _input(node, 0).type
    limits = _INTEGERS.get(type_.dtype) if isinstance(type_, TensorType) else None
    if limits is None or not isfinite(scale.bound):
        return ValueRange()
    return ValueRange(min(LIKELY, 256 * scale.bound), -256 * scale.bound, 256 * scale.bound)


# ── normalizations and reductions ────────────────────────────────────────────────────────────────


def _normalized(node: Node, ranges: Ranges) -> tuple[ValueRange, ...]:
    """Return the range of a normalized tensor with scale and shift."""
    size = 1.0
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        size = ranges[_input(node, 1)].size
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        size += ranges[_input(node, 2)].size
    return (ValueRange(size), *[UNBOUNDED] * (len(node.outputs) - 1))


def _lrn(node: Node, ranges: Ranges) -> ValueRange:
    op, x = node.op, ranges[_input(node, 0)]
    assert isinstance(op, norm.LRN)
    factor = op.bias**-op.beta if op.bias > 0 else inf
    return x if factor <= 1 else x.scaled(factor)


def _softmax(node: Node, ranges: Ranges) -> ValueRange:
    axis = getattr(node.op, "axis", -1)
    rank = node.output.type.rank if isinstance(node.output.type, TensorType) else None
    is_last = axis == -1 or (rank is not None and axis == rank - 1)
    return ValueRange(1.0, 0.0, 1.0, shares=is_last)


def _reduction(power: float, counts: float) -> Rule:
    """Return the rule of a sum of powers, whose size grows with a power of the number of terms."""

    def rule(node: Node, ranges: Ranges) -> ValueRange:
        source = _input(node, 0)
        x, terms = ranges[source], _terms(node, source)
        size = times(_power(x.size, power), terms**counts)
        bound = times(_power(x.bound, power), terms)
        return ValueRange(size, 0.0 if power != 1 or x.low >= 0 else -bound, bound)

    return rule


def _sum(node: Node, ranges: Ranges) -> ValueRange | tuple[ValueRange, ...]:
    """Return the range of a sum: of what a Softmax weighs along the last axis, that of a mean."""
    source = _input(node, 0)
    product, shape = source.producer, _shape(source)
    if product is not None and isinstance(product.op, ew.Mul) and shape:
        a, b = (_input(product, i) for i in (0, 1))
        for weights, x in ((a, b), (b, a)):
            along = (_shape(weights) or (None,))[-1]
            if ranges[weights].shares and along == shape[-1] and _axes(node) == (len(shape) - 1,):
                return replace(ranges[x], shares=False, counted=False)
    return _reduction(1, 1)(node, ranges)


def _axes(node: Node) -> tuple[int, ...]:
    """Return the axes that a reduction is along; none where they are not known."""
    given = node.inputs[1] if len(node.inputs) > 1 else None
    rank = len(_shape(_input(node, 0)) or ())
    if given is None or given.data is None:
        return ()
    return tuple(int(axis) % max(rank, 1) for axis in given.data.reshape(-1))


def _terms(node: Node, source: Value) -> int:
    op, rank = node.op, source.type.rank if isinstance(source.type, TensorType) else None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if rank is None or not isinstance(op, reduce.Reduce) or (given and given.data is None):
        return UNKNOWN
    axes = None
    if given is not None and given.data is not None:
        axes = tuple(map(int, given.data.reshape(-1)))
    return count_along(source, op.axes(axes, rank))


def _rotated(node: Node, ranges: Ranges) -> ValueRange:
    x, cos, sin = (ranges[_input(node, i)] for i in range(3))
    bound = times(x.bound, cos.bound + sin.bound)
    return ValueRange(times(x.size, hypot(cos.size, sin.size)), -bound, bound)


def _cumulative(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[_input(node, 0)]
    return ValueRange(x.size * UNKNOWN, counted=x.counted)


def _logarithm(x: float) -> float:
    return -104.0 if x <= 0 else float(np.log(x))


def _build() -> dict[type[Op], Rule]:
    rules: dict[type[Op], Rule] = {}

    def put(rule: Rule, *kinds: type[Op]) -> None:
        rules.update(dict.fromkeys(kinds, rule))

    put(_view, sh.Identity, norm.Dropout, sh.Reshape, sh.Flatten, sh.Squeeze, sh.Unsqueeze)
    put(_view, sh.Trilu)
    put(_first, movement.Transpose, movement.Expand, movement.Tile, movement.Split)
    put(_first, movement.Slice, movement.DepthToSpace, movement.SpaceToDepth)
    put(_first, movement.ReverseSequence, gather.Gather, gather.GatherElements, gather.GatherND)
    put(_first, gather.Compress, ew.Floor, ew.Ceil, ew.Round, ew.Mod)
    put(_first, pool.AveragePool, pool.MaxPool, pool.GlobalAveragePool, pool.GlobalMaxPool)
    put(_first, reduce.ReduceMean, reduce.ReduceMax, reduce.ReduceMin)
    put(_union, movement.Concat, movement.Pad, ew.Mean)
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
    put(_range, sh.Range)
    put(_fixed(0.0, 1.0), ew.Sigmoid, ew.HardSigmoid, norm.Hardmax)
    put(_fixed(-1.0, 1.0), ew.Tanh, ew.Erf, ew.Sin, ew.Cos, ew.Softsign, ew.Sign, ew.Atan)
    put(_fixed(-1.0, 1.0), norm.LpNormalization, recurrent.GRU)
    put(_fixed(-104.0, 89.0, 16.0), ew.Log)
    put(_monotone(_logarithm), reduce.ReduceLogSum)
    put(_unbounded, ew.Tan, ew.Sinh, ew.Cosh, reduce.ReduceProd, reduce.CumProd, matmul.Det)
    put(_conv, conv.Conv, conv.ConvTranspose)
    put(_gemm, matmul.Gemm)
    put(_matmul, matmul.MatMul)
    put(_einsum, matmul.Einsum)
    put(_attention, attention.Attention)
    put(_rotated, attention.RotaryEmbedding)
    put(_quantized, quantize.DequantizeLinear)
    put(_normalized, norm.LayerNormalization, norm.RMSNormalization, norm.GroupNormalization)
    put(_normalized, norm.InstanceNormalization, norm.BatchNormalization)
    put(_lrn, norm.LRN)
    put(_softmax, norm.Softmax)
    put(_fixed(-inf, 0.0, 16.0), norm.LogSoftmax)
    put(_sum, reduce.ReduceSum)
    put(_reduction(1, 1), reduce.ReduceL1)
    put(_reduction(2, 1), reduce.ReduceSumSquare)
    put(_reduction(1, 0.5), reduce.ReduceL2)
    put(_cumulative, reduce.CumSum)
    return rules


RULES: dict[type[Op], Rule] = _build()


def ranges_of(graph: Graph) -> Ranges:
    """Return the ranges of a graph whose types are inferred; later changes of it do not show."""
    ranges = Ranges()
    for node in graph.nodes:
        found = RULES.get(type(node.op), of_unknown)(node, ranges)
        for i, value in enumerate(node.outputs):
            one = found[i] if isinstance(found, tuple) else found
            ranges[value] = one.settled()
    return ranges
