"""Merges stacks of matrices that are multiplied by the same matrix into rows of one."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, shape_of

#: Fewer rows than this are worth two transposes; more are enough for a tile.
FEW = 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Make rows of the batch axes of a MatMul along which only its right operand is broadcast.

    Heads that share keys or positions: [n, heads, pixels, 1, k] times [n, 1, pixels, k, m] becomes
    [n, pixels, heads, k] times [n, pixels, k, m]. Axes in front of others of the right operand come
    behind these first, unless the matrices have rows enough as they are.
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, MatMul):
            shared = _shared(node)
            if shared:
                yield _merge(graph, node, shared)


def _shared(node: Node) -> list[int]:
    """Return the axes along which only the right operand is broadcast, to be merged with rows."""
    a, b = (shape_of(value) or () for value in node.inputs[:2])
    rank = max(len(a), len(b))
    known = all(isinstance(size, int) and size for size in (*a, *b))
    if not known or min(len(a), len(b)) < 3 or len(a) < len(b):
        return []
    b = (*(1,) * (rank - len(b)), *b)
    outer = range(rank - 2)
    if any(a[i] == 1 != b[i] for i in outer) or all(b[i] == 1 for i in outer):
        return []
    shared = [i for i in outer if b[i] == 1 != a[i]]
    last = max(i for i in outer if b[i] != 1)
    rows = node.operands[0].tensor.dims[-2]
    is_short = rows < FEW
    return shared if is_short else [i for i in shared if i > last]


def _merge(graph: Graph, node: Node, shared: list[int]) -> str:
    a, b = node.operands
    dims, rank = a.tensor.dims, len(a.tensor.dims)
    plain = Builder(graph, node)

    def add(op: Op, *inputs: Value) -> Value:
        return plain(op, *inputs, name=f"{node.name}.{type(op).__name__}")

    def shaped(x: Value, *sizes: int) -> Value:
        return add(Reshape(), x, plain.integers(sizes, f"{node.name}.sizes"))

    def transposed(x: Value, perm: tuple[int, ...]) -> Value:
        return x if perm == tuple(range(rank)) else add(Transpose(perm=perm), x)

    kept = [i for i in range(rank - 2) if i not in shared]
    perm = (*kept, *shared, rank - 2, rank - 1)
    rows = prod(dims[i] for i in shared) * dims[-2]
    outer = [dims[i] for i in kept]
    right = (1,) * (rank - len(b.tensor.dims)) + b.tensor.dims
    left = shaped(transposed(a, perm), *outer, rows, dims[-1])
    b = shaped(b, *(right[i] for i in (*kept, rank - 2, rank - 1)))
    made = Builder(graph, node, node.name, (node,))(MatMul(), left, b)
    width = b.tensor.dims[-1]
    apart = shaped(made, *(dims[i] for i in (*kept, *shared, rank - 2)), width)
    name = node.name
    graph.replace(node, [transposed(apart, tuple(perm.index(i) for i in range(rank)))])
    return f"the stacks of MatMul '{name}' along {len(shared)} axes are rows of one matrix"
