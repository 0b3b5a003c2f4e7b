"""Reduces all bags of rows at once, where a Loop appends the result of one after the other.

PyTorch exports its EmbeddingBag as such a Loop: it cuts the rows of a bag at two offsets, reduces
them, and appends the result to a sequence, or zeros for an empty bag. No bag depends on another.
Rows of padding are left out (`kept_rows.py`). In TorchScript's, a bag is some indices, whose rows
are looked up in each round, and results are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer
from ...ir.types import Array
from ...ops.control import If, Loop
from ...ops.elementwise import Add, And, Cast, Div, GreaterOrEqual, Less, Mul, Sub, Where
from ...ops.gather import Gather
from ...ops.matmul import MatMul
from ...ops.movement import Concat, Slice
from ...ops.reduce import ReduceMax, ReduceMean, ReduceSum
from ...ops.sequence import ConcatFromSequence, SequenceEmpty, SequenceInsert
from ...ops.shape import Identity, Reshape
from ..driver import Context
from ..editing import Builder, dims_of, drop, dtype_of
from ..pointwise import aside, by_place
from .count_loops import Rounds
from .kept_rows import kept_places, reduced

#: Maximum number of elements of a mask, and of what is masked.
ROOM = 1 << 24
#: Maximum values of a body that are looked at, each as often as it is read.
_STEPS = 400
_Reduction = ReduceMax | ReduceMean | ReduceSum
#: Writes nodes, and returns their result.
_Writer = Callable[[Builder], Value]
#: A value of the body, and the rounds in which it is meant.
_Part = tuple[Value, Array]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace the concatenated or stacked results of a Loop by reductions of all bags."""
    is_reduced = False
    for node in list(graph.nodes):
        if isinstance(node.op, ConcatFromSequence) and not (node.op.new_axis or node.op.axis):
            (sequence,) = node.operands
            loop = sequence.producer
            if loop is None or not isinstance(loop.op, Loop):
                continue
            row = appended(loop, loop.op, loop.outputs.index(sequence))
            found = [] if row is None else [(node.output, row)]
        elif isinstance(node.op, Loop):
            loop, states = node, len(node.inputs) - 2
            stacked = list(node.op.body.outputs.values())[1 + states :]
            found = list(zip(node.outputs[states:], stacked, strict=True))
        else:
            continue
        assert isinstance(loop.op, Loop)
        count = round_count(loop, loop.op)
        for result, row in found if count else ():
            body = _Appended(graph, loop, Rounds(loop, loop.op, context), is_stacked=loop is node)
            rows = body.rows(row, np.arange(count))
            if rows is not None:
                new = rows.write(Builder(graph, node, node.name, (loop, node)))
                graph.redirect(result, new)
                drop(graph, node)
                drop(graph, loop)
                is_reduced = True
                yield f"{count} rounds of Loop '{loop.name}' are reductions of bags of rows"
    if is_reduced:
        infer(graph)


def round_count(loop: Node, op: Loop) -> int:
    """Return the number of rounds of a Loop; 0 if it is unknown."""
    m, cond, *_ = loop.inputs
    going = next(iter(op.body.outputs.values()))
    if m is None or m.data is None or cond is not None or going.data is None:
        return 0
    return int(m.data.reshape(())) if going.data.all() else 0


def appended(loop: Node, op: Loop, place: int) -> Value | None:
    """Return the tensor that each round of a Loop appends to a sequence, which is empty before.

    Args:
        loop: the node.
        op: its operator.
        place: of the sequence among the results.
    """
    states = len(loop.inputs) - 2
    before = loop.inputs[2 + place] if place < states else None
    if before is None or before.producer is None:
        return None
    inner, after = op.body.inputs[2 + place], list(op.body.outputs.values())[1 + place]
    insert = op.body.sole_consumer(inner)
    if insert is None or insert is not after.producer or not isinstance(insert.op, SequenceInsert):
        return None
    sequence, row, *position = insert.inputs
    is_appended = sequence is inner and not any(position)
    return row if is_appended and isinstance(before.producer.op, SequenceEmpty) else None


@record
class _Bags:
    """Reductions of rows, one for each bag.

    Attributes:
        op: the reduction, of the axis of rows.
        x: the rows of all bags.
        low: the first row of each bag.
        high: the row behind its last one.
    """

    op: _Reduction
    x: Value
    low: Array
    high: Array


@record
class _Rows:
    """Values of some rounds.

    Attributes:
        write: writes them, with the rounds on the first of two axes.
        bags: what they are, if that is known.
    """

    write: _Writer
    bags: _Bags | None = None


