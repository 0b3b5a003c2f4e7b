"""Range rules: the range of each operator's result from those of its inputs (see `ranges`)."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from math import hypot, inf, isfinite, log, prod, sqrt

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ir.types import Shape, TensorType
from ...ops import (
    attention,
    conv,
    gather,
    matmul,
    movement,
    norm,
    packed,
    pool,
    quantize,
    recurrent,
    reduce,
    signal,
)
from ...ops import elementwise as ew
from ...ops import shape as sh
from ...ops.cuts import axis_of, reduced_axes
from ...ops.resize import GridSample, Resize
from ..editing import static_size
from . import range_elementwise
from .ranges import (
    BYTE_LIMITS,
    DOUBT,
    GREAT,
    LIKELY,
    UNBOUNDED,
    UNKNOWN,
    UPDATES,
    Ranges,
    Rule,
    ValueRange,
    count_along,
    fixed,
    input_of,
    measured_in,
    norm_of,
    of_first,
    of_union,
    power_of,
    spread,
    times,
    unbounded,
)

#: The activations of gates, of candidates, and of the cells of an LSTM, by default.
_GATES = {recurrent.GRU: ("sigmoid", "tanh"), recurrent.LSTM: ("sigmoid", "tanh", "tanh")}


def of_unknown(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range for operators without a rule: that of an activation, or of the inputs."""
    sizes = [r.size for r in ranges.inputs(node)]
    return ValueRange(max([LIKELY, *sizes]))


