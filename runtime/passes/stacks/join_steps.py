"""Multiplies tensors, and looks up rows, at once rather than for each place along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ops.cuts import place_of
from ...ops.elementwise import Add
from ...ops.gather import Gather
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Transpose
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, size_of

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


_Steps = dict[tuple[_Series, _Series, Op, Value | None], list[tuple[int, Node]]]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Multiply two tensors once, if steps multiply most of their places along an axis.

    The steps of linear attention that is unrolled over chunks cut keys and values out of tensors
    and add their product to a state; those of a recurrent layer multiply their input by weights.
    Where steps multiply nothing else, they become a recurrence of elementwise operators. Layers
    read what steps look up in a table (the tokens that a decoder is given), which is one as well.
    """
    for found in (_lookups, _products):
        for (a, b, op, addend), steps in found(graph).items():
            size = size_of(a.value, a.axis or 0)
            count = len({place for place, _ in steps})
            if isinstance(size, int) and count >= _COUNT and 2 * count >= size:
                yield _join(graph, (a, b), op, addend, steps)


def _products(graph: Graph) -> _Steps:
    """Return the products of places, by what steps share: the tensors, and what they add."""
    alike: _Steps = {}
    for node in graph.nodes:
        if type(node.op) is MatMul or (type(node.op) is Gemm and _is_layer(node)):
            (a, i), (b, j) = map(_series, node.operands[:2])
            addend = node.operands[2] if len(node.operands) > 2 else None
            if i is not None and (j is None or (i == j and a.axis == b.axis)) and _fit(a, b):
                alike.setdefault((a, b, node.op, addend), []).append((i, node))
    return alike


def _lookups(graph: Graph) -> _Steps:
    """Return the rows of tables that places choose for layers, by the tables."""
    alike: _Steps = {}
    for node in graph.nodes:
        if type(node.op) is Gather and node.op.axis == 0 and node.operands[0].is_constant:
            (a, i), table = _series(node.operands[1]), _Series(node.operands[0], None, ())
            is_plain = a.perm == tuple(range(len(a.perm)))
            if i is not None and is_plain and all(map(_multiplies, node.output.consumers)):
                alike.setdefault((a, table, node.op, None), []).append((i, node))
    return alike


def _multiplies(node: Node) -> bool:
    """Whether a node is the product of rows and a constant matrix."""
    return _is_layer(node) or (isinstance(node.op, MatMul) and node.operands[1].is_constant)


def _is_layer(node: Node) -> bool:
    """Whether a node multiplies rows by a constant matrix, and adds a constant row."""
    if not isinstance(node.op, Gemm) or (node.op.alpha, node.op.beta, node.op.transA) != (1, 1, 0):
        return False
    weight, *row = node.operands[1:]
    return weight.data is not None and all(v.data is not None and v.data.ndim < 2 for v in row)


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
    sizes = [(shape_of(each.value) or (None,) * (rank + 1))[a.axis] for each in (a, b)]
    return len(b.perm) == rank and a.axis <= rank - 2 and sizes[0] == sizes[1]


def _join(
    graph: Graph,
    series: tuple[_Series, _Series],
    op: Op,
    addend: Value | None,
    steps: Sequence[tuple[int, Node]],
) -> str:
    first, name = graph.in_order([node for _, node in steps])[0], steps[0][1].name
    add = Builder(graph, first, name, tuple(node for _, node in steps))
    axis, (a, b) = series[0].axis or 0, (_whole(add, each) for each in series)
    places, size = sorted({place for place, _ in steps}), size_of(a, axis)
    if isinstance(op, Gather) and len(places) != size:
        a = add(Gather(axis=axis), a, add.integers(places))  # others may be outside of the table
    else:
        places = list(range(places[-1] + 1))
    if isinstance(op, Gemm) and op.transB and b.data is not None:
        b = graph.constant(np.ascontiguousarray(b.data.T), b.name)
    whole = add(op, b, a) if isinstance(op, Gather) else add(MatMul(), a, b)
    if addend is not None:
        whole = add(Add(), whole, addend)
    for place, node in steps:
        cut = Builder(graph, node, node.name, (node,))
        index = graph.constant(np.array(places.index(place), np.int64), "place")
        graph.redirect(node.output, cut(Gather(axis=axis), whole, index))
        drop(graph, node)
    does = "looks up" if isinstance(op, Gather) else "multiplies"
    return f"'{name}' {does} tensors, not {len(steps)} of their places"


def _whole(add: Builder, series: _Series) -> Value:
    """Return the tensor whose places, along the same axis, steps read in this order of axes."""
    axis = series.axis
    if axis is None:
        return series.value
    order = [p + (p >= axis) for p in series.perm]
    order.insert(axis, axis)
    plain = order == list(range(len(order)))
    return series.value if plain else add(Transpose(perm=tuple(order)), series.value)
