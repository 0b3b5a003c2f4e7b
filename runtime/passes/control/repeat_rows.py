"""Rows of a tensor that are repeated one by one, each as often as a computed count says, at once.

``torch.repeat_interleave(x, counts)``, with which text-to-speech makes frames of phonemes, is a
Loop in what TorchScript's exporter writes: it appends each row, expanded, to a sequence, which is
concatenated. Where the number of rows is fixed, the Loop is unrolled, and a Concat joins them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...base.record import record
from ...ir.dtypes import int64
from ...ir.graph import Graph, Node, Value
from ...ops.control import Loop
from ...ops.cuts import part_of
from ...ops.elementwise import Add, Cast, Equal, Where
from ...ops.gather import Gather, ScatterElements
from ...ops.movement import Concat, Expand, Slice, Tile
from ...ops.reduce import CumSum
from ...ops.sequence import ConcatFromSequence, SequenceAt, SplitToSequence
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import (
    Builder,
    drop,
    dtype_of,
    number,
    rank_of,
    shape_of,
    size_of,
    unviewed,
    without_ones,
)
from .sum_bags import appended, round_count


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace joined rows that are repeated, each as often as a count says, by a Gather."""
    for node in list(graph.nodes):
        found = None
        if isinstance(node.op, Concat):
            found = _of_parts(node, node.op)
        elif isinstance(node.op, ConcatFromSequence) and not node.op.new_axis:
            found = _of_rounds(node, node.op)
        if found is not None:
            x, axis = found.x, found.axis
            graph.redirect(node.output, _written(Builder(graph, node, node.name, (node,)), found))
            drop(graph, node)
            yield f"places of axis {axis} of '{x.name}' are repeated as counts say by a Gather"


@record
class _Repeats:
    """Repeated places of an axis.

    Attributes:
        x: the tensor.
        axis: of it.
        counts: how often each place is repeated, [places], integers.
        is_marked: whether -1 stands for once.
    """

    x: Value
    axis: int
    counts: Value
    is_marked: bool


@record
class _Place:
    """One place of an axis of a tensor.

    Attributes:
        source: the tensor.
        axis: of it.
        at: the place; None: the one of the round.
    """

    source: Value
    axis: int
    at: int | None


def _written(add: Builder, found: _Repeats) -> Value:
    """Write the rows at their places: before each one as many others end as are before it in x."""
    counts = found.counts
    if dtype_of(counts) != int64:
        counts = add(Cast(to=int64), counts)
    first, one, last = (add.integers([n]) for n in (0, 1, -1))
    if found.is_marked:
        counts = add(Where(), add(Equal(), counts, last), one, counts)
    axis = add.constant(np.array(0))
    ends = add(CumSum(), counts, axis)
    size = add(Add(), add(Gather(), ends, last), one)
    marks = add(Expand(), first, size)
    ones = add.constant(np.ones(counts.tensor.dims, int64))
    marks = add(ScatterElements(reduction="add"), marks, ends, ones)
    places = add(CumSum(), add(Slice(), marks, first, last), axis)
    return add(Gather(axis=found.axis), found.x, places)


def _of_parts(node: Node, op: Concat) -> _Repeats | None:
    """Return what a Concat repeats, each place of it once."""
    rank = rank_of(node.operands[0])
    if not rank:
        return None
    axis = normalize_axis(op.axis, rank)
    found: _Repeats | None = None
    for i, part in enumerate(node.operands):
        repeats = _repeated(part, axis, i, {})
        if repeats is None or (found is not None and repeats != found):
            return None
        found = repeats
    return found if found is not None and _fits(found, len(node.operands)) else None


def _of_rounds(node: Node, op: ConcatFromSequence) -> _Repeats | None:
    """Return what each round of a Loop appends to a sequence."""
    (sequence,) = node.operands
    loop = sequence.producer
    if loop is None or not isinstance(loop.op, Loop):
        return None
    row = appended(loop, loop.op, loop.outputs.index(sequence))
    rank, count = rank_of(row), round_count(loop, loop.op)
    if row is None or not rank or not count:
        return None
    sources = loop.captured
    counter = loop.op.body.inputs[0]
    found = _repeated(row, normalize_axis(op.axis, rank), None, sources, counter)
    return found if found is not None and _fits(found, count) else None


def _fits(found: _Repeats, count: int) -> bool:
    """Whether there are so many places and counts."""
    return size_of(found.x, found.axis) == count and shape_of(found.counts) == (count,)


