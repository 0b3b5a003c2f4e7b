"""Autotuning: every algorithm is measured on the GPU, and the fastest correct one is kept.

What was measured is kept on disk by what it depends on: the kernels, the GPU, the driver, the task
and the workspace that is allowed; names of nodes and models play no part. So every model that has
the same convolution shares the result, and a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ....runtime.errors import DeviceError, DeviceFault, DeviceOutOfMemory, KernelError
from ....runtime.ir.graph import Node
from ..algorithms.registry import Choice, RecipeContext, Setting
from ..algorithms.selection import Candidate, Selector, Task
from ..families import KERNELS
from ..recipe.operands import Tensor
from .records import Records

if TYPE_CHECKING:
    from ..driver.device import DriverDevice

#: Algorithms that are expected to take more than this many times the best guess are not measured.
HOPELESS = 8.0
#: Error that an algorithm may have, against the algorithm that the heuristic takes: relative L2
#: norms. By bytes of an element; and where float32 may be multiplied as tf32.
TOLERANCE = {2: 2e-2, 4: 2e-5, 8: 1e-12}
TF32_TOLERANCE = 2e-3


@dataclass(frozen=True, slots=True)
class Work:
    """A task with the selector that has algorithms for it.

    Attributes:
        selector: the algorithms.
        task: what is to be done, without the nodes that follow it.
        node: the first node that needs it.
    """

    selector: Selector[Any]
    task: Task
    node: Node


@dataclass(frozen=True, slots=True)
class Timing:
    """What one algorithm took.

    Attributes:
        algorithm: its name.
        variant: its form.
        microseconds: what it took; infinite where it was not measured.
        estimate: what the heuristic expected.
        workspace: bytes.
        error: relative L2 norm of the difference to the algorithm that the heuristic takes.
        reason: why it cannot be used, or was not measured; empty where it was.
    """

    algorithm: str
    variant: str = ""
    microseconds: float = inf
    estimate: float = inf
    workspace: int = 0
    error: float = 0.0
    reason: str = ""

    @property
    def title(self) -> str:
        """The algorithm, with its form."""
        return f"{self.algorithm} {self.variant}".strip()


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured for a task.

    Attributes:
        task: its signature.
        heuristic: title of the algorithm that is taken without measuring.
        timings: everything that was tried, fastest first.
    """

    task: str
    heuristic: str
    timings: tuple[Timing, ...]

    @property
    def best(self) -> Timing:
        """The fastest correct algorithm."""
        return self.timings[0]

    @property
    def chosen(self) -> Timing:
        """The algorithm that the heuristic takes, in its own form."""
        return next((t for t in self.timings if t.title == self.heuristic), self.best)

    @property
    def regret(self) -> float:
        """t(heuristic) / t(best) - 1."""
        return self.chosen.microseconds / self.best.microseconds - 1


