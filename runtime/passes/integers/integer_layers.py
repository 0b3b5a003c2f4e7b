"""Finds layers of quantized tensors: their integers, scales, biases, and what quantizes results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ...base.record import record
from ...ir.dtypes import float32, int8, int32, uint8
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.conv import Conv
from ...ops.elementwise import Add, Clip, Relu
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Transpose
from ...ops.quantize import DequantizeLinear, QuantizeLinear
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import dtype_of, is_static, rank_of, shape_of, static_size
from .drop_requantization import moves, takes_greatest

LAYERS = (Conv, Gemm, MatMul)
BYTES = frozenset({int8, uint8})
#: Sums of a filter's products and its bias stay below this, whatever the image holds.
MAX_SUM = 2**31
#: By how much the scale of a bias may differ from the product of the other two, which has one
#: rounding: as a share.
CLOSE = 2.0**-22


@record
class Quantized:
    """A tensor as integers with scale and zero point.

    Attributes:
        integers: the tensor in front of `moved`; None where it is `data`.
        scale: one, or one per index of `axis`.
        zero: the zero points, as many.
        axis: counted from the front.
        moved: what moves the integers, in order.
        data: the elements of a constant, moved.
        shape: of the tensor; None if its rank is unknown.
    """

    integers: Value | None
    scale: Array
    zero: Array
    axis: int
    moved: tuple[Node, ...] = ()
    data: Array | None = None
    shape: tuple[int | str | None, ...] | None = None


@record
class Bias:
    """What a layer adds; a single 0 if it adds nothing.

    Attributes:
        floats: to the result of sums and scales, to which it broadcasts; at least one axis.
        integers: the same, to sums; None unless the file has them.
        node: the Add that does it, if it is not the layer.
        may_round: whether onnxruntime rounds the floats to the scale of the sums.
    """

    floats: Array
    integers: Array | None = None
    node: Node | None = None
    may_round: bool = False


@record
class Layer:
    """A layer whose operands are quantized.

    Attributes:
        node: the Conv, Gemm or MatMul.
        operands: both of the layer.
        factor: of the sums, beside scales.
        bias: what is added to the sums.
        top: the QuantizeLinear behind it; None if the results are floats.
        between: what is in front of it: moves, and what its saturation does as well.
        result: scale and zero point of the results.
    """

    node: Node
    operands: tuple[Quantized, Quantized]
    factor: np.float32
    bias: Bias
    top: Node | None = None
    between: tuple[Node, ...] = ()
    result: tuple[Array, Array] | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of its nodes in order; the last one has its result."""
        added = () if self.bias.node is None else (self.bias.node,)
        end = () if self.top is None else (self.top,)
        return (self.node, *added, *self.between, *end)

    @property
    def is_convolution(self) -> bool:
        """Whether QLinearConv can be it: matrices are images of single pixels."""
        if isinstance(self.node.op, Conv) or self.top is None:
            return self.top is not None
        image, weight = self.operands
        has_bias = isinstance(self.node.op, Gemm) or self.bias.node is not None
        is_vector = self.bias.floats.size in (1, self.bias.floats.shape[-1])
        is_plain = weight.data is not None and len(image.shape or ()) == 2
        return has_bias and is_vector and is_plain

    @property
    def is_product(self) -> bool:
        """Whether QLinearMatMul can be it."""
        has_bias = isinstance(self.node.op, Gemm) or self.bias.node is not None
        return self.top is not None and not has_bias


def layer_of(graph: Graph, node: Node, context: Context, *, every: bool) -> Layer | str:
    """Return the layer of integers that a node is.

    Args:
        graph: its graph.
        node: a Conv, Gemm or MatMul.
        context: evaluates what is constant.
        every: take also layers whose bias has to be rounded to the scale of the sums, and those
            whose results are floats.

    Returns:
        The layer, or why there is none; an empty text if its operands are not quantized.
    """
    operands = _operands(node, context)
    if isinstance(operands, str):
        return operands
    factor = np.float32(node.op.alpha if isinstance(node.op, Gemm) else 1)
    bias = _bias(graph, node, operands, factor, context, added=every)
    if isinstance(bias, str):
        return bias
    end = _end(graph, bias.node or node)
    can_be_floats = every and not isinstance(node.op, Conv)
    if isinstance(end, str) and not can_be_floats:
        return end
    if not isinstance(end, str) and bias.integers is None:
        rounded = _rounded(operands, bias) if every else None
        if rounded is None and not can_be_floats:
            return "its bias is no integer in the scale of the sums"
        bias, end = (bias, "") if rounded is None else (rounded, end)
    if not _fits(node, operands, bias, every=every):
        return "its sums might be beyond int32"
    if isinstance(end, str):
        return Layer(node, operands, factor, bias)
    top, between = end
    return Layer(node, operands, factor, bias, top, between, _result_of(top))


# ── operands ─────────────────────────────────────────────────────────────────────────────────────


