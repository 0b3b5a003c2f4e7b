"""Computes layers of quantized tensors on their integers, whose products and sums are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from ..base.record import record
from ..ir.dtypes import float32, int8, int32, uint8
from ..ir.graph import Graph, Node, Value
from ..ir.op import attributes
from ..ir.types import Array
from ..ops.conv import Conv, ConvOp
from ..ops.elementwise import Clip, Relu
from ..ops.matmul import Gemm, MatMul
from ..ops.quantize import DequantizeLinear, QLinearConv, QLinearMatMul, QuantizeLinear
from ..ops.shape import Squeeze, Unsqueeze
from ..ops.shapes import normalize_axis
from .driver import Context
from .editing import Builder, drop, dtype_of, rank_of, shape_of

BYTES = frozenset({int8, uint8})
#: Sums of a filter's products and its bias stay below this, whatever the image holds.
MAX_SUM = 2**31
#: By how much the scale of a bias may differ from the product of the other two, which has one
#: rounding: as a share.
CLOSE = 2.0**-22
#: Channels of a group from which on products of integers are worthwhile; or one.
FEWEST_CHANNELS = 16
#: Bytes that kernels read at once of a row.
WORD = 4
#: Axes of matrices that are filters of single pixels.
PIXEL = (2, 3)


@record
class Quantized:
    """A tensor as integers with scale and zero point.

    Attributes:
        integers: the tensor; None where it is `data`.
        scale: one, or one per index of `axis`.
        zero: the zero points, as many.
        axis: counted from the front.
        data: the elements of a constant.
    """

    integers: Value | None
    scale: Array
    zero: Array
    axis: int
    data: Array | None = None


@record
class Layer:
    """A layer whose operands and result are quantized.

    Attributes:
        node: the Conv, Gemm or MatMul.
        top: the QuantizeLinear behind it.
        between: what its saturation does as well.
        operands: both of the layer.
        bias: int32 in the scale of the sums, one for each filter, or a single 0.
        result: scale and zero point of the result.
    """

    node: Node
    top: Node
    between: tuple[Node, ...]
    operands: tuple[Quantized, Quantized]
    bias: Array
    result: tuple[Array, Array]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Join DequantizeLinear, Conv, Gemm or MatMul, and QuantizeLinear, with ``Options.integers``.

    Quantizers write layers as those of floats, between conversions. A float sum depends on the
    order of its terms, and next to a tie the next QuantizeLinear makes a step of that; a sum of
    integers does not. Results are those of onnxruntime, whose optimiser does the same: sums of
    int32, times one factor, rounded to nearest. A Relu, or a Clip to what the result can hold, is
    part of the saturation.

    Layers stay whose bias is no integer in the scale of the sums, whose sums might overflow, whose
    groups have few channels, but for one, and products of rows that are no whole words.
    """
    if not context.options.integers:
        return
    for top in list(graph.nodes):
        layer = _layer(graph, top, context) if top in graph else None
        if layer is None:
            continue
        kind, name = layer.node.kind, layer.node.name
        _join(graph, layer)
        yield f"{kind} '{name}' multiplies integers"


# ── what there is ────────────────────────────────────────────────────────────────────────────────


def _layer(graph: Graph, top: Node, context: Context) -> Layer | None:
    """Return the layer in front of a QuantizeLinear, if it is one of integers."""
    result = _result_of(top)
    if result is None:
        return None
    between: list[Node] = []
    value, reader = top.inputs[0], top
    while value is not None and (node := value.producer) is not None:
        if graph.sole_consumer(value) is not reader:
            return None
        if isinstance(node.op, Conv | Gemm | MatMul):
            operands = _operands(node, context)
            if operands is None or not _is_worthwhile(node, *operands):
                return None
            bias = _bias(node, operands, context)
            if bias is None or not _fits(node, operands, bias):
                return None
            return Layer(node, top, tuple(between), operands, bias, result)
        if not _is_saturation(node, *result):
            return None
        between.append(node)
        value, reader = node.inputs[0], node
    return None


def _result_of(node: Node) -> tuple[Array, Array] | None:
    """Return scale and zero point of a QuantizeLinear to bytes, if there is one of each."""
    op = node.op
    if not isinstance(op, QuantizeLinear) or op.block_size or op.precision not in (None, float32):
        return None
    dtype, (_, scale, zero) = dtype_of(node.output), (*node.inputs, None)[:3]
    if dtype is None or dtype not in BYTES or scale is None:
        return None
    if dtype_of(node.inputs[0]) != float32:
        return None
    found = _pair(scale, zero, dtype)
    return found if found is not None and found[0].size == 1 else None


