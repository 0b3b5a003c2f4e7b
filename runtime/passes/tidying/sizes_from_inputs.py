"""Reads sizes from the inputs of a graph instead of tensors in it."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim
from ...ops.movement import Concat
from ...ops.shape import Shape
from ..driver import Context
from ..editing import Builder, shape_of

#: An input and one of its axes.
_Place = tuple[Value, int]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace the shape of a computed tensor by sizes of the graph's inputs, if they are the same.

    TorchScript's exporter asks intermediate tensors for their sizes, such as scores for the number
    of keys. Patterns need these to have no other reader.
    """
    places: dict[str, _Place] = {}
    for value in graph.inputs:
        for axis, size in enumerate(shape_of(value) or ()):
            if isinstance(size, str):
                places.setdefault(size, (value, axis))
    for node in list(graph.nodes):
        sizes = _sizes(node)
        if sizes is None or any(isinstance(size, str) and size not in places for size in sizes):
            continue
        add = Builder(graph, node, node.name, (node,))
        parts: list[Value] = []
        for size in sizes:
            if isinstance(size, str):
                value, axis = places[size]
                parts.append(add(Shape(start=axis, end=axis + 1), value))
            elif isinstance(size, int):
                parts.append(add.integers([size], "size"))
        name = node.name
        graph.replace(node, (parts[0] if len(parts) == 1 else add(Concat(axis=0), *parts),))
        yield f"Shape '{name}' has the sizes of inputs"


def _sizes(node: Node) -> tuple[Dim, ...] | None:
    """Return what a Shape of a computed tensor returns, if each is a number or a symbol."""
    if not isinstance(node.op, Shape) or node.operands[0].producer is None:
        return None
    dims = shape_of(node.operands[0])
    sizes = None if dims is None else dims[node.op.start : node.op.end]
    return sizes if sizes and all(isinstance(size, int | str) for size in sizes) else None
