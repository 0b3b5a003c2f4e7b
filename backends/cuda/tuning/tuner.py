"""The tuner: a search over a planned network for faster ways to run groups of equal steps.

A candidate takes the place of the recipe of all steps of a group, and the whole network is timed
with and without it, alternately. So it runs between its neighbours, as it will later: its weights
come from memory, and its blocks start as those of the kernel before it end. The fastest correct
candidate stays, and the next group is measured with it.

Results are kept on disk by everything they depend on: kernels, GPU, driver, and the network. Names
of nodes and models do not matter. An interrupted search resumes behind the last group measured.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, Protocol

from ....runtime.base.record import record
from ....runtime.errors import DeviceError, DeviceFault, KernelError
from ....runtime.ir.graph import Node
from ..algorithms.registry import RecipeContext
from ..algorithms.selection import Candidate, TuningTask, key_of
from ..families import SELECTORS, provide
from ..recipe.operands import Tensor
from ..recipe.setting import Setting, TunedChoice
from .records import Records

#: How often a candidate and the network without it are timed alternately: each, and the best ones.
ROUNDS, ROUNDS_OF_BEST = 3, 9
#: How many of the best candidates of a group are timed again.
FINALISTS = 3
#: The part of a network's time, and the microseconds, by which a candidate must be faster.
GAIN, LEAST = 0.001, 0.05


@record
class StepGroup:
    """Equal steps of a network, which one candidate replaces together.

    Attributes:
        work: their problem.
        kernel: what runs them.
        steps: how many there are.
        candidates: what could.
    """

    work: TuningTask
    kernel: str
    steps: int
    candidates: tuple[Candidate, ...]

    @property
    def key(self) -> str:
        """What a choice for them applies to."""
        return key_of(self.work.task)

    @property
    def estimate(self) -> float:
        """Estimated microseconds of all steps."""
        return self.steps * min((each.microseconds for each in self.candidates), default=0.0)


class PlannedNetwork(Protocol):
    """A network on a GPU whose steps can be replaced."""

    @property
    def groups(self) -> Sequence[StepGroup]:
        """The groups of steps that have candidates."""
        ...

    def prepare(self, group: StepGroup) -> None:
        """Start compiling the candidates of a group."""
        ...

    def time(self) -> float:
        """Return the microseconds of the network as it is."""
        ...

    def in_turns(self) -> tuple[float, float]:
        """Return the microseconds of the network as planned, and as it is, timed alternately."""
        ...

    def change(self, group: StepGroup, candidate: Candidate, rounds: int) -> float:
        """Return by how many microseconds a candidate makes the network slower.

        Raises:
            DeviceFault: it makes the GPU unusable for this process.
            DeviceError: it fails.
            KernelError: it does not compile.
        """
        ...

    def error(self, group: StepGroup, candidate: Candidate) -> float:
        """Return the relative L2 norm of a candidate's difference from the present step."""
        ...

    def take(self, group: StepGroup, candidate: Candidate) -> None:
        """Replace the steps of a group by a candidate."""
        ...


@record
class CandidateTime:
    """What one candidate does to a network.

    Attributes:
        algorithm: its name.
        variant: its variant.
        change: microseconds by which the network is slower with it; infinite if it was not timed.
        estimate: estimated microseconds of one step.
        workspace: bytes of scratch memory.
        reason: why it cannot be used; empty if it can.
    """

    algorithm: str
    variant: str = ""
    change: float = inf
    estimate: float = inf
    workspace: int = 0
    reason: str = ""

    @property
    def title(self) -> str:
        """The algorithm with its variant."""
        return f"{self.algorithm} {self.variant}".strip()


@record
class GroupResult:
    """The measurements of a group of equal steps.

    Attributes:
        task: their problem, with its epilogue.
        steps: how many there are.
        kernel: what ran them by estimates.
        before, after: microseconds of the network with that, and with what was chosen.
        chosen: title of the candidate that took its place; empty if none did.
        timings: every candidate, fastest first.
    """

    task: str
    steps: int
    kernel: str
    before: float
    after: float
    chosen: str
    timings: tuple[CandidateTime, ...]

    @property
    def choice(self) -> TunedChoice | None:
        """What was chosen; None if nothing was faster."""
        found = next((t for t in self.timings if self.chosen and t.title == self.chosen), None)
        return found and TunedChoice(found.algorithm, found.variant)


@record
class NetworkResult:
    """The measurements of a network.

    Attributes:
        before, after: microseconds of the network by estimates, and as tuned.
        groups: in the order in which they were measured.
        is_new: whether anything was measured in this call.
    """

    before: float
    after: float
    groups: tuple[GroupResult, ...]
    is_new: bool = False

    @property
    def choices(self) -> Mapping[str, TunedChoice]:
        """What was chosen, by the key of a task."""
        found = ((group.task, group.choice) for group in self.groups)
        return {task: choice for task, choice in found if choice is not None}


Say = Callable[[str], None]