def _view(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of the first input; rows of equal length remain rows."""
    source = input_of(node, 0)
    before, after = (_shape(value) for value in (source, node.output))
    same = before is not None and after is not None and before[-1:] == after[-1:] != (None,)
    return replace(ranges[source], shares=ranges[source].shares and same)


def _transposed(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of the input; a Softmax along another axis may become one of rows."""
    source, op = input_of(node, 0), node.op
    shape, made = _shape(source), source.producer
    if not shape or not isinstance(op, movement.Transpose):
        return of_first(node, ranges)
    last, rank = op.order(len(shape))[-1], len(shape)
    along = axis_of(made) if made is not None and isinstance(made.op, norm.Softmax) else None
    shares = last == along or (last == rank - 1 and ranges[source].shares)
    return replace(ranges[source], shares=shares)


def _shape(value: Value) -> Shape | None:
    return value.type.shape if isinstance(value.type, TensorType) else None


def _triangle(node: Node, ranges: Ranges) -> ValueRange:
    return _view(node, ranges).or_zero()


def _padded(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of a tensor and what it is padded with, if that is not part of it."""
    x, value = replace(ranges[input_of(node, 0)], shares=False), (*node.inputs, None, None)[2]
    if getattr(node.op, "mode", "constant") != "constant":
        return x
    return x.or_zero() if value is None else x.union(ranges[value])


def _averaged(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of means, which zeros around the tensor may be part of."""
    x = of_first(node, ranges)
    return x.or_zero() if getattr(node.op, "count_include_pad", 0) else x


def _range(node: Node, ranges: Ranges) -> ValueRange:
    return ValueRange(float(UNKNOWN), counted=True)


# ── layers ───────────────────────────────────────────────────────────────────────────────────────


def layer(
    x: ValueRange,
    weight: Value,
    known: ValueRange,
    channels: int,
    bias: ValueRange | None,
    factor: float = 1,
) -> ValueRange:
    """Return the range of a product with constant weights, whose own range is known.

    Sums of squares, weighted by no negative numbers, are at least the bias (GDN).
    """
    assert weight.data is not None
    data = weight.data
    wide = data if data.dtype.kind == "f" and data.itemsize > 2 else data.astype(np.float32)
    norm = known.size * sqrt(data.size) if isfinite(known.size) else norm_of(wide)
    size = _promised(x, norm / sqrt(max(channels, 1)) * abs(factor))
    size = max(size, bias.size) if bias is not None else size
    is_positive = x.low >= 0 and known.scaled(factor).low >= 0
    low = (bias.low if bias is not None else 0.0) if is_positive else -inf
    if size == LIKELY or not isfinite(x.bound):
        return ValueRange(size, low)
    with np.errstate(over="ignore"):
        maximum = float(np.abs(wide).sum(dtype=np.float64)) * abs(factor)
    bound = times(x.bound, maximum) + (bias.bound if bias is not None else 0.0)
    return ValueRange(size, max(low, -bound), bound)


def _conv(node: Node, ranges: Ranges) -> ValueRange:
    weight = input_of(node, 1)
    x = ranges[input_of(node, 0)]
    bias = ranges[input_of(node, 2)] if len(node.inputs) > 2 and node.inputs[2] else None
    if weight.data is None:
        shape = weight.type.shape if isinstance(weight.type, TensorType) else None
        terms = count_along(weight, tuple(range(1, len(shape)))) if shape else UNKNOWN
        size = times(times(x.size, ranges[weight].size), terms)
        return ValueRange(max(size, bias.size if bias else 0.0))
    is_transposed = isinstance(node.op, conv.ConvTranspose)
    channels = weight.data.shape[0]
    if is_transposed:
        channels = weight.data.shape[1] * getattr(node.op, "group", 1)
    return layer(x, weight, ranges[weight], channels, bias)


def _folded(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of sums with at most a term for each element of a block."""
    block, x = input_of(node, 2).data, ranges[input_of(node, 0)]
    return x.scaled(UNKNOWN if block is None else prod(block.tolist())).or_zero()


def _gemm(node: Node, ranges: Ranges) -> ValueRange:
    op = node.op
    assert isinstance(op, matmul.Gemm)
    addend = node.inputs[2] if len(node.inputs) > 2 else None
    bias = None if addend is None else ranges[addend].scaled(op.beta)
    a, b = input_of(node, 0), input_of(node, 1)
    if b.data is not None and a.data is None:
        channels = b.data.shape[0 if op.transB else 1]
        return layer(ranges[a], b, ranges[b], channels, bias, op.alpha)
    terms = count_along(a, (0 if op.transA else 1,))
    size = times(times(ranges[a].size, ranges[b].size), terms * abs(op.alpha))
    return ValueRange(size + (0.0 if bias is None else bias.size))


def _promised(x: ValueRange, gain: float) -> float:
    """Return the likely magnitude of a layer whose weights multiply that of x by `gain`."""
    promised = times(min(x.size, GREAT), gain)
    if promised <= LIKELY * DOUBT:
        return min(promised * DOUBT, LIKELY)
    # Weights of such a norm do not preserve magnitudes.
    return promised / DOUBT if gain <= DOUBT else promised


def _packed(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of a product with integers about as large as they may be, or fractions."""
    op, scales = node.op, input_of(node, 2)
    assert isinstance(op, packed.MatMulNBits | packed.MatMulBnb4)
    if scales.data is None:
        return ValueRange()
    each = 2.0 ** (op.bits - 2) if isinstance(op, packed.MatMulNBits) else 0.5
    scale = norm_of(scales.data.astype(np.float32)) / sqrt(max(scales.data.size, 1))
    return ValueRange(_promised(ranges[input_of(node, 0)], scale * each * sqrt(op.K)))


def _matmul(node: Node, ranges: Ranges) -> ValueRange:
    a, b = input_of(node, 0), input_of(node, 1)
    if ranges[a].shares and b.data is not None and b.data.ndim >= 2:  # means of weights
        return replace(ranges[b].or_zero(), shares=False, counted=False)
    for x, weight, axis in ((a, b, -1), (b, a, -2)):
        if weight.data is not None and x.data is None and weight.data.ndim >= 2:
            inner = weight.data.shape[-2 if axis == -1 else -1]
            return layer(ranges[x], weight, ranges[weight], weight.data.size // max(inner, 1), None)
    left, right = ranges[a], ranges[b]
    if left.shares:  # weighted means of the rows of b
        return replace(right.or_zero(), shares=False, counted=False, means=True)
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
    values = replace(ranges[input_of(node, 2)], shares=False, counted=False)
    return (values, *[ValueRange()] * (len(node.outputs) - 1))


def _quantized(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of integers times a scale."""
    scale = ranges[input_of(node, 1)]
    type_ = input_of(node, 0).type
    limits = BYTE_LIMITS.get(type_.dtype) if isinstance(type_, TensorType) else None
    if limits is None or not isfinite(scale.bound):
        return ValueRange()
    return ValueRange(min(LIKELY, 256 * scale.bound), -256 * scale.bound, 256 * scale.bound)


# ── normalizations and reductions ────────────────────────────────────────────────────────────────


def _normalized(node: Node, ranges: Ranges) -> tuple[ValueRange, ...]:
    """Return the range of a normalized tensor with scale and shift."""
    size = 1.0
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        size = ranges[input_of(node, 1)].size
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        size += ranges[input_of(node, 2)].size
    return (ValueRange(size), *[UNBOUNDED] * (len(node.outputs) - 1))


def _lrn(node: Node, ranges: Ranges) -> ValueRange:
    op, x = node.op, ranges[input_of(node, 0)]
    assert isinstance(op, norm.LRN)
    if op.bias <= 0 or op.alpha < 0 or op.beta < 0:
        return ValueRange(x.size)
    return x.scaled(max(op.bias**-op.beta, 1.0)).or_zero()


def _softmax(node: Node, ranges: Ranges) -> ValueRange:
    axis = getattr(node.op, "axis", -1)
    rank = node.output.type.rank if isinstance(node.output.type, TensorType) else None
    is_last = axis == -1 or (rank is not None and axis == rank - 1)
    return ValueRange(1.0, 0.0, 1.0, shares=is_last)


def _resized(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of means of elements; those of mode cubic have negative weights, too."""
    op, x = node.op, replace(ranges[input_of(node, 0)], shares=False)
    assert isinstance(op, Resize)
    if op.coordinate_transformation_mode == "tf_crop_and_resize":
        outside = op.extrapolation_value
        x = x.union(ValueRange(abs(outside), outside, outside))
    return ValueRange(x.size) if op.mode == "cubic" else x


def _sampled(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of means of elements, and of zeros outside; see `_resized`."""
    op, x = node.op, replace(ranges[input_of(node, 0)], shares=False)
    assert isinstance(op, GridSample)
    if op.mode == "cubic":
        return ValueRange(x.size)
    return x.or_zero() if op.padding_mode == "zeros" else x


def _reduction(power: float, counts: float) -> Rule:
    """Return the rule of a sum of powers, whose size grows with a power of the number of terms."""

    def rule(node: Node, ranges: Ranges) -> ValueRange:
        source = input_of(node, 0)
        x, terms = ranges[source], _terms(node, source)
        size = times(power_of(x.size, power), terms**counts)
        bound = times(power_of(x.bound, power), terms)
        return ValueRange(size, 0.0 if power != 1 or x.low >= 0 else -bound, bound)

    return rule


def _sum(node: Node, ranges: Ranges) -> ValueRange | tuple[ValueRange, ...]:
    """Return the range of a sum: of what a Softmax weighs along the last axis, that of a mean."""
    source = input_of(node, 0)
    product, shape = source.producer, _shape(source)
    if product is not None and isinstance(product.op, ew.Mul) and shape:
        a, b = (input_of(product, i) for i in (0, 1))
        for weights, x in ((a, b), (b, a)):
            along = (_shape(weights) or (None,))[-1]
            is_last = reduced_axes(node) == (len(shape) - 1,)
            if ranges[weights].shares and along == shape[-1] and is_last:
                return replace(ranges[x].or_zero(), shares=False, counted=False)
    return _reduction(1, 1)(node, ranges)


def _terms(node: Node, source: Value) -> int:
    along = reduced_axes(node)
    return UNKNOWN if along is None else count_along(source, along)


def _rotated(node: Node, ranges: Ranges) -> ValueRange:
    x, cos, sin = (ranges[input_of(node, i)] for i in range(3))
    bound = times(x.bound, cos.bound + sin.bound)
    return ValueRange(times(x.size, hypot(cos.size, sin.size)), -bound, bound)


def _written(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of a tensor with updates; the places of sums get about as many each."""
    x, updates = ranges[input_of(node, 0)], ranges[input_of(node, 2)]
    reduction = getattr(node.op, "reduction", "none")
    if reduction == "mul":
        return UNBOUNDED
    if reduction != "add":
        return replace(x.union(updates), shares=False)
    places, count = (static_size(_shape(input_of(node, i))) for i in (0, 2))
    terms = UPDATES if places is None or count is None else max(count / max(places, 1), 1.0)
    low, high = (times(end, inf if count is None else count) for end in (updates.low, updates.high))
    size = times(updates.size, terms) + x.size
    return ValueRange(size, min(low, 0.0) + x.low, max(high, 0.0) + x.high)


def _cumulative(node: Node, ranges: Ranges) -> ValueRange:
    x = ranges[input_of(node, 0)]
    return ValueRange(x.size * UNKNOWN, counted=x.counted)


def _transformed(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of coefficients, or of what they describe, by Parseval's theorem."""
    op, known = node.op, ranges[input_of(node, 0)]
    assert isinstance(op, signal.DFT)
    x, *given = (None if value is None else value.type for value in node.inputs)
    types = [each if isinstance(each, TensorType) else None for each in given]
    length = op.length(x, *types) if isinstance(x, TensorType) else None
    if not isinstance(length, int) or not length:
        return ValueRange(max(LIKELY, known.size * UNKNOWN))
    most = times(known.bound, sqrt(2) * (1 if op.inverse else length))
    gain = 1 / sqrt(length) if op.inverse else sqrt(length)
    return ValueRange(times(known.size, gain), -most, most)


def _log_sum(node: Node, ranges: Ranges) -> ValueRange:
    source = input_of(node, 0)
    x, terms = ranges[source], _terms(node, source)
    low, high = (-104.0 if end <= 0 else log(end) for end in (x.low, x.high * terms))
    return ValueRange(x.size, low, high)


def _gated_states(node: Node, ranges: Ranges) -> tuple[ValueRange, ...]:
    """Return the ranges of states: parts of a Tanh's results, or what they are at first.

    The cells of an LSTM change by at most 1 in a step.
    """
    op, (x, *_), states = node.op, node.inputs, (*node.inputs, *[None] * 6)[5:7]
    assert isinstance(op, recurrent.GRU | recurrent.LSTM)
    usual = cycle(_GATES[type(op)])
    if any(name.lower() != each for name, each in zip(op.activations or (), usual, strict=False)):
        return (ValueRange(),) * len(node.outputs)
    dims = None if x is None else x.tensor.shape
    time = dims[op.layout] if dims is not None else None
    most = float(time) if isinstance(time, int) else inf
    limits = (1.0, 1.0, most)[: len(node.outputs)]
    found = [ValueRange(min(limit, LIKELY), -limit, limit) for limit in limits]
    for i, state in zip((0, 1, 2), (states[0], *states), strict=True):
        if state is None or i >= len(found):
            continue
        first, grows = ranges[state], most if i == 2 else 0.0
        found[i] = found[i].union(replace(first, low=first.low - grows, high=first.high + grows))
    return tuple(found)


def _appended(node: Node, ranges: Ranges) -> ValueRange:
    return replace(ranges[input_of(node, 0)].union(ranges[input_of(node, 1)]), shares=False)


def _chosen(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of the numbers between which a OneHot chooses."""
    return ranges[node.operands[2]]


def _build() -> dict[type[Op], Rule]:
    rules = dict(range_elementwise.RULES)

    def put(rule: Rule, *kinds: type[Op]) -> None:
        rules.update(dict.fromkeys(kinds, rule))

    put(_view, norm.Dropout, *sh.VIEWS)
    put(_triangle, sh.Trilu)
    put(_transposed, movement.Transpose)
    put(of_first, movement.Expand, movement.Tile, movement.Split)
    put(of_first, movement.Slice, movement.DepthToSpace, movement.SpaceToDepth)
    put(of_first, movement.ReverseSequence, gather.Gather, gather.GatherElements, gather.GatherND)
    put(of_first, gather.Compress)
    put(of_first, pool.MaxPool, pool.GlobalAveragePool, pool.GlobalMaxPool)
    put(_averaged, pool.AveragePool)
    put(of_first, reduce.ReduceMean, reduce.ReduceMax, reduce.ReduceMin)
    put(of_union, movement.Concat)
    put(_padded, movement.Pad)
    put(_resized, Resize)
    put(_sampled, GridSample)
    put(_written, gather.ScatterElements, gather.ScatterND)
    put(_appended, gather.TensorScatter)
    put(_chosen, gather.OneHot)
    put(_range, sh.Range)
    put(fixed(0.0, 1.0), norm.Hardmax)
    put(fixed(-1.0, 1.0), norm.LpNormalization)
    put(_gated_states, recurrent.GRU, recurrent.LSTM)
    put(_log_sum, reduce.ReduceLogSum)
    put(unbounded, reduce.ReduceProd, reduce.CumProd, matmul.Det)
    put(_conv, conv.Conv, conv.ConvTranspose)
    put(_folded, conv.Col2Im)
    put(_gemm, matmul.Gemm)
    put(_matmul, matmul.MatMul)
    put(_packed, packed.MatMulNBits, packed.MatMulBnb4)
    put(_einsum, matmul.Einsum)
    put(_attention, attention.Attention)
    put(_rotated, attention.RotaryEmbedding)
    put(_quantized, quantize.DequantizeLinear)
    put(_normalized, norm.LayerNormalization, norm.RMSNormalization, norm.GroupNormalization)
    put(_normalized, norm.InstanceNormalization, norm.BatchNormalization)
    put(_lrn, norm.LRN)
    put(_softmax, norm.Softmax)
    put(fixed(-inf, 0.0, 16.0), norm.LogSoftmax)
    put(_sum, reduce.ReduceSum)
    put(_reduction(1, 1), reduce.ReduceL1)
    put(_reduction(2, 1), reduce.ReduceSumSquare)
    put(_reduction(1, 0.5), reduce.ReduceL2)
    put(_cumulative, reduce.CumSum)
    put(_transformed, signal.DFT)
    return rules


RULES: dict[type[Op], Rule] = _build()


def ranges_of(graph: Graph, measured: Ranges | None = None) -> Ranges:
    """Return the ranges of a graph whose types are inferred; later changes of it do not show.

    Args:
        graph: the graph.
        measured: those of its large constants, if they are known already.
    """
    ranges = measured_in(graph) if measured is None else measured
    for node in graph.nodes:
        found = RULES.get(type(node.op), of_unknown)(node, ranges)
        for i, value in enumerate(node.outputs):
            one = found[i] if isinstance(found, tuple) else found
            ranges[value] = one.settled()
    return ranges
