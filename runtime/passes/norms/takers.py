"""Layers that take over scale and shift of what they read, also across averages and views."""

from __future__ import annotations

from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.conv import Conv
from ...ops.cuts import reduced_axes
from ...ops.elementwise import Add
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Transpose
from ...ops.pool import AveragePool, GlobalAveragePool
from ...ops.reduce import ReduceMean
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, stand_in
from ..fusion import Replacement
from ..linear import LinearLayer, as_linear, rebuilt
from ..rounding import Exact, half_types, narrowed, product, rounded_bias

#: Scale and shift per element of an axis, float64.
Affine = tuple[Array, Array]


@record
class Taker:
    """A layer, or a product of rows with a constant matrix, and what scales and shifts its input.

    Attributes:
        node: the Conv, Gemm or MatMul.
        layer: the node as a layer; None of a MatMul.
        affine: scale and shift per channel, or column, of its first input.
    """

    node: Node
    layer: LinearLayer | None
    affine: Affine

    def made(self, graph: Graph, context: Context) -> Replacement:
        """Return what replaces the node; of a MatMul, its inputs are rows, matrix and addends.

        Raises:
            Unfit: a type cannot represent the weights.
        """
        if self.layer is not None:
            return taking(graph, self.layer, self.affine, context)
        (x, matrix), (scale, shift) = self.node.operands, self.affine
        weight = matrix.data
        assert weight is not None
        also = half_types(context.options.precision, weight.dtype)
        exact = product(weight, scale[:, np.newaxis])
        scaled = narrowed(exact, weight.dtype, weight, axis=1, also=also)
        row = rounded_bias(shift @ weight.astype(np.float64), weight.dtype)
        weights = graph.constant(scaled, f"{matrix.name}.folded")
        addends = graph.constant(row, f"{self.node.name}.bias")
        return Replacement(Add(), (x, weights, addends), named=self.node)

    def replace(self, graph: Graph, new: Replacement) -> None:
        """Put what `made` returned in place of the node."""
        if self.layer is not None:
            stand_in(graph, [self.node], self.node, new.op, new.inputs)
            return
        x, weights, addends = new.inputs
        add = Builder(graph, self.node, self.node.name, (self.node,))
        total = add(new.op, add(MatMul(), x, weights), addends)
        graph.redirect(self.node.output, total)
        drop(graph, self.node)


def takers(graph: Graph, value: Value, axis: int, affine: Affine) -> list[Taker] | None:
    """Return the layers that take over scale and shift of a tensor, if all that read it do.

    Averages of pixels commute with both, and views only move the axis, or repeat its elements.

    Args:
        graph: the graph.
        value: the tensor.
        axis: of `value`; `affine` has its elements.
        affine: scale and shift.
    """
    if graph.is_output(value):
        return None
    found: list[Taker] = []
    for node in value.consumers:
        if node.inputs[:1] != (value,) or value in node.inputs[1:] or value in node.captures:
            return None
        more = _takers_at(graph, node, axis, affine)
        if more is None:
            return None
        found += more
    return found or None


def _takers_at(graph: Graph, node: Node, axis: int, affine: Affine) -> list[Taker] | None:
    """Return the same for one node that reads the tensor as its first input."""
    op, value, size = node.op, node.operands[0], affine[0].size
    rank, dims = rank_of(value), shape_of(node.output)
    if rank is None or dims is None:
        return None
    if isinstance(op, MatMul):
        matrix = node.operands[1].data
        is_taker = matrix is not None and matrix.ndim == 2 and matrix.dtype.kind == "f"
        return [Taker(node, None, affine)] if is_taker and axis == rank - 1 else None
    if isinstance(op, Transpose):
        return takers(graph, node.output, op.order(rank).index(axis), affine)
    if isinstance(op, RESHAPES):
        return _behind_view(graph, node, axis, affine)
    if isinstance(op, ReduceMean):
        axes = reduced_axes(node, rank)
        if axes is None or axis in axes:
            return None
        before = 0 if op.keepdims else sum(each < axis for each in axes)
        return takers(graph, node.output, axis - before, affine)
    if axis != 1:
        return None
    if isinstance(op, GlobalAveragePool) or (isinstance(op, AveragePool) and not op.counts_padding):
        return takers(graph, node.output, 1, affine)
    layer = _layer(node, size)
    return None if layer is None else [Taker(node, layer, affine)]


def _behind_view(graph: Graph, view: Node, axis: int, affine: Affine) -> list[Taker] | None:
    """Return what takes over scale and shift behind a Reshape, which keeps the axis or ends in it.

    An axis is kept if the axes before it are, or if it is the last one of both. A Flatten of an
    image to one row has each element of the axis as often as there are pixels.
    """
    source, made = shape_of(view.operands[0]), shape_of(view.output)
    if source is None or made is None or None in source[:axis]:
        return None
    size = source[axis]
    if axis == len(source) - 1 and made[-1:] == (size,):
        return takers(graph, view.output, len(made) - 1, affine)
    if made[:axis] != source[:axis] or len(made) <= axis:
        return None
    if made[axis] == size:
        return takers(graph, view.output, axis, affine)
    rest = [each for each in source[axis + 1 :] if isinstance(each, int)]
    if len(made) != axis + 1 or len(rest) != len(source) - axis - 1:
        return None
    if made[axis] != affine[0].size * prod(rest):
        return None  # of no elements, which have any number of columns
    scale, shift = (np.repeat(each, prod(rest)) for each in affine)
    return takers(graph, view.output, axis, (scale, shift))


def layer_behind(graph: Graph, node: Node, affine: Affine) -> LinearLayer | None:
    """Return the layer that takes over scale and shift of what a node reads, or None.

    The node is the layer, or an AveragePool that only the layer reads.
    """
    found = _takers_at(graph, node, 1, affine) if isinstance(node.op, AveragePool) else None
    if found is not None:
        return found[0].layer if len(found) == 1 and found[0].affine is affine else None
    return None if node.inputs[0] in node.inputs[1:] else _layer(node, affine[0].size)


def _layer(node: Node, size: int) -> LinearLayer | None:
    """Return a Gemm, or a Conv without padding, of so many columns or channels."""
    layer, op = as_linear(node), node.op
    if layer is None:
        return None
    if isinstance(op, Conv):
        return layer if not op.may_pad and size == layer.weight.shape[1] * op.group else None
    if isinstance(op, Gemm) and not op.transA:
        return layer if size == layer.weight.shape[1 if op.transB else 0] else None
    return None


def taking(graph: Graph, layer: LinearLayer, affine: Affine, context: Context) -> Replacement:
    """Return the layer with scale and shift of its input in its weights."""
    scale, shift = affine
    op, wide = layer.node.op, layer.weight.astype(np.float64)
    if isinstance(op, Conv):
        rest = (1,) * (wide.ndim - 2)
        groups = wide.reshape(op.group, len(wide) // op.group, *wide.shape[1:])
        by, more = (each.reshape(op.group, 1, wide.shape[1], *rest) for each in (scale, shift))
        weight = (groups * by).reshape(wide.shape)
        addend = (groups * more).reshape(len(wide), prod(wide.shape[1:])).sum(1)
    else:
        assert isinstance(op, Gemm)
        by, more = (each if op.transB else each[:, None] for each in (scale, shift))
        weight, addend = wide * by, op.alpha * (wide * more).sum(1 if op.transB else 0)
    also = half_types(context.options.precision, layer.weight.dtype)
    exact, bias = Exact.of(weight), layer.bias + addend
    return rebuilt(graph, layer, exact, bias, scaled=False, also=also)
