"""Queries, keys and values in terms of a source that is permuted, repeated and scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ops.movement import Expand, Transpose
from ..editing import Builder, rank_of, shape_of, to_sizes
from ..moves.factors import Axes, follow
from ..pattern import scaling

Order = tuple[int, ...]

#: Maximum number of nodes followed.
_DEPTH = 8


@record
class ScaledOperand:
    """A value as `factor` times a permuted and repeated source.

    Attributes:
        source: the source.
        order: the permutation of its axes.
        factor: the factor.
        repeats: how often each index of the second axis, a head, is repeated consecutively.
        cut: the shape that the source is viewed in before its axes are permuted; None for its own.
        stacks: sizes of the axes that take the place of all permuted ones but the last two; None
            for these as they are.
    """

    source: Value
    order: Order
    factor: float = 1.0
    repeats: int = 1
    cut: tuple[int, ...] | None = None
    stacks: tuple[int, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the axes are in the source's order."""
        return self.order == tuple(range(len(self.order)))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.order) if self.stacks is None else len(self.stacks) + 2

    def permuted(self) -> tuple[int | str | None, ...] | None:
        """Return the shape without repetition; None if unknown."""
        shape = self.cut or shape_of(self.source)
        if shape is None or len(shape) != len(self.order):
            return None
        own = tuple(shape[axis] for axis in self.order)
        return own if self.stacks is None else (*self.stacks, *own[-2:])

    def swapped(self) -> ScaledOperand:
        """Return the same with the last two axes swapped."""
        *front, last, before = self.order
        return replace(self, order=(*front, before, last))


def operand(value: Value, *, scaled: bool = True) -> ScaledOperand | None:
    """Return a value in terms of its furthest source with only moves of axes between, or None.

    Args:
        value: of known rank.
        scaled: whether it may be a multiple of its source.
    """
    return max(_operands(value, scaled), key=lambda one: one[0], default=(0, None))[1]


def _operands(value: Value, scaled: bool) -> Iterator[tuple[int, ScaledOperand]]:
    """Yield possible decompositions of a value, with the number of nodes in between."""
    rank = rank_of(value)
    chain: list[Node] = []
    factor, source, count = 1.0, value, 0
    while rank is not None and count <= _DEPTH:
        found = _ordered(source, chain, rank)
        if found is not None:
            yield count, replace(found, factor=factor)
        step = scaling(source) if scaled else None
        node = source.producer
        count += 1
        if step is not None:
            source, factor = step[0], factor * step[1]
        elif node is not None and (node.op.view or isinstance(node.op, Transpose | Expand)):
            chain.insert(0, node)
            source = node.inputs[0] or source
        else:
            return


def cut_operand(value: Value) -> ScaledOperand | None:
    """Return a stack of matrices in terms of a source whose axes are cut for it, or None.

    Args:
        value: of known rank; its matrices have an axis of the source, or a part of one, for their
            rows, and another for their columns.
    """
    rank, chain, factor = rank_of(value), list[Node](), 1.0
    for _ in range(_DEPTH if rank is not None and rank > 2 else 0):
        step, node = scaling(value), value.producer
        if step is not None:
            value, factor = step[0], factor * step[1]
        elif node is None or not (node.op.view or isinstance(node.op, Transpose)):
            break
        else:
            chain.insert(0, node)
            value = node.inputs[0] or value
    followed = follow(chain) if chain else None
    if followed is None:
        return None
    given, _, wanted = followed
    return _cut(value, factor, given, wanted)


def _cut(source: Value, factor: float, given: Axes, wanted: Axes) -> ScaledOperand | None:
    """Return the operand of these axes in factors; see `cut_operand`."""
    parts = [part for axis in given for part in axis]
    matrix = [[part for part in axis if part.size != 1] for axis in wanted[-2:]]
    sizes = tuple(n for part in parts if isinstance(n := part.size, int))
    if len(sizes) != len(parts) or any(len(axis) != 1 for axis in matrix):
        return None
    (rows,), (columns,) = matrix
    stacks = [part for axis in wanted for part in axis if part not in (rows, columns)]
    order = tuple(parts.index(part) for part in (*stacks, rows, columns))
    whole = tuple(
        prod(part.size for part in axis if isinstance(part.size, int)) for axis in wanted[:-2]
    )
    return ScaledOperand(source, order, factor, cut=sizes, stacks=whole)


def _ordered(source: Value, chain: list[Node], rank: int) -> ScaledOperand | None:
    if rank_of(source) != rank:
        return None
    if all(isinstance(node.op, Transpose) for node in chain):
        order = tuple(range(rank))
        for node in chain:
            op = node.op
            order = (
                tuple(order[axis] for axis in op.order(rank)) if isinstance(op, Transpose) else ()
            )
        return ScaledOperand(source, order)
    followed = follow(chain)
    return None if followed is None else _whole_axes(source, followed[0], followed[2])


def _whole_axes(source: Value, given: Axes, wanted: Axes) -> ScaledOperand | None:
    """Return the operand whose axes are the source's; the second may be repeated."""
    order: list[int] = []
    repeats = 1
    for place, axis in enumerate(wanted):
        own = [factor for factor in axis if not factor.is_repeat]
        others = axis[len(own) :]
        if axis[: len(own)] != own or (others and place != 1):
            return None
        for factor in others:
            if not isinstance(factor.size, int):
                return None
            repeats *= factor.size
        if own in given:
            order.append(given.index(own))
        elif all(factor.size == 1 for factor in own):
            order.append(-1)
        else:
            return None
    left = [axis for axis in range(len(given)) if axis not in order]
    if len(left) != order.count(-1) or any(f.size != 1 for axis in left for f in given[axis]):
        return None
    return ScaledOperand(
        source, tuple(left.pop(0) if axis < 0 else axis for axis in order), 1.0, repeats
    )


def in_order(graph: Graph, one: ScaledOperand, before: Node) -> Value:
    """Return the source with its axes in order, by an existing or a new Transpose.

    With `stacks`, its permuted shape must be static.
    """
    if one.stacks is not None:
        rows, shape = in_order(graph, replace(one, stacks=None), before), one.permuted() or ()
        if rows.tensor.shape == shape:
            return rows
        add = Builder(graph, before)
        sizes = [size for size in shape if isinstance(size, int)]
        return add(to_sizes(sizes), rows, add.integers(sizes, "sizes"))
    if one.cut is not None:
        add = Builder(graph, before)
        source = add(to_sizes(one.cut), one.source, add.integers(one.cut, "sizes"))
        one = replace(one, source=source, cut=None)
    if one.is_plain:
        return one.source
    for reader in one.source.consumers:
        if not isinstance(reader.op, Transpose) or reader.position > before.position:
            continue
        if reader.op.order(len(one.order)) == one.order:
            return reader.output
    return Builder(graph, before)(Transpose(perm=one.order), one.source)


def lift(graph: Graph, value: Value, source: Value) -> tuple[Node, Value, float] | None:
    """Return a view that follows a scale, the scaled value, and the factor.

    The view leads to the source of an operand `value`, and no other node reads what is in between.
    """
    is_behind = False
    for _ in range(2 * _DEPTH):
        node = value.producer
        if node is None or graph.sole_consumer(value) is None:
            return None
        is_behind = is_behind or value is source
        if is_behind and (step := scaling(value)) is not None:
            reader = graph.sole_consumer(value)
            return None if reader is None else (reader, *step[:2])
        if is_behind and not (node.op.view or isinstance(node.op, Transpose)):
            return None
        inner = scaling(value)
        value = inner[0] if inner else node.inputs[0] or value
    return None
