"""Autotuning: every algorithm is measured on the GPU, and the fastest correct one is kept.

Results are kept on disk by everything they depend on: kernels, GPU, driver, task and allowed
workspace; names of nodes and models do not matter. So models that contain the same convolution
share results, and an interrupted run resumes where it stopped.
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
from ..algorithms.registry import RecipeContext, Setting, TunedChoice
from ..algorithms.selection import Candidate, Selector, Task
from ..families import SELECTORS
from ..recipe.operands import Tensor
from .records import Records

if TYPE_CHECKING:
    from ..driver.device import DriverDevice

#: Algorithms with an estimate beyond this multiple of the best are not measured.
HOPELESS = 8.0
#: Maximum error relative to the algorithm chosen by estimates, as relative L2
#: norms. By bytes of an element; and where float32 may be multiplied as tf32.
TOLERANCE = {2: 2e-2, 4: 2e-5, 8: 1e-12}
TF32_TOLERANCE = 2e-3


@dataclass(frozen=True, slots=True)
class TuningTask:
    """A task with its selector.

    Attributes:
        selector: the algorithms.
        task: the problem, without its epilogue.
        node: the first node with this task.
    """

    selector: Selector[Any]
    task: Task
    node: Node


@dataclass(frozen=True, slots=True)
class AlgorithmTime:
    """The measurement of one algorithm.

    Attributes:
        algorithm: its name.
        variant: its variant.
        microseconds: measured time; infinite if not measured.
        estimate: the estimate.
        workspace: bytes of workspace.
        error: relative L2 norm of the difference to the algorithm chosen by estimates.
        reason: why it does not apply or was not measured; empty if it was.
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
        """The algorithm with its variant."""
        return f"{self.algorithm} {self.variant}".strip()


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The measurements of a task.

    Attributes:
        task: its signature.
        heuristic: title of the algorithm chosen by estimates.
        timings: everything measured, fastest first.
    """

    task: str
    heuristic: str
    timings: tuple[AlgorithmTime, ...]

    @property
    def best(self) -> AlgorithmTime:
        """The fastest correct algorithm."""
        return self.timings[0]

    @property
    def chosen(self) -> AlgorithmTime:
        """The algorithm chosen by estimates, in its own variant."""
        return next((t for t in self.timings if t.title == self.heuristic), self.best)

    @property
    def regret(self) -> float:
        """t(heuristic) / t(best) - 1."""
        return self.chosen.microseconds / self.best.microseconds - 1


class AlgorithmTimer(Protocol):
    """Measures algorithms on a GPU."""

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Start compiling the kernels to be measured."""
        ...

    def begin(self, task: Task, reference: Candidate) -> None:
        """Create the tensors of a task, and the reference result.

        Raises:
            DeviceOutOfMemory: there is too little memory.
        """
        ...

    def judge(self, candidate: Candidate, minimum: float) -> tuple[float, float]:
        """Return the time in microseconds and the error of an algorithm.

        Args:
            candidate: the algorithm, in the formats that it needs.
            minimum: best time so far; candidates far from it are measured less precisely.

        Raises:
            DeviceFault: it makes the GPU unusable for this process.
            DeviceError: it fails.
            KernelError: it does not compile.
        """
        ...

    def end(self) -> None:
        """Free the tensors."""
        ...


Say = Callable[[str], None]


class Tuner:
    """Measures each task once, and keeps the results on disk.

    Args:
        records: the stored results.
        context: what they depend on besides the task: kernels, GPU, driver.
        timer: measures algorithms; None to use stored results only.

    Attributes:
        measured: number of tasks measured.
    """

    def __init__(self, records: Records, context: str, timer: AlgorithmTimer | None = None) -> None:
        self._records = records
        self._context = context
        self._timer = timer
        self._known: dict[str, TuningResult] = {}
        self.measured = 0

    def results(
        self, works: Sequence[TuningTask], say: Say, *, again: bool = False
    ) -> list[TuningResult]:
        """Return the results of tasks, measuring unknown ones.

        Args:
            works: the tasks; equal ones are measured once.
            say: called with progress messages.
            again: whether to measure known tasks again.
        """
        found: list[TuningResult] = []
        distinct = {self._key(work.task): work for work in works}
        missing = [k for k in distinct if again or self.known(k) is None]
        if self._timer is not None:
            for key in missing:
                tried = [candidate for candidate, reason in _trials(distinct[key]) if not reason]
                self._timer.prepare(tried)
            for number, key in enumerate(missing, 1):
                say(f"measuring {number} of {len(missing)}: {distinct[key].task.signature}")
                result = self._measured(distinct[key], self._timer)
                if result is not None:
                    self.measured += 1
                    self._known[key] = result
                    self._records.store(key, _entry(result))
        for key in distinct:
            known = self.known(key)
            if known is not None:
                found.append(known)
        return found

    def choices(self, works: Sequence[TuningTask], say: Say) -> dict[str, TunedChoice]:
        """Return the fastest algorithm of each task, by signature."""
        return {
            result.task: TunedChoice(
                result.best.algorithm, result.best.variant, result.best.microseconds
            )
            for result in self.results(works, say)
        }

    def known(self, key: str) -> TuningResult | None:
        """Return a stored result; None if there is none."""
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

    def _measured(self, work: TuningTask, timer: AlgorithmTimer) -> TuningResult | None:
        """Return the timings of all algorithms; None if none could be measured."""
        picked = work.selector.pick(work.task)
        if picked.recipe is None:
            return None
        timings: list[AlgorithmTime] = []
        minimum = inf
        try:
            with _naming(picked, work.task):
                timer.begin(work.task, picked)
            for candidate, reason in _trials(work):
                timing = _tried(timer, candidate, reason, minimum, work.task)
                minimum = min(minimum, timing.microseconds)
                timings.append(timing)
        except DeviceOutOfMemory:
            return None  # no memory left next to a model that fills the GPU
        finally:
            timer.end()
        if minimum == inf:
            return None
        timings.sort(key=lambda timing: timing.microseconds)
        return TuningResult(work.task.signature, picked.algorithm, tuple(timings))


