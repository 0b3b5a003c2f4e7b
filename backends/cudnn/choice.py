"""Choosing a cuDNN engine for a task: the first in heuristic order that runs, or the fastest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Protocol

from ...runtime.base import forks
from ...runtime.base.record import record
from ...runtime.errors import DeviceOutOfMemory
from ...runtime.options import Options
from ..cuda.tuning.records import Records
from .graph import CudnnEngine, OperationGraph
from .library import NoPlan
from .operation import Operand, Operation
from .prepack import Front
from .session import Session
from .stages import NO_TAIL, Tail

#: The message of cuDNN's frontend for an engine that needs too much workspace.
_REQUIRES = re.compile(r"Requires (\d+)")
#: A division after the first is abandoned if this many of its engines, the heuristics' best, all
#: take this many times as long as the best so far: each further engine would cost a compilation.
GLANCE, HOPELESS = 8, 1.3
#: Maximum number of runtime-compiled engines measured per division: cuDNN compiles 0.02 to 0.6 s
#: for each, and those that its heuristics propose first are the best.
MAX_COMPILED = 6


@record
class Division:
    """One division of a task between cuDNN and a kernel.

    Attributes:
        operation: cuDNN's part.
        rest: the epilogue that a cuda kernel applies to its first result, in place.
        front: the packing that a cuda kernel does before it.
    """

    operation: Operation
    rest: Tail = NO_TAIL
    front: Front | None = None

    @property
    def operands(self) -> Mapping[str, Operand]:
        """Every tensor that is read or written, by role."""
        found = {**self.operation.operands, **dict(self.rest.operands)}
        return found if self.front is None else found | {self.front.role: self.front.image}

    def __str__(self) -> str:
        text = str(self.operation) if self.front is None else f"{self.front}, {self.operation}"
        return f"{text}, then {self.rest}" if self.rest else text


@record
class EngineTask:
    """The computation for which an engine is chosen.

    Attributes:
        divisions: best guess first; all compute the same results.
        limit: maximum workspace in bytes; None for no limit.
    """

    divisions: tuple[Division, ...]
    limit: int | None

    @classmethod
    def of(cls, operation: Operation, options: Options) -> EngineTask:
        """Return the task for a single operation that must run entirely on cuDNN."""
        return cls((Division(operation),), options.workspace)

    @property
    def title(self) -> str:
        """A short name of the first division: ``conv+bias+relu``."""
        return self.divisions[0].operation.title

    @property
    def operands(self) -> Mapping[str, Operand]:
        """Every tensor that some division reads or writes, by role."""
        found: dict[str, Operand] = {}
        for division in self.divisions:
            found |= division.operands
        return found

    def graph(self, division: Division, session: Session) -> OperationGraph:
        """Return cuDNN's part of a division, limited to the workspace that its front leaves.

        Raises:
            NoPlan: cuDNN cannot express it.
        """
        taken = division.front.nbytes if division.front else 0
        limit = None if self.limit is None else self.limit - taken
        return OperationGraph(session, division.operation, limit)

    def __str__(self) -> str:
        limit = "any" if self.limit is None else f"{self.limit} B"
        return f"{' or '.join(map(str, self.divisions))}, {limit} workspace"


@record
class EngineChoice:
    """The chosen engine, and the kernels before and after it.

    Attributes:
        engine: cuDNN's part.
        rest: the epilogue that a kernel applies after it.
        microseconds: measured time of both; None if not measured.
        among: number of engines compared.
        first: measured time of the engine that the heuristics would choose.
        cuda_microseconds: time of the cuda kernels for the same nodes, if measured.
        front: the packing that a kernel does before it.
    """

    engine: CudnnEngine
    rest: Tail = NO_TAIL
    microseconds: float | None = None
    among: int = 1
    first: float | None = None
    cuda_microseconds: float | None = None
    front: Front | None = None

    @property
    def scratch(self) -> int:
        """Bytes of workspace for the engine and the kernel before it."""
        return self.engine.scratch + (self.front.nbytes if self.front else 0)

    @property
    def regret(self) -> float | None:
        """t(heuristics) / t(best) - 1; None if nothing was measured."""
        return self.first / self.microseconds - 1 if self.first and self.microseconds else None

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of all tensors read and written."""
        operands = {**self.engine.graph.operation.operands, **dict(self.rest.operands)}
        return tuple(operands)

    def __str__(self) -> str:
        """Return the choice as the placement report shows it."""
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


@record
class Trial:
    """A measured engine.

    Attributes:
        division: index of the division.
        engine: its name.
        microseconds: including the kernel after it.
    """

    division: int
    engine: str
    microseconds: float


class EngineTuner(Protocol):
    """Runs and measures choices on the GPU."""

    def trial(self, choice: EngineChoice) -> None:
        """Run a choice once, and record it.

        Raises:
            NoPlan: it fails, as some engines do only when run.
            DeviceOutOfMemory: there is no room for the tensors.
        """
        ...

    def microseconds(self, choice: EngineChoice, minimum: float) -> float:
        """Return the time of a choice; times far above `minimum` may be imprecise.

        Raises:
            NoPlan: it fails.
            DeviceOutOfMemory: there is no room for the tensors.
        """
        ...


