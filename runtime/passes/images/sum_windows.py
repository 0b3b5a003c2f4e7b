"""Products of a few weights and the windows that they weigh, as sums that read windows in place."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.chains import chain_before
from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Mul
from ...ops.gather import Gather
from ...ops.matmul import MatMul
from ...ops.movement import Pad, Slice, Transpose
from ...ops.reduce import ReduceSum
from ..driver import Context
from ..editing import Builder, is_static, stand_in

#: Maximum number of elements of a window.
_SHORT = 32


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace products of unfolded windows and vectors by products of elements and their sums.

    Windows of neighbours (dynamic convolutions: ConvBERT) repeat each element for all windows that
    have it. A sum reads them where they are, and a product of matrices would need them in memory.
    """
    for node in list(graph.nodes):
        if not isinstance(node.op, MatMul) or not all(map(is_static, node.operands)):
            continue
        for place in (0, 1):
            if _weighs(graph, node, place):
                _sum(graph, node, place)
                yield f"{node.kind} '{node.name}' is a sum of what its windows read"
                break


def _weighs(graph: Graph, node: Node, place: int) -> bool:
    """Whether a product's operand in a place is windows, and the other one is vectors."""
    windows, vectors = node.operands[place], node.operands[1 - place]
    sizes = windows.tensor.dims, vectors.tensor.dims
    if windows is vectors or len(sizes[0]) < 2 or len(sizes[1]) != len(sizes[0]):
        return False
    summed, kept = (-1, -1) if place == 0 else (-2, -2)
    short = sizes[0][summed] <= _SHORT and sizes[1][kept] == 1
    return short and sizes[0][:-2] == sizes[1][:-2] and _unfolds(graph, windows)


def _unfolds(graph: Graph, value: Value) -> bool:
    """Whether a Gather repeats elements at constant places, which only the value's reader reads."""
    for node in chain_before(graph, value):
        if isinstance(node.op, Gather):
            source, indices = node.operands
            is_known = indices.data is not None and is_static(source) and is_static(node.output)
            return is_known and source.tensor.size < node.output.tensor.size
        if not isinstance(node.op, Transpose | Slice | Pad) and not node.op.view:
            break
    return False


def _sum(graph: Graph, node: Node, place: int) -> None:
    """Replace a product by a sum along the axis of the windows' elements."""
    windows, vectors = node.operands[place], node.operands[1 - place]
    axis = len(windows.tensor.dims) - 1 - place
    *stack, rows, columns = vectors.tensor.dims
    add = Builder(graph, node, f"{node.name}.products", (node,))
    weights = add.shaped(vectors, (*stack, columns, rows))
    products = add(Mul(), windows, weights)
    stand_in(graph, [node], node, ReduceSum(keepdims=1), [products, add.integers((axis,), "axes")])
