"""Host steps: tapes of numpy calls on fixed arrays, recorded once, replayed in every run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from math import inf, prod
from operator import attrgetter, length_hint
from time import perf_counter
from typing import Any

import numpy as np

from ....runtime.base.record import record
from ....runtime.errors import (
    FAILURES,
    DeviceError,
    LimitError,
    ModelError,
    ShapeError,
    TercetError,
    out_of_memory,
)
from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.plan.backend import BuildContext, Run, Stream, View
from ....runtime.plan.host import array, logical
from ..numerics import blas
from ..numerics.calls import direct
from .cost import blocks_worth, is_small, splits_products
from .thread_pool import POOL

#: Runs after which a step tries again whether other threads help, and by which factor a measured
#: time grows with each run that takes longer, as the machine may have become busy.
TRIES, AGE = 50, 1.01
#: The factor by which a step alone must be faster: what it reads is then in the caller's cache.
MARGIN = 0.95

#: A tape: calls without arguments, executed in order.
Tape = list[Callable[[], object]]

#: Errors of steps that tell which nodes they are of.
EXPLAINED = (ShapeError, LimitError, MemoryError, *FAILURES)

ALIGNMENT = 64
#: Maximum seconds that threads spin for the next step that they share, and those that a step must
#: have taken the last time to wake them: as long as a thread that shares its caller's processor
#: takes to come and go.
SPIN, WAKE = 2e-4, 2e-4


@record
class Piece:
    """A range of the workspace, starting at byte `offset`."""

    offset: int
    size: int
    dtype: DType


class ScratchLayout:
    """The workspace layout of a step."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, size: int, dtype: DType) -> Piece:
        """Reserve `size` elements."""
        piece = Piece(self.nbytes, size, dtype)
        self.nbytes += -(-size * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return piece


class Bound:
    """The arrays of a step: inputs, outputs and constants by value, and scratch."""

    def __init__(
        self,
        site: BuildContext,
        inputs: tuple[View, ...],
        outputs: tuple[View, ...],
        scratch: View | None,
    ) -> None:
        self._weights = site.weights
        self._arrays = dict(zip(site.inputs, map(logical, inputs), strict=True))
        self._arrays |= dict(zip(site.outputs, map(logical, outputs), strict=True))
        self._scratch = None if scratch is None else array(scratch)

    def part(self, first: int, nbytes: int) -> Bound:
        """Return the same arrays with a part of the workspace."""
        made = copy(self)
        if self._scratch is not None:
            made._scratch = self._scratch[first : first + nbytes]
        return made

    def __getitem__(self, value: Value) -> Array:
        return array(self._weights.view(value)) if value.is_constant else self._arrays[value]

    def get(self, value: Value | None) -> Array | None:
        """Return the array of a value; None for omitted inputs and unused outputs."""
        if value is None or not (value.is_constant or value in self._arrays):
            return None
        return self[value]

    def as_dtype(self, value: Value, dtype: DType) -> Array:
        """Return a constant in another dtype, converted once per model; other values unchanged."""
        if value.tensor.dtype == dtype or not value.is_constant:
            return self[value]
        layout = ("dtype", dtype)
        return array(self._weights.packed((value,), layout, lambda data: data.astype(dtype)))

    def packed(self, sources: tuple[Value, ...], layout: Any, pack: Callable[..., Array]) -> Array:
        """Return the packed form of constants, computed once per model; see `Weights.packed`."""
        return array(self._weights.packed(sources, layout, pack))

    def scratch(self, piece: Piece, shape: tuple[int, ...]) -> Array:
        """Return the beginning of a piece of the workspace as an array of `shape`."""
        size = prod(shape)
        if not size:
            return np.empty(shape, piece.dtype)
        if self._scratch is None or size > piece.size:
            raise ValueError(f"{size} elements of scratch were not reserved")
        end = piece.offset + size * piece.dtype.itemsize
        return self._scratch[piece.offset : end].view(piece.dtype).reshape(shape)


def portions(tapes: Sequence[Tape], nanoseconds: float, workers: int) -> list[Tape]:
    """Join adjacent tapes to portions that are worth handing to another thread.

    Args:
        tapes: calls on small blocks, in order.
        nanoseconds: total time on one core.
        workers: number of threads.
    """
    count = max(1, min(len(tapes), blocks_worth(nanoseconds, workers)))
    bounds = [len(tapes) * i // count for i in range(count + 1)]
    return [[call for tape in tapes[a:b] for call in tape] for a, b in pairwise(bounds)]


@record
class HostStep:
    """A step that replays tapes.

    Attributes:
        kernel: for the placement report.
        site: its build context.
        record: records the tapes for bound arrays: one per block, in any order.
        workers: number of threads that it records tapes for; each has its own workspace.
        own: workspace per thread in bytes.
        capturable: always false; there is nothing to capture on the host.
    """

    kernel: str
    site: BuildContext
    record: Callable[[Bound], list[Tape]]
    workers: int = 1
    own: int = 0
    capturable: bool = False

    @property
    def scratch(self) -> int:
        """Bytes of workspace."""
        return self.own * self.workers

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Record the tapes on these addresses and return their run.

        Raises:
            DeviceError: raised by the run for data that an operator cannot process.
        """
        bound = Bound(self.site, inputs, outputs, scratch)
        jobs = [self.record(bound.part(i * self.own, self.own)) for i in range(self.workers)]
        return HostRun(jobs, self.site.nodes)


class Sharing:
    """Whether a step takes less time with other threads: by its latest runs in both ways.

    Threads that make many short calls hold each other up, which no estimate knows.

    Attributes:
        seconds: of the fastest latest runs: alone, and with other threads.
    """

    __slots__ = ("_count", "seconds")

    def __init__(self) -> None:
        self.seconds = [inf, inf]
        self._count = 0

    def next(self) -> bool:
        """Return whether to share the next run: the faster way, and now and then the other."""
        self._count += 1
        alone, shared = self.seconds
        if self._count <= 5:  # the first run of each way is slow
            return self._count % 2 == 1
        return (alone > MARGIN * shared) != (self._count % TRIES == 0)

    def took(self, is_shared: bool, seconds: float) -> None:
        """Remember what the run took."""
        self.seconds[is_shared] = min(AGE * self.seconds[is_shared], seconds)


class HostRun:
    """The tapes of a step on fixed arrays."""

    __slots__ = ("_alone", "_jobs", "_nodes", "_sharing", "_splits")

    def __init__(self, jobs: list[list[Tape]], nodes: Sequence[Node]) -> None:
        jobs = [[list(map(direct, tape)) for tape in tapes] for tapes in jobs]
        self._jobs, self._nodes = jobs, nodes
        # A single block is faster without other threads.
        alone = [call for tape in jobs[0] for call in tape]
        self._alone = tuple(alone) if min(len(jobs), len(jobs[0])) <= 1 else None
        self._splits = any(map(splits_products, nodes))
        self._sharing = Sharing()

    def __call__(self, stream: object) -> None:
        """Replay the tapes."""
        with np.errstate(all="ignore"):
            if not self.needs_limit:
                self.play()
                return
            with blas.one_thread():  # which would split a product
                self.play()

    @property
    def needs_limit(self) -> bool:
        """Whether BLAS might use other threads."""
        return self._alone is None or self._splits

    @property
    def is_shared(self) -> bool:
        """Whether several threads may replay the tapes."""
        return self._alone is None

    @property
    def calls(self) -> Sequence[Callable[[], object]]:
        """The calls of all tapes, if they are not shared."""
        return self._alone or ()

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes of the step."""
        return self._nodes

    def play(self, *, stays: bool = False) -> None:
        """Replay the tapes, with numpy's warnings and BLAS threads disabled by the caller.

        Args:
            stays: see `ThreadPool.play`.

        Raises:
            DeviceError: an operator cannot process the data.
        """
        try:
            if self._alone is None:
                sharing = self._sharing
                is_shared, start = sharing.next(), perf_counter()
                if is_shared:
                    POOL.play(self._jobs, stays=stays, wakes=sharing.seconds[True] > WAKE)
                else:
                    for tape in self._jobs[0]:
                        for call in tape:
                            call()
                sharing.took(is_shared, perf_counter() - start)
                return
            for call in self._alone:
                call()
        except EXPLAINED as error:
            raise _explained(error, self._nodes) from error

    def joined(self, others: Sequence[Run]) -> Run | None:
        """Return a function that replays this and then others; None if one is not a tape."""
        parts = [self, *(run for run in others if isinstance(run, HostRun))]
        if len(parts) <= len(others):
            return None
        if not any(part.is_shared for part in parts):
            small = all(is_small(node) or node.op.dense for part in parts for node in part.nodes)
            return _Joined(_Calls(parts), not small or any(part.needs_limit for part in parts))
        plays: list[Callable[[], None]] = []
        for is_shared, group in groupby(parts, key=attrgetter("is_shared")):
            if is_shared:
                plays += [partial(part.play, stays=True) for part in group]
            else:
                plays.append(_Interval(_Calls(list(group))))
        return _Joined(partial(_play_together, plays))


@contextmanager
def _quiet() -> Generator[None]:
    """Disable numpy's warnings and BLAS threads."""
    with np.errstate(all="ignore"), blas.one_thread():
        yield


class _Joined:
    """Runs that are played one after the other; see `Guarded`."""

    __slots__ = ("_needs_limit", "guard", "inside")

    def __init__(self, inside: Run, needs_limit: bool = True) -> None:
        self.guard, self.inside, self._needs_limit = _quiet, inside, needs_limit

    def __call__(self, stream: Stream) -> None:
        with np.errstate(all="ignore"):
            if not self._needs_limit:
                self.inside(stream)
                return
            with blas.one_thread():
                self.inside(stream)


class _Calls:
    """The calls of several runs that are not shared, one after the other."""

    __slots__ = ("_calls", "_ends", "_nodes")

    def __init__(self, runs: Sequence[HostRun]) -> None:
        parts = [run.calls for run in runs]
        self._calls = tuple(chain.from_iterable(parts))
        self._ends, self._nodes = list(accumulate(map(len, parts))), [run.nodes for run in runs]

    def __call__(self, stream: object = None) -> None:
        left = iter(self._calls)
        try:
            for call in left:
                call()
        except EXPLAINED as error:
            failed = len(self._calls) - length_hint(left) - 1
            raise _explained(error, self._nodes[bisect_right(self._ends, failed)]) from error


def _play_together(plays: Sequence[Callable[[], None]], stream: object) -> None:
    # However this is interrupted, no thread may go on spinning.
    try:
        try:
            for play in plays:
                play()
        finally:
            POOL.release()
    finally:
        POOL.release()


class _Interval:
    """Steps of the caller alone; other threads sleep if they took long the last time."""

    __slots__ = ("_calls", "_seconds")

    def __init__(self, calls: _Calls) -> None:
        self._calls, self._seconds = calls, inf

    def __call__(self) -> None:
        start = perf_counter()
        if self._seconds > SPIN:
            POOL.release()
        self._seconds = inf
        self._calls()
        self._seconds = perf_counter() - start


def _explained(error: BaseException, nodes: Sequence[Node]) -> TercetError:
    """Return the error that names the nodes of a step that has failed."""
    where = _names(nodes)
    if isinstance(error, ShapeError):
        return ModelError(str(error), where=where)
    if isinstance(error, LimitError):
        return LimitError(f"{where}: {error}")
    if isinstance(error, MemoryError):
        return out_of_memory(where, error)
    return DeviceError(f"{where} on numpy: {error}")


def _names(nodes: Sequence[Node]) -> str:
    return " + ".join(f"'{node.name}' ({node.kind})" for node in nodes)