class Chooser:
    """Chooses an engine once per task and caches the choice; measurements are also kept on disk.

    Args:
        session: the GPU.
        folder: the cache of measured choices; damaged entries are measured again.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self._records = Records(folder)
        self._known: dict[
            tuple[EngineTask, str, bool], EngineChoice | str
        ] = {}  # a string is the reason why there is none
        self._lock = forks.lock()

    def choose(self, task: EngineTask, judge: EngineTuner, *, tune: bool = False) -> EngineChoice:
        """Return the engine for a task.

        Args:
            task: the computation.
            judge: tries engines.
            tune: whether to choose the fastest engine instead of the first that runs, in the order
                of cuDNN's heuristics.

        Raises:
            NoPlan: cuDNN has no allowed engine; lists those tried.
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

    def _tuned(self, task: EngineTask, judge: EngineTuner) -> EngineChoice:
        key = self._key(task)
        stored = self._load(key, task, judge)
        if stored is None:
            stored, trials = _fastest(self.session, task, judge)
            if trials:
                self._records.store(key, _entry(stored, trials))
        return stored

    def trials(self, task: EngineTask) -> tuple[Trial, ...]:
        """Return the stored measurements of a task in heuristic order; measures nothing.

        Invalid entries are omitted.
        """
        entry = self._records.load(self._key(task)) or {}
        try:
            return tuple(
                Trial(int(division), str(e), float(us)) for division, e, us in entry["trials"]
            )
        except (LookupError, TypeError, ValueError):
            return ()

    def _key(self, task: EngineTask) -> str:
        return f"cuDNN {self.session.vendor.version} on {self.session.target}: {task}"

    def _load(self, key: str, task: EngineTask, judge: EngineTuner) -> EngineChoice | None:
        """Rebuild a stored choice; None if there is none or it is unusable."""
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
        choice = EngineChoice(engine, division.rest, time, among, first, front=division.front)
        return choice if _runs(choice, judge, []) else None


def _entry(choice: EngineChoice, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the cache entry of a choice."""
    return {
        "operation": str(choice.engine.graph.operation),
        "engine": choice.engine.name,
        "microseconds": choice.microseconds,
        "among": choice.among,
        "first": choice.first,
        "trials": [[trial.division, trial.engine, trial.microseconds] for trial in trials],
    }


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────


def _first(session: Session, task: EngineTask, judge: EngineTuner) -> EngineChoice:
    """Return the heuristics' first choice that runs, skipping slow engines of several divisions."""
    tried: list[str] = []
    slow: list[EngineChoice] = []
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


def _runs(choice: EngineChoice, judge: EngineTuner, tried: list[str]) -> bool:
    """Whether a choice runs; appends the reason to `tried` if it does not.

    If another model fills the GPU, so that nothing can be tried, the choice counts as running.
    """
    try:
        judge.trial(choice)
    except DeviceOutOfMemory:
        return True
    except NoPlan as error:
        tried.append(str(error))
        return False
    return True


def _fastest(
    session: Session, task: EngineTask, judge: EngineTuner
) -> tuple[EngineChoice, list[Trial]]:
    """Return the fastest choice, and all measurements."""
    trials: list[Trial] = []
    best: EngineChoice | None = None
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
                break  # another model fills the GPU, so that nothing can be measured
            times.append(time)
            trials.append(Trial(number, choice.engine.name, time))
            if time < minimum:
                best, minimum = replace(choice, microseconds=time), time
    if best is None:
        return _first(session, task, judge), []
    return replace(best, among=len(trials), first=trials[0].microseconds), trials


def _choices(
    session: Session,
    task: EngineTask,
    division: Division,
    tried: list[str],
    max_compiled: float = inf,
) -> Iterator[EngineChoice]:
    """Yield possible choices, most promising first; appends cuDNN's refusals to `tried`."""
    try:
        graph = task.graph(division, session)
        for engine in graph.engines(max_compiled):
            yield EngineChoice(engine, division.rest, front=division.front)
    except NoPlan as error:
        tried.append(str(error))
    else:
        tried.append(f"{division.operation}: {_summary(graph)}")


def _summary(graph: OperationGraph) -> str:
    """Return the number of refused plans, with reasons."""
    reasons = list(graph.refused.values())
    numerics = [r for r in reasons if "Deselecting" in r]
    memory = [r for r in reasons if "workspace violation" in r]
    others = [r for r in reasons if r not in numerics and r not in memory]
    parts = [
        f"{len(numerics)} use TF32, Winograd or FFT or are not repeatable" if numerics else "",
        f"{len(memory)} need more workspace than {graph.limit} bytes{_minimum(memory)}"
        if memory
        else "",
        f"{len(others)} did not build ({others[0]})" if others else "",
    ]
    return f"{len(reasons)} plans: " + ", ".join(filter(None, parts))


def _minimum(refusals: Sequence[str]) -> str:
    """Return the smallest workspace that any of cuDNN's engines needs, if it reports one."""
    numbers = [int(found[1]) for found in map(_REQUIRES.search, refusals) if found]
    return f", {min(numbers)} at least" if numbers else ""
