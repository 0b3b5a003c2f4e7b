"""A device whose streams do nothing until something waits for them, and that exchanges arrays.

What is not ordered by an event, or kept alive, goes wrong here every time, not now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tercet.runtime.errors import DeviceError, InputError, UsageError
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.plan.backend import Stream, View
from tercet.runtime.plan.exchange import Lent
from tercet.runtime.plan.format import Format
from tercet.runtime.session.dlpack import place_name, place_of

from .fakes import FakeBuffer, FakeDevice, elements

#: DLPack's number for devices of extensions.
EXTENSION = 12


@dataclass(eq=False)
class Mark:
    """A point in a stream."""

    stream: LazyStream
    reached: bool = False


@dataclass(eq=False)
class LazyStream:
    """Keeps its work until something waits for it."""

    name: str = ""
    waits: int = 0
    work: deque[Callable[[], None] | Mark] = field(default_factory=deque)

    def touch(self, reads: Sequence[View], writes: Sequence[View]) -> None:
        """Races show in results here: the work is done in the worst order there is."""

    def put(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def until(self, mark: Mark | None) -> None:
        while self.work and not (mark is not None and mark.reached):
            work = self.work.popleft()
            if isinstance(work, Mark):
                work.reached = True
            else:
                work()

    def synchronize(self) -> None:
        self.waits += 1
        self.until(None)


class EagerStream(LazyStream):
    """Does its work at once: a recording, once its turn has come."""

    def put(self, work: Callable[[], None]) -> None:
        work()


class LazyEvent:
    def __init__(self, device: LazyDevice) -> None:
        self.device = device
        self.mark: Mark | None = None

    def record(self, stream: LazyStream) -> None:
        self.mark = Mark(stream)
        stream.work.append(self.mark)

    def precede(self, stream: LazyStream) -> None:
        mark = self.mark
        assert mark is not None
        stream.put(lambda: mark.stream.until(mark))

    def synchronize(self) -> None:
        self.device.host_waits += 1
        if self.mark is not None:
            self.mark.stream.until(self.mark)

    @property
    def is_reached(self) -> bool:
        return self.mark is None or self.mark.reached


@dataclass(eq=False)
class LazyArray:
    """An array on the device, as callers get it."""

    elements: View
    stream: LazyStream

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.type.dims

    def numpy(self) -> Array:
        self.stream.synchronize()
        return elements(self.elements).copy()

    def close(self) -> None:
        self.elements.buffer.close()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (EXTENSION, 0)


@dataclass(eq=False)
class Foreign:
    """Another library's array on device `number`, written by `stream` when its time comes."""

    data: Array
    number: int = 0
    format: Format = Format.CONTIGUOUS
    stream: LazyStream | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return (EXTENSION, self.number)


class LazyExchange:
    def __init__(self, device: LazyDevice) -> None:
        self.device = device
        self.default = LazyStream("default")
        self.trims = 0

    def stream(self, given: Any) -> LazyStream:
        if given is None:
            return self.default
        if not isinstance(given, LazyStream):
            raise UsageError(f"stream={given!r} is no stream")
        return given

    def event(self) -> LazyEvent:
        return LazyEvent(self.device)

    def take(self, array: Any, stream: LazyStream) -> Lent:
        if isinstance(array, LazyArray):
            if array.stream is not stream:
                event = self.event()
                event.record(array.stream)
                event.precede(stream)
            return Lent(array.elements, array)
        assert isinstance(array, Foreign)
        place = place_of(array)
        if place != (EXTENSION, 0):
            raise InputError(f"is on {place_name(place or (0, 0))}, not here")
        if array.stream is not None:
            event = self.event()
            event.record(array.stream)
            event.precede(stream)
        buffer = FakeBuffer.__new__(FakeBuffer)
        buffer.device, buffer.nbytes = self.device, 0
        buffer.memory = array.data.reshape(-1).view(np.uint8)
        dims = array.data.shape
        if array.format is Format.CHANNELS_LAST:
            dims = (dims[0], dims[-1], *dims[1:-1])
        type_ = TensorType(array.data.dtype, dims)
        return Lent(View(self.device, buffer, 0, type_, array.format), array)

    def empty(self, type_: TensorType, stream: LazyStream) -> LazyArray:
        return LazyArray(View(self.device, self.device.allocate(type_.nbytes), 0, type_), stream)

    def handle(self, view: View, stream: LazyStream) -> LazyArray:
        return LazyArray(view, stream)

    def copy(self, dst: View, src: View, stream: LazyStream) -> None:
        assert (dst.type, dst.format) == (src.type, src.format)
        target, source = elements(dst), elements(src)
        self.device.copied.append((src.device.name, dst.device.name, stream.name))
        stream.put(lambda: np.copyto(target, source))

    def is_pinned(self, data: Array) -> bool:
        return any(np.shares_memory(data, b.memory) for b in self.device.pinned if b.nbytes)

    def fetch(self, view: View, stream: LazyStream) -> Array:
        stream.synchronize()
        data = elements(view).copy()
        return data if view.format is Format.CONTIGUOUS else np.moveaxis(data, -1, 1).copy()

    def trim(self) -> None:
        self.trims += 1


@dataclass
class LazyDevice(FakeDevice):
    host_waits: int = 0
    fail_at: int = -1
    copied: list[tuple[str, str, str]] = field(default_factory=list)
    opened: list[LazyStream] = field(default_factory=list)

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        self.exchange = LazyExchange(self)

    def stream(self) -> LazyStream:
        self.opened.append(LazyStream(f"own {len(self.opened)}"))
        return self.opened[-1]

    def copier(self, dst: View, src: View) -> Callable[[Stream], None]:
        now = super().copier(dst, src)
        return lambda stream: _put(stream, lambda: now(stream))

    def record(self, run: Callable[[Stream], None]) -> Callable[[Stream], None]:
        self.recordings += 1

        def replay(stream: Stream) -> None:
            def now() -> None:
                self.replays += 1
                if self.replays == self.fail_at:
                    raise DeviceError("the device is on fire")
                run(EagerStream())

            _put(stream, now)

        return replay


def _put(stream: Stream, work: Callable[[], None]) -> None:
    assert isinstance(stream, LazyStream)
    stream.put(work)
