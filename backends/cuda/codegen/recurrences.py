"""Recurrences that an exporter has unrolled: equal elementwise steps, each behind the last one.

Gated linear recurrences (RecurrentGemma, minGRU) and WKV attention (RWKV) are loops over time in
PyTorch. In a traced graph every step reads its own slices of a few tensors and what the step before
it computed, and one Concat joins the results of all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import inf

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import part_of
from ....runtime.ops.gather import Gather
from ....runtime.ops.movement import Concat, Slice
from ....runtime.ops.shape import RESHAPES
from ....runtime.ops.shapes import normalize_axis
from ....runtime.plan.format import Format
from ..recipe.launch import Recipe
from ..recipe.operands import Ints, Tensor, merge, strides
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .elementwise import in_chains

#: Minimum number of equal steps, and maximum numbers of nodes and states of one.
MIN_STEPS, MAX_NODES, MAX_STATES = 4, 48, 8


@record
class Part:
    """One of several equal parts of a tensor, along an axis: what a step reads, or stores.

    Attributes:
        value: the part, with axes of size 1 anywhere.
        whole: the tensor, in C order.
        place: which part it is.
        places: how many there are.
        step: elements of `whole` from one part to the next.
        strides: along the axes of `value`, in elements of `whole`.
        nodes: those that cut it out.
    """

    value: Value
    whole: Value
    place: int
    places: int
    step: int
    strides: Ints
    nodes: tuple[Node, ...] = ()


@record
class State:
    """What one step hands to the next one.

    Attributes:
        initial: what the first step reads.
        before, after: what the step of `Recurrence.body` reads and computes.
    """

    initial: Value
    before: Value
    after: Value


@record
class Recurrence(Whole):
    """Nodes that compute a recurrence.

    Attributes:
        nodes: all its nodes.
        body: those of one step, in order.
        count: number of steps.
        way: 1 if the first step has the first place of the result, -1 if it has the last one.
        result: the part of the result that this step stores; the place is that of the first step.
        first: what precedes the result of the first step; None if nothing does.
        parts: what this step reads of tensors; places are those of the first step.
        states: what is handed on.
    """

    nodes: frozenset[Node]
    body: tuple[Node, ...]
    count: int
    way: int
    result: Part
    first: Value | None
    parts: tuple[Part, ...]
    states: tuple[State, ...]

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        from .recurrence_kernel import recurrence

        return recurrence(self, operand)


def recurrence_at(graph: Graph, join: Node, free: Set[Node]) -> Recurrence | None:
    """Return the recurrence whose results a Concat joins, if there is one."""
    rows = _joined(join)
    if rows is None or join not in free:
        return None
    for way in (1, -1):
        found = _Unrolled(graph, free, rows[::way], way).found()
        if found is not None:
            return found
    return None


def _joined(join: Node) -> list[Part] | None:
    """Return the parts of a Concat's result, if all are results of elementwise nodes."""
    y, parts = join.output, join.operands
    if not isinstance(join.op, Concat) or len(parts) <= MIN_STEPS:
        return None
    axis = normalize_axis(join.op.axis, len(y.tensor.dims))
    found = list[Part]()
    for place, part in enumerate(parts):
        steps = strides(y.tensor.dims, Format.CONTIGUOUS)
        value, along, views = _viewed(part, steps)
        if part.tensor.dims[axis] != 1 or (place and not _is_computed(value)):
            return None
        found.append(Part(value, y, place, len(parts), steps[axis], along, (*views, join)))
    return found


