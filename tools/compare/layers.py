"""Layer-by-layer comparison: the first step that computes something wrong.

*Alone*, every step of the runner is replayed separately on the reference's values, so that neither
earlier steps nor the memory plan affect it; nodes fused by the runner are one step. *Cumulative*,
the runner runs the whole graph, and its tensors are compared as they are. `verdict` decides what is
wrong and what is rounding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from ...api import Loadable, Operators, load
from ...arguments import in_data_dir, public
from ...runtime.errors import InputError, TercetError
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import Array, HostValue
from ...runtime.options import Options
from ..common.console import Say, silent
from ..common.deadline import time_limit
from ..common.ended import RunnerEnded
from ..common.inputs import Dims, Given, Inputs, Shapes, asked, given_inputs
from ..common.threads import use_threads
from ..export.export import model_title
from ..runners.replay import (
    Player,
    feeds_of,
    live_values,
    open_players,
    part_of,
    prepared,
    run_all,
)
from ..runners.runners import RunnerSettings
from ..verdict.agreement import Word
from ..verdict.error_bounds import Finding, Judge, flat, overall
from ..verdict.judged import Judged

#: Number of samples of the whole graph, whose tensors are all kept.
_SAMPLES = 3
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
        repeatable: whether a second run gave the same bits; None if there was none.
        ended: how the runner crashed, or did not answer; None if it did not.
    """

    number: int
    nodes: tuple[str, ...]
    operators: str
    findings: tuple[Finding, ...] = ()
    refused: str = ""
    repeatable: bool | None = None
    ended: RunnerEnded | None = None

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

        Without results it is ``random``, ``not run``, or ``crashed``.
        """
        if self.ended is not None:
            return "crashed"
        if self.refused:
            return "not run"
        if not self.findings:
            return "random"
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
            "refused": self.refused,
            "ended": None if self.ended is None else self.ended.to_dict(),
            "tensors": [finding.to_dict() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, repr=False)
class Layers(Judged):
    """The result, in execution order; print it, or read `first` and `worst`.

    Attributes:
        model: the reference's file.
        other: the runner's file, if different.
        reference: the reference runner.
        runner: the runner under test.
        cumulative: whether the runner ran the whole graph instead of each step alone.
        inputs: the model's inputs.
        layers: every step.
        others: the same for further runners.
        stopped, ended, allow_inconclusive: see `Judged`.
    """

    model: str
    other: str
    reference: str
    runner: str
    cumulative: bool
    inputs: Inputs
    layers: tuple[Layer, ...]
    others: tuple[Layers, ...] = ()

    def _about(self) -> str:
        return f"{self.model}: {self.verdict}; {self.runner} against {self.reference}"

    @property
    def first(self) -> Layer | None:
        """The first wrong step; None if none is wrong."""
        return next((layer for layer in self.layers if layer.verdict == "wrong"), None)

    @property
    def worst(self) -> list[Layer]:
        """The steps that differ, worst first."""
        differing = [layer for layer in self.layers if layer.excess > 0]
        return sorted(differing, key=lambda layer: layer.excess, reverse=True)

    @property
    def verdict(self) -> Word:
        """``MISMATCH`` if a step is wrong or not repeatable, ``inconclusive`` if one is.

        A step that was not run is inconclusive.
        """
        own: list[Word] = [found.verdict for found in self.others]
        for layer in self.layers:
            if layer.verdict == "wrong" or layer.repeatable is False:
                own.append("MISMATCH")
            elif layer.verdict in ("inconclusive", "not run", "crashed"):
                own.append("inconclusive")
        return overall(own)

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per tensor, for `pandas.DataFrame`."""
        return [
            {
                "runner": each.runner,
                "number": layer.number,
                "nodes": layer.name,
                "operators": layer.operators,
                "tensor": finding.agreement.output,
                "verdict": finding.verdict,
                "max_abs": finding.agreement.max_abs,
                "allowed": finding.agreement.tolerance.absolute,
                "excess": finding.excess,
            }
            for each in (self, *self.others)
            for layer in each.layers
            for finding in layer.findings
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "model": self.model,
            "other": self.other,
            "ok": self.ok,
            "verdict": self.verdict,
            "reference": self.reference,
            "runner": self.runner,
            "mode": "cumulative" if self.cumulative else "alone",
            "inputs": self.inputs.to_dict(),
            "first": None if self.first is None else self.first.number,
            "layers": [layer.to_dict() for layer in self.layers],
            "others": [found.to_dict() for found in self.others],
            "ended": [end.to_dict() for end in self.ended],
            "stopped": self.stopped,
        }


