"""Inputs that select a branch of an If, such as a decoder's ``use_cache_branch``."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..ops.control import If
from ..ops.elementwise import Cast

#: Maximum number of such inputs: each combination of values gets its own graph.
MOST = 2


def flags_of(graph: Graph) -> tuple[str, ...]:
    """Return the inputs that decide all control flow of a graph.

    Once their values are known, no node with bodies remains. If any decision depends on another
    value, no input is returned.
    """
    found: dict[str, None] = {}
    for node in graph.nodes:
        if not node.op.graphs():
            continue
        source = _source(node.inputs[0]) if isinstance(node.op, If) else None
        if source is None or source not in graph.inputs or not _is_flag(source):
            return ()
        if any(inner.op.graphs() for body in node.op.graphs() for inner in body.nodes):
            return ()
        found[source.name] = None
    return tuple(found) if len(found) <= MOST else ()


def _source(value: Value | None) -> Value | None:
    """Return the source of a chain of copies, reshapes and casts."""
    *_, last = _copies(value)
    return last


def _copies(value: Value | None) -> Iterator[Value | None]:
    while True:
        yield value
        node = None if value is None else value.producer
        if node is None or not (isinstance(node.op, Cast) or node.op.view):
            return
        value = node.inputs[0]


def _is_flag(value: Value) -> bool:
    """Whether a value has one element."""
    type_ = value.type
    return isinstance(type_, TensorType) and type_.is_static and type_.size == 1
