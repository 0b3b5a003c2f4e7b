"""Determines the trip count of loops that count, such as while loops of TensorFlow and Paddle.

These are Loops whose condition compares counters with limits: ``i < n`` once or twice, through
casts, where ``i`` grows by a constant in each iteration. The condition can be evaluated for every
iteration in advance; the first one where it is false gives the trip count, and so the shapes of the
stacked results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.infer import fold_known, infer
from ...ir.types import Array
from ...ops.control import Loop
from ...ops.elementwise import Add, Sub
from ...ops.gather import Gather
from ...ops.movement import Slice
from ..driver import Context
from ..editing import actual, number, rank_of, unviewed
from ..pointwise import is_elementwise

#: Maximum number of iterations examined.
_ROUNDS = 1 << 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Make the trip count a constant where the condition depends only on counters."""
    counted = False
    for node in list(graph.nodes):
        if isinstance(node.op, Loop) and (count := Rounds(node, node.op, context).count):
            _fix(graph, node, node.op, count)
            counted = True
            yield f"Loop '{node.name}' runs {count} times"
    if counted:
        infer(graph)
        fold_known(graph)


def _fix(graph: Graph, node: Node, op: Loop, count: int) -> None:
    """Make a loop end only by its trip count."""
    body = op.body.clone()
    going, *_ = body.outputs
    always = body.constant(np.array(True), "always")
    body.set_outputs({**body.outputs, going: always})
    body.sweep()
    graph.set_op(node, replace(op, body=body))
    number = graph.constant(np.array(count, np.int64), f"{node.name}.count")
    graph.set_inputs(node, (number, None, *node.inputs[2:]))