class Tuner:
    """Searches each network once, and keeps the results on disk.

    Args:
        records: the stored results.
        key: the network, and what its results depend on besides: kernels, GPU, driver, options.
    """

    def __init__(self, records: Records, key: str) -> None:
        self._records = records
        self._key = key

    def known(self) -> NetworkResult | None:
        """Return the stored result; None if there is none, or it is incomplete."""
        found = self._stored()
        return found if found is not None and found.after else None

    def search(self, network: PlannedNetwork, say: Say, *, again: bool = False) -> NetworkResult:
        """Measure a network group by group, those first that take longest.

        Args:
            network: as planned by estimates.
            say: called with progress messages.
            again: whether to measure everything again.
        """
        groups = sorted(network.groups, key=lambda group: -group.estimate)
        stored = None if again else self._stored()
        kept = {} if stored is None else {group.task: group for group in stored.groups}
        for group in groups:
            if group.key not in kept:
                network.prepare(group)
        found: list[GroupResult] = []
        for number, group in enumerate(groups, 1):
            say(f"measuring {number} of {len(groups)}: {group.key}")
            result = kept.get(group.key)
            if result is None:
                result = _searched(network, group)
            chosen = _chosen(group, result)
            if chosen is not None:
                network.take(group, chosen)
            found.append(result)
            self._store(NetworkResult(0.0, 0.0, tuple(found)))
        done = NetworkResult(*network.in_turns(), tuple(found), is_new=True)
        self._store(done)
        return done

    def _stored(self) -> NetworkResult | None:
        entry = self._records.load(self._key)
        return None if entry is None else _result(entry)

    def _store(self, result: NetworkResult) -> None:
        entry = asdict(result)
        for group in entry["groups"]:
            for timing in group["timings"]:
                for name in ("change", "estimate"):
                    if timing[name] == inf:
                        del timing[name]
        del entry["is_new"]
        self._records.store(self._key, entry)


def _searched(network: PlannedNetwork, group: StepGroup) -> GroupResult:
    """Return what the candidates of a group do to a network."""
    before = network.time()
    margin = GAIN * before + LEAST
    timed: list[tuple[float, Candidate]] = []
    refused: list[CandidateTime] = []
    for candidate in group.candidates:
        try:
            with _naming(candidate, group):
                timed.append((network.change(group, candidate, ROUNDS), candidate))
        except DeviceFault:
            raise  # this process can measure nothing more
        except (DeviceError, KernelError) as error:
            refused.append(_timing(candidate, inf, str(error).splitlines()[0]))
    timed.sort(key=lambda each: each[0])
    again = [c for change, c in timed[:FINALISTS] if change < margin]
    exact = {c.title: network.change(group, c, ROUNDS_OF_BEST) for c in again}
    found = {c.title: _timing(c, exact.get(c.title, change)) for change, c in timed}
    chosen, after = "", before
    for candidate in sorted(again, key=lambda c: exact[c.title]):
        title = candidate.title
        if exact[title] > -margin:
            break
        error = network.error(group, candidate)
        if error <= tolerance(group):
            chosen, after = title, before + exact[title]
            break
        found[title] = _timing(candidate, exact[title], f"wrong by {error:.1e}")
    timings = (*sorted(found.values(), key=lambda t: t.change), *refused)
    return GroupResult(group.key, group.steps, group.kernel, before, after, chosen, timings)


def _timing(candidate: Candidate, change: float, reason: str = "") -> CandidateTime:
    return CandidateTime(
        candidate.algorithm,
        candidate.variant,
        change,
        candidate.microseconds,
        candidate.workspace,
        reason,
    )


def _chosen(group: StepGroup, result: GroupResult) -> Candidate | None:
    return next((c for c in group.candidates if result.chosen and c.title == result.chosen), None)


@contextmanager
def _naming(candidate: Candidate, group: StepGroup) -> Generator[None]:
    """Add the name of the candidate being measured to a device fault in the block."""
    try:
        yield
    except DeviceFault as fault:
        raise DeviceFault(f"measuring {candidate.title} of {group.key}: {fault}") from fault


#: Maximum error of a candidate relative to the step that it replaces, as relative L2 norms. By
#: bytes of an element; and where float32 may be multiplied as tf32.
TOLERANCE = {2: 2e-2, 4: 2e-5, 8: 1e-12}
TF32_TOLERANCE = 2e-3


def tolerance(group: StepGroup) -> float:
    """Return the maximum error of a candidate."""
    task = group.work.task
    if task.setting.options.precision == "tf32":
        return TF32_TOLERANCE
    return TOLERANCE[task.y.dtype.itemsize]


def _result(entry: Mapping[str, Any]) -> NetworkResult | None:
    """Return the result stored in an entry; None if it is invalid."""
    try:
        groups = tuple(
            GroupResult(**{**group, "timings": tuple(CandidateTime(**t) for t in group["timings"])})
            for group in entry["groups"]
        )
        before, after = float(entry["before"]), float(entry["after"])
        named = all(group.choice is not None or not group.chosen for group in groups)
        return NetworkResult(before, after, groups) if 0 <= before < inf and named else None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def works_of(nodes: Iterable[Node], setting: Setting) -> list[TuningTask]:
    """Return the problems of nodes that have selectors, in order, without epilogues."""
    found: list[TuningTask] = []
    for node in nodes:
        provide(type(node.op))
        selector = SELECTORS.get(type(node.op))
        if selector is None or not node.output.tensor.size:
            continue
        operands = tuple(None if value is None else Tensor(value) for value in node.inputs)
        own = setting.for_node(node)
        task = selector.task(RecipeContext(node.op, Tensor(node.output), operands, own))
        if not isinstance(task, str):
            found.append(TuningTask(selector, task, node))
    return found


@cache
def digest() -> str:
    """Return a hash of the kernels and recipes of this package."""
    folder = Path(__file__).parents[1]
    found = sha256()
    for file in sorted(path for kind in ("py", "cu", "cuh") for path in folder.rglob(f"*.{kind}")):
        name = file.relative_to(folder).as_posix()
        found.update(name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]