def _operands(node: Node, context: Context) -> tuple[Quantized, Quantized] | str:
    """Return both operands of a layer, or why it cannot have them; empty if they are floats."""
    given = [_quantized(value, context) for value in node.inputs[:2]]
    first, second = (*given, None)[:2]
    if first is None or second is None:
        return ""
    if not {dtype_of(each.integers) for each in (first, second)} <= BYTES:
        return "only integers of 8 bits have sums that int32 holds"
    if first.scale.size > 1:
        return "its first operand has several scales"
    rank = len(second.shape or ())
    by_column = isinstance(node.op, MatMul) or (isinstance(node.op, Gemm) and not node.op.transB)
    axis = rank - 1 if by_column else 0
    if second.scale.size > 1 and (second.axis != axis or (by_column and rank < 2)):
        return "its weights have a scale for each term of a sum"
    return first, second


def _quantized(value: Value | None, context: Context) -> Quantized | None:
    """Return what a DequantizeLinear makes a tensor of, perhaps moved."""
    moved: list[Node] = []
    node = value.producer if value is not None else None
    while node is not None and (moves(node) or takes_greatest(node)) and node.inputs[0] is not None:
        moved.append(node)
        node = node.inputs[0].producer
    if node is None or not isinstance(node.op, DequantizeLinear) or node.op.block_size:
        return None
    integers, scale, zero = (*node.inputs, None)[:3]
    rank = rank_of(integers)
    if integers is None or scale is None or rank is None or dtype_of(node.output) != float32:
        return None
    found = _pair(scale, zero, integers.tensor.dtype)
    if found is None:
        return None
    axis: int | None = 0 if rank < 2 else normalize_axis(node.op.axis, rank)
    for each in reversed(moved):
        axis = _moved_axis(each, axis) if found[0].size > 1 else 0
        if axis is None:
            return None
    data = _known(integers, tuple(reversed(moved)), context)
    return Quantized(integers, *found, axis or 0, tuple(reversed(moved)), data, shape_of(value))


def _moved_axis(move: Node, axis: int | None) -> int | None:
    """Return where an axis is behind a Transpose; None behind other moves."""
    if axis is None or not isinstance(move.op, Transpose):
        return None
    rank = rank_of(move.inputs[0]) or 0
    return (move.op.perm or tuple(range(rank))[::-1]).index(axis)


def _pair(scale: Value, zero: Value | None, dtype: np.dtype) -> tuple[Array, Array] | None:
    """Return a known scale and zero point, which is 0 if omitted."""
    if scale.data is None or scale.data.dtype != float32 or scale.data.ndim > 1:
        return None
    if not (np.isfinite(scale.data) & (scale.data > 0)).all():
        return None
    if zero is None:
        return scale.data, np.zeros(scale.data.shape, dtype)
    return None if zero.data is None else (scale.data, zero.data)


def _known(value: Value, moved: Sequence[Node], context: Context) -> Array | None:
    """Return the elements of a constant, also of one that is quantized and moved in the graph."""
    steps = [*moved]
    node = value.producer
    if value.data is None and node is not None and isinstance(node.op, QuantizeLinear):
        steps = [node, *steps]
        value = cast(Value, node.inputs[0])
    data = value.data
    for step in steps:
        given = [data, *(None if each is None else each.data for each in step.inputs[1:])]
        if any(v is not None and each is None for v, each in zip(step.inputs, given, strict=True)):
            return None
        found = context.evaluate(step.op, given, 1)
        data = None if found is None else np.asarray(found[0])
    return data


def filters_of(node: Node, weight: Quantized) -> Array | None:
    """Return constant weights, a row for each of the filters of a layer."""
    if weight.data is None:
        return None
    if isinstance(node.op, Conv) or (isinstance(node.op, Gemm) and node.op.transB):
        return weight.data
    return np.moveaxis(weight.data, -1, 0) if weight.data.ndim > 1 else weight.data[None]


def count_of(node: Node, weight: Quantized) -> int | str | None:
    """Return the number of filters of a layer."""
    shape = weight.shape or (None,)
    first = isinstance(node.op, Conv) or (isinstance(node.op, Gemm) and node.op.transB)
    return shape[0] if first else shape[-1]


# ── biases ───────────────────────────────────────────────────────────────────────────────────────


def _bias(
    graph: Graph,
    node: Node,
    operands: tuple[Quantized, Quantized],
    factor: np.float32,
    context: Context,
    *,
    added: bool,
) -> Bias | str:
    """Return what a layer adds, or why integers cannot; see `layer_of`.

    With `added`, an Add behind a product with a matrix is a bias as well.
    """
    value, add = (*node.inputs, None, None)[2], None
    count = count_of(node, operands[1])
    if isinstance(node.op, MatMul) and added:
        value, add = _addend(graph, node, count, context)
    if value is None:
        return Bias(np.zeros(1, float32), np.zeros(1, int32))
    known = _quantized(value, context)
    data = value.data if known is None else known.data
    if data is None or (known is not None and known.scale.size > 1 and known.axis != data.ndim - 1):
        return "its bias is computed, or has scales along another axis"
    data = np.atleast_1d(data)
    alpha, beta = (node.op.alpha, node.op.beta) if isinstance(node.op, Gemm) else (1.0, 1.0)
    if known is None:
        may_round = alpha == beta == 1 and data.shape == (count,)
        return Bias(data * np.float32(beta), None, add, may_round)
    zero = known.zero.astype(np.int64)
    floats = (data - zero).astype(float32) * known.scale * np.float32(beta)
    exact = scale_of_sums(operands, np.float64(alpha))
    differences = np.abs(known.scale.reshape(-1) - exact)
    is_close = beta == 1 and np.all(differences <= CLOSE * np.abs(exact))
    is_whole = is_close and data.dtype == int32 and not zero.any()
    return Bias(floats, data if is_whole else None, add)