class Rounds:
    """The scalars of a body, each as an array with one element per iteration.

    Args:
        node: a Loop.
        op: its operator.
        context: for evaluation.
    """

    def __init__(self, node: Node, op: Loop, context: Context) -> None:
        self._node, self._body, self._context = node, op.body, context
        m = node.inputs[0] if node.inputs else None
        limit = None if m is None else _scalar(m)
        self._limit = None if limit is None else int(limit)
        self._bounded = m is None or limit is not None
        self._rounds = np.arange(_ROUNDS if self._limit is None else min(self._limit, _ROUNDS))
        self._outer = node.captured
        self._known: dict[Value, Array | None] = {
            inner: None if (found := _scalar(outer)) is None else self._same(found)
            for inner, outer in self._outer.items()
        }
        self._known[op.body.inputs[0]] = self._rounds
        self._known[op.body.inputs[1]] = self._same(np.array(True))  # or no iteration begins
        self._entered: dict[Value, Value] = {}

    @property
    def count(self) -> int | None:
        """Return the trip count, if known and not already given by the file."""
        cond = self._node.inputs[1] if len(self._node.inputs) > 1 else None
        holds = cond is None or bool(_scalar(cond))
        going = next(iter(self._body.outputs.values()))
        if not holds or not self._bounded or going.producer is None or not self._rounds.size:
            return None
        found = self.at(going)
        if found is None:
            return None
        ends = np.flatnonzero(~found)
        if ends.size:
            return int(ends[0]) + 1
        return self._limit if self._limit == self._rounds.size else None

    def _same(self, scalar: Array) -> Array:
        return np.broadcast_to(scalar, self._rounds.shape)

    def enter(self, node: Node) -> None:
        """Let values of the branches of a node in the body be asked for as well."""
        self._entered |= node.captured

    @property
    def sources(self) -> dict[Value, Value]:
        """The values that those of branches, and those of the body, stand for."""
        return {**self._outer, **self._entered}

    def source(self, value: Value) -> Value:
        """Return the value of the body that a branch reads."""
        return actual(value, self._entered)

    def outer(self, value: Value | None) -> Value | None:
        """Return the value outside that a branch or the body reads; None if it is none."""
        return None if value is None else self._outer.get(self.source(value))

    def picked(self, value: Value | None) -> tuple[Value, Array] | None:
        """Return the vector of which a value is one element, and where it is in every iteration."""
        node = None if value is None else self.source(value).producer
        if node is None or len(node.inputs) < 2:
            return None
        vector, first, *others = (
            None if each is None else self.source(each) for each in node.inputs
        )
        if vector is None or first is None or rank_of(vector) != 1:
            return None
        places = self.at(first)
        if isinstance(node.op, Slice):
            ends = None if others[0] is None else self.at(others[0])
            is_one = places is not None and ends is not None and bool((ends == places + 1).all())
            if not is_one or any(each is not None and number(each, 1) for each in others[1:2]):
                return None
            if any(each is not None and number(each, 1) != 1 for each in others[2:]):
                return None
        elif not isinstance(node.op, Gather):
            return None
        if places is None or (places < 0).any():
            return None
        return vector, places

    def at(self, value: Value) -> Array | None:
        """Return a scalar of the body for every iteration; None if unknown."""
        value = self.source(value)
        left, opened = [value], set[Value]()
        while left:
            each = left[-1]
            waiting = [read for read in self._reads(each) if read not in self._known]
            if waiting and each not in self._known and each not in opened:
                opened.add(each)
                left += waiting
                continue
            left.pop()
            if each not in self._known:
                self._known[each] = None
                self._known[each] = self._found(each)
        return self._known[value]

    def _reads(self, value: Value) -> list[Value]:
        """Return the values on which a scalar depends, by which it is found without recursion."""
        node = value.producer
        if node is None or value in self._known or _scalar(value) is not None:
            return []
        if node.op.view:
            read = node.inputs[:1]
        elif isinstance(node.op, Gather | Slice):
            read = node.inputs[1:]
        else:
            read = node.inputs if is_elementwise(node.op) else ()
        return [self.source(each) for each in read if each is not None]

    def _found(self, value: Value) -> Array | None:
        node = value.producer
        if (scalar := _scalar(value)) is not None:
            return self._same(scalar)
        if value in self._body.inputs[2:]:
            return self._counter(value)
        if node is None or not node.inputs or node.inputs[0] is None:
            return None
        if node.op.view:
            return self.at(node.inputs[0])
        if isinstance(node.op, Gather | Slice):
            return self._element(value)
        if not is_elementwise(node.op) or len(node.outputs) != 1:
            return None
        arrays = [None if each is None else self.at(each) for each in node.inputs]
        if any(array is None for array in arrays):
            return None
        results = self._context.evaluate(node.op, arrays, 1)
        return None if results is None else results[0]

    def _element(self, value: Value) -> Array | None:
        """Return an element of a known vector."""
        found = self.picked(value)
        if found is None:
            return None
        vector, places = found
        known = self._outer.get(vector, vector).known
        return None if known is None or (places >= known.size).any() else known[places]

    def _counter(self, value: Value) -> Array | None:
        """Return a loop-carried value that is constant, or grows by a constant; None for others."""
        place = self._body.inputs.index(value)
        before = self._node.inputs[place]
        first = None if before is None else _scalar(before)
        after = unviewed(list(self._body.outputs.values())[place - 1])
        if first is None or first.dtype.kind not in "iub":
            return None
        if after is value:
            return self._same(first)
        node = after.producer
        if node is None or not isinstance(node.op, Add | Sub) or value not in node.inputs:
            return None
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        step = None if other is None else _scalar(other)
        if step is None or (isinstance(node.op, Sub) and node.inputs[0] is not value):
            return None
        steps = step.astype(np.int64) * self._rounds  # which wraps around as the counter does
        start = first.astype(np.int64)
        return (start - steps if isinstance(node.op, Sub) else start + steps).astype(first.dtype)


def _scalar(value: Value) -> Array | None:
    """Return the element of a scalar that is constant or known by inference; else None."""
    known = value.known
    return known.reshape(()) if known is not None and known.size == 1 else None