def _repeated(
    part: Value,
    axis: int,
    at: int | None,
    sources: Mapping[Value, Value],
    counter: Value | None = None,
) -> _Repeats | None:
    """Return of what tensor a value has one place of an axis, and as often as which count says.

    Args:
        part: the value.
        axis: of it and of the tensor.
        at: the place; None: the one of the round.
        sources: values outside of a body that those in it stand for.
        counter: the number of the round.
    """
    node = unviewed(part).producer
    if node is None or not isinstance(node.op, Expand | Tile):
        return None
    row, given = node.operands
    sizes, before, after, whole = given.tensor.ints, shape_of(row), shape_of(node.output), None
    if sizes is None or before is None or after is None or len(after) != len(before):
        return None
    places = [i for i, size in enumerate(sizes) if size is None]
    count = None if len(places) != 1 or len(sizes) != len(after) else _element(given, places[0])
    of_row = _place(_unviewed(row), sources, counter)
    if count is None or of_row is None or (of_row.at, of_row.axis) != (at, axis):
        return None
    of_count, (place,), whole = _place(count[0], sources, counter), places, shape_of(of_row.source)
    rest, shape = (*before[:place], *before[place + 1 :]), shape_of(part)
    if of_count is None or (of_count.at, of_count.axis) != (at, 0):
        return None
    if isinstance(before[place], int) and before[place] != 1:
        return None
    if whole is None or shape is None or rest != (*after[:place], *after[place + 1 :]):
        return None
    left, right = whole[:axis], whole[axis + 1 :]
    if (shape[:axis], shape[axis + 1 :]) != (left, right) or None in (*left, *right):
        return None
    beside = before[:place], before[place + 1 :]
    if any(without_ones(a) != without_ones(b) for a, b in zip(beside, (left, right), strict=True)):
        return None
    return _Repeats(of_row.source, axis, of_count.source, count[1])


def _unviewed(value: Value) -> Value:
    """Return the tensor that a value is a view of, also by an Expand that only adds axes."""
    value = unviewed(value)
    while (node := value.producer) is not None and isinstance(node.op, Expand):
        before, after = shape_of(node.operands[0]), shape_of(value)
        if before is None or after is None or without_ones(before) != without_ones(after):
            break
        value = unviewed(node.operands[0])
    return value


def _element(vector: Value, at: int) -> tuple[Value, bool] | None:
    """Return the integer that is one element of a vector, and whether -1 in it stands for 1."""
    is_marked = False
    while size_of(vector, 0) != 1 or rank_of(vector) != 1:
        node = vector.producer
        if node is not None and isinstance(node.op, Where) and _is_mark(node):
            vector, is_marked = node.operands[2], True
        elif node is not None and isinstance(node.op, Concat):
            found = _part_at(node.operands, at)
            if found is None:
                return None
            vector, at = found
        elif node is not None and node.op.view and rank_of(node.operands[0]) == 1:
            vector = node.operands[0]
        else:
            return None
    value = unviewed(vector)
    while (node := value.producer) is not None and isinstance(node.op, Cast):
        value = unviewed(node.operands[0])
    dtype = dtype_of(value)
    return (value, is_marked) if dtype is not None and dtype.kind == "i" else None


def _part_at(parts: Sequence[Value], at: int) -> tuple[Value, int] | None:
    """Return which of joined vectors has an element, and where."""
    for part in parts:
        size = size_of(part, 0)
        if not isinstance(size, int):
            return None
        if at < size:
            return part, at
        at -= size
    return None


def _is_mark(node: Node) -> bool:
    """Whether a Where writes 1 for -1, as in the sizes of PyTorch's ``expand``."""
    test, ones, sizes = node.operands
    equal, new = test.producer, ones.known
    if equal is None or not isinstance(equal.op, Equal) or new is None or (new != 1).any():
        return False
    x, mark = equal.operands
    marks = mark.known
    if x is not sizes or marks is None or (marks != -1).any():
        return False
    return shape_of(node.output) == shape_of(sizes)


def _place(value: Value, sources: Mapping[Value, Value], counter: Value | None) -> _Place | None:
    """Return of which tensor a value is one place of an axis."""
    if counter is None:
        part = part_of(value)
        is_one = part is not None and len(part.places) == 1
        return _Place(part.source, part.axis, part.places.start) if part and is_one else None
    node = value.producer
    if node is None or not isinstance(node.op, SequenceAt | Gather | Slice):
        return None
    source, at = node.operands[:2]
    outer = sources.get(source)
    if outer is None or unviewed(at) is not counter or shape_of(at) not in ((), (1,)):
        return None
    if isinstance(node.op, SequenceAt):
        found = _split_by_places(outer)
        return None if found is None else _Place(*found, None)
    axis = node.op.axis if isinstance(node.op, Gather) else _axis_of_slice(node, counter)
    rank = rank_of(outer)
    return _Place(outer, normalize_axis(axis, rank), None) if rank and axis is not None else None


def _split_by_places(sequence: Value) -> tuple[Value, int] | None:
    """Return of which tensor, and along which axis, a sequence has all places, one by one."""
    split = sequence.producer
    if split is None or not isinstance(split.op, SplitToSequence):
        return None
    x, *widths = split.operands
    rank, given = rank_of(x), widths[0].known if widths else np.array(1)
    if not rank or given is None or (given != 1).any():
        return None
    return x, normalize_axis(split.op.axis, rank)


def _axis_of_slice(node: Node, counter: Value) -> int | None:
    """Return along which axis a Slice from the number of the round on takes one place."""
    _, _, end, *rest = node.operands
    axis, *steps = [each.known for each in rest] or [np.array([0])]
    behind = unviewed(end).producer
    if behind is None or not isinstance(behind.op, Add) or axis is None or axis.size != 1:
        return None
    if any(step is None or (step != 1).any() for step in steps):
        return None
    terms = [*behind.operands]
    is_next = counter in terms and any(number(term, 1) == 1 for term in terms)
    return int(axis.reshape(-1)[0]) if is_next else None