def _pair(scale: Value, zero: Value | None, dtype: np.dtype) -> tuple[Array, Array] | None:
    """Return a known scale and zero point, which is 0 if omitted."""
    if scale.data is None or scale.data.dtype != float32 or scale.data.ndim > 1:
        return None
    if not (np.isfinite(scale.data) & (scale.data > 0)).all():
        return None
    if zero is None:
        return scale.data, np.zeros(scale.data.shape, dtype)
    return None if zero.data is None else (scale.data, zero.data)


def _quantized(value: Value | None, context: Context) -> Quantized | None:
    """Return what a DequantizeLinear makes a tensor of."""
    node = value.producer if value is not None else None
    if node is None or not isinstance(node.op, DequantizeLinear) or node.op.block_size:
        return None
    integers, scale, zero = (*node.inputs, None)[:3]
    rank = rank_of(integers)
    if integers is None or scale is None or rank is None or dtype_of(node.output) != float32:
        return None
    found = _pair(scale, zero, integers.tensor.dtype)
    if found is None:
        return None
    axis = 0 if rank < 2 else normalize_axis(node.op.axis, rank)
    return Quantized(integers, *found, axis, _known(integers, context))


def _known(value: Value, context: Context) -> Array | None:
    """Return the elements of a constant, also of one that is quantized in the graph."""
    node = value.producer
    if value.data is not None or node is None or not isinstance(node.op, QuantizeLinear):
        return value.data
    given = [None if each is None else each.data for each in node.inputs]
    if any(each is not None and each.data is None for each in node.inputs):
        return None
    found = context.evaluate(node.op, given, 1)
    return None if found is None else np.asarray(found[0])


def _operands(node: Node, context: Context) -> tuple[Quantized, Quantized] | None:
    """Return both operands of a layer, if they are bytes whose scales it can have."""
    first, second = (_quantized(value, context) for value in node.inputs[:2])
    if first is None or second is None or first.scale.size > 1:
        return None
    if not {_dtype(first), _dtype(second)} <= BYTES:
        return None
    if isinstance(node.op, MatMul):
        rank = rank_of(second.integers)
        able = min(rank or 0, rank_of(first.integers) or 0) > 1 and rank is not None
        axis = (rank or 0) - 1
    else:
        able = second.data is not None
        transposed = isinstance(node.op, Gemm) and not node.op.transB
        axis = int(transposed)
    if isinstance(node.op, Gemm) and (node.op.alpha, node.op.beta, node.op.transA) != (1, 1, 0):
        return None
    return (first, second) if able and (second.scale.size == 1 or second.axis == axis) else None


def _dtype(tensor: Quantized) -> np.dtype | None:
    return dtype_of(tensor.integers)


def _is_worthwhile(node: Node, image: Quantized, weight: Quantized) -> bool:
    """Whether rows are known to be words, and groups of channels are large, or of one channel."""
    if isinstance(node.op, MatMul):
        terms = (shape_of(image.integers) or (None,))[-1]
        return isinstance(terms, int) and terms % WORD == 0
    if not isinstance(node.op, Conv) or node.op.group == 1 or weight.data is None:
        return True
    channels = weight.data.shape[1]
    return channels == 1 or channels % FEWEST_CHANNELS == 0


def _bias(node: Node, operands: tuple[Quantized, Quantized], context: Context) -> Array | None:
    """Return the bias as int32 in the scale of the sums, None if it is something else."""
    value = (*node.inputs, None, None)[2]
    if value is None:
        return np.zeros(1, int32)
    bias, filters = _quantized(value, context), _filters(node, operands[1])
    if bias is None or bias.data is None or bias.data.dtype != int32 or bias.zero.any():
        return None
    exact = operands[0].scale.astype(np.float64).reshape(()) * operands[1].scale
    if filters is None or not np.all(np.abs(bias.scale - exact) <= CLOSE * exact):
        return None
    if bias.data.ndim > 1 or bias.data.size not in (1, len(filters)):
        return None
    return np.broadcast_to(bias.data.reshape(-1), (len(filters),))


def _filters(node: Node, weight: Quantized) -> Array | None:
    """Return constant weights, a row for each of the filters of a layer."""
    if weight.data is None:
        return None
    if isinstance(node.op, Conv) or (isinstance(node.op, Gemm) and node.op.transB):
        return weight.data
    return np.moveaxis(weight.data, -1, 0)


