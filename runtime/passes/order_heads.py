"""Orders the elements of joined heads as those of one head after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..base.record import record
from ..ir.graph import Graph, Node, Value
from ..ops.attention import Attention
from ..ops.conv import Conv
from ..ops.matmul import MatMul
from ..ops.movement import Transpose
from ..ops.shape import Reshape
from .driver import Context
from .editing import Builder, shape_of


@record
class _Order:
    """How heads [b, h, t, d] become channels of which those of an element are adjacent.

    Attributes:
        perm: to what is joined.
        channels: the axis of the channels, counted from the last one if negative.
        wanted: the permutation with which those of a head are adjacent.
    """

    perm: tuple[int, ...]
    channels: int
    wanted: tuple[int, ...]


#: Of an image or a sound, and of rows.
_ORDERS = (_Order((0, 3, 1, 2), 1, (0, 1, 3, 2)), _Order((0, 2, 3, 1), -1, (0, 2, 1, 3)))


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Permute the weights of a layer that reads heads whose elements take turns (SuperGlue).

    ``view(b, d, h, t)`` of a layer's channels cuts every h-th one as a head, and so does the view
    back, behind an Attention. Its queries, keys and values are columns of layers in any order; see
    `join_heads`.
    """
    for node in list(graph.nodes):
        if isinstance(node.op, Attention) and _reorder(graph, node):
            yield f"the layer behind {node.kind} '{node.name}' reads one head after the other"


def _reorder(graph: Graph, attention: Node) -> bool:
    transpose = graph.sole_consumer(attention.outputs[0])
    heads = shape_of(attention.outputs[0])
    if transpose is None or not isinstance(transpose.op, Transpose) or len(heads or ()) != 4:
        return False
    order = next((each for each in _ORDERS if each.perm == transpose.op.order(4)), None)
    join = graph.sole_consumer(transpose.output)
    if order is None or heads is None or join is None or not isinstance(join.op, Reshape):
        return False
    _, number, _, size = heads
    joined, layer = shape_of(join.output), graph.sole_consumer(join.output)
    if not isinstance(number, int) or not isinstance(size, int) or not joined or layer is None:
        return False
    axis = _axis_of_terms(layer, join.output)
    if axis is None or isinstance(layer.op, Conv) != (order.channels == 1):
        return False
    if len(joined) < 2 or joined[order.channels] != number * size:
        return False
    add = Builder(graph, transpose, transpose.name, (transpose,))
    straight = add(replace(transpose.op, perm=order.wanted), attention.outputs[0])
    view = Builder(graph, join, join.name, (join,)).view(straight, joined)
    places = np.arange(number * size).reshape(size, number).T.reshape(-1)
    weights = layer.operands[1]
    assert weights.data is not None
    permuted = np.ascontiguousarray(weights.data.take(places, axis))
    moved = graph.constant(permuted, f"{weights.name}.heads")
    graph.set_inputs(layer, (view, moved, *layer.inputs[2:]))
    for each in (join, transpose):
        graph.remove(each)
    return True


def _axis_of_terms(layer: Node, value: Value) -> int | None:
    """Return the axis of a layer's constant weights along which its input's channels are summed."""
    if not isinstance(layer.op, Conv | MatMul) or layer.operands[0] is not value:
        return None
    weights = layer.operands[1].data
    if weights is None:
        return None
    if isinstance(layer.op, Conv):
        return 1 if layer.op.group == 1 else None
    return 0 if weights.ndim == 2 else None
