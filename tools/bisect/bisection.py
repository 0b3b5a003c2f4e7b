"""Bisection: the rewrite or node that makes a result wrong, and the smallest model showing it.

The module is not called ``bisect``, because Python would mistake it for its own when a script of
this folder is started by its path.

The runner runs the file unoptimised, then optimised, and a backend once more after other inputs.
If the reference is wrong on the optimised graph as well, rewrites are bisected by number
(`Options.stop_at`). Otherwise steps of the wrong graph are bisected: each half runs on the runner,
the rest on the reference. The faulty part is cut out of the model, with the reference's tensors as
inputs, and reduced as long as it stays wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...api import Loadable, Operators, load
from ...arguments import freezing, in_data_dir, public
from ...backends import settled
from ...runtime.base.arguments import instance, optional
from ...runtime.errors import FAILURES, TercetError, UsageError
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import HostValue
from ...runtime.options import Options
from ...runtime.passes import Rewrites
from ...runtime.passes.driver import Rewrite
from ..common.console import Say, silent
from ..common.deadline import time_limit
from ..common.ended import RunnerEnded
from ..common.inputs import Given, Inputs, asked, given_inputs
from ..common.shapes import Dims, Shapes
from ..common.threads import use_threads
from ..compare.case import Case
from ..compare.importing import changed_by_import
from ..compare.layer_matcher import Layer, LayerMatcher
from ..export.writing import model_title
from ..runners.repetition import is_repeated
from ..runners.replay import (
    BackendPlayer,
    FilePlayer,
    PassList,
    Player,
    Values,
    open_players,
    run_all,
    warn_of_declarations,
)
from ..runners.runners import RunnerSettings
from ..verdict.agreement import Word
from ..verdict.drawn import draws
from ..verdict.error_bounds import Finding, overall
from ..verdict.judged import Judged
from .mixing import Chosen, mixed
from .reduction import Reduced, reduce_graph


@dataclass(frozen=True, slots=True, repr=False)
class Bisection(Judged):
    """The result of `bisect`; print it.

    Attributes:
        model: the file.
        reference: the reference runner.
        runner: the runner under test.
        inputs: the common inputs.
        fault: ``none``, ``rewrite``, ``nodes``, ``later`` if only runs after the first are wrong,
            ``together`` if only the whole graph is, ``import`` if the graph that was read is not
            what the file says, as another program shows that takes part, ``crash`` if the runner
            ended, or ``unknown`` if the time limit passed.
        rewrites: all rewrites, in order.
        rewrite: the first rewrite that makes the result wrong.
        nodes: the file's names of the faulty nodes; without a fault, of the first one whose results
            importing changes, by no more than rounding might.
        findings: the outputs with the fault; results of the nodes where outputs are inconclusive.
        runs: number of runs.
        reduced: the smallest part that is wrong or ends the runner; None if there is none.
        unread: why the other program does not run the file itself, so that an error of importing it
            is not seen; empty if it does.
        stopped, ended, allow_inconclusive: see `Judged`.
    """

    model: str
    reference: str
    runner: str
    inputs: Inputs
    fault: str
    rewrites: tuple[Rewrite, ...] = ()
    rewrite: Rewrite | None = None
    nodes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    runs: int = 0
    reduced: Reduced | None = None
    unread: str = ""

    def _about(self) -> str:
        return f"{self.model}: fault {self.fault}; {self.runner} against {self.reference}"

    @property
    def verdict(self) -> Word:
        """``MISMATCH`` if there is a fault; else the worst verdict of an output."""
        if self.fault == "crash":
            return "inconclusive"
        if self.fault not in ("none", "unknown"):
            return "MISMATCH"
        return overall([finding.agreement.verdict for finding in self.findings])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but arrays and graphs, for JSON."""
        found = self.rewrite
        return {
            "model": self.model,
            "ok": self.ok,
            "verdict": self.verdict,
            "reference": self.reference,
            "runner": self.runner,
            "inputs": self.inputs.to_dict(),
            "fault": self.fault,
            "rewrites": len(self.rewrites),
            "rewrite": None
            if found is None
            else {"number": found.number, "pass": found.name, "text": found.text},
            "nodes": list(self.nodes),
            "outputs": [finding.to_dict() for finding in self.findings],
            "runs": self.runs,
            "reduced": None if self.reduced is None else self.reduced.to_dict(),
            "unread": self.unread,
            "ended": [end.to_dict() for end in self.ended],
            "stopped": self.stopped,
        }


