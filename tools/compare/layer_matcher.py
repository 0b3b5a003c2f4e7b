"""Steps of a runner, one by one on the reference's values, down to those in bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...runtime.errors import InputError, TercetError, TimeLimitError
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import HostValue
from ..common.console import Say, silent
from ..common.ended import RunnerEnded
from ..runners.repetition import is_repeated
from ..runners.replay import (
    BackendPlayer,
    Player,
    are_own,
    feeds_of,
    late_passes,
    part_of,
    run_all,
    with_all_outputs,
)
from ..verdict.drawn import draws
from ..verdict.error_bounds import Finding, Judge
from .bodies import BodyRun, has_bodies, visit_bodies
from .conversions import with_conversions
from .in_plan import rows_in_plan

#: Number of samples of a whole graph, which may take long, and whose tensors are all kept.
SAMPLES = 3
_WORST_FIRST = ("wrong", "inconclusive", "within rounding", "equal")


@dataclass(frozen=True, slots=True)
class Layer:
    """One step of the runner.

    Attributes:
        number: its position in execution order, from 1.
        nodes: the file's names of the nodes in it.
        operators: their operators, joined by ``+``.
        findings: each tensor that it outputs.
        refused: why the runner does not run it; empty if it does.
        repeatable: whether all runs gave the same bits; None if there was only one.
        ended: how the runner crashed, or did not answer; None if it did not.
        inside: for wrong control flow, the body that first goes wrong; None if none does alone.
        unlike: the first run, from 2, that gave other bits than the first one; None if none did.
        missing: whether one side has none of its tensors.
    """

    number: int
    nodes: tuple[str, ...]
    operators: str
    findings: tuple[Finding, ...] = ()
    refused: str = ""
    repeatable: bool | None = None
    ended: RunnerEnded | None = None
    inside: Inside | None = None
    unlike: int | None = None
    missing: bool = False

    @property
    def name(self) -> str:
        """The nodes' names, joined by ``+``."""
        return " + ".join(self.nodes)

    @property
    def excess(self) -> float:
        """The largest difference relative to what is allowed."""
        return max((finding.excess for finding in self.findings), default=0.0)

    @property
    def verdict(self) -> str:
        """``equal``, ``within rounding``, ``inconclusive`` or ``wrong``.

        Without results it is ``random``, ``not compared``, ``not run``, or ``crashed``.
        """
        if self.ended is not None:
            return "crashed"
        if self.refused:
            return "not run"
        if not self.findings:
            return "not compared" if self.missing else "random"
        verdicts = {finding.verdict for finding in self.findings}
        return next(v for v in _WORST_FIRST if v in verdicts)

    @property
    def worst(self) -> Finding | None:
        """The tensor with the largest excess."""
        return max(self.findings, key=lambda finding: finding.excess, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "number": self.number,
            "nodes": list(self.nodes),
            "operators": self.operators,
            "verdict": self.verdict,
            "excess": self.excess,
            "repeatable": self.repeatable,
            "unlike": self.unlike,
            "refused": self.refused,
            "ended": None if self.ended is None else self.ended.to_dict(),
            "tensors": [finding.to_dict() for finding in self.findings],
            "inside": None if self.inside is None else self.inside.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Inside:
    """The steps of a body of control flow, each alone.

    Attributes:
        body: the attribute that holds it, such as ``then_branch``.
        iteration: from 0.
        layers: its steps.
    """

    body: str
    iteration: int
    layers: tuple[Layer, ...]

    @property
    def first(self) -> Layer | None:
        """The first wrong step; None if none is wrong."""
        return first_wrong(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        layers = [layer.to_dict() for layer in self.layers]
        return {"body": self.body, "iteration": self.iteration, "layers": layers}


class LayerMatcher:
    """Compares one runner with the reference's values.

    Args:
        players: the reference, and the runner under test.
        graph: the reference's graph.
        values: all values that the reference computed, and the model's inputs, by name.
        runs: how often to run everything, and more than once also after other inputs.
        say: called with a description of each stage.
    """

    def __init__(
        self,
        players: tuple[Player, Player],
        graph: Graph,
        values: Mapping[str, HostValue],
        *,
        runs: int = 1,
        say: Say = silent,
    ) -> None:
        self._players, self._graph = players, graph
        self._runner = players[1]
        self._values, self._runs, self._say = values, runs, say

    def units(self, graph: Graph) -> list[tuple[Node, ...]]:
        """Return the nodes of each step of the runner's graph with a result that is read."""
        if graph is not self._graph:
            return between(graph, self._values)
        return [nodes for nodes in self._runner.units(graph) if _are_read(graph, nodes)]

    def alone(self, graph: Graph, units: Sequence[tuple[Node, ...]]) -> Iterator[Layer]:
        """Replay every step separately, in order.

        Args:
            graph: the runner's graph.
            units: the nodes of each step.
        """
        for number, nodes in enumerate(units, 1):
            self._say(f"{self._runner.name}: step {number} of {len(units)}")
            yield self._replayed(graph, nodes, number)

    def _replayed(self, graph: Graph, nodes: Sequence[Node], number: int) -> Layer:
        part = part_of(graph, nodes)
        part.set_outputs({n: v for n, v in part.outputs.items() if n in self._values})
        missing = [value.name for value in part.inputs if value.name not in self._values]
        if missing or not part.outputs:
            name = missing[0] if missing else nodes[-1].output.name
            raise InputError(f"the reference has no tensor '{name}', which {nodes[-1].name} has")
        if any(map(draws, nodes)):
            return _layer(number, nodes)
        feeds = feeds_of(part, self._values)
        try:
            found, unlike = self._results(part, feeds)
        except RunnerEnded as end:
            return replace(_layer(number, nodes, refused=str(end)), ended=end)
        except TercetError as error:
            return _layer(number, nodes, refused=str(error))
        wanted = {name: self._values[name] for name in part.outputs}
        ours, given = self._counterpart(graph, part, feeds)
        judge = Judge(ours, given, self._runner.precision, own=are_own(*self._players))
        findings = judge.findings(wanted, found)
        findings = with_conversions(nodes, findings, self._values, found)
        if any(finding.verdict == "wrong" for finding in findings):
            findings = self._unless_alone(judge, findings, found, ours, given)
        return self._judged(number, nodes, findings, unlike, part.outputs)

    def in_plan(self, graph: Graph) -> Layer | None:
        """Return the first step that is wrong on the reference's tensors in the whole graph's plan.

        It is so in a plan in which nothing else has run, too: what others overwrite is not its.
        """
        runner = self._runner
        if not isinstance(runner, BackendPlayer):
            return None
        try:
            for number, part, found in rows_in_plan(runner, graph, self._values):
                if self._planned(number, part, found).verdict == "wrong":
                    again = rows_in_plan(runner, graph, self._values, only=number)
                    return first_wrong([self._planned(*each) for each in again])
        except TimeLimitError:
            raise
        except TercetError:  # it does not run on what a reference gives
            pass
        return None

    def _planned(self, number: int, part: Graph, found: Mapping[str, HostValue]) -> Layer:
        if any(map(draws, part.nodes)):
            return _layer(number, part.nodes)
        feeds, names = feeds_of(part, self._values), part.outputs
        judge = Judge(part, feeds, self._runner.precision, own=are_own(*self._players))
        wanted = {name: self._values[name] for name in names}
        findings = judge.findings(wanted, {name: found[name] for name in names})
        findings = with_conversions(part.nodes, findings, self._values, found)
        if any(finding.verdict == "wrong" for finding in findings):
            findings = self._unless_alone(judge, findings, found, part, feeds)
        return _layer(number, part.nodes, findings)

    def _unless_alone(
        self,
        judge: Judge,
        findings: Sequence[Finding],
        found: Mapping[str, HostValue],
        part: Graph,
        feeds: Mapping[str, HostValue],
    ) -> list[Finding]:
        """Return findings, inconclusive where the reference alone gives what the runner gives.

        In the whole graph it had other values than those that it gave: some that are rounded, or
        overflow, only where they are stored, or that change from run to run.
        """
        reference = self._players[0]
        try:
            alone = reference.run(part, feeds)
        except TercetError:
            return [*findings]
        same = {each.agreement.output for each in judge.findings(alone, found) if each.ok}
        return [
            replace(each, agreement=replace(each.agreement, verdict="inconclusive", reason=said))
            if each.verdict == "wrong" and each.agreement.output in same
            else each
            for each in findings
            for said in (f"{reference.name} gives the same alone; {each.agreement.reason}",)
        ]

    def _results(
        self, graph: Graph, feeds: Mapping[str, HostValue]
    ) -> tuple[dict[str, HostValue], dict[str, int]]:
        """Return the runner's results, and the first run, from 2, that gave one other bits."""
        if self._runs == 1:
            return self._runner.run(graph, feeds), {}
        results = self._runner.run_repeatedly(graph, feeds, self._runs)
        found, unlike = next(results), dict[str, int]()
        for number, again in enumerate(results, 2):
            for name in found.keys() - unlike.keys():
                if not is_repeated({name: found[name]}, {name: again[name]}):
                    unlike[name] = number
        return found, unlike

    def _judged(
        self,
        number: int,
        nodes: Sequence[Node],
        findings: Sequence[Finding],
        unlike: Mapping[str, int],
        names: Iterable[str],
    ) -> Layer:
        """Return a step with its findings, and the first run that gave other bits."""
        layer = _layer(number, nodes, findings)
        if self._runs == 1:
            return layer
        runs = [unlike[name] for name in names if name in unlike]
        return replace(layer, repeatable=not runs, unlike=min(runs, default=None))

    def _counterpart(
        self, graph: Graph, part: Graph, feeds: Mapping[str, HostValue]
    ) -> tuple[Graph, Mapping[str, HostValue]]:
        """Return the part of the reference's graph that corresponds to one, and its inputs."""
        if graph is self._graph:
            return part, feeds
        known = self._graph.nodes
        nodes = [n for n in known if any(v.name in part.outputs for v in n.outputs)]
        ours = part_of(self._graph, nodes)
        return ours, feeds_of(ours, self._values)

    def inside(self, graph: Graph, nodes: Sequence[Node]) -> Inside | None:
        """Return the first body of a step that goes wrong, on the reference's values.

        Args:
            graph: the runner's graph.
            nodes: of the step.
        """
        owners = [node for node in nodes if has_bodies(node)]
        try:
            values = self._values_within(graph, nodes) if owners else {}
            for node in owners:
                for ours in self._counterparts(node):
                    late = late_passes(self._runner)
                    visit_bodies(self._players[0], (ours, node), values, late, self._enter)
        except _WrongBody as wrong:
            return wrong.inside
        except TercetError:  # what the node reads, or its bodies, cannot be matched
            return None
        return None

    def _values_within(self, graph: Graph, nodes: Sequence[Node]) -> dict[str, HostValue]:
        """Return the reference's values, and what only the runner's step computes."""
        if len(nodes) == 1:
            return dict(self._values)
        part = part_of(graph, nodes)
        own = run_all(self._runner, part, feeds_of(part, self._values))
        return {**own, **self._values}

    def _counterparts(self, node: Node) -> Iterator[Node]:
        """Yield the reference's node of the same operator with results of the same names."""
        names = {value.name for value in node.outputs}
        for each in self._graph.nodes:
            if each.kind == node.kind and any(value.name in names for value in each.outputs):
                yield each

    def _enter(self, run: BodyRun) -> None:
        """Compare the steps of a body if its results are wrong."""
        ours, theirs = run.ours, run.theirs
        self._say(f"{self._runner.name}: iteration {run.iteration} of {run.body}")
        results = self._runner.run(theirs.graph, theirs.feeds)
        found = dict(zip(ours.graph.outputs, results.values(), strict=False))
        wanted = {
            name: run.values[value.name] if value.data is None else value.data
            for name, value in ours.graph.outputs.items()
        }
        judge = Judge(ours.graph, ours.feeds, self._runner.precision, own=are_own(*self._players))
        if all(finding.verdict != "wrong" for finding in judge.findings(wanted, found)):
            return
        match = LayerMatcher(
            self._players, ours.graph, {**theirs.feeds, **run.values}, say=self._say
        )
        units = match.units(theirs.graph)
        layers = list(match.alone(theirs.graph, units))
        for place, layer in enumerate(layers):
            if layer.verdict == "wrong":
                layers[place] = replace(layer, inside=match.inside(theirs.graph, units[place]))
        if first_wrong(layers) is not None:
            raise _WrongBody(Inside(run.body, run.iteration, tuple(layers)))

    def cumulative(self, graph: Graph, feeds: Mapping[str, HostValue]) -> Iterator[Layer]:
        """Have the runner run the whole graph."""
        self._say(f"{self._runner.name}: running everything")
        found, unlike = self._results(with_all_outputs(graph), feeds)
        if graph.nodes and found.keys().isdisjoint(self._values):
            raise InputError(f"{self._runner.name} has no tensor that {self._players[0].name} has")
        self._say("running everything in float64")
        every = with_all_outputs(self._graph)
        own = are_own(*self._players)
        judge = Judge(every, feeds, self._runner.precision, maximum=SAMPLES, own=own)
        for number, node in enumerate(graph.nodes, 1):
            own = [value.name for value in node.outputs if value.name in found]
            wanted = {name: self._values[name] for name in own if name in self._values}
            theirs = {name: found[name] for name in wanted}
            findings = [] if draws(node) else judge.findings(wanted, theirs)
            layer = self._judged(number, (node,), findings, unlike, wanted)
            yield replace(layer, missing=not wanted)


class _WrongBody(Exception):
    """Ends the search for a body that goes wrong."""

    def __init__(self, inside: Inside) -> None:
        super().__init__(inside.body)
        self.inside = inside


def first_wrong(layers: Sequence[Layer]) -> Layer | None:
    """Return the first wrong step; None if none is wrong."""
    return next((layer for layer in layers if layer.verdict == "wrong"), None)


def _are_read(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a result of some nodes is read; without rewrites, a file's others stay."""
    return any(graph.is_read(value) for node in nodes for value in node.outputs)


def between(graph: Graph, values: Mapping[str, HostValue]) -> list[tuple[Node, ...]]:
    """Return the nodes between tensors known by name and the next such tensors."""
    units: list[tuple[Node, ...]] = []
    for node in graph.nodes:
        live = (value for value in node.outputs if graph.is_read(value))
        if not any(value.name in values for value in live):
            continue
        inside, waiting = {node}, [node]
        while waiting:
            for value in waiting.pop().distinct_reads:
                source = value.producer
                if source is not None and value.name not in values and source not in inside:
                    inside.add(source)
                    waiting.append(source)
        units.append(tuple(each for each in graph.nodes if each in inside))
    return units


def _layer(
    number: int,
    nodes: Sequence[Node],
    findings: Sequence[Finding] = (),
    *,
    refused: str = "",
) -> Layer:
    names = tuple(dict.fromkeys(name for node in nodes for name in node.origin))
    operators = "+".join(node.kind for node in nodes)
    return Layer(number, names, operators, tuple(findings), refused)