def _tried(
    timer: AlgorithmTimer, candidate: Candidate, reason: str, minimum: float, task: Task
) -> AlgorithmTime:
    facts = {
        "variant": candidate.variant,
        "estimate": candidate.microseconds,
        "workspace": candidate.workspace,
    }
    if reason:
        return AlgorithmTime(candidate.algorithm, reason=reason, **facts)
    try:
        with _naming(candidate, task):
            time, error = timer.judge(candidate, minimum)
    except DeviceFault:
        raise  # this process can measure nothing more
    except (DeviceError, KernelError) as refused:
        return AlgorithmTime(candidate.algorithm, reason=str(refused).splitlines()[0], **facts)
    if not error <= tolerance(task):
        return AlgorithmTime(
            candidate.algorithm, error=error, reason=f"wrong by {error:.1e}", **facts
        )
    return AlgorithmTime(candidate.algorithm, microseconds=time, error=error, **facts)


@contextmanager
def _naming(candidate: Candidate, task: Task) -> Generator[None]:
    """Add the name of the algorithm being measured to a device fault in the block."""
    try:
        yield
    except DeviceFault as fault:
        title = f"{candidate.algorithm} {candidate.variant}".strip()
        raise DeviceFault(f"measuring {title} of {task.signature}: {fault}") from fault


def tolerance(task: Task) -> float:
    """Return the maximum error of an algorithm."""
    if task.setting.options.precision == "tf32":
        return TF32_TOLERANCE
    return TOLERANCE[task.y.dtype.itemsize]


def _trials(work: TuningTask) -> Iterator[tuple[Candidate, str]]:
    """Yield all algorithms of a task in all variants, with the reason why one is not measured."""
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


def works_of(nodes: Iterable[Node], setting: Setting) -> list[TuningTask]:
    """Return the tasks of nodes that have selectors, in order, ignoring requested algorithms."""
    found: list[TuningTask] = []
    for node in nodes:
        selector = SELECTORS.get(type(node.op))
        if selector is None or not node.output.tensor.size:
            continue
        operands = tuple(None if value is None else Tensor(value) for value in node.inputs)
        own = setting.for_node(node)
        task = selector.task(RecipeContext(node.op, Tensor(node.output), operands, own))
        if not isinstance(task, str):
            found.append(TuningTask(selector, task, node))
    return found


# ── on disk ──────────────────────────────────────────────────────────────────────────────────────


def _entry(result: TuningResult) -> Mapping[str, Any]:
    timings = [asdict(timing) for timing in result.timings]
    for timing in timings:
        for name in ("microseconds", "estimate"):
            if timing[name] == inf:
                del timing[name]
    return {"task": result.task, "heuristic": result.heuristic, "timings": timings}


def _timing(entry: Mapping[str, Any]) -> AlgorithmTime:
    """Return a timing from its fields, one of which had another name in older files."""
    return AlgorithmTime(**{"algorithm" if name == "way" else name: entry[name] for name in entry})


def _result(entry: Mapping[str, Any]) -> TuningResult | None:
    """Return the result stored in an entry; None if it is invalid."""
    try:
        timings = tuple(_timing(timing) for timing in entry["timings"])
        if not timings or not 0 < timings[0].microseconds < inf:
            return None
        return TuningResult(str(entry["task"]), str(entry["heuristic"]), timings)
    except (LookupError, TypeError, ValueError):
        return None


def tuner_of(device: DriverDevice, cache: Path, *, measure: bool = True) -> Tuner:
    """Return the tuner of a GPU.

    Args:
        device: the GPU.
        cache: the folder of `Options.cache`.
        measure: whether to measure unknown tasks.
    """
    from .judge import DeviceJudge

    context = f"kernels {digest()} on {device.description}"
    timer = DeviceJudge(device) if measure else None
    return Tuner(Records(cache / "tuned"), context, timer)


@cache
def digest() -> str:
    """Return a hash of the kernels and recipes of this package."""
    folder = Path(__file__).parents[1]
    found = sha256()
    for file in sorted(path for kind in ("py", "cu", "cuh") for path in folder.rglob(f"*.{kind}")):
        name = file.relative_to(folder).as_posix()
        found.update(name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]
