"""Common subexpressions: compute once what the graph computes twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from hashlib import blake2b

from ..ir import Graph, Node, Value
from ..types import Array
from .driver import Context


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge nodes of equal operator, attributes and inputs; constants count by their content."""
    digests: dict[Value, Hashable] = {}
    seen: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if not node.op.deterministic or node.op.graphs():
            continue
        key = (
            node.op,
            len(node.outputs),
            tuple(None if v is None else _identity(v, digests) for v in node.inputs),
        )
        first = seen.setdefault(key, node)
        if first is node:
            continue
        graph.replace(node, first.outputs)
        yield f"{node.kind} '{node.name}' is the same as '{first.name}'"


def _identity(value: Value, digests: dict[Value, Hashable]) -> Hashable:
    if value.data is None:
        return value
    if value not in digests:
        digests[value] = _digest(value.data)
    return digests[value]


def _digest(data: Array) -> Hashable:
    """Return what two arrays share if and only if their dtype, shape and bytes are equal."""
    if data.dtype == object:
        return str(data.dtype), data.shape, tuple(data.flat)
    if data.size and not any(data.strides):
        data_of_all = data.reshape(-1)[:1].tobytes()
        return str(data.dtype), data.shape, data_of_all
    content = blake2b(data.tobytes(), digest_size=16).digest()
    return str(data.dtype), data.shape, content
