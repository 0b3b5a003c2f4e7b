"""Which of cuDNN's engines runs a task: its heuristics' first one that runs, or the fastest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Protocol

from ...runtime.base import forks
from ...runtime.errors import DeviceOutOfMemory
from ...runtime.options import Options
from ..cuda.tuning.records import Records
from .graph import Engine, OperationGraph
from .library import NoPlan
from .operation import Operand, Operation
from .prepack import Front
from .session import Session
from .stages import NO_TAIL, Tail

#: What cuDNN's frontend says about an engine that needs too much workspace.
_REQUIRES = re.compile(r"Requires (\d+)")
#: A division but the first is left alone where that many of its engines, the heuristics' best, all
#: take that many times as long as the best so far: its others would cost a compilation each.
GLANCE, HOPELESS = 8, 1.3
#: Engines of a division that are compiled to be measured: they take cuDNN 0.02 to 0.6 s each, and
#: those that its heuristics propose first are the best.
MAX_COMPILED = 6


@dataclass(frozen=True, slots=True)
class Division:
    """One division of a task between cuDNN and a kernel.

    Attributes:
        operation: cuDNN's part.
        rest: what a cuda kernel does after it, in place, to its first result.
        front: what a cuda kernel does before it.
    """

    operation: Operation
    rest: Tail = NO_TAIL
    front: Front | None = None

    @property
    def operands(self) -> Mapping[str, Operand]:
        """Every tensor that is read or given, by role."""
        found = {**self.operation.operands, **dict(self.rest.operands)}
        return found if self.front is None else found | {self.front.role: self.front.image}

    def __str__(self) -> str:
        text = str(self.operation) if self.front is None else f"{self.front}, {self.operation}"
        return f"{text}, then {self.rest}" if self.rest else text


@dataclass(frozen=True, slots=True)
class Task:
    """What an engine is wanted for.

    Attributes:
        divisions: best guess first; all compute the same results.
        limit: maximum workspace in bytes; None for no limit.
    """

    divisions: tuple[Division, ...]
    limit: int | None

    @classmethod
    def of(cls, operation: Operation, options: Options) -> Task:
        """Return the task of one operation, nothing of which can be left to a kernel."""
        return cls((Division(operation),), options.workspace)

    @property
    def title(self) -> str:
        """The first division in short: ``conv+bias+relu``."""
        return self.divisions[0].operation.title

    @property
    def operands(self) -> Mapping[str, Operand]:
        """Every tensor that some division reads or gives, by role."""
        found: dict[str, Operand] = {}
        for division in self.divisions:
            found |= division.operands
        return found

    def graph(self, division: Division, session: Session) -> OperationGraph:
        """Return cuDNN's part of a division, which has the workspace that its front leaves.

        Raises:
            NoPlan: cuDNN cannot express it.
        """
        taken = division.front.nbytes if division.front else 0
        limit = None if self.limit is None else self.limit - taken
        return OperationGraph(session, division.operation, limit)

    def __str__(self) -> str:
        limit = "any" if self.limit is None else f"{self.limit} B"
        return f"{' or '.join(map(str, self.divisions))}, {limit} workspace"


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was chosen, and what it leaves to a kernel after it.

    Attributes:
        engine: cuDNN's part.
        rest: what a kernel does after it.
        microseconds: both together as measured, or None if nothing was.
        among: number of engines that were compared.
        first: the same of the one that the heuristics would take.
        cuda_microseconds: time of the cuda kernels for the same nodes, where they were measured.
        front: what a kernel does before it.
    """

    engine: Engine
    rest: Tail = NO_TAIL
    microseconds: float | None = None
    among: int = 1
    first: float | None = None
    cuda_microseconds: float | None = None
    front: Front | None = None

    @property
    def scratch(self) -> int:
        """Bytes of workspace: of the engine, and of what comes before it."""
        return self.engine.scratch + (self.front.nbytes if self.front else 0)

    @property
    def regret(self) -> float | None:
        """t(heuristics) / t(best) - 1; None if nothing was measured."""
        return self.first / self.microseconds - 1 if self.first and self.microseconds else None

    @property
    def roles(self) -> tuple[str, ...]:
        """What is read and given, by cuDNN or after it."""
        operands = {**self.engine.graph.operation.operands, **dict(self.rest.operands)}
        return tuple(operands)

    def __str__(self) -> str:
        """Return the choice in the words of the placement report."""
        engine = self.engine
        text = f"{engine.graph.operation.title} {engine.name}"
        if self.rest:
            text += f", then {self.rest.title}"
        made = f"compiled in {engine.milliseconds:.0f} ms" if engine.compiled else "precompiled"
        text += f", {made}"
        if self.scratch:
            text += f", {self.scratch} B workspace"
        if self.microseconds is None:
            return f"{text} (heuristic)"
        theirs = self.cuda_microseconds
        cuda = "" if theirs is None else f"; cuda kernels: {theirs:.1f} us"
        return f"{text} ({self.microseconds:.1f} us, best of {self.among}{cuda})"


