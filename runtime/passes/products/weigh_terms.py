"""Moves weights of a product's terms from the larger factor to the smaller one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base.record import record
from ...ir.chains import chain_before
from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Cast, Mul
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ..driver import Context
from ..editing import Builder, drop, is_static
from ..pattern import pairs

Dims = tuple[int, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``x @ (w * y)`` by ``(x * w) @ y`` where w weighs terms and products share y.

    States of Mamba2: what all heads have is weighed by the decay of each head, so that there would
    be as many matrices of it as heads. The other factor is different for each of them anyway.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, MatMul):
            continue
        if not all(map(is_static, (*node.operands, node.output))):
            continue
        for place in (1, 0):
            if _rewrite(graph, node, place):
                yield f"MatMul '{node.name}' weighs terms of the factor that it does not share"
                break


@record
class _Moved:
    """A factor of a product, in front of the transposes that only it is read through.

    Attributes:
        source: the tensor.
        order: the axis of the source that each axis of the factor is.
        cast: to what its elements are cast on the way, maybe.
    """

    source: Value
    order: tuple[int, ...]
    cast: Cast | None = None

    def place(self, axis: int) -> int:
        """Return the axis of the source that is one of the factor."""
        return self.order[axis]


def _moved(graph: Graph, value: Value, *, casts: bool) -> _Moved:
    """Return where a factor comes from; with `casts`, also in front of one Cast."""
    order, cast = tuple(range(len(value.tensor.dims))), None
    for node in chain_before(graph, value):
        if isinstance(node.op, Transpose):
            perm = node.op.order(len(order))
            order = tuple(perm[axis] for axis in order)
        elif casts and isinstance(node.op, Cast) and cast is None:
            cast = node.op
        else:
            break
        value = node.operands[0]
    return _Moved(value, order, cast)


def _rewrite(graph: Graph, node: Node, place: int) -> bool:
    """Move weights of the factor in a place to the other one, if there are any."""
    shared = _moved(graph, node.operands[place], casts=False)
    other = _moved(graph, node.operands[1 - place], casts=True)
    product, rank = shared.source.producer, len(node.output.tensor.dims)
    if product is None or not isinstance(product.op, Mul) or rank < 3:
        return False
    if graph.sole_consumer(shared.source) is None or len(other.order) != rank:
        return False
    if not all(map(is_static, product.operands)):
        return False
    dims, axes = shared.source.tensor.dims, (rank - 1, rank - 2)
    line, term = axes if place else axes[::-1]
    for y, weights in pairs(product):
        sizes = _padded(weights, rank)
        if {len(dims), len(y.tensor.dims)} != {rank} or sizes[shared.place(line)] != 1:
            continue
        if y.tensor.dims[shared.place(term)] != dims[shared.place(term)]:
            continue  # all terms are the same but for their weights
        shares = y.tensor.size < shared.source.tensor.size >= other.source.tensor.size
        if y.data is not None or weights.data is not None or not shares:
            continue
        # Axes of weights as those of the other factor: its terms are the other axis of matrices.
        places = [shared.place(axis) for axis in range(rank)]
        places[line], places[term] = places[term], places[line]
        by = [0] * rank
        for axis, at in enumerate(other.order):
            by[at] = places[axis]
        whole, stack = other.source.tensor.dims, range(rank - 2)
        fits = all(sizes[at] in (1, whole[axis]) for axis, at in enumerate(by))
        own = [y.tensor.dims[shared.place(axis)] for axis in stack]
        results = zip(own, (whole[other.place(axis)] for axis in stack), strict=True)
        if not fits or tuple(map(max, results)) != node.output.tensor.dims[:-2]:
            continue
        add = Builder(graph, node, f"{node.name}.weighed", (node, product))
        moved = _transposed(add, add.view(weights, sizes), by)
        source = other.source if other.cast is None else add(other.cast, other.source)
        weighed = _transposed(add, add(Mul(), source, moved), other.order)
        factors = (weighed, _transposed(add, y, shared.order))
        graph.redirect(node.output, add(MatMul(), *(factors if place else factors[::-1])))
        drop(graph, node)
        return True
    return False


def _padded(value: Value, rank: int) -> Dims:
    dims = value.tensor.dims
    return (1,) * (rank - len(dims)) + dims


def _transposed(add: Builder, value: Value, order: Sequence[int]) -> Value:
    kept = list(order) == sorted(order)
    return value if kept else add(Transpose(perm=tuple(order)), value)
