"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array
from .driver import Context

#: Elements compared before constants are read in full.
SAMPLE = 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge nodes with equal operator, attributes and inputs; constants are compared by content."""
    seen: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if not node.op.deterministic or node.op.graphs():
            continue
        key = (
            node.op,
            len(node.outputs),
            tuple(None if v is None else _identity(v) for v in node.inputs),
        )
        first = seen.setdefault(key, node)
        if first is node:
            continue
        graph.replace(node, first.outputs)
        yield f"{node.kind} '{node.name}' is the same as '{first.name}'"


def _identity(value: Value) -> Hashable:
    return value if value.data is None else _Content(value.data)


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """A constant, compared by dtype, shape and bytes."""

    data: Array

    def __hash__(self) -> int:
        sample = self.data.flat[:SAMPLE]
        content = tuple(sample) if sample.dtype == object else sample.tobytes()
        return hash((self.data.dtype.str, self.data.shape, content))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return False
        a, b = self.data, other.data
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        if a is b or not a.size:
            return True
        if a.dtype == object:
            return bool((a == b).all())
        if not any((*a.strides, *b.strides)):
            a, b = a.flat[:1], b.flat[:1]
        return a.tobytes() == b.tobytes()
