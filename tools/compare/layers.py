"""Layer-by-layer comparison: the first step that computes something wrong.

*Alone*, every step of the runner is replayed separately on the reference's values, so that neither
earlier steps nor the memory plan affect it; nodes fused by the runner are one step. *Cumulative*,
the runner runs the whole graph, and its tensors are compared as they are. `verdict` decides what is
wrong and what is rounding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...api import Loadable, Operators, load
from ...arguments import freezing, in_data_dir, public
from ...backends import settled
from ...runtime.base.record import record
from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.graph import Graph
from ...runtime.options import Options
from ..common.console import Say, silent
from ..common.deadline import time_limit
from ..common.inputs import Given, Inputs, asked, given_inputs
from ..common.nested import flat
from ..common.shapes import Dims, Shapes
from ..common.threads import use_threads
from ..export.writing import model_title
from ..runners.repetition import rarest
from ..runners.replay import (
    FilePlayer,
    Player,
    Values,
    open_players,
    run_all,
    warn_of_declarations,
)
from ..runners.runners import RunnerSettings
from ..verdict.agreement import Word
from ..verdict.error_bounds import Finding, overall
from ..verdict.judged import Judged
from .case import Case
from .importing import Imported, changed_by_import
from .layer_matcher import Layer, LayerMatcher, first_wrong
from .passing import seen_of_passes, wrong_as_a_whole


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
        runs: how often everything ran.
        rewritten: outputs that differ between the optimised graph and that of the file, both run by
            the reference, and by a runner.
        of_file: whether the steps are nodes of the file, as passes remove the wrong one.
        whole: outputs that are wrong where the runner runs the whole graph, though no step is wrong
            alone.
        planned: the first step that is wrong where the whole graph has it, with the kernel and the
            layout that it has there, though it is not alone; None if none is, or it is not known.
        imported: outputs that differ between the graph that was read and the file, both run by
            onnxruntime or onnx.reference, if they take part.
        imported_in: the file's first node with a result that importing changes; empty if it is not
            known.
        unread: why the other program does not run the file itself, so that an error of importing it
            is not seen; empty if it does.
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
    runs: int = 1
    rewritten: tuple[Finding, ...] = ()
    of_file: bool = False
    whole: tuple[Finding, ...] = ()
    planned: Layer | None = None
    imported: tuple[Finding, ...] = ()
    imported_in: str = ""
    unread: str = ""

    def _about(self) -> str:
        return f"{self.model}: {self.verdict}; {self.runner} against {self.reference}"

    @property
    def first(self) -> Layer | None:
        """The first wrong step; None if none is wrong."""
        return first_wrong(self.layers)

    @property
    def worst(self) -> list[Layer]:
        """The steps that differ, worst first."""
        differing = [layer for layer in self.layers if layer.excess > 0]
        return sorted(differing, key=lambda layer: layer.excess, reverse=True)

    @property
    def verdict(self) -> Word:
        """``MISMATCH`` if a step is wrong or not repeatable, ``inconclusive`` if one is.

        So are rewrites and an import that change outputs. A step that was not run is inconclusive,
        and so are outputs that are wrong though no step is.
        """
        own: list[Word] = [found.verdict for found in self.others]
        changed = (*self.rewritten, *self.imported)
        own.extend(finding.agreement.verdict for finding in changed)
        if self.whole:
            own.append("MISMATCH" if self.planned else "inconclusive")
        for layer in self.layers:
            if layer.verdict == "wrong" or layer.repeatable is False:
                own.append("MISMATCH")
            elif layer.verdict in ("inconclusive", "not run", "crashed"):
                own.append("inconclusive")
        return overall(own)

    @property
    def nan(self) -> str:
        """Where the runner's first NaN is from: an input, or a step; empty if there is none."""
        for name, data in flat(self.inputs.arrays).items():
            if data.dtype in FLOATS and np.isnan(data).any():
                return f"input '{name}'"
        for layer in self.layers:
            if any(finding.agreement.nan for finding in layer.findings):
                return f"step {layer.number}, {layer.name} ({layer.operators})"
        return ""

    @property
    def rarest(self) -> float:
        """The share of runs in which a step must be wrong to be found in 95 % of cases."""
        return rarest(self.runs)

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
            "runs": self.runs,
            "first": None if self.first is None else self.first.number,
            "layers": [layer.to_dict() for layer in self.layers],
            "others": [found.to_dict() for found in self.others],
            "rewritten": [finding.to_dict() for finding in self.rewritten],
            "of_file": self.of_file,
            "nan": self.nan,
            "whole": [finding.to_dict() for finding in self.whole],
            "planned": None if self.planned is None else self.planned.to_dict(),
            "imported": [finding.to_dict() for finding in self.imported],
            "imported_in": self.imported_in,
            "unread": self.unread,
            "ended": [end.to_dict() for end in self.ended],
            "stopped": self.stopped,
        }


