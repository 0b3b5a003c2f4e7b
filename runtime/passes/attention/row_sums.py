"""A tensor in terms of another: sums of moved and scaled elements of its rows.

    y[..., j] = sum of factor[..., j] * x[..., index[j]]

Slices, Splits, Concats, Gathers, Reshapes and Transposes of the last axes, Neg, Add, Sub, sums over
a few elements, and products with constants are followed, in whatever order an exporter wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Node, Value
from ...ir.op import Op
from ...ir.types import Array
from ...ops.cuts import axes_of
from ...ops.elementwise import Add, Div, Mul, Neg, Sub
from ...ops.gather import Gather
from ...ops.movement import Concat, Slice, Split, Transpose
from ...ops.reduce import ReduceSum
from ...ops.shape import RESHAPES
from ...ops.shapes import normalize_axis
from ..editing import first_input, rank_of, shape_of
from ..moved_places import MovedPlaces

#: Operators that move elements, change signs, or add.
_FOLLOWED: frozenset[type[Op]] = frozenset(
    {Slice, Split, Concat, Gather, Transpose, *RESHAPES, Neg, Add, Sub, ReduceSum}
)
#: Maximum number of nodes between the two tensors, and of elements that a ReduceSum adds up.
_REACH, _SUMMED = 24, 4


@record
class Term:
    """One addend.

    Attributes:
        index: element of a row of x; int64 [elements of a row of y].
        factor: its factor, float64 [..., elements of a row of y]; broadcasts over the rows.
    """

    index: Array
    factor: Array

    def taken(self, places: Array) -> Term:
        """Return this for selected elements."""
        return Term(self.index[places], self.factor[..., places])

    def times(self, factor: Array | float) -> Term:
        """Return this times another factor."""
        return Term(self.index, self.factor * factor)


def is_followed(node: Node | None) -> bool:
    """Whether a node only moves, adds, or scales by constants."""
    if node is None:
        return False
    if isinstance(node.op, (Mul, Div)):
        return any(v is not None and v.data is not None for v in node.inputs)
    return type(node.op) in _FOLLOWED


def sources(top: Value, reach: int = _REACH) -> Iterator[tuple[Value, frozenset[Node]]]:
    """Yield the tensors of the same shape that a value depends on exclusively, nearest first.

    Each comes with the nodes in between, at most `reach`, all of which are followed.
    """
    only = _on_the_way(top, reach)
    if only is not None and all(_between(top, value, reach) is None for value in only):
        return
    near, order = {top: 0}, [top]
    for value in order:
        node = value.producer
        if node is None or not is_followed(node):
            continue
        for read in node.distinct_reads:
            if read.data is None and read not in near:
                near[read] = len(near)
                order.append(read)
        if len(order) > reach:
            break
    for value in order[1:]:
        if (only is None or value in only) and shape_of(value) == shape_of(top):
            nodes = _between(top, value, reach)
            if nodes is not None:
                yield value, nodes


def _on_the_way(top: Value, reach: int) -> list[Value] | None:
    """Return tensors of which one is any source, as no other way leads to what is not followed.

    None if all ways fork. So in a residual network each sum has few sources, and not all before it.
    """
    for value in () if top.producer is None else top.producer.distinct_reads:
        way = [value]
        while len(way) <= reach:
            node = way[-1].producer
            if way[-1].data is None and (node is None or not is_followed(node)):
                return way
            read = () if node is None else (v for v in node.distinct_reads if v.data is None)
            match tuple(read):
                case (single,):
                    way.append(single)
                case _:
                    break
    return None


def _between(top: Value, source: Value, reach: int) -> frozenset[Node] | None:
    """Return the nodes from one value to another; None if there are other inputs."""
    nodes: set[Node] = set()
    todo = [top]
    while todo:
        value = todo.pop()
        node = value.producer
        if value is source or value.data is not None or node in nodes:
            continue
        if node is None or not is_followed(node) or len(nodes) == reach:
            return None
        nodes.add(node)
        todo += node.distinct_reads
    return frozenset(nodes)


class RowSums:
    """Expresses values in terms of the rows of one tensor, whose last axis has a known size.

    Args:
        source: the tensor.
        places: where nodes move elements.
    """

    def __init__(self, source: Value, places: MovedPlaces) -> None:
        shape = shape_of(source)
        if not shape or not isinstance(shape[-1], int):
            raise ValueError("the rows of this tensor have no known size")
        self._rows = tuple(shape[:-1])
        self._places = places
        start = np.arange(shape[-1], dtype=np.int64)
        one = Term(start, np.ones((1,) * len(self._rows) + start.shape))
        self._known: dict[Value, list[Term] | None] = {source: [one]}

    def terms(self, value: Value | None) -> list[Term] | None:
        """Return the addends of a value; None if it is not such a sum."""
        if value is None:
            return None
        if value not in self._known:
            self._known[value] = self._follow(value)
        return self._known[value]

    def _tail(self, value: Value | None) -> tuple[int, ...] | None:
        """Return the sizes of the axes that make up a row of x."""
        shape, lead = shape_of(value), len(self._rows)
        if shape is None or None in shape or tuple(shape[:lead]) != self._rows:
            return None
        tail = tuple(size for size in shape[lead:] if isinstance(size, int))
        return tail if len(tail) == len(shape) - lead else None

    def _follow(self, value: Value) -> list[Term] | None:
        node, tail = value.producer, self._tail(value)
        if node is None or tail is None or not is_followed(node):
            return None
        if isinstance(node.op, Neg):
            terms = self.terms(node.inputs[0])
            return None if terms is None else [term.times(-1.0) for term in terms]
        if isinstance(node.op, (Add, Sub)):
            return self._sum(node, tail)
        if isinstance(node.op, (Mul, Div)):
            return self._scaled(node, tail)
        if isinstance(node.op, ReduceSum):
            return self._reduced(node)
        if isinstance(node.op, RESHAPES):
            before = self._tail(node.inputs[0])
            same = before is not None and prod(before) == prod(tail)
            return self.terms(node.inputs[0]) if same else None
        return self._moved(node, value)

    def _sum(self, node: Node, tail: tuple[int, ...]) -> list[Term] | None:
        first, second = node.inputs
        if self._tail(first) != tail or self._tail(second) != tail:
            return None
        a, b = self.terms(first), self.terms(second)
        if a is None or b is None:
            return None
        sign = -1.0 if isinstance(node.op, Sub) else 1.0
        return [*a, *(term.times(sign) for term in b)]

    def _scaled(self, node: Node, tail: tuple[int, ...]) -> list[Term] | None:
        x, other = node.inputs
        if isinstance(node.op, Mul) and x is not None and x.data is not None:
            x, other = other, x
        data = None if other is None else other.data
        terms = self.terms(x)
        if terms is None or data is None or data.dtype.kind not in "fV":
            return None
        shape, lead, own = shape_of(node.output), len(self._rows), self._tail(x)
        if own is None or len(own) != len(tail) or shape is None or data.ndim > len(shape):
            return None
        if own != tail:
            places = np.broadcast_to(np.arange(prod(own)).reshape(own), tail).reshape(-1)
            terms = [term.taken(places) for term in terms]
        wide = data.astype(np.float64).reshape((1,) * (len(shape) - data.ndim) + data.shape)
        factor = np.broadcast_to(wide, (*wide.shape[:lead], *tail))
        factor = factor.reshape(*wide.shape[:lead], prod(tail))
        if isinstance(node.op, Div):
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = 1 / factor
        return [term.times(factor) for term in terms] if np.isfinite(factor).all() else None

    def _reduced(self, node: Node) -> list[Term] | None:
        """Return a term for each of the few elements along one of the last axes."""
        x, axes = (*node.inputs, None)[:2]
        tail, terms, lead = self._tail(x), self.terms(x), len(self._rows)
        numbers = None if axes is None else axes.data
        if tail is None or terms is None or numbers is None or numbers.size != 1:
            return None
        axis = normalize_axis(int(numbers.reshape(-1)[0]), lead + len(tail)) - lead
        if axis < 0 or tail[axis] > _SUMMED:
            return None
        places = np.moveaxis(np.arange(prod(tail)).reshape(tail), axis, 0)
        return [term.taken(of_one.reshape(-1)) for of_one in places for term in terms]

    def _moved(self, node: Node, value: Value) -> list[Term] | None:
        """Trace a node that moves elements by moving element numbers."""
        lead = len(self._rows)
        if not _spares(node, lead):
            return None
        moved = node.inputs if isinstance(node.op, Concat) else node.inputs[:1]
        parts: list[list[Term]] = []
        shapes: list[tuple[int, ...]] = []
        for x in moved:
            tail, terms = self._tail(x), self.terms(x)
            if tail is None or terms is None:
                return None
            parts.append(terms)
            shapes.append((1,) * lead + tail)
        results = self._places.of(node, shapes)
        if results is None:
            return None
        places = results[node.outputs.index(value)]
        if places.shape[lead:] != self._tail(value):
            return None
        return [_joined(terms).taken(places.reshape(-1)) for terms in _aligned(parts)]


def _spares(node: Node, lead: int) -> bool:
    """Whether a node leaves this many leading axes alone, and has constant other inputs."""
    op, rank = node.op, rank_of(first_input(node))
    if not rank:
        return False
    if isinstance(op, Transpose):
        return op.order(rank)[:lead] == tuple(range(lead))
    if not isinstance(op, Concat) and any(
        v is not None and v.data is None for v in node.inputs[1:]
    ):
        return False
    axes = axes_of(node) if isinstance(op, Split | Slice | Concat | Gather) else ()
    return all(axis >= lead for axis in (range(rank) if axes is None else axes))


def _aligned(parts: Sequence[Sequence[Term]]) -> Iterator[list[Term]]:
    """Yield the first terms of several tensors, then the second ones, and so on.

    A tensor with fewer terms contributes an element times 0.
    """
    for terms in zip_longest(*parts):
        yield [
            part[0].times(0.0) if term is None else term
            for term, part in zip(terms, parts, strict=True)
        ]


def _joined(terms: Sequence[Term]) -> Term:
    """Return the terms of tensors whose rows are concatenated."""
    lead = np.broadcast_shapes(*(term.factor.shape[:-1] for term in terms))
    factors = [np.broadcast_to(t.factor, (*lead, t.factor.shape[-1])) for t in terms]
    return Term(np.concatenate([t.index for t in terms]), np.concatenate(factors, -1))
