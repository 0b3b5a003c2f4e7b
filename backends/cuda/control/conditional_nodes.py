"""Control flow decided by the GPU: conditional nodes of CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

import numpy as np
from cuda.bindings import driver

from ....runtime.ir.dtypes import DType, uint8, uint16, uint32, uint64
from ....runtime.ir.types import Array
from ....runtime.plan.backend import Run, Step, View
from ....runtime.plan.bind import sequence
from ....runtime.plan.device_control import Rounds
from ..driver.device import DriverDevice
from ..driver.memory import pointer
from ..driver.status import check
from ..driver.step import KernelStep, bind_launch
from ..driver.streams import IF, WHILE, CudaStream, Recording
from ..recipe.launch import Launch, each
from ..recipe.operands import index_type

#: Word types for copies, by size in bytes.
WORDS: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32, 8: uint64}
UNBOUNDED = np.iinfo(np.int64).max


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


def chosen(node: int) -> Launch:
    """Return a launch that sets the condition of a conditional node, argument `cond`."""
    args = {"node": node, "cond": None}
    return Launch("move/control.cu", "choose", (1, 1, 1), 1, args, constants=(("RECORDED", True),))


def counted(node: int | None, maximum: int, *, first: bool) -> Launch:
    """Return a launch that counts iterations and sets whether there is another one.

    Arguments `counter`, `count` and `going` are the counter, the number of iterations and the
    condition; without the last two there are `maximum` iterations.

    Args:
        node: the conditional node; None for the host.
        maximum: maximum number of iterations.
        first: whether it precedes the first iteration.
    """
    pointers = {"counter": None, "count": None, "going": None}
    args = {**pointers, "node": node or 0, "most": maximum, "first": first}
    constants = (("RECORDED", node is not None),)
    return Launch("move/control.cu", "next_round", (1, 1, 1), 1, args, constants=constants)


def moved(entry: str, part: View, whole: View, axis: int, *, backward: bool) -> Launch:
    """Return a launch that copies between a tensor and one of its elements along an axis.

    Arguments `x`, `y` and `counter` are the source, the target, and the loop counter.

    Args:
        entry: ``take`` an element from the whole, or ``put`` it there.
        part: the element.
        whole: has one element per iteration along the axis.
        axis: counted from the front.
        backward: whether the first iteration has the last element.
    """
    dims = whole.type.dims
    row = prod(dims[axis + 1 :]) * whole.type.dtype.itemsize
    word = gcd(row, 8) or 8
    count = part.nbytes // word
    index = index_type(whole.nbytes // word)
    args = {
        **{"x": None, "y": None, "counter": None, "count": count, "rounds": dims[axis]},
        **{"inner": row // word, "backward": backward},
    }
    return each("move/element.cu", entry, count, args, types=(("T", WORDS[word]), ("Index", index)))


# ── the device ───────────────────────────────────────────────────────────────────────────────────


class CudaDecisions:
    """Implements `runtime.deciding.Decisions` for one GPU.

    A single-thread kernel sets the condition of the conditional node that follows it. The bodies
    are graphs inside the node, recorded like the one around it.

    Args:
        device: the GPU.
    """

    def __init__(self, device: DriverDevice) -> None:
        self.device = device

    def refusal(self, step: Step) -> str:
        """Return why a step cannot be in a body; libraries may do more than launch kernels."""
        is_own = isinstance(step, KernelStep)
        return "" if is_own else "conditional nodes can contain only kernels of the cuda backend"

    def choose(self, cond: View, then: Run, other: Run) -> Run:
        """Return a function that runs one of two bodies; see `Decisions`."""
        self.device.compiler.submit(chosen(0).source)  # the graph exists when it is recorded

        def run(stream: CudaStream) -> None:
            if not isinstance(stream, Recording):
                (then if self._read(cond, stream).any() else other)(stream)
                return
            condition = stream.condition()
            self._bound(chosen(condition), {"cond": cond})(stream)
            first, second = stream.branch(condition, IF, 2)
            first.record(then)
            second.record(other)

        return run

    def repeat(self, body: Run, rounds: Rounds) -> Run:
        """Return a function that runs a body repeatedly; see `Decisions`."""
        count = rounds.count if isinstance(rounds.count, View) else None
        maximum = rounds.count if isinstance(rounds.count, int) else UNBOUNDED

        def counts(node: int | None, *, first: bool) -> Run:
            going = rounds.first if first else rounds.going
            places = {"counter": rounds.counter, "count": count, "going": going}
            return self._bound(counted(node, maximum, first=first), places)

        begin, go_on = counts(None, first=True), counts(None, first=False)
        if rounds.is_unrolled:
            return _unrolled(body, maximum, *((begin, go_on) if rounds.is_read else ()))
        self.device.compiler.submit(counted(0, maximum, first=True).source)

        def run(stream: CudaStream) -> None:
            if not isinstance(stream, Recording):
                begin(stream)
                while self._read(rounds.counter, stream)[1]:
                    body(stream)
                    go_on(stream)
                return
            condition = stream.condition()
            counts(condition, first=True)(stream)
            last = counts(condition, first=False)
            (loop,) = stream.branch(condition, WHILE, 1)
            loop.record(sequence((body, last)))

        return run

    def take(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return a function that copies the element of an iteration; see `Decisions`."""
        launch = moved("take", dst, src, axis, backward=backward)
        return self._bound(launch, {"x": src, "y": dst, "counter": counter})

    def put(self, dst: View, src: View, axis: int, counter: View, *, backward: bool) -> Run:
        """Return a function that copies to the element of an iteration; see `Decisions`."""
        launch = moved("put", src, dst, axis, backward=backward)
        return self._bound(launch, {"x": src, "y": dst, "counter": counter})

    def _bound(self, launch: Launch, places: Mapping[str, View | None]) -> Run:
        """Return a launch bound to these tensors; None is the null pointer."""
        if launch.is_empty:
            return lambda stream: None
        pointers = {name: pointer(view) for name, view in places.items() if view is not None}
        return bind_launch(
            self.device, launch, self.device.compiler.submit(launch.source), pointers
        )

    def _read(self, view: View, stream: CudaStream) -> Array:
        """Return the elements once the stream has computed them; the host waits."""
        found = np.empty(view.type.dims, view.type.dtype)
        address = found.ctypes.data
        answer = driver.cuMemcpyDtoHAsync(address, pointer(view), found.nbytes, stream.handle)
        check("cuMemcpyDtoHAsync", answer)
        stream.synchronize()
        return found


def _unrolled(body: Run, maximum: int, *counts: Run) -> Run:
    """Return a function that repeats a body `maximum` times, each after its counters."""

    def run(stream: CudaStream) -> None:
        for number in range(maximum):
            if counts:
                counts[min(number, 1)](stream)
            body(stream)

    return run
