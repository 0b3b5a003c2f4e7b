"""Bags of rows without those that a test leaves out, as padding in PyTorch's EmbeddingBag.

A Loop in the Loop over bags goes over the places of one of them, and appends those to keep to a
list; their rows are looked up, and reduced unless there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...base.record import record
from ...ir.graph import Value
from ...ir.op import Op
from ...ir.types import Array
from ...ops.control import If, Loop
from ...ops.elementwise import Add, And, Cast, CastLike, Div, Equal, Less, Max, Where
from ...ops.gather import Gather
from ...ops.movement import Concat
from ...ops.reduce import ReduceMax, ReduceMean, ReduceSum
from ...ops.shape import Identity
from ..editing import Builder, actual, dims_of, dtype_of, number
from ..pointwise import is_elementwise

#: Maximum nodes of a test, each as often as it is read.
_STEPS = 100


@record
class KeptPlaces:
    """The places of a range that a test keeps.

    Attributes:
        begin: of the range, a value of the body around the Loop.
        end: likewise.
        test: whether a place is kept.
        counter: the place, in the Loop's body.
        sources: the values outside of bodies that those in them stand for.
        steps: one for each value that may still be looked at.
    """

    begin: Value
    end: Value
    test: Value
    counter: Value
    sources: dict[Value, Value]
    steps: Iterator[int]

    def source(self, value: Value) -> Value:
        """Return the value that one of a body stands for."""
        return actual(value, self.sources)

    def writes(self, value: Value | None = None) -> Callable[[Builder], Value] | None:
        """Return what writes the test, or another value of the Loop's body, of all places at once.

        None if it is no elementwise function of elements of vectors at the place, or a long one.
        """
        if next(self.steps, None) is None:
            return None
        value = self.source(self.test if value is None else value)
        node, data = value.producer, value.data
        if data is not None:
            return (lambda write: write.constant(data)) if data.size == 1 else None
        if node is None:
            return None
        if isinstance(node.op, Gather) and self.source(node.operands[1]) is self.counter:
            vector = self.source(node.operands[0])
            return (lambda _: vector) if len(dims_of(vector) or ()) == 1 else None
        if node.op.view:
            return self.writes(node.operands[0])
        if isinstance(node.op, CastLike):
            x, to = self.writes(node.operands[0]), dtype_of(self.source(node.operands[1]))
            return None if x is None or to is None else lambda write: write(Cast(to=to), x(write))
        op: Op = node.op
        read = list(node.operands)
        if isinstance(op, If):
            if len(node.outputs) != 1:
                return None
            self.sources.update(node.captured)
            read = [read[0], *_results(op)]
            op = Where()
        elif not is_elementwise(op) or len(node.outputs) != 1:
            return None
        writers = [writer for each in read if (writer := self.writes(each)) is not None]
        if len(writers) < len(read):
            return None
        return lambda write: write(op, *(writer(write) for writer in writers))


def kept_places(value: Value, sources: dict[Value, Value]) -> KeptPlaces | None:
    """Return which places a Loop appends to a list that is empty before it; None if it does not.

    Args:
        value: a result of the Loop.
        sources: the values that those of the body around the Loop stand for; is extended.
    """
    loop = value.producer
    if loop is None or not isinstance(loop.op, Loop) or len(loop.inputs) < 3:
        return None
    body = loop.op.body
    sources.update(loop.captured)
    at = loop.outputs.index(value)
    going, *after = body.outputs.values()
    m, cond, *before = loop.inputs
    listed = body.inputs[2:]
    found = [i for i, each in enumerate(listed) if _grows_by_one(sources, each, after[i])]
    if m is not None or cond is None or len(found) != 1 or at >= len(before):
        return None
    (place,) = found
    begin, empty = before[place], before[at]
    end = _limit(going, after[place])
    if begin is None or empty is None or end is None or dims_of(empty) != (0,):
        return None
    first = _limit(actual(cond, sources), begin)
    if first is None or actual(first, sources) is not actual(end, sources):
        return None
    test = _test_of(sources, after[at], listed[at], listed[place])
    if test is None:
        return None
    steps = iter(range(_STEPS))
    return KeptPlaces(begin, actual(end, sources), test, listed[place], sources, steps)


def _results(op: If) -> tuple[Value, Value]:
    """Return the first results of both branches."""
    then, other = (next(iter(x.outputs.values())) for x in (op.then_branch, op.else_branch))
    return then, other


def _grows_by_one(sources: dict[Value, Value], before: Value, after: Value) -> bool:
    node = after.producer
    if node is None or not isinstance(node.op, Add) or before not in node.operands:
        return False
    (other,) = [value for value in node.operands if value is not before] or [before]
    other = actual(other, sources)
    if (maker := other.producer) is not None and isinstance(maker.op, CastLike | Identity):
        other = actual(maker.operands[0], sources)
    return number(other) == 1


def _limit(test: Value, value: Value) -> Value | None:
    """Return below which number a test has a value."""
    node = test.producer
    if node is None or not isinstance(node.op, Less) or node.operands[0] is not value:
        return None
    return node.operands[1]


def _test_of(
    sources: dict[Value, Value], after: Value, before: Value, place: Value
) -> Value | None:
    """Return when a body appends a place to a list, which it leaves as it is otherwise."""
    node = after.producer
    if node is None or not isinstance(node.op, If) or len(node.outputs) != 1:
        return None
    sources.update(node.captured)
    then, other = _results(node.op)
    join = then.producer
    if join is None or not isinstance(join.op, Concat) or len(join.operands) != 2:
        return None
    rest, new = (actual(_unviewed(sources, value), sources) for value in join.operands)
    kept = actual(_unviewed(sources, other), sources)
    return node.operands[0] if rest is kept is before and new is place else None


def _unviewed(sources: dict[Value, Value], value: Value) -> Value:
    value = actual(value, sources)
    while (node := value.producer) is not None and node.op.view:
        value = actual(node.operands[0], sources)
    return value


def reduced(
    write: Builder, op: ReduceMax | ReduceMean | ReduceSum, x: Value, keep: Value, bags: Array
) -> Value:
    """Write reductions of the rows of each bag that are kept, zeros where there are none.

    Args:
        write: where nodes go.
        op: the reduction, of the axis of rows.
        x: the rows of all bags [rows, width].
        keep: whether each is kept, [rows].
        bags: first row of each bag, and the row behind its last one; [2, count].
    """
    rows, width = dims_of(x) or (0, 0)
    dtype, count, size = x.tensor.dtype, bags.shape[1], int(bags[1, 0] - bags[0, 0])
    starts = [int(bags[0, 0]) + size * i for i in range(count)]
    if np.array_equal(bags, [starts, [start + size for start in starts]]):
        begin, end = int(bags[0, 0]), int(bags[1, -1])
        if end - begin < rows:
            x, keep = (write.slice(each, 0, begin, end) for each in (x, keep))
        x, keep = write.shaped(x, (count, size, width)), write.shaped(keep, (count, size, 1))
    else:
        row = np.arange(rows)
        inside = (row >= bags[0][:, None]) & (row < bags[1][:, None])
        keep = write(And(), write.constant(inside[:, :, None]), write.shaped(keep, (1, rows, 1)))
    is_max = isinstance(op, ReduceMax)
    none = np.array(-np.inf if is_max else 0, dtype)
    axes = write.integers([1])
    y = write(Where(), keep, x, write.constant(none))
    y = write((ReduceMax if is_max else ReduceSum)(keepdims=0), y, axes)
    if isinstance(op, ReduceSum):
        return y
    number_of = write(ReduceSum(keepdims=0), write(Cast(to=dtype), keep), axes)
    zero = write.constant(np.zeros((), dtype))
    if is_max:
        return write(Where(), write(Equal(), number_of, zero), zero, y)
    return write(Div(), y, write(Max(), number_of, write.constant(np.ones((), dtype))))
