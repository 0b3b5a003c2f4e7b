"""Which of cuDNN's engines runs a convolution: its heuristics' first one, or the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from ...runtime.errors import DeviceOutOfMemory
from ..cuda.records import Records
from .conv import Convolution, Epilogue
from .graph import ConvolutionGraph, Engine
from .session import Session
from .vendor import NoPlan

#: Channels per group below which cuDNN's engines with an epilogue are slow: on an H200, depthwise
#: 3x3 over 32x128x28x28 takes 18 us alone and 62 us with bias and ReLU, 32 groups of 4 channels
#: take 10 and 23 us, 2 groups of 48 take 33 us either way.
THIN = 16


@dataclass(frozen=True, slots=True)
class Task:
    """What an engine is wanted for.

    Attributes:
        convolution: its own epilogue is empty.
        epilogue: what follows it, in cuDNN's graph where that is possible and not slower.
        limit: greatest workspace in bytes; None for no limit.
    """

    convolution: Convolution
    epilogue: Epilogue
    limit: int | None

    def __str__(self) -> str:
        limit = "any" if self.limit is None else f"{self.limit} B"
        return f"{self.convolution} then {self.epilogue or 'nothing'}, {limit} workspace"

    def divisions(self) -> tuple[tuple[Convolution, Epilogue], ...]:
        """Return the ways to divide it between cuDNN's graph and a kernel, best guess first."""
        divided = (self.convolution, self.epilogue)
        if not self.epilogue or self.convolution.transposed:
            return (divided,)
        # Every engine that adds a residual or clips also adds a bias, if only zeros.
        epilogue = replace(self.epilogue, bias=True)
        whole = (self.convolution.with_epilogue(epilogue), Epilogue())
        thin = self.convolution.group > 1 and self.convolution.thinnest < THIN
        return (divided, whole) if thin else (whole, divided)


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was chosen, and what it leaves to a kernel behind it.

    Attributes:
        engine: cuDNN's part.
        rest: the part of the epilogue that is not in cuDNN's graph.
        microseconds: both together as measured, or None if nothing was.
        among: number of engines that were compared.
    """

    engine: Engine
    rest: Epilogue
    microseconds: float | None = None
    among: int = 1

    def __str__(self) -> str:
        """Return the choice in the words of the placement report."""
        convolution = self.engine.graph.convolution
        text = f"{convolution.title} {self.engine.name}"
        if self.rest:
            text += f", then {self.rest}"
        if self.engine.scratch:
            text += f", {self.engine.scratch} B workspace"
        if self.microseconds is None:
            return f"{text} (heuristic)"
        return f"{text} ({self.microseconds:.1f} us, best of {self.among})"


class Judge(Protocol):
    """Tries choices on the GPU."""

    def trial(self, choice: Choice) -> None:
        """Run a choice once, and record it.

        Raises:
            NoPlan: it fails, which some engines do only here.
        """
        ...

    def microseconds(self, choice: Choice, least: float) -> float:
        """Return how long a choice takes; what is far from `least` need not be measured well.

        Raises:
            NoPlan: it fails.
            DeviceOutOfMemory: there is no room for the tensors.
        """
        ...


class Chooser:
    """Chooses once per task, and remembers it; what was measured it keeps on disk as well.

    Args:
        session: the GPU.
        folder: where measured choices are kept; what is damaged there is chosen anew.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self._records = Records(folder)
        self._known: dict[tuple[Task, bool], Choice] = {}
        self._lock = Lock()

    def choose(self, task: Task, judge: Judge, *, tune: bool = False) -> Choice:
        """Return the engine for a task.

        Args:
            task: what it must do.
            judge: tries engines.
            tune: take the fastest of all, not the first of cuDNN's heuristics that runs.

        Raises:
            NoPlan: cuDNN has none that is allowed; says what was tried.
        """
        with self._lock:
            if (task, tune) not in self._known:
                self._known[task, tune] = (
                    self._tuned(task, judge) if tune else _first(self.session, task, judge)
                )
            return self._known[task, tune]

    # ── what was measured ────────────────────────────────────────────────────────────────────

    def _tuned(self, task: Task, judge: Judge) -> Choice:
        key = f"cuDNN {self.session.vendor.version} on {self.session.target}: {task}"
        stored = self._load(key, task, judge)
        if stored is None:
            stored = _fastest(self.session, task, judge)
            self._records.store(key, _entry(stored))
        return stored

    def _load(self, key: str, task: Task, judge: Judge) -> Choice | None:
        """Build what is remembered; None if there is nothing or it is of no use."""
        entry = self._records.load(key)
        if entry is None:
            return None
        try:
            divisions = {str(graph.epilogue): (graph, rest) for graph, rest in task.divisions()}
            convolution, rest = divisions[entry["fused"]]
            graph = ConvolutionGraph(self.session, convolution, task.limit)
            time, among = float(entry["microseconds"]), int(entry["among"])
            choice = Choice(graph.engine(str(entry["engine"])), rest, time, among)
            judge.trial(choice)
        except (ValueError, LookupError, TypeError, NoPlan):
            return None
        return choice


def _entry(choice: Choice) -> dict[str, Any]:
    """Return what is remembered of a choice."""
    return {
        "fused": str(choice.engine.graph.convolution.epilogue),
        "engine": choice.engine.name,
        "microseconds": choice.microseconds,
        "among": choice.among,
    }


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────


def _first(session: Session, task: Task, judge: Judge) -> Choice:
    """Return the heuristics' first choice that runs."""
    tried: list[str] = []
    for choice in _choices(session, task, tried):
        try:
            judge.trial(choice)
        except NoPlan as error:
            tried.append(str(error))
        else:
            return choice
    raise NoPlan("; ".join(tried))


def _fastest(session: Session, task: Task, judge: Judge) -> Choice:
    """Return the fastest choice."""
    tried: list[str] = []
    best: Choice | None = None
    least, count = float("inf"), 0
    for choice in _choices(session, task, tried):
        try:
            time = judge.microseconds(choice, least)
        except NoPlan as error:
            tried.append(str(error))
            continue
        except DeviceOutOfMemory:
            break  # nothing can be measured beside a model that fills the GPU
        count += 1
        if time < least:
            best, least = replace(choice, microseconds=time), time
    return replace(best, among=count) if best else _first(session, task, judge)


def _choices(session: Session, task: Task, tried: list[str]) -> Iterator[Choice]:
    """Yield what is possible, most promising first; note in `tried` what cuDNN refused."""
    for convolution, rest in task.divisions():
        try:
            graph = ConvolutionGraph(session, convolution, task.limit)
            for engine in graph.engines():
                yield Choice(engine, rest)
        except NoPlan as error:
            tried.append(str(error))
        else:
            tried.append(f"{convolution}: {_summary(graph)}")


def _summary(graph: ConvolutionGraph) -> str:
    """Return how many plans were refused, and why."""
    reasons = list(graph.refused.values())
    numerics = [r for r in reasons if "Deselecting" in r]
    memory = [r for r in reasons if "workspace violation" in r]
    others = [r for r in reasons if r not in numerics and r not in memory]
    parts = [
        f"{len(numerics)} use TF32, Winograd or FFT or are not repeatable" if numerics else "",
        f"{len(memory)} want more workspace" if memory else "",
        f"{len(others)} did not build ({others[0]})" if others else "",
    ]
    return f"{len(reasons)} plans: " + ", ".join(filter(None, parts))