class _Appended:
    """What the rounds of a Loop append: each value of its body for several rounds at once.

    Args:
        graph: the graph.
        loop: the Loop.
        rounds: its scalars.
        is_stacked: whether each round gives a vector, not a row.
    """

    def __init__(self, graph: Graph, loop: Node, rounds: Rounds, *, is_stacked: bool) -> None:
        self._graph, self._loop, self._rounds = graph, loop, rounds
        self._is_stacked = is_stacked
        self._steps = iter(range(_STEPS))

    def rows(self, value: Value, at: Array) -> _Rows | None:
        """Return a value of these rounds, which has one row in each; None if that is unknown."""
        if next(self._steps, None) is None:
            return None
        value = self._rounds.source(value)
        node, data = value.producer, value.data
        if data is not None:
            row = data[None] if self._is_stacked else data
            fits = row.ndim == 2 and len(row) == 1
            return _Rows(_constant(np.repeat(row, at.size, 0))) if fits else None
        if node is None:
            return None
        if isinstance(node.op, Identity):
            return self.rows(node.operands[0], at)
        if isinstance(node.op, If):
            return self._chosen(node, node.op, node.outputs.index(value), at)
        return self._divided(node, at) if isinstance(node.op, Div) else self._reduced(node, at)

    def _chosen(self, node: Node, op: If, place: int, at: Array) -> _Rows | None:
        """Return the results of the branches that these rounds take."""
        parts = self._taken(node, op, place, at)
        if parts is not None:
            return _in_order([(self.rows(*part), part[1]) for part in parts])
        kept = self._kept(_results(op, place), at)
        if kept is not None:
            return kept
        test = self._column(node.operands[0], at)
        a, b = (self.rows(branch, at) for branch in _results(op, place))
        if test is None or a is None or b is None:
            return None
        return _Rows(lambda write: write(Where(), test(write), a.write(write), b.write(write)))

    def _kept(self, branches: tuple[Value, Value], at: Array) -> _Rows | None:
        """Return reductions of the rows of bags that a test keeps, zeros where there are none."""
        zeros, value = (self._rounds.source(branch) for branch in branches)
        if (maker := zeros.producer) is not None and isinstance(maker.op, Identity):
            zeros = self._rounds.source(maker.operands[0])
        node = value.producer
        if zeros.data is None or zeros.data.any() or node is None:
            return None
        op, axes = node.op, node.inputs[1] if len(node.inputs) > 1 else None
        if not isinstance(op, _Reduction) or bool(op.keepdims) is self._is_stacked:
            return None
        look = self._rounds.source(node.operands[0]).producer
        if axes is None or not _is(axes, 0) or look is None or not isinstance(look.op, Gather):
            return None
        x, places = self._rounds.outer(look.operands[0]), self._rounds.source(look.operands[1])
        kept = None if look.op.axis else kept_places(places, self._rounds.sources)
        test = None if kept is None else kept.writes()
        if x is None or kept is None or test is None or len(dims_of(x) or ()) != 2:
            return None
        bounds = [self._known([(each, at)]) for each in (kept.begin, kept.end)]
        bags = np.array([each for each in bounds if each is not None])
        if len(bags) < 2 or (bags < 0).any() or bags.max() > x.tensor.dims[0]:
            return None
        if at.size * x.tensor.size > ROOM or (bags[1] < bags[0]).any():
            return None
        return _Rows(lambda write: reduced(write, op, x, test(write), bags))

    def _taken(self, node: Node, op: If, place: int, at: Array) -> list[_Part] | None:
        """Return the results of branches, each with the rounds that take it; None if unknown."""
        self._rounds.enter(node)
        cond = self._rounds.at(node.operands[0])
        if cond is None:
            return None
        both = zip(_results(op, place), (at[cond[at]], at[~cond[at]]), strict=True)
        return [(branch, rounds) for branch, rounds in both if rounds.size]

    def _divided(self, node: Node, at: Array) -> _Rows | None:
        """Return rows that are divided by a number of each round."""
        x, y = node.operands
        rows, count, known = self.rows(x, at), self._column(y, at), self._rounds.at(y)
        if rows is None or count is None:
            return None
        bags = rows.bags
        if bags is not None and isinstance(bags.op, ReduceSum) and known is not None:
            sizes = bags.high - bags.low
            bags = bags if sizes.all() and (sizes == known[at]).all() else None
            if bags is not None:
                return _known(replace(bags, op=ReduceMean(keepdims=0)))
        return _Rows(lambda write: write(Div(), rows.write(write), count(write)))

    def _column(self, value: Value, at: Array) -> _Writer | None:
        """Return a scalar of these rounds as a column."""
        if next(self._steps, None) is None:
            return None
        value = self._rounds.source(value)
        known, node = self._rounds.at(value), value.producer
        if known is not None:
            return _constant(known[at].reshape(-1, 1))
        found = self._rounds.picked(value)
        if found is not None:
            vector, places = self._rounds.outer(found[0]), found[1][at].reshape(-1, 1)
            return None if vector is None else lambda w: w(Gather(), vector, w.constant(places))
        if node is not None and node.op.view:
            return self._column(node.operands[0], at)
        read = () if node is None else by_place(node)
        columns = {v: column for v in read if (column := self._column(v, at)) is not None}
        if node is None or not read or len(columns) < len(read):
            return None
        return self._computed(node, columns)

    def _computed(self, node: Node, columns: Mapping[Value, _Writer]) -> _Writer | None:
        """Return what an elementwise node computes of columns; its limits have to be constants."""
        limits = {v: data for v in aside(node) if (data := self._rounds.source(v).data) is not None}
        if len(limits) < len(set(aside(node))):
            return None

        def write_column(write: Builder) -> Value:
            made = {value: column(write) for value, column in columns.items()}
            made |= {value: write.constant(data) for value, data in limits.items()}
            return write(node.op, *(value and made[value] for value in node.inputs))

        return write_column

    def _reduced(self, node: Node, at: Array) -> _Rows | None:
        """Return reductions of the rows between two bounds."""
        op, axes = node.op, node.inputs[1] if len(node.inputs) > 1 else None
        if not isinstance(op, _Reduction) or bool(op.keepdims) is self._is_stacked:
            return None
        if axes is None or not _is(axes, 0):
            return None
        rows = self._rounds.source(node.operands[0])
        table, read = self._looked_up(rows)
        cuts = self._cuts(read, at)
        if not cuts:
            return None
        sources = {self._rounds.outer(cut.operands[0]) for cut, _ in cuts}
        x = sources.pop() if len(sources) == 1 else None
        low, high = ([(cut.operands[i], rounds) for cut, rounds in cuts] for i in (1, 2))
        first, last, op = self._known(low), self._known(high), replace(op, keepdims=0)
        if x is not None and table is not None:
            add = Builder(self._graph, self._loop, rows.name)
            if first is not None and last is not None:
                x, first, last = _in_bags(add, x, first, last)
            x = add(Gather(), table, x)
        dims = dims_of(x)
        if x is None or dims is None or len(dims) != 2:
            return None
        if first is not None and last is not None:
            return _known(_Bags(op, x, first, last))
        begin, end = self._columns(low), self._columns(high)
        if begin is None or end is None or at.size * dims[0] > ROOM:
            return None
        return _masked(op, x, at.size, begin.write, end.write)

    def _looked_up(self, rows: Value) -> tuple[Value | None, Value]:
        """Return the table of which a round looks up rows, and their indices; or None and rows."""
        node = rows.producer
        if node is None or not isinstance(node.op, Gather) or node.op.axis:
            return None, rows
        table, indices = map(self._rounds.source, node.operands)
        if table.data is not None:
            return self._graph.constant(table.data, table.name), indices
        outer = self._rounds.outer(table)
        return outer, rows if outer is None else indices

    def _cuts(self, value: Value, at: Array) -> list[tuple[Node, Array]]:
        """Return the Slices of rows that a value is, each with its rounds; none if it is others."""
        value = self._rounds.source(value)
        node = value.producer
        if node is not None and isinstance(node.op, If):
            parts = self._taken(node, node.op, node.outputs.index(value), at) or []
            found = [self._cuts(*part) for part in parts]
            return [cut for each in found for cut in each] if all(found) else []
        if node is None or not isinstance(node.op, Slice):
            return []
        rest = zip(node.inputs[3:], (0, 1), strict=False)
        return [(node, at)] if all(v is None or _is(v, wanted) for v, wanted in rest) else []

    def _known(self, parts: Sequence[_Part]) -> Array | None:
        """Return scalars of several rounds, if all are known."""
        known = [(self._rounds.at(value), rounds) for value, rounds in parts]
        arrays = [array[rounds] for array, rounds in known if array is not None]
        return np.concatenate(arrays)[_order(parts)] if len(arrays) == len(parts) else None

    def _columns(self, parts: Sequence[_Part]) -> _Rows | None:
        """Return scalars of several rounds as a column."""
        columns = [(self._column(*part), part[1]) for part in parts]
        return _in_order([(None if c is None else _Rows(c), rounds) for c, rounds in columns])


