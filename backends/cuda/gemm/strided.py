"""Products of two computed stacks of 16-bit matrices that are read where they lie.

Heads are parts of rows, and keys are turned: without this, each operand is copied first. Where the
product needs the range of float32, because nothing bounds it, exporters' nodes between its 16-bit
operands and it are Casts; sums are in float32 in any case, and are stored so.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from math import prod

from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.matmul import MatMul
from ....runtime.ops.movement import Transpose
from ..algorithms.registry import Answer, Setting
from ..codegen.epilogue import Tail, epilogue_of
from ..codegen.moves import VIEWS, Movement, movement
from ..recipe.operands import Ints, Tensor, merge
from .atoms import HALVES
from .problem import Batch, GemmArguments, Matrix, widest
from .schedules import multistage

#: Elements of A per copy, and of B unless its columns are adjacent.
VECTORS, EIGHT = (8, 4, 2), 8
#: Maximum number of blocks along the third grid axis.
MAX_STACKED = 65535


@dataclass(frozen=True, slots=True)
class _Read:
    """What a product reads.

    Attributes:
        source: the 16-bit tensor.
        nodes: between it and the product, in order.
        moves: those that move it; None if there are none.
    """

    source: Value
    nodes: tuple[Node, ...]
    moves: Movement | None

    def axes(self, x: Tensor) -> list[tuple[int, int]] | None:
        """Return size and stride of every axis of the operand; None if one has several strides."""
        if self.moves is None:
            return list(zip(x.dims, x.strides, strict=True))
        walk, first, found = self.moves.walk(x), 0, list[tuple[int, int]]()
        if walk.table is not None or walk.origin:
            return None
        for factors in self.moves.factors:
            strides = walk.strides[first : first + len(factors)]
            first += len(factors)
            sizes, (steps,) = merge(factors, (strides,))
            if len(sizes) > 1:
                return None
            found.append((sizes[0], steps[0] if sizes[0] > 1 else 0))
        return found


@dataclass(frozen=True, slots=True)
class StridedProduct:
    """A product of stacks with the nodes that move and widen its operands.

    Attributes:
        product: the MatMul.
        a, b: its operands.
        epilogue: the elementwise nodes after it.
    """

    product: Node
    a: _Read
    b: _Read
    epilogue: tuple[Node, ...] = ()

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({*self.a.nodes, *self.b.nodes, self.product, *self.epilogue})

    def gemm(self, y: Tensor, a: Tensor, b: Tensor) -> GemmArguments | str:
        """Return the product, or why `multistage.cu` cannot read its operands in place.

        Args:
            y: the result, in C order.
            a: the source of the left operand.
            b: the source of the right operand.
        """
        of_a, of_b = self.a.axes(a), self.b.axes(b)
        if of_a is None or of_b is None:
            return "an axis of an operand has several strides"
        *outer_a, (m, lda), (k, of_k) = of_a
        *outer_b, (_, row_b), (n, column_b) = of_b
        if of_k != 1 or 1 not in (row_b, column_b):
            return "terms that are not adjacent"
        across = column_b == 1
        batch = _batch(y.dims[:-2], outer_a, outer_b, m * n)
        if batch is None or max(y.size, a.extent, b.extent) >= 2**31:
            return "stacks with more than two strides"
        vector = widest(VECTORS, k, lda, batch.a, batch.head_a)
        gemm = GemmArguments(
            a=Matrix(a, lda, vector),
            b=b,
            c=y,
            shape=(m, n, k),
            ldb=row_b if across else column_b,
            ldc=n,
            batch=batch,
            across=across,
            dtype=a.dtype,
        )
        words = (k, gemm.ldb, batch.b, batch.head_b)
        if min(vector, gemm.vector_b) == 1 or (not across and widest((EIGHT,), *words) == 1):
            return "rows that are not aligned"
        return gemm


def _batch(dims: Ints, a: list[tuple[int, int]], b: list[tuple[int, int]], c: int) -> Batch | None:
    """Return the stack of products; None if it has more than two strides.

    Args:
        dims: its axes.
        a: size and stride of the left operand along the last of them.
        b: the same of the right operand.
        c: elements of one result.
    """
    moves = [
        (*(0 for _ in dims[len(of) :]), *(0 if size == 1 else stride for size, stride in of))
        for of in (a, b)
    ]
    sizes, (of_a, of_b) = merge(dims, moves) if dims else ((1,), ((0,), (0,)))
    count = prod(sizes)
    if len(sizes) > 2 or count > MAX_STACKED:
        return None
    if len(sizes) == 1:
        return Batch(count, of_a[0], of_b[0], c)
    return Batch(count, of_a[0], of_b[0], c, sizes[1], of_a[1], of_b[1])


def strided_product_at(
    graph: Graph, product: Node, free: Set[Node], tail: Tail
) -> StridedProduct | None:
    """Return the product of this node with what moves and widens its operands, if there is any.

    Args:
        graph: the graph.
        product: a MatMul.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    if product not in free or not isinstance(product.op, MatMul):
        return None
    values = product.operands
    if any(value.data is not None or (value.tensor.rank or 0) < 2 for value in values):
        return None
    a, b = (_read(graph, value, free) for value in values)
    if a is None or b is None or a.source.tensor.dtype != b.source.tensor.dtype:
        return None
    found = StridedProduct(product, a, b)
    if not any(isinstance(node.op, Cast | Transpose) for node in found.nodes):
        return None
    y, of_a, of_b = (Tensor(value) for value in (product.output, a.source, b.source))
    if isinstance(found.gemm(y, of_a, of_b), str):
        return None
    return replace(found, epilogue=tail(graph, product, free))


def _read(graph: Graph, value: Value, free: Set[Node]) -> _Read | None:
    """Return what a product reads through nodes that only it needs; None if not in 16 bits."""
    nodes: list[Node] = []
    source, node = value, value.producer
    if value.tensor.dtype == float32 and node is not None and isinstance(node.op, Cast):
        if node not in free or graph.sole_consumer(value) is None:
            return None
        nodes.append(node)
        source = node.operands[0]
    if source.tensor.dtype not in HALVES:
        return None
    moving: list[Node] = []
    while (node := source.producer) is not None and isinstance(node.op, (Transpose, *VIEWS)):
        if node not in free or graph.sole_consumer(source) is None:
            break
        moving.insert(0, node)
        source = node.operands[0]
    moves = movement(moving) if moving else None
    if moving and moves is None:
        return None
    return _Read(source, (*moving, *nodes), moves)


def strided_product(
    found: StridedProduct, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launches, or why there are none."""
    epilogue = epilogue_of(found.epilogue, y, found.product.output)
    if isinstance(epilogue, str):
        return epilogue
    a, b = operand(found.a.source), operand(found.b.source)
    gemm = found.gemm(y, a, b)
    if isinstance(gemm, str):
        return gemm
    first, *rest = multistage.multiply_halves(gemm, epilogue, setting.target)
    return replace(first, pitched=(*first.pitched, a, b)), *rest