@public(passes=optional(instance(PassList)))
@in_data_dir
@freezing
def bisect(
    source: Loadable,
    runners: Sequence[str | Player] | None = None,
    inputs: Given = None,
    *,
    seed: int = 0,
    shapes: Shapes = (),
    dims: Dims = (),
    fallback: str | None = None,
    precision: str = "float32",
    passes: PassList | None = None,
    runs: int = 2,
    reduce: bool = True,
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    allow_inconclusive: bool = False,
    runner_timeout: float | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Bisection:
    """Find the rewrite or the nodes that make a runner's results wrong.

    Args:
        source: a path, bytes, or a `ModelProto`.
        runners: names of reference and runner; the same backend twice tests only the passes. If
            None, numpy against itself.
        inputs: arrays by name or in a list by position; an .npz file or a folder of ONNX test data;
            random ones if None.
        seed: seed of random inputs.
        shapes: of random inputs, by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions of random inputs: ``{"batch": 4}``; 1 if not given.
        fallback: backend for nodes that a tercet backend declines.
        precision: compute precision of float32 tensors on the runner, on which the bounds depend.
        passes: passes to use instead of the default ones.
        runs: how often to have a backend run what is right the first time, before it does so
            after other inputs.
        reduce: whether to look for the smallest wrong part of the model.
        freeze: arrays by name for inputs that become constants, for all runners; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        threads: number of CPU threads of each runner; numpy's setting if None.
        allow_inconclusive: whether `Bisection.exit_code` is 0 for inconclusive results.
        runner_timeout: seconds that onnxruntime may take to load a model, or for one run, before it
            is ended; None for any time.
        timeout: time limit in seconds, after which partial results are returned; None for no limit.
        say: called with a description of each stage.
        **options: further fields of `Options`.

    Raises:
        UsageError: there are not two runners.
        BackendUnavailable, UnsupportedError: a runner is unavailable here, or cannot run the model.
        InputError: the inputs do not fit the model.
        ModelError: the model cannot be read.
    """
    title = model_title(source)
    settings = RunnerSettings((), fallback, precision, options, operators, runner_timeout, title)
    given = asked(inputs, seed, shapes, dims)
    chosen = runners or ("numpy",)
    if len(chosen) > 2:
        raise UsageError(f"two runners are bisected, not {len(chosen)}")
    reference, runner = open_players(chosen, settings, same=True)
    wanted = settled(Options(**{"precision": precision, **options}), runner.name)
    feeds = Inputs({}, {})
    trial = _Trial(reference, runner, wanted, passes, runs)
    with (
        use_threads(threads),
        time_limit(timeout, say) as (limit, trial.say),
        load(source, stop_at=0, operators=operators) as model,
    ):
        feeds = given_inputs(model.inputs, given)
        with feeds.explained():
            warn_of_declarations(model, feeds.arrays)
            case = Case(model.imported, feeds.arrays, wanted, passes, trial.say)
            try:
                trial.search(case, reduce=reduce)
                trial.check_import(source, model.imported, feeds.arrays)
            except RunnerEnded:
                if not trial.found.ended:  # it was the reference
                    raise
    return replace(
        trial.found,
        model=title,
        inputs=feeds,
        runs=trial.runs,
        stopped=limit.stopped,
        allow_inconclusive=allow_inconclusive,
    )


#: Nodes that run as one step.
Step = tuple[Node, ...]


class _Trial:
    """Runs variants of one model and tells whether each is wrong."""

    def __init__(
        self,
        reference: Player,
        runner: Player,
        options: Options,
        passes: PassList | None,
        repeats: int,
    ) -> None:
        self._reference, self._runner = reference, runner
        self._options, self._passes, self._repeats = options, passes, repeats
        self.say: Say = silent
        names = reference.name, runner.name
        self.found = Bisection("", *names, Inputs({}, {}), "unknown")
        self.runs = 0

    def search(self, case: Case, *, reduce: bool) -> None:
        """Find the fault of a model; `found` is updated with intermediate results."""
        feeds, sides = case.feeds, (self._reference, self._runner)
        plain = case.optimised(replace(self._options, stop_at=0))
        self.say(f"{self._reference.name}: the file as it is")
        values = run_all(self._reference, plain, feeds)
        wanted = {name: _result(plain, name, values) for name in plain.outputs}
        log = Rewrites()
        best = case.optimised(self._options, log)
        self._note(rewrites=tuple(log))

        def findings(graph: Graph, player: Player | None = None) -> list[Finding]:
            self.runs += 1
            try:
                found = case.player(player or self._runner, graph).run(graph, feeds)
            except RunnerEnded as end:
                self._note_crash(case, graph, end, reduce=reduce)
                raise
            return case.findings(wanted, found, *sides)

        self.say(f"{self._runner.name}: the file as it is")
        outputs = findings(plain)
        graph, by_rewrites = plain, False
        if not _wrong(outputs):
            self.say(f"{self._runner.name}: the optimised graph")
            graph, optimised = best, findings(best)
            if not _wrong(optimised):
                doubtful = _worse(outputs, optimised)
                self._note(fault="none", findings=tuple(doubtful))
                graph = plain if doubtful is outputs else best
                if any(not each.ok for each in doubtful) and self._search_doubts(case, graph):
                    return
                self._search_later_runs(
                    case, best, lambda found: case.findings(wanted, found, *sides)
                )
                return
            outputs = optimised
            by_rewrites = _wrong(findings(best, self._reference))
        self._note(findings=tuple(outputs))
        if by_rewrites and self._search_rewrites(case, log, findings):
            graph = plain
        else:
            values = run_all(self._reference, graph, feeds)
            self._search_nodes(case, graph, values, findings)
        if reduce:
            self._note(reduced=self._reduce(case, graph, values))

    def check_import(self, source: Loadable, imported: Graph, feeds: Values) -> None:
        """If nothing else is wrong, have the other program run the file itself."""
        players = (self._reference, self._runner)
        foreign = next((each for each in players if isinstance(each, FilePlayer)), None)
        if foreign is None or self.found.fault != "none":
            return
        self.say(f"{foreign.name}: running the file itself")
        changed = changed_by_import(source, imported, foreign, feeds)
        self._note(unread=changed.unread)
        if changed.findings:
            nodes = (changed.node,) if changed.node else ()
            fault = "import" if _wrong(changed.findings) else "none"
            self._note(fault=fault, findings=changed.findings, nodes=nodes)

    def _note(self, **changes: Any) -> None:
        self.found = replace(self.found, **changes)

    def _note_crash(self, case: Case, graph: Graph, end: RunnerEnded, *, reduce: bool) -> None:
        suspects = [node for node in graph.nodes if node.name == end.node]
        names = dict.fromkeys(name for node in suspects for name in node.origin)
        self._note(fault="crash", ended=(end,), nodes=tuple(names))
        if reduce:
            values = run_all(self._reference, graph, case.feeds)
            self._note(reduced=self._reduce(case, graph, values))

    # ── rewrites ─────────────────────────────────────────────────────────────────────────────

    def _search_rewrites(
        self, case: Case, log: Rewrites, findings: Callable[[Graph], list[Finding]]
    ) -> bool:
        """Bisect the number of rewrites, between a correct and a wrong one.

        Return whether one in the log is wrong: those of bodies, as these run, are not there.
        """

        def is_wrong(count: int) -> bool:
            options = replace(self._options, stop_at=count)
            return _wrong(findings(case.optimised(options, late=self._options)))

        if is_wrong(0):
            return False
        good, bad = 0, len(log)
        while bad - good > 1:
            middle = (good + bad) // 2
            self.say(f"{middle} of {len(log)} rewrites: {good} are right, {bad} are wrong")
            if is_wrong(middle):
                bad = middle
            else:
                good = middle
        self._note(fault="rewrite", rewrite=log.log[bad - 1])
        return True

    # ── nodes ────────────────────────────────────────────────────────────────────────────────

    def _search_nodes(
        self,
        case: Case,
        graph: Graph,
        values: Values,
        findings: Callable[..., list[Finding]],
    ) -> None:
        """Find every node that makes the result wrong when only it runs on the runner.

        Nodes of a runner that is not a backend cannot be mixed with others, and passes on bodies
        run for all of them: then each is replayed separately on the reference's values.
        """
        reference, runner, names = self._reference, self._runner, dict[str, None]()
        if isinstance(reference, BackendPlayer) and isinstance(runner, BackendPlayer):
            first, second = reference, runner

            def is_wrong(steps: Sequence[Step]) -> bool:
                self.say(f"{len(steps)} of {len(units)} steps on {second.name}")
                chosen = Chosen.of(graph, (node for nodes in steps for node in nodes))
                return _wrong(findings(graph, mixed(first, second, chosen)))

            units = runner.units(graph)
            found = guilty(units, is_wrong)
            found = [] if len(found) == len(units) > 1 else found
            names = dict.fromkeys(name for nodes in found for n in nodes for name in n.origin)
        if not names:
            wrong = self._wrong_alone(case, graph, values) or self._wrong_planned(
                case, graph, values
            )
            names = dict.fromkeys(name for layer in wrong for name in layer.nodes)
        self._note(fault="nodes" if names else "together", nodes=tuple(names))

    def _search_doubts(self, case: Case, graph: Graph) -> bool:
        """Find nodes that alone are wrong where outputs are inconclusive; return whether any is."""
        wrong = self._wrong_alone(case, graph, run_all(self._reference, graph, case.feeds))
        if wrong:
            names = dict.fromkeys(name for layer in wrong for name in layer.nodes)
            findings = (each for layer in wrong for each in layer.findings if not each.ok)
            self._note(fault="nodes", nodes=tuple(names), findings=tuple(findings))
        return bool(wrong)

    def _wrong_alone(self, case: Case, graph: Graph, values: Values) -> list[Layer]:
        """Return the runner's steps that are wrong on the reference's values."""
        runner = case.player(self._runner, graph)
        match = LayerMatcher((self._reference, runner), graph, values, say=self.say)
        layers = match.alone(graph, runner.units(graph))
        return [layer for layer in layers if layer.verdict == "wrong"]

    def _wrong_planned(self, case: Case, graph: Graph, values: Values) -> list[Layer]:
        """Return the first step that is wrong with the kernel that the whole graph's plan has."""
        sides = self._reference, case.player(self._runner, graph)
        layer = LayerMatcher(sides, graph, values, say=self.say).in_plan(graph)
        return [] if layer is None else [layer]

    def _search_later_runs(
        self, case: Case, graph: Graph, findings: Callable[[Values], list[Finding]]
    ) -> None:
        """Find every node that a backend runs correctly the first time only."""
        runner, feeds = case.player(self._runner, graph), case.feeds
        if any(map(draws, graph.nodes)) or not isinstance(runner, BackendPlayer):
            return
        self.say(f"{runner.name}: the optimised graph again, and after other inputs")
        first, *again = runner.run_repeatedly(graph, feeds, self._repeats)
        self.runs += len(again)
        judged = [(findings(each), is_repeated(first, each)) for each in again]
        doubtful = (found for found, same in judged if not same and not all(f.ok for f in found))
        late = next((found for found, _ in judged if _wrong(found)), next(doubtful, None))
        if late is None:
            return
        values = run_all(self._reference, graph, feeds)
        sides = self._reference, runner
        match = LayerMatcher(sides, graph, values, runs=self._repeats, say=self.say)
        layers = match.alone(graph, runner.units(graph))
        unlike = (layer for layer in layers if layer.repeatable is False)
        names = dict.fromkeys(name for layer in unlike for name in layer.nodes)
        fault = "later" if names or _wrong(late) else "none"
        self._note(fault=fault, nodes=tuple(names), findings=tuple(late))

    # ── the smallest part ────────────────────────────────────────────────────────────────────

    def _reduce(self, case: Case, graph: Graph, values: Values) -> Reduced | None:
        by_rewrites, crashes = self.found.fault == "rewrite", self.found.fault == "crash"
        options = self._options if by_rewrites else replace(self._options, stop_at=0)

        def is_wrong(part: Graph, feeds: Values) -> bool:
            self.runs += 1
            self.say(f"{len(part.nodes)} nodes: {'still a crash' if crashes else 'still wrong'}?")
            apart = Case(part, feeds, options, self._passes)
            try:
                wanted = self._reference.run(part, feeds)
                made = apart.optimised(options)
                owner, whole = (apart, made) if by_rewrites else (case, graph)
                theirs = owner.player(self._runner, whole).run(made, feeds)
            except RunnerEnded:
                return crashes
            except (TercetError, *FAILURES):  # passes that are wrong may fail on what they made
                return False
            if crashes:
                return False
            return _wrong(apart.findings(wanted, theirs, self._reference, self._runner))

        names = set(self.found.nodes)
        suspects = [node for node in graph.nodes if names.intersection(node.origin)]
        return reduce_graph(graph, values, is_wrong, suspects)


def _wrong(findings: Iterable[Finding]) -> bool:
    return any(finding.verdict == "wrong" for finding in findings)


def _worse(first: list[Finding], second: list[Finding]) -> list[Finding]:
    """Return the findings with the worse verdict, the second ones if equal."""
    one = overall([finding.agreement.verdict for finding in first])
    two = overall([finding.agreement.verdict for finding in second])
    return second if overall((one, two)) == two else first


def _result(graph: Graph, name: str, values: Values) -> HostValue:
    value = graph.outputs[name]
    return value.data if value.data is not None else values[value.name]


def guilty(steps: Sequence[Step], is_wrong: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Return every step that alone is wrong, by bisection.

    If some steps are wrong together but neither half is, all of them are returned.

    Args:
        steps: the nodes of each step; all of them together are wrong.
        is_wrong: tells whether a subset is wrong.
    """
    if len(steps) == 1:
        return list(steps)
    middle = len(steps) // 2
    wrong = [half for half in (steps[:middle], steps[middle:]) if is_wrong(half)]
    if not wrong:
        return list(steps)
    return [step for half in wrong for step in guilty(half, is_wrong)]