def _in_bags(add: Builder, indices: Value, low: Array, high: Array) -> tuple[Value, Array, Array]:
    """Return indices without those in no bag, which may be outside of a table, and the bounds."""
    count = (dims_of(indices) or (0,))[0]
    if (low < 0).any() or (high < low).any() or (high > count).any():
        return indices, low, high
    begins, ends = (np.bincount(each, minlength=count + 1) for each in (low, high))
    is_read = np.cumsum(begins - ends)[:count] > 0
    if is_read.all():
        return indices, low, high
    places = np.cumsum([0, *is_read])
    return add(Gather(), indices, add.integers(np.flatnonzero(is_read))), places[low], places[high]


def _results(op: If, place: int) -> tuple[Value, Value]:
    then, other = (list(branch.outputs.values()) for branch in (op.then_branch, op.else_branch))
    return then[place], other[place]


def _order(parts: Sequence[tuple[object, Array]]) -> Array:
    """Return where each round is among those of several parts."""
    return np.argsort(np.concatenate([rounds for _, rounds in parts]))


def _in_order(parts: Sequence[tuple[_Rows | None, Array]]) -> _Rows | None:
    """Return the rows of several parts, in the order of their rounds."""
    rows, order = [part for part, _ in parts if part is not None], _order(parts)
    if len(rows) < len(parts) or len(rows) == 1:
        return rows[0] if len(rows) == len(parts) else None
    bags = [each.bags for each in rows if each.bags is not None]
    if len(bags) == len(rows) and len({(id(each.x), type(each.op)) for each in bags}) == 1:
        low, high = (np.concatenate([getattr(b, e) for b in bags])[order] for e in ("low", "high"))
        return _known(replace(bags[0], low=low, high=high))

    def write_all(write: Builder) -> Value:
        joined = write(Concat(axis=0), *(each.write(write) for each in rows))
        if (order == np.arange(order.size)).all():
            return joined
        return write(Gather(), joined, write.integers(order.tolist()))

    return _Rows(write_all)


