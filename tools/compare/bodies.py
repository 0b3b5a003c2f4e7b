"""Runs of the bodies of control flow, one by one, on the values that a reference computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...runtime.base.budget import Budget
from ...runtime.control.host_control import run_control
from ...runtime.errors import InputError
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import attributes
from ...runtime.ir.types import HostValue
from ...runtime.ops.control import If, Loop, Scan, SequenceMap
from ...runtime.options import Options
from ..runners.replay import Player, prepared, run_all

Values = Mapping[str, HostValue]


@dataclass(frozen=True, slots=True)
class Opened:
    """A body as a separate graph, whose captures are inputs."""

    graph: Graph
    feeds: dict[str, HostValue]


@dataclass(frozen=True, slots=True)
class BodyRun:
    """One run of a body.

    Attributes:
        body: the attribute that holds it.
        iteration: how many bodies the node has run before.
        ours: the reference's body.
        theirs: the runner's, of the same node in another file.
        values: all values that the reference computes in it, and its inputs, by name.
    """

    body: str
    iteration: int
    ours: Opened
    theirs: Opened
    values: dict[str, HostValue]


def has_bodies(node: Node) -> bool:
    """Whether `visit_bodies` runs the bodies of a node."""
    return isinstance(node.op, If | Loop | Scan | SequenceMap)


def visit_bodies(
    reference: Player,
    pair: tuple[Node, Node],
    values: Values,
    late: Options | None,
    visit: Callable[[BodyRun], None],
) -> None:
    """Run a node body by body on the reference, until it ends or `visit` raises.

    Args:
        reference: runs the bodies.
        pair: the reference's node, and the runner's.
        values: what both nodes read, by name.
        late: options of the passes that a runner runs on bodies; None if it runs none.
        visit: called after each run of a body.

    Raises:
        TercetError: a body cannot run alone, or reads what is not among `values`.
    """
    node = pair[0]
    given = [None if v is None else _read(v, values) for v in node.inputs]
    run_control(node.op, _Bodies(reference, pair, values, late, visit), given)


class _Bodies:
    def __init__(
        self,
        reference: Player,
        pair: tuple[Node, Node],
        values: Values,
        late: Options | None,
        visit: Callable[[BodyRun], None],
    ) -> None:
        self.node, self._twin = pair
        self.budget = Budget()
        self._reference, self._values, self._visit = reference, values, visit
        self._options = late or Options(stop_at=0)
        self._iteration = 0

    def run(self, body: Graph, inputs: Sequence[HostValue]) -> list[HostValue]:
        ours, place = self.node, self.node.op.graphs().index(body)
        opened = twin = self._opened(ours, place, inputs)
        if self._twin is not ours:
            twin = self._opened(self._twin, place, inputs)
        found = run_all(self._reference, opened.graph, opened.feeds)
        names = [n for n in attributes(type(ours.op)) if getattr(ours.op, n) is body]
        self._visit(BodyRun(names[0], self._iteration, opened, twin, found))
        self._iteration += 1
        return [_read(value, found) for value in opened.graph.outputs.values()]

    def _opened(self, node: Node, place: int, inputs: Sequence[HostValue]) -> Opened:
        captures, values = iter(node.captures), self._values
        every = [[next(captures) for _ in body.captures] for body in node.op.graphs()]
        graph = node.op.graphs()[place].opened(every[place])
        captured = [value.name for value in every[place] if value.data is None]
        if missing := [name for name in captured if name not in values]:
            raise InputError(f"the reference has no tensor '{missing[0]}', which {node.name} reads")
        given = [*inputs, *(values[name] for name in captured)]
        feeds = {v.name: data for v, data in zip(graph.inputs, given, strict=True)}
        return Opened(prepared(graph, feeds, self._options), feeds)


def _read(value: Value, values: Values) -> HostValue:
    return values[value.name] if value.data is None else value.data
