"""Let Softmax work along the last axis where a file of an old opset flattens the others first."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir import Graph, Node, Value
from ..ops.norm import LogSoftmax, Softmax
from ..ops.shape import Flatten, Reshape
from ..types import Shape, TensorType
from .driver import Context
from .match import stand_in


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop Flatten and Reshape around a Softmax or LogSoftmax of rows.

    Before opset 13 they normalized all axes from one on together, which is what the importer writes
    them as. Along the last axis that is the same without.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Softmax | LogSoftmax):
            continue
        flat, join = _producer(node.inputs[0]), graph.sole_consumer(node.output)
        if flat is None or join is None or not _is_flat(node, flat, join):
            continue
        source, sizes = flat.inputs[0], join.inputs[1]
        assert source is not None
        new = stand_in(graph, {node, join}, join, type(node.op)(axis=-1), (source,))
        _drop(graph, flat)
        _drop(graph, _producer(sizes))
        yield f"{new.kind} '{new.name}' works along the last axis"


def _producer(value: Value | None) -> Node | None:
    return None if value is None else value.producer


def _shape(value: Value | None) -> Shape | None:
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def _is_flat(node: Node, flat: Node, join: Node) -> bool:
    """Whether rows of the last axis go in, and come out in the shape that they had."""
    if not isinstance(flat.op, Flatten) or not isinstance(join.op, Reshape):
        return False
    before, after = _shape(flat.inputs[0]), _shape(join.output)
    if not before or before != after or None in before:
        return False
    return flat.op.axis in (-1, len(before) - 1) and getattr(node.op, "axis", 0) in (-1, 1)


def _drop(graph: Graph, node: Node | None) -> None:
    """Remove a node, and what alone it had a use for, if nobody reads it."""
    if node is None or node not in graph:
        return
    if any(value.consumers or graph.is_output(value) for value in node.outputs):
        return
    sources = [value.producer for value in node.reads]
    graph.remove(node)
    for source in sources:
        _drop(graph, source)
