"""A Loop or Scan as a step of a plan: the device counts and evaluates the condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest

from ..base.record import record
from ..ir.dtypes import int64, uint8
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from ..plan.arena import aligned
from ..plan.backend import BuildContext, Run, View
from ..plan.bind import sequence
from ..plan.device_control import Decisions, Rounds
from ..plan.host_decisions import HostDecisions
from .body import Body, finder, part

COUNTER = TensorType(int64, (2,))
NUMBER = TensorType(int64, ())
#: Maximum number of graph nodes for an unrolled loop, instead of one conditional node: on
#: an H200 such a node costs 4.1 us per iteration besides its body; a small kernel takes 1.0 us.
UNROLLED = 1024


@record
class Elements:
    """How a tensor holds one element per iteration.

    Attributes:
        axis: the axis of iterations, counted from the front.
        backward: whether the first iteration takes the last element.
    """

    axis: int
    backward: bool = False


@record
class BodySignature:
    """The roles of the inputs and results of a node and its body.

    Attributes:
        carried: number of loop-carried values.
        scanned: how the node's last inputs are split into elements for the body.
        stacked: how the body's last results are stacked into results of the node.
        count: maximum number of iterations, as far as known.
        is_fixed: whether only the count ends the loop.
        counts: whether it is a Loop, whose first inputs are count and condition; the body's first
            input is then the iteration number and its first result the condition.
    """

    carried: int
    scanned: tuple[Elements, ...] = ()
    stacked: tuple[Elements, ...] = ()
    count: int | None = None
    is_fixed: bool = True
    counts: bool = False


class Repetition:
    """A body that runs repeatedly on loop-carried values at fixed addresses.

    These addresses are the outputs of the step. An iteration writes a new value there directly if
    the old one is not read afterwards (`Body.succeeds`), else by a copy at its end.

    Args:
        body: without the condition among its inputs, which is always true when it runs.
        signature: the roles of its inputs and results.
        decisions: the device's conditional execution.

    Attributes:
        bodies: the body.
        kernel: see `Step`.
        nodes: approximate number of CUDA graph nodes.
        scratch: see `Step`; set by `at`.
        capturable: see `Step`.
    """

    capturable = True

    def __init__(self, body: Body, signature: BodySignature, decisions: Decisions) -> None:
        self.bodies = (body,)
        self.scratch = 0
        self._body, self._signature, self._decisions = body, signature, decisions
        names, made = [v.name for v in body.graph.inputs], list(body.graph.outputs)
        self._number = names.pop(0) if signature.counts else ""
        self._going = made.pop(0) if signature.counts else ""
        carried = signature.carried
        self._olds, self._news = names[:carried], made[:carried]
        self._elements = names[carried : carried + len(signature.scanned)]
        self._rows = made[carried:]
        self._reads_counter = bool(self._elements or self._rows)
        if self._number:
            self._reads_counter |= body.reads(self._number)
        self._set_size(body, signature)
        results = [*self._pairs(), *([(self._going, "")] if self._going else [])]
        self._aside = [new for new, old in results if self._moves_aside(new, old)]
        self._offsets: dict[tuple[str, str], int] = {}
        self._end = 0
        self._site: BuildContext | None = None

    def _set_size(self, body: Body, signature: BodySignature) -> None:
        """Decide whether to unroll."""
        size = body.nodes + len(self._elements) + len(self._rows) + self._reads_counter
        size += sum(not body.succeeds(new, old) for new, old in self._pairs())
        count, often = signature.count, ""
        self._is_unrolled = False
        if count is not None:
            fits = signature.is_fixed and count * size <= UNROLLED
            self._is_unrolled = fits and not isinstance(self._decisions, HostDecisions)
            often = f" {count} times" + ("" if signature.is_fixed else " at most")
        self.nodes = 1 + size * (count or 0 if self._is_unrolled else 1)
        what = "unrolled loop" if self._is_unrolled else "loop node of the graph"
        if isinstance(self._decisions, HostDecisions):
            what = "loop"
        self.kernel = f"{what}, {body.steps} step{'s' if body.steps != 1 else ''}{often}"

    def _pairs(self) -> list[tuple[str, str]]:
        """Return the names of loop-carried values after and before an iteration."""
        return list(zip(self._news, self._olds, strict=True))

    def _moves_aside(self, new: str, old: str) -> bool:
        """Whether a result is the old value of another that may be overwritten first."""
        source = self._body.source(new)
        return source in self._olds and source != old

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def at(self, site: BuildContext) -> Repetition:
        """Build the step, with the loop-carried values in its outputs."""
        self._site, body = site, self._body
        (node,) = site.nodes
        body.place(new for new, old in self._pairs() if body.succeeds(new, old))
        sizes = {value.name: value.tensor.nbytes for value in body.graph.inputs}
        wanted = {("counter", ""): COUNTER.nbytes}
        for old, value in zip_longest(self._olds, node.outputs[: len(self._olds)]):
            if value not in site.outputs:
                wanted["carried", old] = sizes[old]
        wanted |= {("element", name): sizes[name] for name in self._elements}
        wanted |= {("aside", new): body.graph.outputs[new].tensor.nbytes for new in self._aside}
        self._end = 0
        for key, nbytes in wanted.items():
            self._offsets[key] = self._end
            self._end += aligned(nbytes)
        self.scratch = self._end + body.scratch
        return self

    # ── binding ──────────────────────────────────────────────────────────────────────────────

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Return a function that initialises the loop-carried values and repeats the body."""
        site, body = self._site, self._body
        if site is None or scratch is None:
            raise ValueError("the loop has no site, or no memory")
        (node,), find = site.nodes, finder(site, inputs, outputs)
        types = {value.name: value.tensor for value in body.graph.inputs}

        def place(kind: str, name: str = "") -> View:
            return part(scratch, self._offsets[kind, name], types.get(name, COUNTER))

        counter = place("counter")
        states = {
            old: find(value) if value in site.outputs else place("carried", old)
            for old, value in zip_longest(self._olds, node.outputs[: len(self._olds)])
        }
        elements = {name: place("element", name) for name in self._elements}
        given = body.captured(node, find) | states | elements
        if self._number:
            given[self._number] = part(counter, 0, NUMBER)
        memory = part(scratch, self._end, TensorType(uint8, (body.scratch,)))
        run = body.bind(memory, given, {new: states[old] for new, old in self._pairs()})
        results = {name: body.result(name, memory, site.weights) for name in body.graph.outputs}
        runs = [*self._takes(node, find, elements, counter), run]
        runs += self._puts(node, site, find, results, counter)
        for name in self._aside:
            room = part(scratch, self._offsets["aside", name], results[name].type)
            runs.append(room.device.copier(room, results[name]))
            results[name] = room
        runs += self._moves(states, results)
        rounds = self._rounds(node, find, counter, results)
        again = self._decisions.repeat(sequence(runs), rounds)
        return sequence([*self._starts(node, find, states), again])

    def _starts(
        self, node: Node, find: Callable[[Value], View], states: Mapping[str, View]
    ) -> list[Run]:
        """Return the copies of the initial loop-carried values."""
        first = 2 if self._signature.counts else 0
        values = [v for v in node.inputs[first:][: len(self._olds)] if v is not None]
        pairs = zip(self._olds, values, strict=True)
        return [states[old].device.copier(states[old], find(value)) for old, value in pairs]

    def _takes(
        self,
        node: Node,
        find: Callable[[Value], View],
        elements: Mapping[str, View],
        counter: View,
    ) -> list[Run]:
        """Return the copies of the scanned elements of an iteration."""
        how = self._signature.scanned
        values = [v for v in node.inputs[len(node.inputs) - len(how) :] if v is not None]
        return [
            self._decisions.take(elements[name], find(v), e.axis, counter, backward=e.backward)
            for name, v, e in zip(self._elements, values, how, strict=True)
        ]

    def _puts(
        self,
        node: Node,
        site: BuildContext,
        find: Callable[[Value], View],
        results: Mapping[str, View],
        counter: View,
    ) -> list[Run]:
        """Return the copies of an iteration's elements into stacked results that are read."""
        values = node.outputs[len(self._olds) :]
        return [
            self._decisions.put(find(v), results[name], e.axis, counter, backward=e.backward)
            for name, v, e in zip(self._rows, values, self._signature.stacked, strict=False)
            if v in site.outputs
        ]

    def _moves(self, states: Mapping[str, View], results: Mapping[str, View]) -> list[Run]:
        """Return the copies of new loop-carried values over the old ones."""
        return [
            states[old].device.copier(states[old], results[new])
            for new, old in self._pairs()
            if new not in self._body.outside and self._body.source(new) != old
        ]

    def _rounds(
        self,
        node: Node,
        find: Callable[[Value], View],
        counter: View,
        results: Mapping[str, View],
    ) -> Rounds:
        if self._signature.is_fixed:
            how = {"is_read": self._reads_counter, "is_unrolled": self._is_unrolled}
            return Rounds(counter, self._signature.count, None, None, **how)
        m, cond, *_ = (*node.inputs, None, None)
        count: View | int | None = self._signature.count
        if count is None and m is not None:
            count = find(m)
        first = None if cond is None else find(cond)
        return Rounds(counter, count, first, results[self._going], self._reads_counter)