@public()
@in_data_dir
def compare_layers(
    source: Loadable,
    runners: Sequence[str | Player] | None = None,
    inputs: Given = None,
    *,
    other: Loadable | None = None,
    seed: int = 0,
    shapes: Shapes = (),
    dims: Dims = (),
    cumulative: bool = False,
    twice: bool = False,
    optimise: bool = True,
    fallback: str | None = None,
    precision: str = "float32",
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    allow_inconclusive: bool = False,
    runner_timeout: float | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Layers:
    """Compare runners with a reference, node by node.

    Args:
        source: a path, bytes, or a `ModelProto`.
        runners: names of backends, ``onnxruntime`` or ``onnx.reference``, the first of which is the
            reference; a single one is both if `other` is given. With `cumulative`, others may be
            .npz files of tensors. If None, all that are available.
        inputs: arrays by name or in a list by position; an .npz file or a folder of ONNX test data;
            random ones if None.
        other: a model that the runner runs instead, with tensors of the same names, to find edits.
        seed: seed of random inputs.
        shapes: of random inputs, by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions of random inputs: ``{"batch": 4}``; 1 if not given.
        cumulative: have the runner run the whole graph instead of each step alone.
        twice: have the runner run everything twice, and compare bits.
        optimise: compare the optimised graph; if False, the graph of the file. With `other` it is
            always the file's.
        fallback: backend for nodes that a tercet backend declines.
        precision: compute precision of float32 tensors on the runners.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        threads: number of CPU threads of each runner; numpy's setting if None.
        allow_inconclusive: whether `Layers.exit_code` is 0 for inconclusive results.
        runner_timeout: seconds that onnxruntime may take for one step before it is ended; None for
            any time.
        timeout: time limit in seconds, after which partial results are returned; None for no limit.
        say: called with a description of each stage.
        **options: further fields of `Options`, such as `stop_at`.

    Returns:
        The result for the first runner; further ones are in `others`.

    Raises:
        UsageError: there are too few runners.
        BackendUnavailable, UnsupportedError: a runner is unavailable here, or cannot run the model.
        InputError: inputs do not fit, or the models have no tensor names in common.
        ModelError: the model cannot be read.
        RunnerEnded: the reference crashed, or with `cumulative` the runner.
    """
    titles = model_title(source), "" if other is None else model_title(other)
    chosen = RunnerSettings((), fallback, precision, options, operators, runner_timeout, titles[0])
    given = asked(inputs, seed, shapes, dims)
    if runners is None and other is not None:
        runners = ("numpy",)
    players = open_players(runners, chosen, same=other is not None, files=cumulative)
    wanted = Options(**{"precision": precision, **options})
    if other is not None or not optimise:
        wanted = replace(wanted, stop_at=0)
    feeds, done = Inputs({}, {}), {player.name: list[Layer]() for player in players[1:]}
    with (
        use_threads(threads),
        time_limit(timeout, say) as (limit, tell),
        load(source, stop_at=0, operators=operators) as model,
        nullcontext() if other is None else load(other, stop_at=0, operators=operators) as second,
    ):
        feeds = given_inputs(model.inputs, given)
        with feeds.explained():
            graph = prepared(model.imported, feeds.arrays, wanted)
        theirs = graph if second is None else second.imported
        tell(f"{players[0].name}: running everything")
        values = run_all(players[0], graph, feeds.arrays)
        for player in players[1:]:
            match = LayerMatcher(player, graph, values, twice=twice, say=tell)
            if cumulative:
                steps = match.cumulative(theirs, feeds.arrays)
            elif other is not None:
                steps = match.alone(theirs, between(theirs, values))
            else:
                steps = match.alone(theirs, player.units(theirs))
            for layer in steps:
                done[player.name].append(layer)
    if not any(done.values()) and limit.passed:
        raise limit.error()
    head = (*titles, players[0].name)
    first, *others = (
        Layers(*head, name, cumulative, feeds, tuple(layers)) for name, layers in done.items()
    )
    steps = (layer for layers in done.values() for layer in layers)
    return replace(
        first,
        others=tuple(others),
        stopped=limit.stopped,
        ended=tuple(layer.ended for layer in steps if layer.ended is not None),
        allow_inconclusive=allow_inconclusive,
    )


class LayerMatcher:
    """Compares one runner with the reference's values.

    Args:
        runner: the runner under test.
        graph: the reference's graph.
        values: all values that the reference computed, and the model's inputs, by name.
        twice: whether to run everything twice.
        say: called with a description of each stage.
    """

    def __init__(
        self,
        runner: Player,
        graph: Graph,
        values: Mapping[str, HostValue],
        *,
        twice: bool = False,
        say: Say = silent,
    ) -> None:
        self._runner, self._graph = runner, graph
        self._values, self._twice, self._say = values, twice, say

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
        if not all(node.op.deterministic for node in nodes):
            return _layer(number, nodes)
        feeds = feeds_of(part, self._values)
        try:
            found = self._runner.run(part, feeds)
            again = self._runner.run(part, feeds) if self._twice else None
        except RunnerEnded as end:
            return replace(_layer(number, nodes, refused=str(end)), ended=end)
        except TercetError as error:
            return _layer(number, nodes, refused=str(error))
        wanted = {name: self._values[name] for name in part.outputs}
        judge = self._judge(graph, part, feeds)
        findings = judge.findings(wanted, found)
        return _layer(number, nodes, findings, _is_same(found, again))

    def _judge(self, graph: Graph, part: Graph, feeds: Mapping[str, HostValue]) -> Judge:
        """Return the judge for a part, based on the corresponding part of the reference."""
        if graph is not self._graph:
            known = self._graph.nodes
            nodes = [n for n in known if any(v.name in part.outputs for v in n.outputs)]
            part = part_of(self._graph, nodes)
            feeds = feeds_of(part, self._values)
        return Judge(part, feeds, self._runner.precision)

    def cumulative(self, graph: Graph, feeds: Mapping[str, HostValue]) -> Iterator[Layer]:
        """Have the runner run the whole graph."""
        self._say(f"{self._runner.name}: running everything")
        found = run_all(self._runner, graph, feeds)
        again = run_all(self._runner, graph, feeds) if self._twice else None
        self._say("running everything in float64")
        every = self._graph.clone()
        every.set_outputs({value.name: value for value in live_values(every)})
        judge = Judge(every, feeds, self._runner.precision, maximum=_SAMPLES)
        for number, node in enumerate(graph.nodes, 1):
            own = [value.name for value in node.outputs if value.name in found]
            wanted = {name: self._values[name] for name in own if name in self._values}
            theirs = {name: found[name] for name in wanted}
            repeated = None if again is None else {name: again[name] for name in wanted}
            findings = judge.findings(wanted, theirs) if node.op.deterministic else []
            yield _layer(number, (node,), findings, _is_same(theirs, repeated))


def between(graph: Graph, values: Mapping[str, HostValue]) -> list[tuple[Node, ...]]:
    """Return the nodes between tensors known by name and the next such tensors."""
    units: list[tuple[Node, ...]] = []
    for node in graph.nodes:
        live = (value for value in node.outputs if value.consumers or graph.is_output(value))
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
    repeatable: bool | None = None,
    *,
    refused: str = "",
) -> Layer:
    names = tuple(dict.fromkeys(name for node in nodes for name in node.origin))
    operators = "+".join(node.kind for node in nodes)
    return Layer(number, names, operators, tuple(findings), refused, repeatable)


def _is_same(found: Mapping[str, HostValue], again: Mapping[str, HostValue] | None) -> bool | None:
    """Whether two runs gave the same bits; None if there was only one."""
    if again is None:
        return None
    pairs = zip_longest(flat(found).values(), flat(again).values())
    return all(a is not None and b is not None and _same_bits(a, b) for a, b in pairs)


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype == object or b.dtype == object:
        return bool(np.array_equal(a, b))
    return a.shape == b.shape and a.tobytes() == b.tobytes()
