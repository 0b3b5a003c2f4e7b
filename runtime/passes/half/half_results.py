"""Results of layers in half precision that only nodes in float32 read are stored in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...ir.dtypes import DType, float32
from ...ir.graph import Graph, Node, Value
from ...ops import attention, conv, elementwise, matmul, movement, norm, recurrent, reduce, shape
from ..editing import Builder

#: Modules of operators whose kernels store their results in any float type.
COMPUTING = frozenset(
    each.__name__ for each in (elementwise, norm, matmul, conv, attention, recurrent)
)
#: Modules of operators whose kernels read any float type, or start with a Cast.
_CASTING = frozenset(each.__name__ for each in (elementwise, norm, reduce))
_VIEWS = (*shape.RESHAPES, movement.Transpose)


def widen_early(graph: Graph, halves: Mapping[Value, Value], dtype: DType) -> Iterator[str]:
    """Widen what only nodes that stay float32 read where it is computed.

    Views that follow a layer in half precision are between it and the Cast, which becomes part of
    its kernel. Nodes that read any type (searches for the greatest element, which is the same) do
    without.

    Args:
        graph: the graph.
        halves: results in half precision, by what they are cast to.
        dtype: of these results.
    """
    for wide, half in halves.items():
        for reader in graph.in_order(wide.consumers):
            if isinstance(reader.op, reduce.ArgMax | reduce.ArgMin):
                graph.set_inputs(reader, (half,))
                yield f"{reader.kind} '{reader.name}' reads {dtype.name}"
        yield from _widen_before_views(graph, wide, half)


def _widen_before_views(graph: Graph, wide: Value, half: Value) -> Iterator[str]:
    """Put the Cast of a view in front of it."""
    cast, views = wide.producer, list[Node]()
    if cast is None or not _is_wide(graph, wide):
        return
    before, reader = half, cast
    while _is_read_by(graph, before, reader):
        node = before.producer
        if node is None or not isinstance(node.op, _VIEWS):
            break
        views.append(node)
        before, reader = node.operands[0], node
    maker = before.producer
    if maker is None or module_of(maker) not in COMPUTING | {reduce.__name__}:
        return
    if not views or not _is_read_by(graph, before, reader):
        return
    value = cast_to(graph, before, float32, views[-1])
    for node in reversed(views):
        add = Builder(graph, node, f"{node.output.name}.{float32.name}", (node,))
        value = add(node.op, value, *node.inputs[1:])
    graph.redirect(wide, value)
    yield f"{maker.kind} '{maker.name}' stores float32"


def _is_wide(graph: Graph, value: Value) -> bool:
    """Whether only nodes without Casts of their own kernels read a value."""
    seen, readers = [value], list[Node]()
    for each in seen:
        if graph.is_output(each):
            return False
        for node in each.consumers:
            (seen.extend(node.outputs) if isinstance(node.op, _VIEWS) else readers.append(node))
    return bool(readers) and all(module_of(node) not in _CASTING for node in readers)


def _is_read_by(graph: Graph, value: Value, reader: Node) -> bool:
    """Whether only one node reads a value, apart from those of which nothing is read."""
    readers = {each for each in value.consumers if is_read(graph, each)}
    return readers == {reader} and not graph.is_output(value)


def cast_to(graph: Graph, value: Value, dtype: DType, before: Node) -> Value:
    """Return a value cast to another type."""
    return Builder(graph, before, f"{value.name}.{dtype.name}")(elementwise.Cast(to=dtype), value)


def module_of(node: Node) -> str:
    """Return the module of an operator, which is its family."""
    return type(node.op).__module__


def is_read(graph: Graph, node: Node) -> bool:
    """Whether a result depends on a node: views in front of which Casts were put are left."""
    return any(map(graph.is_read, node.outputs))