def _fits(node: Node, operands: tuple[Quantized, Quantized], bias: Array) -> bool:
    """Whether no sum can be beyond int32."""
    image, weight = operands
    filters = _filters(node, weight)
    most = _farthest(image)
    if filters is None:
        shape = shape_of(weight.integers)
        terms = shape[-2] if shape is not None else None
        return isinstance(terms, int) and terms * most * _farthest(weight) < MAX_SUM
    zero = weight.zero.astype(np.int64).reshape(-1, *(1,) * (filters.ndim - 1))
    sums = np.abs(filters.astype(np.int64) - zero).sum(tuple(range(1, filters.ndim)))
    total = sums * most + np.abs(bias.astype(np.int64))
    return bool(total.max(initial=0) < MAX_SUM)


def _farthest(tensor: Quantized) -> int:
    """Return the greatest magnitude of an integer less its zero point."""
    limits = np.iinfo(cast(np.dtype, _dtype(tensor)))
    zero = tensor.zero.astype(np.int64)
    return int(max((zero - limits.min).max(initial=0), (limits.max - zero).max(initial=0)))


def _is_saturation(node: Node, scale: Array, zero: Array) -> bool:
    """Whether a Relu, or a Clip, only does what a QuantizeLinear does as well."""
    if not isinstance(node.op, Relu | Clip):
        return False
    ends = np.array((0.0, np.inf) if isinstance(node.op, Relu) else _limits(node), float32)
    low, high = np.rint(ends / scale.reshape(())) + zero.reshape(()).astype(float32)
    limits = np.iinfo(zero.dtype)
    return bool(low <= limits.min and high >= limits.max)


def _limits(node: Node) -> tuple[float, float]:
    """Return those of a Clip; none that any number is between where they are computed."""
    found = [-np.inf, np.inf]
    for place, value in enumerate(node.inputs[1:3]):
        if value is not None:
            if value.data is None or value.data.size != 1:
                return np.inf, -np.inf
            found[place] = float(value.data.reshape(()))
    return found[0], found[1]


# ── what becomes of it ───────────────────────────────────────────────────────────────────────────


def _join(graph: Graph, layer: Layer) -> None:
    """Put one node of integers in the place of a layer and what quantizes its result."""
    node, top, (image, weight) = layer.node, layer.top, layer.operands
    origin = graph.in_order((node, *layer.between, top))
    add = Builder(graph, top, node.name, origin)
    one = [_scalar(each) for each in (image.scale, image.zero, *layer.result)]
    x_scale, x_zero, y_scale, y_zero = (add.constant(data, "quantization") for data in one)
    w = _weight(add, node, weight)
    by_filter = (_vector(weight.scale), _vector(weight.zero))
    w_scale, w_zero = (add.constant(data, "quantization") for data in by_filter)
    inputs = (image.integers, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero)
    if isinstance(node.op, MatMul):
        made = add(QLinearMatMul(), *inputs)
    else:
        bias = add.constant(layer.bias, f"{node.name}.bias") if layer.bias.any() else None
        made = _convolved(add, node, inputs, bias)
    sources = [value.producer for value in node.distinct_reads]
    graph.redirect(top.output, made)
    for each in (*reversed(origin), *sources):
        drop(graph, each)


def _convolved(
    add: Builder, node: Node, inputs: tuple[Value | None, ...], bias: Value | None
) -> Value:
    """Return the result of a Conv, or of a Gemm as one of single pixels."""
    given = inputs if bias is None else (*inputs, bias)
    if isinstance(node.op, Conv):
        known = {name: getattr(node.op, name) for name in attributes(ConvOp)}
        return add(QLinearConv(**known), *given)
    axes = add.integers(PIXEL, "axes")
    pixels = add(Unsqueeze(), given[0], axes)
    return add(Squeeze(), add(QLinearConv(), pixels, *given[1:]), axes)


def _weight(add: Builder, node: Node, weight: Quantized) -> Value | None:
    """Return the right operand; matrices of a Gemm as filters of single pixels."""
    filters = _filters(node, weight)
    if isinstance(node.op, Gemm) and filters is not None:
        return add.constant(filters[:, :, None, None], f"{node.name}.weight")
    if weight.data is None or (weight.integers is not None and weight.integers.data is not None):
        return weight.integers
    return add.constant(weight.data, f"{node.name}.weight")


def _scalar(data: Array) -> Array:
    return data.reshape(())


def _vector(data: Array) -> Array:
    return data.reshape(() if data.size == 1 else (-1,))