def _addend(
    graph: Graph, node: Node, count: int | str | None, context: Context
) -> tuple[Value | None, Node | None]:
    """Return the constant vector that one node adds to a product with a matrix, and this node.

    As for onnxruntime, a stack of rows has to have a known shape.
    """
    image, reader = node.inputs[0], graph.sole_consumer(node.output)
    if reader is None or not isinstance(reader.op, Add) or rank_of(node.inputs[1]) != 2:
        return None, None
    if (rank_of(image) or 3) > 2 and not is_static(image):
        return None, None
    (other,) = (value for value in reader.operands if value is not node.output)
    known = _quantized(other, context)
    data = other.data if known is None else known.data
    return (None, None) if data is None or data.shape != (count,) else (other, reader)


def scale_of_sums(operands: tuple[Quantized, Quantized], factor: np.floating) -> Array:
    """Return what one of the sums stands for, in the precision of the factor."""
    first, second = operands
    of_first = factor * first.scale.reshape(()).astype(factor.dtype)
    return of_first * second.scale.reshape(-1).astype(factor.dtype)


def _rounded(operands: tuple[Quantized, Quantized], bias: Bias) -> Bias | None:
    """Return a bias as the nearest integers in the scale of the sums, None if it has to stay."""
    if not bias.may_round:
        return None
    with np.errstate(all="ignore"):
        whole = np.rint(bias.floats / scale_of_sums(operands, np.float32(1)))
    if not (np.abs(whole) < MAX_SUM).all():
        return None
    return Bias(bias.floats, whole.astype(int32), bias.node)


def _fits(node: Node, operands: tuple[Quantized, Quantized], bias: Bias, *, every: bool) -> bool:
    """Whether no sum can be beyond int32; `every` also takes sums of unknown lengths."""
    image, weight = operands
    filters, most = filters_of(node, weight), _farthest(image)
    added = np.zeros(1, np.int64) if bias.integers is None else bias.integers.astype(np.int64)
    if filters is None:
        terms = _terms(node, weight)
        if terms is None and not every:
            return False
        sums = np.array((terms or 1) * _farthest(weight))
    else:
        zero = weight.zero.astype(np.int64).reshape(-1, *(1,) * (filters.ndim - 1))
        sums = np.abs(filters.astype(np.int64) - zero).sum(tuple(range(1, filters.ndim)))
    added = np.abs(added) if added.shape == sums.shape else np.abs(added).max(initial=0)
    return bool((sums * most + added).max(initial=0) < MAX_SUM)


def _terms(node: Node, weight: Quantized) -> int | None:
    """Return how many products a sum has; None if that is unknown."""
    shape = weight.shape or (None,)
    if isinstance(node.op, Conv):
        return static_size(shape[1:])
    by_column = isinstance(node.op, MatMul) or not cast(Gemm, node.op).transB
    terms = shape[max(-2, -len(shape))] if by_column else shape[-1]
    return terms if isinstance(terms, int) else None


def _farthest(tensor: Quantized) -> int:
    """Return the greatest magnitude of an integer less its zero point."""
    limits = np.iinfo(tensor.zero.dtype)
    zero = tensor.zero.astype(np.int64)
    return int(max((zero - limits.min).max(initial=0), (limits.max - zero).max(initial=0)))


# ── what quantizes results ───────────────────────────────────────────────────────────────────────


def _end(graph: Graph, last: Node) -> tuple[Node, tuple[Node, ...]] | str:
    """Return the QuantizeLinear behind a layer, and what is between; or why there is none."""
    between: list[Node] = []
    value = last.output
    while (reader := graph.sole_consumer(value)) is not None and reader.inputs[0] is value:
        if isinstance(reader.op, QuantizeLinear):
            result = _result_of(reader)
            if result is None:
                return "what quantizes its result is not to 8 bits with one scale"
            for node in between:
                if isinstance(node.op, Relu | Clip) and not _is_saturation(node, *result):
                    return f"{node.kind} '{node.name}' does more than saturate"
            return reader, tuple(between)
        if not (isinstance(reader.op, Relu | Clip) or moves(reader) or takes_greatest(reader)):
            return f"{reader.kind} '{reader.name}' reads its result as floats"
        between.append(reader)
        value = reader.output
    return "its result is an output, or several nodes read it"


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


def _is_saturation(node: Node, scale: Array, zero: Array) -> bool:
    """Whether a Relu, or a Clip, only does what a QuantizeLinear does as well."""
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
