"""Multiplies tensors rather than each of their places along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..base.record import record
from ..ir.graph import Graph, Node, Value
from ..ops.gather import Gather
from ..ops.matmul import MatMul
from ..ops.movement import Transpose
from .cut_before_transposes import place_of
from .driver import Context
from .editing import Builder, drop, rank_of, shape_of

#: Minimum number of places.
_COUNT = 4


@record
class _Series:
    """What the products of several steps read, apart from the place.

    Attributes:
        value: the tensor, of which each step reads one place; or the matrix that all of them read.
        axis: of the places; None if there are none.
        perm: the order in which a step reads the axes of its place.
    """

    value: Value
    axis: int | None
    perm: tuple[int, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Multiply two tensors once, if steps multiply most of their places along an axis.

    The steps of linear attention that is unrolled over chunks cut keys and values out of tensors
    and add their product to a state; those of a recurrent layer multiply their input by weights.
    Where steps multiply nothing else, they become a recurrence of elementwise operators.
    """
    alike: dict[tuple[_Series, _Series], list[tuple[int, Node]]] = {}
    for node in graph.nodes:
        if isinstance(node.op, MatMul):
            (a, i), (b, j) = map(_series, node.operands)
            if i is not None and (j is None or (i == j and a.axis == b.axis)) and _fit(a, b):
                alike.setdefault((a, b), []).append((i, node))
    for (a, b), steps in alike.items():
        size = (shape_of(a.value) or ())[a.axis or 0]
        count = len({place for place, _ in steps})
        if isinstance(size, int) and count >= _COUNT and 2 * count >= size:
            yield _join(graph, (a, b), steps)


def _series(value: Value) -> tuple[_Series, int | None]:
    """Return what a step reads, and its place; None if it reads a whole tensor."""
    made, rank = value.producer, rank_of(value)
    cut, perm = made, tuple(range(rank or 0))
    if rank and made is not None and isinstance(made.op, Transpose):
        perm, cut = made.op.order(rank), made.operands[0].producer
    place = place_of(cut) if cut is not None and isinstance(cut.op, Gather) else None
    if cut is None or place is None or not perm:
        return _Series(value, None, ()), None
    return _Series(cut.operands[0], place[0], perm), place[1]


def _fit(a: _Series, b: _Series) -> bool:
    """Whether the places are an axis of batches, or one of rows if the matrix is the same."""
    rank = len(a.perm)
    if a.axis is None or rank < 2:
        return False
    if b.axis is None:
        transposed = a.perm != tuple(range(rank))
        return rank_of(b.value) == 2 and a.axis < rank and not transposed
    return len(b.perm) == rank and a.axis <= rank - 2


def _join(graph: Graph, series: tuple[_Series, _Series], steps: Sequence[tuple[int, Node]]) -> str:
    first, name = graph.in_order([node for _, node in steps])[0], steps[0][1].name
    add = Builder(graph, first, name, tuple(node for _, node in steps))
    axis = series[0].axis or 0
    whole = add(MatMul(), *(_whole(add, each) for each in series))
    for place, node in steps:
        cut = Builder(graph, node, node.name, (node,))
        index = graph.constant(np.array(place, np.int64), "place")
        graph.redirect(node.output, cut(Gather(axis=axis), whole, index))
        drop(graph, node)
    return f"'{name}' multiplies tensors, not {len(steps)} of their places"


def _whole(add: Builder, series: _Series) -> Value:
    """Return the tensor whose places, along the same axis, steps read in this order of axes."""
    axis = series.axis
    if axis is None:
        return series.value
    order = [p + (p >= axis) for p in series.perm]
    order.insert(axis, axis)
    plain = order == list(range(len(order)))
    return series.value if plain else add(Transpose(perm=tuple(order)), series.value)
