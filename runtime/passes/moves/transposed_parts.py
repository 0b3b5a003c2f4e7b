"""Transposes a tensor before it is cut or reduced, where the results were transposed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ops.cuts import axis_of
from ...ops.gather import Gather
from ...ops.movement import Split, Transpose
from ...ops.reduce import Reduce
from ...ops.shape import Squeeze
from ...ops.shapes import normalize_axes
from ..editing import Builder, drop, shape_of


def reduce_transposed(graph: Graph) -> Iterator[str]:
    """Replace ``transpose(reduce(x))`` by ``reduce(transpose(x))`` where x is transposed anyway.

    onnxruntime's optimiser moves transposes behind reductions, so that lengths of queries and keys
    are transposed apart from these.
    """
    for node in list(graph.nodes):
        found = _reduced(graph, node) if node in graph else None
        if found is None:
            continue
        reduction, other = found
        axes, perm = reduction.operands[1].data, _order(node)
        if axes is None:
            continue
        add = Builder(graph, node, reduction.name, (reduction, node))
        if graph.in_order((node, other))[0] is node:
            transposed = Builder(graph, node, other.name, (other,))(other.op, other.inputs[0])
            graph.replace(other, (transposed,))
        else:
            transposed = other.output
        along = normalize_axes(tuple(int(axis) for axis in axes), len(perm))
        places = add.integers(sorted(perm.index(axis) for axis in along), "axes")
        name = reduction.name
        graph.replace(node, (add(reduction.op, transposed, places),))
        drop(graph, reduction)
        yield f"{reduction.kind} '{name}' reduces the transposed '{transposed.name}'"


def transpose_whole(graph: Graph) -> Iterator[str]:
    """Transpose a tensor before its places along an axis are cut, if each of them is transposed.

    onnxruntime's optimiser cuts queries, keys and values before it moves heads: three transposes in
    place of one.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Split):
            continue
        axis = axis_of(node) or 0
        transposes = [graph.sole_consumer(value) for value in node.outputs]
        direct = _same_order(transposes)
        places = [_transpose_of_place(graph, value, axis) for value in node.outputs]
        order = direct or _same_order(places)
        if not order or len(node.outputs) < 2:
            continue
        found = [
            transpose for transpose in (transposes if direct else places) if transpose is not None
        ]
        perm = direct or (axis, *(place + (place >= axis) for place in order))
        whole = Builder(graph, node, found[0].name, tuple(found))
        transposed = whole(Transpose(perm=perm), node.inputs[0])
        if direct:
            op = with_attributes(node.op, axis=perm.index(axis))
            made = Builder(graph, node, node.name, (node,)).node(
                op, transposed, *node.inputs[1:], outputs=len(found)
            )
            parts = list(made.outputs)
        else:
            add = Builder(graph, node, node.name, (node,))
            numbers = [add.constant(np.array(i, np.int64), "place") for i in range(len(found))]
            parts = [add(Gather(axis=0), transposed, number) for number in numbers]
        name = node.name
        for transpose, part in zip(found, parts, strict=True):
            view = transpose.operands[0].producer
            graph.replace(transpose, (part,))
            drop(graph, view)
        yield f"'{name}' cuts what is transposed as a whole, instead of {len(found)} parts"


def _same_order(nodes: Sequence[Node | None]) -> tuple[int, ...]:
    """Return the order of nodes that are all equal Transposes; nothing for others."""
    orders = {() if node is None else _order(node) for node in nodes}
    return orders.pop() if len(orders) == 1 else ()


def _transpose_of_place(graph: Graph, value: Value, axis: int) -> Node | None:
    """Return the Transpose that alone reads one place of an axis, which a Squeeze removes."""
    shape, view = shape_of(value), graph.sole_consumer(value)
    if shape is None or shape[axis] != 1 or view is None or not isinstance(view.op, Squeeze):
        return None
    if shape_of(view.output) != (*shape[:axis], *shape[axis + 1 :]):
        return None
    transpose = graph.sole_consumer(view.output)
    return transpose if transpose is not None and _order(transpose) else None


def _order(node: Node) -> tuple[int, ...]:
    """Return the order of a Transpose; nothing for others."""
    shape = shape_of(node.output)
    return node.op.order(len(shape)) if isinstance(node.op, Transpose) and shape else ()


def _reduced(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Return the reduction that a Transpose reads, and a Transpose of its source likewise."""
    source = node.inputs[0] if _order(node) else None
    reduction = None if source is None else source.producer
    if source is None or reduction is None or not isinstance(reduction.op, Reduce):
        return None
    if not reduction.op.keepdims or len(reduction.operands) != 2:
        return None
    if sum(source.consumers.values()) != 1 or graph.is_output(source):
        return None
    others = (other for other in reduction.operands[0].consumers if _order(other) == _order(node))
    return next(((reduction, other) for other in others), None)