class _Unrolled:
    """The search for a recurrence among the results that a Concat joins, in the order of steps."""

    def __init__(self, graph: Graph, free: Set[Node], rows: Sequence[Part], way: int) -> None:
        self._graph, self._free, self._rows, self._way = graph, free, rows, way
        self._parts: dict[Value, Part | None] = {}
        self._times = dict[Value, float]()
        self._fill_times()
        self._base = self._time(rows[-1].value) - (len(rows) - 1)

    def _part(self, value: Value) -> Part | None:
        if value not in self._parts:
            self._parts[value] = _cut(value)
        return self._parts[value]

    def _fill_times(self) -> None:
        """Note the last place that each elementwise result depends on; -inf for none."""
        found, todo = set[Node](), [row.value for row in self._rows]
        while todo:
            value = todo.pop()
            node = value.producer
            if node is None or node in found or self._part(value) is not None:
                continue
            if in_chains(node):
                found.add(node)
                todo += node.distinct_reads
        for node in self._graph.in_order(found):
            self._times[node.output] = max(map(self._time, node.distinct_reads), default=-inf)

    def _time(self, value: Value) -> float:
        part = self._part(value)
        return self._times.get(value, -inf) if part is None else part.place * self._way

    def found(self) -> Recurrence | None:
        """Return the recurrence."""
        body = self._body() if self._base > -inf else None
        if body is None:
            return None
        at, roots, before = body
        nodes, known = set[Node](), dict[Value, Value]()
        wanted: Mapping[Value, Value] = {}
        first = len(self._rows)
        while first:
            image = self._image(at, roots[0], before, first - 1, wanted)
            if image is None:
                break
            first, known = first - 1, image
            nodes.update(self._nodes_of(image, before))
            nodes.update(self._rows[first].nodes)
            pairs = zip(before, roots[1:], strict=True)
            wanted = {after: image[v] for v, after in pairs if v in image}
        if first > 1 or len(self._rows) - first < MIN_STEPS or len(wanted) < len(set(roots[1:])):
            return None
        if not self._is_closed(nodes):
            return None
        return self._recurrence(roots, before, first, known, nodes)

    def _recurrence(
        self,
        roots: Sequence[Value],
        before: Sequence[Value],
        first: int,
        known: Mapping[Value, Value],
        nodes: Set[Node],
    ) -> Recurrence | None:
        """Return the recurrence of these nodes, unless steps lack a part of a tensor.

        Args:
            roots: the result of the body, and its states.
            before: the states that the body reads.
            first: the number of the first step.
            known: what it reads and computes, by the values of the body.
            nodes: all nodes.
        """
        made = (v for v in known if v not in before and self._part(v) is None)
        nodes_of = {v.producer for v in made if self._time(v) > -inf}
        body = self._graph.in_order(node for node in nodes_of if node is not None)
        reads = dict.fromkeys(v for node in body for v in node.distinct_reads)
        parts = [(self._part(v), self._part(known[v])) for v in reads]
        row = self._rows[first]
        joined = row.nodes[-1].operands
        places = tuple(replace(p, place=q.place) for p, q in parts if p and q)
        count = len(self._rows) - first
        last = (count - 1) * self._way
        if any(not 0 <= part.place + last < part.places for part in places):
            return None  # the last step, whose states are not read, has no such part
        return Recurrence(
            frozenset(nodes),
            body,
            count,
            self._way,
            replace(row, value=roots[0]),
            joined[:: self._way][0] if first else None,
            places,
            tuple(State(known[v], v, after) for v, after in zip(before, roots[1:], strict=True)),
        )

    def _body(self) -> tuple[int, list[Value], list[Value]] | None:
        """Return a step that computes all states: its number, its results, and what it reads.

        The last steps compute fewer: their states are not read.
        """
        at = len(self._rows) - 1
        roots = [self._rows[at].value]
        while at > 0:
            before = self._before(roots, at)
            if before is None or not before or len(before) > MAX_STATES:
                return None
            if len(before) == len(roots) - 1:
                return at, roots, before
            at -= 1
            roots = [self._rows[at].value, *before]
        return None

    def _before(self, roots: Sequence[Value], at: int) -> list[Value] | None:
        """Return what a step reads of the one before it, in the order of its expressions."""
        now, seen, found = self._base + at, set[Value](), list[Value]()
        todo = list(reversed(roots))
        while todo:
            value = todo.pop()
            time = self._time(value)
            if value in seen or self._part(value) is not None or time == -inf:
                continue
            seen.add(value)
            if time == now and value.producer is not None:
                todo += reversed(value.producer.distinct_reads)
            elif time == now - 1:
                found.append(value)
            else:
                return None
            if len(seen) > MAX_NODES:
                return None
        return found

    def _image(
        self,
        at: int,
        result: Value,
        before: Sequence[Value],
        to: int,
        wanted: Mapping[Value, Value],
    ) -> dict[Value, Value] | None:
        """Return what the values of one step are in another one; None if the steps differ.

        Args:
            at: the number of the step.
            result: what it stores.
            before: the states that it reads.
            to: the number of the other step.
            wanted: what its states are there, if anything reads them.
        """
        image = dict[Value, Value]()
        todo = [(result, self._rows[to].value), *wanted.items()]
        while todo:
            value, other = todo.pop()
            if value in image:
                if image[value] is not other:
                    return None
                continue
            image[value] = other
            if value in before:
                if self._time(other) >= self._base + to or not _are_alike(value, other):
                    return None
                continue
            part, node = self._part(value), value.producer
            if part is not None:
                if not _moves(part, self._part(other), (to - at) * self._way):
                    return None
            elif self._time(value) == -inf or node is None:
                if value is not other and not _are_equal(value, other):
                    return None
            else:
                twin = other.producer
                if twin is None or twin not in self._free or twin.op != node.op:
                    return None
                if not _are_alike(value, other) or len(twin.inputs) != len(node.inputs):
                    return None
                pairs = list(zip(node.inputs, twin.inputs, strict=True))
                if any((a is None) != (b is None) for a, b in pairs):
                    return None
                todo += [(a, b) for a, b in pairs if a is not None and b is not None]
        return image

    def _nodes_of(self, image: Mapping[Value, Value], before: Sequence[Value]) -> Iterator[Node]:
        for value, other in image.items():
            part = self._part(other)
            if value in before or self._time(value) == -inf:
                continue
            if part is not None:
                yield from part.nodes
            elif other.producer is not None:
                yield other.producer

    def _is_closed(self, nodes: Set[Node]) -> bool:
        """Whether only these nodes read the results of all but the last one, which joins."""
        join = self._rows[0].nodes[-1]
        return nodes <= self._free and all(
            node is join or not self._graph.is_read_outside(v, nodes)
            for node in nodes
            for v in node.outputs
        )