@public()
@in_data_dir
@freezing
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
    runs: int = 1,
    optimise: bool = True,
    fallback: str | None = None,
    precision: str = "float32",
    freeze: Mapping[str, Any] | None = None,
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
        runs: how often to have the runner run everything, to compare bits; if more than once, a
            backend also after other inputs.
        optimise: compare the optimised graph; if False, the graph of the file. With `other` it is
            always the file's.
        fallback: backend for nodes that a tercet backend declines.
        precision: compute precision of float32 tensors on the runners.
        freeze: arrays by name for inputs that become constants, for all runners; see `tercet.load`.
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
    wanted = settled(Options(**{"precision": precision, **options}), players[-1].name)
    whole = other is not None or not optimise
    feeds, imported = Inputs({}, {}), Imported()
    seen = _Seen({player.name: list[Layer]() for player in players[1:]})
    with (
        use_threads(threads),
        time_limit(timeout, say) as (limit, tell),
        load(source, stop_at=0, operators=operators) as model,
        nullcontext() if other is None else load(other, stop_at=0, operators=operators) as second,
    ):
        feeds = given_inputs(model.inputs, given)
        with feeds.explained():
            warn_of_declarations(model, feeds.arrays)
            case = Case(model.imported, feeds.arrays, wanted, say=tell)
            graph = case.written if whole else case.optimised(wanted)
        theirs = graph if second is None else second.imported
        match = _Match(players, case, runs, cumulative, tell)
        values = match.compare(graph, theirs, seen.layers)
        if second is None:
            tell(f"{players[0].name}: running the graph of the file")
            seen = match.as_a_whole(graph, seen.layers, values)
        foreign = next((each for each in players if isinstance(each, FilePlayer)), None)
        if foreign is not None and other is None:
            tell(f"{foreign.name}: running the file itself")
            imported = changed_by_import(source, model.imported, foreign, feeds.arrays)
    if not any(seen.layers.values()) and limit.passed:
        raise limit.error()
    found = Layers(*titles, players[0].name, "", cumulative, feeds, (), runs=runs)
    return replace(
        _of_runners(seen, found),
        imported=imported.findings,
        imported_in=imported.node,
        unread=imported.unread,
        stopped=limit.stopped,
        allow_inconclusive=allow_inconclusive,
    )


@record
class _Seen:
    """What runs have shown.

    Attributes:
        layers: the steps of each runner.
        rewritten: outputs that passes change.
        of_file: whether the steps are those of the file's graph.
        apart: outputs of whole graphs that are wrong on runners without a wrong step.
        planned: the steps of these that are wrong where the whole graph has them.
    """

    layers: dict[str, list[Layer]]
    rewritten: tuple[Finding, ...] = ()
    of_file: bool = False
    apart: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict[str, tuple[Finding, ...]])
    planned: Mapping[str, Layer | None] = field(default_factory=dict[str, Layer | None])


def _of_runners(seen: _Seen, common: Layers) -> Layers:
    """Return the result for the first runner, with those for the others and what all have."""
    first, *others = (
        replace(
            common,
            runner=name,
            layers=tuple(layers),
            whole=seen.apart.get(name, ()),
            planned=seen.planned.get(name),
        )
        for name, layers in seen.layers.items()
    )
    steps = (layer for layers in seen.layers.values() for layer in layers)
    return replace(
        first,
        others=tuple(others),
        rewritten=seen.rewritten,
        of_file=seen.of_file,
        ended=tuple(layer.ended for layer in steps if layer.ended is not None),
    )


@dataclass(frozen=True, slots=True)
class _Match:
    """Compares the steps of each runner with the reference.

    Attributes:
        players: the reference, and the runners.
        case: the model.
        runs, cumulative, tell: see `compare_layers`.
    """

    players: Sequence[Player]
    case: Case
    runs: int
    cumulative: bool
    tell: Say

    def compare(self, graph: Graph, theirs: Graph, done: Mapping[str, list[Layer]]) -> Values:
        """Append every step of a graph to the runner's; return all values of the reference.

        Args:
            graph: the reference's.
            theirs: the runners'.
            done: steps by runner.
        """
        reference, *runners = self.players
        self.tell(f"{reference.name}: running everything")
        values = run_all(reference, graph, self.case.feeds)
        for player in runners:
            sides = reference, self.case.player(player, theirs)
            match = LayerMatcher(sides, graph, values, runs=self.runs, say=self.tell)
            units, layers = match.units(theirs), done[player.name]
            if self.cumulative:
                layers.extend(match.cumulative(theirs, self.case.feeds))
                continue
            for layer in match.alone(theirs, units):
                layers.append(layer)
            for place, layer in enumerate(layers):
                if layer.verdict == "wrong":
                    layers[place] = replace(layer, inside=match.inside(theirs, units[place]))
        return values

    def as_a_whole(self, graph: Graph, done: dict[str, list[Layer]], values: Values) -> _Seen:
        """Return the layers to show, and what runs of whole graphs say of passes and runners.

        Args:
            graph: the file's, or what the passes made of it.
            done: the layers of `graph` by runner.
            values: what the reference computes in `graph`.
        """
        plain = self.case.written
        if plain is not graph:
            wrong = any(map(first_wrong, done.values()))
            passes = seen_of_passes(self.case, graph, self.players, is_found=wrong)
            if passes.findings:
                return _Seen(done, passes.findings)
            if passes.hide_an_error:
                of_file = {name: list[Layer]() for name in done}
                values = self.compare(plain, plain, of_file)
                if any(map(first_wrong, of_file.values())):
                    return _Seen(of_file, of_file=True)
                graph = plain
        reference, *runners = self.players
        apart: dict[str, tuple[Finding, ...]] = {}
        planned: dict[str, Layer | None] = {}
        for player in () if self.cumulative else runners:
            # What other programs make of a graph that is not the file's says nothing of the file.
            is_theirs = graph is plain or not isinstance(player, FilePlayer)
            if is_theirs and first_wrong(done[player.name]) is None:
                self.tell(f"{player.name}: running the whole graph")
                sides = reference, player
                apart[player.name] = wrong_as_a_whole(self.case, graph, values, sides)
                if apart[player.name]:
                    self.tell(f"{player.name}: steps in the plan of the whole graph")
                    own = reference, self.case.player(player, graph)
                    planned[player.name] = LayerMatcher(own, graph, values).in_plan(graph)
        return _Seen(done, apart=apart, planned=planned)
