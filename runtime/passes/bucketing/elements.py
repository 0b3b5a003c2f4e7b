"""Elementwise operators and reductions in buckets."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.graph import Node
from ...ir.op import Op
from ...ops.attention import RotaryEmbedding
from ...ops.elementwise import (
    BitCast,
    BitShift,
    Cast,
    CastLike,
    Clip,
    Div,
    Mod,
    Pow,
    PRelu,
    Where,
)
from ...ops.elementwise_rules import Binary, KnownUnary, Predicate, Unary, Variadic
from ...ops.experts import MoE, QMoE
from ...ops.gather import OneHot
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Split, Transpose
from ...ops.norm import (
    Dropout,
    Hardmax,
    LayerNormalization,
    LogSoftmax,
    RMSNormalization,
    Softmax,
)
from ...ops.packed import MatMulBnb4, MatMulNBits
from ...ops.quantize import (
    DequantizeLinear,
    DynamicQuantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)
from ...ops.reduce import (
    ArgReduce,
    CumSum,
    Reduce,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
)
from ...ops.search import TopK
from ...ops.shape import Identity, Reshape, Trilu, Unsqueeze
from ...ops.shapes import normalize_axis, product
from .registry import rule
from .writer import GraphWriter, fill_of, operand

# ── each element separately ───────────────────────────────────────────────────────────────────────


@rule(
    *(
        Unary,
        KnownUnary,
        Predicate,
        Binary,
        Variadic,
        BitCast,
        BitShift,
        Cast,
        CastLike,
        Clip,
        Mod,
        Pow,
        PRelu,
        Where,
    ),
    *(Identity, OneHot, Transpose, Trilu, Unsqueeze, RotaryEmbedding),
)
def pointwise(writer: GraphWriter, node: Node) -> None:
    """Padding stays padding."""
    writer.read_inputs()


@rule(Dropout)
def dropout(writer: GraphWriter, node: Node) -> None:
    """Outside training nothing is dropped; random numbers depend on positions."""
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        raise writer.error("its random numbers depend on the positions of elements")
    writer.read_inputs()


@rule(LayerNormalization, RMSNormalization)
def normalization(writer: GraphWriter, node: Node) -> None:
    """Rows are normalized independently."""
    op = node.op
    assert isinstance(op, LayerNormalization | RMSNormalization)
    rank = len(writer.dims(node.inputs[0]))
    writer.need_closed(node.inputs[0], range(normalize_axis(op.axis, rank), rank))
    writer.read_inputs()


@rule(MatMulNBits, MatMulBnb4, MoE, QMoE)
def products_of_rows(writer: GraphWriter, node: Node) -> None:
    """Rows are multiplied, and choose their experts, independently."""
    writer.need_closed(node.inputs[0], [len(writer.dims(node.inputs[0])) - 1])
    writer.read_inputs()


@rule(QuantizeLinear, DequantizeLinear)
def quantization(writer: GraphWriter, node: Node) -> None:
    """Each element has its own scale."""
    op = node.op
    assert isinstance(op, QuantizeLinear | DequantizeLinear)
    if writer.dims(node.inputs[1]) not in ((), (1,)):
        rank = len(writer.dims(node.inputs[0]))
        writer.need_closed(node.inputs[0], [normalize_axis(op.axis, rank)])
    writer.read_inputs()


@rule(DynamicQuantizeLinear)
def dynamic_quantization(writer: GraphWriter, node: Node) -> None:
    """The quantized range always includes 0."""
    x = operand(node, 0)
    writer.set_inputs([writer.hidden(x, range(len(writer.dims(x))), 0)])


@rule(Split)
def split(writer: GraphWriter, node: Node) -> None:
    """The axis that is split has a fixed size."""
    op = node.op
    assert isinstance(op, Split)
    rank = len(writer.dims(node.inputs[0]))
    writer.need_closed(node.inputs[0], [normalize_axis(op.axis, rank)])
    writer.read_inputs()


# ── operators that combine elements of an axis ───────────────────────────────────────────────────

#: The neutral element of each reduction.
_NEUTRAL: dict[type[Op], Any] = {
    **dict.fromkeys((ReduceSum, ReduceL1, ReduceL2, ReduceLogSum, ReduceSumSquare, ReduceMean), 0),
    ReduceProd: 1,
}


@rule(Reduce)
def reduction(writer: GraphWriter, node: Node) -> None:
    """Padding is replaced by the neutral element; a mean is divided by the actual count."""
    op, x = node.op, operand(node, 0)
    assert isinstance(op, Reduce)
    axes = writer.numbers(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else ()
    if axes is None:
        raise writer.error("its axes are not known")
    dims = writer.dims(x)
    along = op.axes(axes, len(dims))
    sizes = [dims[axis] for axis in along if axis in writer.grown(x)]
    if not sizes:
        writer.read_inputs()
        return
    if isinstance(op, ReduceMax | ReduceLogSumExp | ReduceMin):
        fill = fill_of(x.tensor.dtype, 1 if isinstance(op, ReduceMin) else -1)
    else:
        fill = _NEUTRAL[type(op)]
    inputs = [writer.hidden(x, along, fill), *node.inputs[1:]]
    if not isinstance(op, ReduceMean):
        writer.set_inputs(inputs)
        return
    total = ReduceSum(keepdims=op.keepdims, noop_with_empty_axes=op.noop_with_empty_axes)
    sum_ = writer.add(total, *inputs)
    count = product(dims[axis] for axis in along)
    if count is None:
        raise writer.error("it reduces several growing axes")
    number = writer.add(Cast(to=x.tensor.dtype), writer.true_sizes((count,)))
    if not sum_.tensor.dims:
        number = writer.add(Reshape(), number, writer.constant(np.zeros(0)))
    writer.replace(writer.add(Div(), sum_, number))


@rule(ArgReduce)
def arg_reduction(writer: GraphWriter, node: Node) -> None:
    """Padding loses against the first valid element."""
    op, x = node.op, operand(node, 0)
    assert isinstance(op, ArgReduce)
    axis = normalize_axis(op.axis, len(writer.dims(x)))
    if axis in writer.grown(x) and op.select_last_index:
        raise writer.error("it selects the last of equal elements")
    sign = -1 if type(op).__name__ == "ArgMax" else 1
    writer.set_inputs([writer.hidden(x, [axis], fill_of(x.tensor.dtype, sign))])


@rule(Softmax, LogSoftmax, Hardmax)
def softmax(writer: GraphWriter, node: Node) -> None:
    """The exponential of padding is 0."""
    op, x = node.op, operand(node, 0)
    assert isinstance(op, Softmax | LogSoftmax | Hardmax)
    axis = normalize_axis(op.axis, len(writer.dims(x)))
    writer.set_inputs([writer.hidden(x, [axis], fill_of(x.tensor.dtype, -1))])


@rule(TopK)
def top_k(writer: GraphWriter, node: Node) -> None:
    """Padding sorts last."""
    op, x = node.op, operand(node, 0)
    assert isinstance(op, TopK)
    axis = normalize_axis(op.axis, len(writer.dims(x)))
    sign = -1 if op.largest else 1
    filled = writer.hidden(x, [axis], fill_of(x.tensor.dtype, sign))
    writer.set_inputs([filled, *(writer.read(value) for value in node.inputs[1:])])


@rule(CumSum)
def running_sum(writer: GraphWriter, node: Node) -> None:
    """Counted from the front, padding comes last."""
    op, x = node.op, operand(node, 0)
    assert isinstance(op, CumSum)
    along = range(len(writer.dims(x)))
    filled = writer.hidden(x, along, 0) if op.reverse else x
    writer.set_inputs([filled, *(writer.read(value) for value in node.inputs[1:])])


@rule(MatMul, MatMulInteger)
def matrix_product(writer: GraphWriter, node: Node) -> None:
    """Padding of the summed axis is 0 on both sides."""
    a, b = operand(node, 0), operand(node, 1)
    inner = len(writer.dims(a)) - 1, max(0, len(writer.dims(b)) - 2)
    if inner[0] not in writer.grown(a):
        writer.read_inputs()
        return
    if isinstance(node.op, MatMulInteger):
        raise writer.error("it has zero points, and sums over an axis that grows")
    pair = zip((a, b), inner, strict=True)
    writer.set_inputs([writer.hidden(x, [axis], 0) for x, axis in pair])


@rule(QLinearMatMul)
def product_of_integers(writer: GraphWriter, node: Node) -> None:
    """Padding of the summed axis is the zero point on the left."""
    a, zero = operand(node, 0), operand(node, 2)
    axis = len(writer.dims(a)) - 1
    rest = [writer.read(value) for value in node.inputs[1:]]
    if axis not in writer.grown(a):
        writer.set_inputs([writer.read(a), *rest])
        return
    if zero.data is None or zero.data.size != 1:
        raise writer.error("it has computed zero points, and sums over an axis that grows")
    writer.set_inputs([writer.hidden(a, [axis], int(zero.data.reshape(()))), *rest])


@rule(QLinearConv)
def convolution_of_integers(writer: GraphWriter, node: Node) -> None:
    """Images are convolved independently."""
    x = operand(node, 0)
    writer.need_closed(x, range(1, len(writer.dims(x))))
    writer.read_inputs()


@rule(Gemm)
def gemm(writer: GraphWriter, node: Node) -> None:
    """See `matrix_product`."""
    op, a, b = node.op, operand(node, 0), operand(node, 1)
    assert isinstance(op, Gemm)
    inner = 0 if op.transA else 1, 1 if op.transB else 0
    pair = zip((a, b), inner, strict=True)
    writer.set_inputs([*(writer.hidden(x, [axis], 0) for x, axis in pair), *node.inputs[2:]])
