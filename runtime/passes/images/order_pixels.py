"""Leaves pixels in the order in which they are in memory, where layers treat each of them alone.

Networks of point clouds gather the neighbours of points, [n, points, neighbours, channels], swap
the axes of both for convolutions of 1x1, and reduce one of them: PointNet++ and those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...ir.chains import chain_before, chain_behind
from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv, convolves_pixels
from ...ops.cuts import reduced_axes
from ...ops.movement import Transpose
from ...ops.norm import BatchNormalization
from ...ops.reduce import Reduce
from ...ops.shape import RESHAPES, Unsqueeze
from ..attention.scores import axis_groups
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of
from ..moves.transpose_images import Order, order_of, to_channels_first
from ..pointwise import is_elementwise


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace transposes that also swap axes of pixels, as far as a reduction of one of them.

    A reduction that alone reads a transposed tensor reduces the axes before, if these are not the
    last one: the pixels of an image that was rows of channels.
    """
    for node in [node for node in graph.nodes if isinstance(node.op, Transpose)]:
        order, source = _moved(graph, node) if node in graph else (None, None)
        if order is None or len(order) < 4 or order[:2] != (0, len(order) - 1):
            continue
        first = to_channels_first(len(order))
        layers = [] if order == first else _layers(graph, node.output, len(order))
        if not layers:
            continue
        *rest, last = layers
        places = [first.index(axis) for axis in order]
        axes = reduced_axes(last, len(order)) or ()
        if sorted(kept := [places[i] for i in range(len(order)) if i not in axes]) != kept:
            continue
        add = Builder(graph, node, origin=(node,))
        value = add(Transpose(perm=first), source)
        for layer in rest:
            value = _repeated(graph, layer, value)
        _reduce(graph, last, value, axes, places)
        drop(graph, node)
        yield f"{last.kind} '{last.name}' reduces pixels that '{node.name}' would have moved"
    for node in [node for node in graph.nodes if isinstance(node.op, Reduce)]:
        text = _reduce_whole(graph, node) if node in graph else ""
        if text:
            yield text
    for node in [node for node in graph.nodes if isinstance(node.op, Reduce)]:
        text = _reduce_before(graph, node)
        if text:
            yield text


def _reduce_whole(graph: Graph, node: Node) -> str:
    """Reduce a transposed axis instead of the several ones that a view makes of it.

    Rows of pixels become an image whose pixels are averaged (MetaFormers).
    """
    image = node.operands[0]
    view, axes = image.producer, reduced_axes(node)
    rows = view.operands[0] if view is not None and isinstance(view.op, RESHAPES) else None
    moved = None if rows is None else rows.producer
    if rows is None or moved is None or axes is None or order_of(moved) is None:
        return ""
    source, made = shape_of(rows), shape_of(image)
    if source is None or made is None or graph.sole_consumer(image) is not node:
        return ""
    groups = [each for each in axis_groups(source, made) if not set(each[1]).isdisjoint(axes)]
    whole = [axis for one, _ in groups for axis in one]
    if sorted(axis for _, parts in groups for axis in parts) != [*axes] or len(whole) >= len(axes):
        return ""
    add = Builder(graph, node, node.name, (node,))
    total = add(replace(node.op, keepdims=0), rows, add.integers(whole, "axes"))
    graph.redirect(node.output, add.view(total, node.output.tensor.dims))
    drop(graph, node)
    return f"{node.kind} '{node.name}' reduces {len(whole)} axes instead of {len(axes)}"


def _reduce_before(graph: Graph, node: Node) -> str:
    """Reduce a tensor instead of its transpose, whose axes that are kept have the same order."""
    moved = node.inputs[0]
    made = None if moved is None else moved.producer
    order = None if made is None else order_of(made)
    if made is None or order is None or moved is None or graph.sole_consumer(moved) is None:
        return ""
    rank, axes = len(order), reduced_axes(node, len(order)) or ()
    kept = [order[i] for i in range(rank) if i not in axes]
    if not axes or kept != sorted(kept) or rank - 1 not in kept or order[-1] == rank - 1:
        return ""
    text = f"{node.kind} '{node.name}' reduces what '{made.name}' would have moved"
    _reduce(graph, node, made.operands[0], axes, order)
    return text


def _moved(graph: Graph, node: Node) -> tuple[Order | None, Value | None]:
    """Return what the last Transpose of several moves, and the order of all of them."""
    order, source = order_of(node), node.inputs[0] if node.inputs else None
    if order is None or source is None:
        return order, source
    for maker in chain_before(graph, source):
        before = order_of(maker)
        if before is None:
            break
        order, source = tuple(before[axis] for axis in order), maker.inputs[0]
    return order, source


def _layers(graph: Graph, value: Value, rank: int) -> list[Node]:
    """Return the layers from an image to a reduction of its pixels; none if there are others."""
    found = list[Node]()
    for reader in chain_behind(graph, value):
        found.append(reader)
        if isinstance(reader.op, Reduce):
            axes = reduced_axes(reader, rank)
            has_layer = any(isinstance(layer.op, Conv) for layer in found)
            return found if has_layer and axes and min(axes) >= 2 else []
        if not _is_pointwise(reader, value, rank):
            break
        value = reader.output
    return []


def _is_pointwise(node: Node, value: Value, rank: int) -> bool:
    """Whether a node treats every pixel of an image alone, and all alike."""
    others = [other.data for other in node.distinct_reads if other is not value]
    constants = [data for data in others if data is not None]
    if len(node.outputs) != 1 or len(constants) < len(others):
        return False
    if isinstance(node.op, Conv):
        return node.inputs[0] is value and convolves_pixels(node)
    if isinstance(node.op, BatchNormalization):
        return not node.op.training_mode and node.inputs[0] is value
    is_alike = all(set(((1,) * rank + c.shape)[2 - rank :]) == {1} for c in constants)
    return is_elementwise(node.op) and rank_of(node.output) == rank and is_alike


def _repeated(graph: Graph, node: Node, value: Value) -> Value:
    """Return what a node computes of another image."""
    (old,) = (each for each in node.distinct_reads if each.data is None)
    inputs = [value if each is old else each for each in node.inputs]
    return Builder(graph, node, node.name, (node,))(node.op, *inputs)


def _reduce(
    graph: Graph, node: Node, value: Value, axes: Sequence[int], places: Sequence[int]
) -> None:
    """Replace a reduction by that of the same axes in another place."""
    assert isinstance(node.op, Reduce)
    add = Builder(graph, node, node.name, (node,))
    moved = add.integers(sorted(places[axis] for axis in axes))
    result = add(replace(node.op, keepdims=0), value, moved)
    if node.op.keepdims:
        result = add(Unsqueeze(), result, add.integers(axes))
    sources = [each.producer for each in node.distinct_reads]
    graph.replace(node, (result,))
    for source in sources:
        drop(graph, source)