def _constant(data: Array) -> _Writer:
    return lambda write: write.constant(data)


def _known(bags: _Bags) -> _Rows | None:
    """Return reductions of bags whose bounds are known."""
    rows, width = dims_of(bags.x) or (0, 0)
    low, high, count = bags.low, bags.high, bags.low.size
    if (low < 0).any() or (high < low).any() or (high > rows).any():
        return None
    size = int(high[0] - low[0])
    is_even = size > 0 and (low == low[0] + size * np.arange(count)).all()
    if is_even and (high == low + size).all():

        def write_all(write: Builder) -> Value:
            x, begin, end = bags.x, int(low[0]), int(high[-1])
            if end - begin < rows:
                x = write.slice(x, 0, begin, end)
            x = write.shaped(x, (count, size, width))
            return write(bags.op, x, write.integers([1]))

        return _Rows(write_all, bags)
    ends = (_constant(end.reshape(-1, 1)) for end in (low, high))
    masked = None if count * rows > ROOM else _masked(bags.op, bags.x, count, *ends)
    return None if masked is None else replace(masked, bags=bags)


def _masked(op: _Reduction, x: Value, count: int, low: _Writer, high: _Writer) -> _Rows | None:
    """Return reductions of bags of any size: every bag looks at all rows.

    Finite rows are multiplied by ones and zeros.
    """
    dtype, (rows, width) = dtype_of(x), dims_of(x) or (0, 0)
    is_product = not isinstance(op, ReduceMax) and _is_finite(x)
    if dtype is None or dtype not in FLOATS or (not is_product and count * rows * width > ROOM):
        return None

    def write_all(write: Builder) -> Value:
        begin, end = (_from_start(write, each(write), rows) for each in (low, high))
        row = write.constant(np.arange(rows, dtype=dtype_of(begin))[None])
        inside = write(And(), write(GreaterOrEqual(), row, begin), write(Less(), row, end))
        if is_product:
            y = write(MatMul(), write(Cast(to=dtype), inside), x)
        else:
            none = np.array(-np.inf if isinstance(op, ReduceMax) else 0, dtype)
            inside = write.shaped(inside, (count, rows, 1))
            inner = ReduceMax(keepdims=0) if isinstance(op, ReduceMax) else ReduceSum(keepdims=0)
            y = write(inner, write(Where(), inside, x, write.constant(none)), write.integers([1]))
        if isinstance(op, ReduceMean):
            y = write(Div(), y, write(Cast(to=dtype), write(Sub(), end, begin)))
        return y

    return _Rows(write_all)


def _from_start(write: Builder, bound: Value, rows: int) -> Value:
    """Return a bound of a Slice, which counts from the end if it is negative."""
    if bound.data is not None:
        return bound
    zero, size = (write.constant(np.array(n, dtype_of(bound))) for n in (0, rows))
    return write(Where(), write(Less(), bound, zero), write(Add(), bound, size), bound)


def _is(value: Value, wanted: int) -> bool:
    """Whether a value is a constant with one element, this number."""
    return value.data is not None and value.data.size == 1 and value.data.item() == wanted


def _is_finite(value: Value) -> bool:
    """Whether all elements are those of finite constants, or products of them."""
    if value.data is not None:
        return bool(np.isfinite(value.data).all())
    node = value.producer
    if node is None or not isinstance(node.op, Cast | Gather | Identity | Mul | Reshape):
        return False
    read = node.operands if isinstance(node.op, Mul) else node.operands[:1]
    return all(map(_is_finite, read))