@dataclass(frozen=True, slots=True)
class Trial:
    """An engine that was measured.

    Attributes:
        division: the number of the division.
        engine: its name.
        microseconds: with the kernel after it.
    """

    division: int
    engine: str
    microseconds: float


class Judge(Protocol):
    """Tries choices on the GPU."""

    def trial(self, choice: Choice) -> None:
        """Run a choice once, and record it.

        Raises:
            NoPlan: it fails, which some engines do only here.
            DeviceOutOfMemory: there is no room for the tensors.
        """
        ...

    def microseconds(self, choice: Choice, minimum: float) -> float:
        """Return how long a choice takes; what is far from `minimum` need not be measured well.

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
        self._known: dict[tuple[Task, str, bool], Choice | str] = {}  # a text: why there is none
        self._lock = forks.lock()

    def choose(self, task: Task, judge: Judge, *, tune: bool = False) -> Choice:
        """Return the engine for a task.

        Args:
            task: what it must do.
            judge: tries engines.
            tune: take the fastest of all, not the first of cuDNN's heuristics that runs.

        Raises:
            NoPlan: cuDNN has none that is allowed; says what was tried.
        """
        key = task, str(task), tune  # equal tasks may differ in a -0.0
        with self._lock:
            if key not in self._known:
                find = self._tuned if tune else partial(_first, self.session)
                try:
                    self._known[key] = find(task, judge)
                except NoPlan as error:
                    self._known[key] = str(error)
            found = self._known[key]
        if isinstance(found, str):
            raise NoPlan(found)
        return found

    # ── what was measured ────────────────────────────────────────────────────────────────────

    def _tuned(self, task: Task, judge: Judge) -> Choice:
        key = self._key(task)
        stored = self._load(key, task, judge)
        if stored is None:
            stored, trials = _fastest(self.session, task, judge)
            if trials:
                self._records.store(key, _entry(stored, trials))
        return stored

    def trials(self, task: Task) -> tuple[Trial, ...]:
        """Return what was measured of a task, in the order of the heuristics; nothing is measured.

        Entries that make no sense are left out.
        """
        entry = self._records.load(self._key(task)) or {}
        try:
            return tuple(
                Trial(int(division), str(e), float(us)) for division, e, us in entry["trials"]
            )
        except (LookupError, TypeError, ValueError):
            return ()

    def _key(self, task: Task) -> str:
        return f"cuDNN {self.session.vendor.version} on {self.session.target}: {task}"

    def _load(self, key: str, task: Task, judge: Judge) -> Choice | None:
        """Build what is remembered; None if there is nothing or it is of no use."""
        entry = self._records.load(key)
        if entry is None:
            return None
        try:
            division = {str(division.operation): division for division in task.divisions}[
                entry["operation"]
            ]
            time, first = (float(entry[name]) for name in ("microseconds", "first"))
            engine = task.graph(division, self.session).engine(str(entry["engine"]))
            among = int(entry["among"])
        except (ValueError, LookupError, TypeError, NoPlan):
            return None
        choice = Choice(engine, division.rest, time, among, first, front=division.front)
        return choice if _runs(choice, judge, []) else None


def _entry(choice: Choice, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the record of a choice."""
    return {
        "operation": str(choice.engine.graph.operation),
        "engine": choice.engine.name,
        "microseconds": choice.microseconds,
        "among": choice.among,
        "first": choice.first,
        "trials": [[trial.division, trial.engine, trial.microseconds] for trial in trials],
    }


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────


