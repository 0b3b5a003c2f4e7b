"""First layers that compute in float32 and store half precision: they read few columns."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Add
from ...ops.matmul import Gemm, MatMul
from ...ops.shape import RESHAPES
from ..editing import dims_of, shape_of, unviewed

#: Maximum number of columns that such a layer reads, so that its results are limited by memory
#: without tensor cores. On an H200, 1024 rows of 3 by 256 columns take 0.9 us less than with a
#: Cast, of 8 columns 0.6 us more, and of 32 columns 2.5 us more.
COLUMNS = 4
#: How many times as many columns it stores at least, so that they are most of what is moved.
WIDER = 4


def first_layer(graph: Graph, node: Node) -> tuple[Node, ...]:
    """Return a layer that may as well read an input in float32, and the constants it adds.

    It reads few columns of an input of the graph that only such layers read (coordinates, variables
    of a series), and is as fast in float32, as its results are most of what is moved. Nothing has
    to cast the input then.

    Args:
        graph: the graph.
        node: a node.

    Returns:
        The layer, and what adds constants to its results, in order; nothing for another node.
    """
    if not _widens(node):
        return ()
    value = unviewed(node.operands[0])
    if value.producer is not None or value.data is not None or graph.is_output(value):
        return ()
    if not all(map(_widens, _readers_behind_views(value))):
        return ()
    found = [node]
    while (after := graph.sole_consumer(found[-1].output)) is not None:
        if not isinstance(after.op, Add) or all(each.data is None for each in after.operands):
            break
        found.append(after)
    return tuple(found)


def _widens(node: Node) -> bool:
    """Whether a node multiplies rows of few elements by a constant matrix of many columns."""
    if not isinstance(node.op, Gemm | MatMul) or node.operands[1].data is None:
        return False
    read, stored = shape_of(node.operands[0]), shape_of(node.output)
    if not read or not stored or (isinstance(node.op, Gemm) and node.op.transA):
        return False
    few, many = read[-1], stored[-1]
    if not isinstance(few, int) or not isinstance(many, int):
        return False
    return len(dims_of(node.operands[1]) or ()) == 2 and few <= COLUMNS and many >= WIDER * few


def _readers_behind_views(value: Value) -> Iterator[Node]:
    """Yield the nodes that read a value or views of it."""
    for node in value.consumers:
        if isinstance(node.op, RESHAPES):
            yield from _readers_behind_views(node.output)
        else:
            yield node