def _is_computed(value: Value) -> bool:
    return value.producer is not None and in_chains(value.producer)


def _viewed(part: Value, steps: Ints) -> tuple[Value, Ints, tuple[Node, ...]]:
    """Return what views lead back to, its strides where the part has `steps`, and the views."""
    value, dims, nodes = part, part.tensor.dims, tuple[Node, ...]()
    along = tuple(0 if n == 1 else step for n, step in zip(dims, steps, strict=True))
    while (node := value.producer) is not None and isinstance(node.op, RESHAPES):
        source = node.operands[0]
        found = reshaped(dims, steps, source.tensor.dims)
        if found is None:
            break
        value, along, nodes = source, found, (*nodes, node)
    return value, along, nodes


def _cut(value: Value) -> Part | None:
    """Return which part of a tensor a value is; None if it is none of several equal ones."""
    source, views = value, tuple[Node, ...]()
    while (node := source.producer) is not None and isinstance(node.op, RESHAPES):
        source, views = node.operands[0], (*views, node)
    part = part_of(source)
    if node is None or not isinstance(node.op, (Gather, Slice)) or part is None:
        return None
    x, axis, taken = part
    width, dims = len(taken), x.tensor.dims
    place, rest = divmod(taken.start, width)
    own = strides(dims, Format.CONTIGUOUS)
    sizes = (*dims[:axis], width, *dims[axis + 1 :])
    steps_of = reshaped(sizes, own, value.tensor.dims)
    if rest or steps_of is None:
        return None
    whole, before = _viewed_whole(x)
    nodes, places = (*views, node, *before), dims[axis] // width
    return Part(value, whole, place, places, own[axis] * width, steps_of, nodes)


def reshaped(sizes: Ints, steps: Ints, dims: Ints) -> Ints | None:
    """Return the strides of a tensor with these strides in another shape; None if it has none."""
    merged, (strides_of,) = merge(sizes, [steps])
    left, found = list(zip(merged, strides_of, strict=True)), list[int]()
    for size in reversed(dims):
        if size == 1:
            found.append(0)
            continue
        count, step = left.pop() if left else (1, 0)
        if count % size:
            return None
        found.append(step)
        if count > size:
            left.append((count // size, step * size))
    return tuple(reversed(found))


def _viewed_whole(value: Value) -> tuple[Value, tuple[Node, ...]]:
    """Return what views with one reader each lead back to, and these."""
    nodes: tuple[Node, ...] = ()
    while (node := value.producer) is not None and isinstance(node.op, RESHAPES):
        if len(value.consumers) > 1:
            break
        value, nodes = node.operands[0], (*nodes, node)
    return value, nodes


def _moves(part: Part, other: Part | None, by: int) -> bool:
    """Whether one part of a tensor is another one, this many places further."""
    return (
        other is not None
        and other.whole is part.whole
        and (other.step, other.strides) == (part.step, part.strides)
        and (other.place, other.places) == (part.place + by, part.places)
        and _are_alike(part.value, other.value)
    )


def _are_alike(value: Value, other: Value) -> bool:
    return (value.tensor.dims, value.tensor.dtype) == (other.tensor.dims, other.tensor.dtype)


def _are_equal(value: Value, other: Value) -> bool:
    """Whether two constants are the same number."""
    if value.data is None or other.data is None or value.data.size != 1:
        return False
    return _are_alike(value, other) and np.array_equal(value.data, other.data)