def _first(session: Session, task: Task, judge: Judge) -> Choice:
    """Return the heuristics' first choice that runs; of several divisions, none that is slow."""
    tried: list[str] = []
    slow: list[Choice] = []
    for division in task.divisions:
        for choice in _choices(session, task, division, tried):
            if choice.engine.slow:
                slow.append(choice)
            elif _runs(choice, judge, tried):
                return choice
    for choice in slow:
        if _runs(choice, judge, tried):
            return choice
    raise NoPlan("; ".join(tried))


def _runs(choice: Choice, judge: Judge, tried: list[str]) -> bool:
    """Whether a choice runs; note in `tried` why it does not.

    Beside a model that fills the GPU, where nothing can be tried, cuDNN is taken at its word.
    """
    try:
        judge.trial(choice)
    except DeviceOutOfMemory:
        return True
    except NoPlan as error:
        tried.append(str(error))
        return False
    return True


def _fastest(session: Session, task: Task, judge: Judge) -> tuple[Choice, list[Trial]]:
    """Return the fastest choice, and all that were measured."""
    trials: list[Trial] = []
    best: Choice | None = None
    minimum = inf
    for number, division in enumerate(task.divisions):
        times: list[float] = []
        for choice in _choices(session, task, division, [], MAX_COMPILED):
            if number and len(times) == GLANCE and min(times) > HOPELESS * minimum:
                break
            try:
                time = judge.microseconds(choice, minimum)
            except NoPlan:
                continue
            except DeviceOutOfMemory:
                break  # nothing can be measured beside a model that fills the GPU
            times.append(time)
            trials.append(Trial(number, choice.engine.name, time))
            if time < minimum:
                best, minimum = replace(choice, microseconds=time), time
    if best is None:
        return _first(session, task, judge), []
    return replace(best, among=len(trials), first=trials[0].microseconds), trials


def _choices(
    session: Session, task: Task, division: Division, tried: list[str], max_compiled: float = inf
) -> Iterator[Choice]:
    """Yield what is possible, most promising first; note in `tried` what cuDNN refused."""
    try:
        graph = task.graph(division, session)
        for engine in graph.engines(max_compiled):
            yield Choice(engine, division.rest, front=division.front)
    except NoPlan as error:
        tried.append(str(error))
    else:
        tried.append(f"{division.operation}: {_summary(graph)}")


def _summary(graph: OperationGraph) -> str:
    """Return how many plans were refused, and why."""
    reasons = list(graph.refused.values())
    numerics = [r for r in reasons if "Deselecting" in r]
    memory = [r for r in reasons if "workspace violation" in r]
    others = [r for r in reasons if r not in numerics and r not in memory]
    parts = [
        f"{len(numerics)} use TF32, Winograd or FFT or are not repeatable" if numerics else "",
        f"{len(memory)} want more workspace than {graph.limit} bytes{_minimum(memory)}"
        if memory
        else "",
        f"{len(others)} did not build ({others[0]})" if others else "",
    ]
    return f"{len(reasons)} plans: " + ", ".join(filter(None, parts))


def _minimum(refusals: Sequence[str]) -> str:
    """Return what the most modest of cuDNN's engines wants, if it says so."""
    numbers = [int(found[1]) for found in map(_REQUIRES.search, refusals) if found]
    return f", {min(numbers)} at least" if numbers else ""