class Judge(Protocol):
    """Tries algorithms on a GPU."""

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Have kernels compiled that will be tried."""
        ...

    def begin(self, task: Task, reference: Candidate) -> None:
        """Make the tensors of a task, and the result that others are compared with.

        Raises:
            DeviceOutOfMemory: there is no room for them.
        """
        ...

    def judge(self, candidate: Candidate, minimum: float) -> tuple[float, float]:
        """Return the microseconds and the error of an algorithm.

        Args:
            candidate: the algorithm, in the formats that it wants.
            minimum: the best so far; what is far from it need not be measured well.

        Raises:
            DeviceFault: it stops the GPU for this process.
            DeviceError: it fails.
            KernelError: it does not compile.
        """
        ...

    def end(self) -> None:
        """Give the tensors back."""
        ...


Say = Callable[[str], None]


class Tuner:
    """Measures each task once, and remembers it on disk.

    Args:
        records: where results are kept.
        context: what they depend on besides the task: kernels, GPU, driver.
        judge: tries algorithms; None where only what is known is wanted.

    Attributes:
        measured: number of tasks that it has measured.
    """

    def __init__(self, records: Records, context: str, judge: Judge | None = None) -> None:
        self._records = records
        self._context = context
        self._judge = judge
        self._known: dict[str, Result] = {}
        self.measured = 0

    def results(self, works: Sequence[Work], say: Say, *, again: bool = False) -> list[Result]:
        """Return what is known about tasks, measured where it is not.

        Args:
            works: the tasks; equal ones are measured once.
            say: told about the progress.
            again: measure also what is known.
        """
        found: list[Result] = []
        distinct = {self._key(work.task): work for work in works}
        missing = [k for k in distinct if again or self.known(k) is None]
        if self._judge is not None:
            for key in missing:
                tried = [candidate for candidate, reason in _trials(distinct[key]) if not reason]
                self._judge.prepare(tried)
            for number, key in enumerate(missing, 1):
                say(f"measuring {number} of {len(missing)}: {distinct[key].task.signature}")
                result = self._measured(distinct[key], self._judge)
                if result is not None:
                    self.measured += 1
                    self._known[key] = result
                    self._records.store(key, _entry(result))
        for key in distinct:
            known = self.known(key)
            if known is not None:
                found.append(known)
        return found

    def choices(self, works: Sequence[Work], say: Say) -> dict[str, Choice]:
        """Return the fastest algorithm of every task, by its signature."""
        return {
            result.task: Choice(
                result.best.algorithm, result.best.variant, result.best.microseconds
            )
            for result in self.results(works, say)
        }

    def known(self, key: str) -> Result | None:
        """Return what was measured before, by this tuner or by another; None if nothing was."""
        if key not in self._known:
            entry = self._records.load(key)
            result = None if entry is None else _result(entry)
            if result is None:
                return None
            self._known[key] = result
        return self._known[key]

    def _key(self, task: Task) -> str:
        options = task.setting.options
        allowed = "any" if options.workspace is None else f"{options.workspace} bytes of"
        tf32 = ", tf32" if options.precision == "tf32" else ""
        return f"{self._context}: {task.signature}, {allowed} workspace{tf32}"

    def _measured(self, work: Work, judge: Judge) -> Result | None:
        """Return the timings of all algorithms; None where none could be measured."""
        picked = work.selector.pick(work.task)
        if picked.recipe is None:
            return None
        timings: list[Timing] = []
        minimum = inf
        try:
            with _naming(picked, work.task):
                judge.begin(work.task, picked)
            for candidate, reason in _trials(work):
                timing = _tried(judge, candidate, reason, minimum, work.task)
                minimum = min(minimum, timing.microseconds)
                timings.append(timing)
        except DeviceOutOfMemory:
            return None  # nothing can be measured beside a model that fills the GPU
        finally:
            judge.end()
        if minimum == inf:
            return None
        timings.sort(key=lambda timing: timing.microseconds)
        return Result(work.task.signature, picked.algorithm, tuple(timings))


def _tried(judge: Judge, candidate: Candidate, reason: str, minimum: float, task: Task) -> Timing:
    facts = {
        "variant": candidate.variant,
        "estimate": candidate.microseconds,
        "workspace": candidate.workspace,
    }
    if reason:
        return Timing(candidate.algorithm, reason=reason, **facts)
    try:
        with _naming(candidate, task):
            time, error = judge.judge(candidate, minimum)
    except DeviceFault:
        raise  # nothing else can be measured in this process
    except (DeviceError, KernelError) as refused:
        return Timing(candidate.algorithm, reason=str(refused).splitlines()[0], **facts)
    if not error <= tolerance(task):
        return Timing(candidate.algorithm, error=error, reason=f"wrong by {error:.1e}", **facts)
    return Timing(candidate.algorithm, microseconds=time, error=error, **facts)


@contextmanager
def _naming(candidate: Candidate, task: Task) -> Generator[None]:
    """Let a fault inside name the algorithm that was tried."""
    try:
        yield
    except DeviceFault as fault:
        title = f"{candidate.algorithm} {candidate.variant}".strip()
        raise DeviceFault(f"measuring {title} of {task.signature}: {fault}") from fault


def tolerance(task: Task) -> float:
    """Return the error that an algorithm may have."""
    if task.setting.options.precision == "tf32":
        return TF32_TOLERANCE
    return TOLERANCE[task.y.dtype.itemsize]


def _trials(work: Work) -> Iterator[tuple[Candidate, str]]:
    """Yield all algorithms of a task, in all forms, with the reason why one is not measured."""
    candidates = work.selector.candidates(work.task)
    best = min((candidate.microseconds for candidate in candidates), default=inf)
    for algorithm, candidate in zip(work.selector.algorithms, candidates, strict=True):
        if candidate.recipe is None:
            yield candidate, candidate.reason
        elif candidate.microseconds > HOPELESS * best:
            yield (
                candidate,
                f"expected to take {candidate.microseconds:.0f} us, {best:.0f} us are possible",
            )
        else:
            yield candidate, ""
            for variant in algorithm.variants(work.task):
                other = work.selector.candidate(work.task, algorithm, variant)
                if other.recipe is not None and other.recipe != candidate.recipe:
                    yield other, ""


def works_of(nodes: Iterable[Node], setting: Setting) -> list[Work]:
    """Return the tasks of nodes that have selectors, in order, whatever the user asked for them."""
    found: list[Work] = []
    for node in nodes:
        registered = KERNELS.get(type(node.op))
        selector = None if registered is None else registered.selector
        if selector is None or not node.output.tensor.size:
            continue
        operands = tuple(None if value is None else Tensor(value) for value in node.inputs)
        own = setting.for_node(node)
        task = selector.task(RecipeContext(node.op, Tensor(node.output), operands, own))
        if not isinstance(task, str):
            found.append(Work(selector, task, node))
    return found


# ── on disk ──────────────────────────────────────────────────────────────────────────────────────


def _entry(result: Result) -> Mapping[str, Any]:
    timings = [asdict(timing) for timing in result.timings]
    for timing in timings:
        for name in ("microseconds", "estimate"):
            if timing[name] == inf:
                del timing[name]
    return {"task": result.task, "heuristic": result.heuristic, "timings": timings}


def _timing(entry: Mapping[str, Any]) -> Timing:
    """Return a timing from its fields, of which one had another name in older files."""
    return Timing(**{"algorithm" if name == "way" else name: entry[name] for name in entry})


def _result(entry: Mapping[str, Any]) -> Result | None:
    """Return what an entry says; None where it makes no sense."""
    try:
        timings = tuple(_timing(timing) for timing in entry["timings"])
        if not timings or not 0 < timings[0].microseconds < inf:
            return None
        return Result(str(entry["task"]), str(entry["heuristic"]), timings)
    except (LookupError, TypeError, ValueError):
        return None


def tuner_of(device: DriverDevice, cache: Path, *, measure: bool = True) -> Tuner:
    """Return the tuner of a GPU.

    Args:
        device: the GPU.
        cache: the folder of `Options.cache`.
        measure: whether to measure what is not known.
    """
    from .judge import DeviceJudge

    context = f"kernels {digest()} on {device.description}"
    judge = DeviceJudge(device) if measure else None
    return Tuner(Records(cache / "tuned"), context, judge)


@cache
def digest() -> str:
    """Return what the kernels and the recipes of this package hash to."""
    folder = Path(__file__).parents[1]
    found = sha256()
    for file in sorted(path for kind in ("py", "cu", "cuh") for path in folder.rglob(f"*.{kind}")):
        name = file.relative_to(folder).as_posix()
        found.update(name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]
