"""Arrays in a device's memory that callers hold, and streams that are theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..ir.types import Array, HostValue, TensorType
from .backend import Device, Format, Stream, View


@dataclass(frozen=True, slots=True)
class IOPlacement:
    """Where the tensors lie that a plan is fed with, and those that it gives.

    Attributes:
        inputs: name and format of each input that lies on the plan's device; the others come from
            the host.
        on_device: whether the results stay on the plan's device.
        lent: memory on the plan's device, by the name of the input that always lies there; a result
            may take its place.
        kept: names of results that stay on the plan's device whatever `on_device` says.
    """

    inputs: tuple[tuple[str, Format], ...] = ()
    on_device: bool = False
    lent: Mapping[str, View] = field(default_factory=dict[str, View], hash=False)
    kept: tuple[str, ...] = ()


#: Everything comes from the host and goes back there.
HOST_IO = IOPlacement()


@dataclass(frozen=True, slots=True)
class Lent:
    """An array of a caller in device memory.

    Attributes:
        view: its elements.
        owner: keeps the memory alive.
    """

    view: View
    owner: object

    @property
    def type(self) -> TensorType:
        """Dtype and shape."""
        return self.view.type


#: What is fed to a model: a value of the host, or an array on the model's device.
Feed = HostValue | Lent


class Event(Protocol):
    """A point in the order of a stream."""

    def record(self, stream: Stream) -> None:
        """Move the point after all that `stream` has been given so far."""
        ...

    def precede(self, stream: Stream) -> None:
        """Let what `stream` is given from now on wait for the point; the host does not wait."""
        ...

    def synchronize(self) -> None:
        """Wait on the host until the point is reached."""
        ...

    @property
    def is_reached(self) -> bool:
        """Whether the device has come to the point."""
        ...


class Handle(Protocol):
    """An array on a device, as callers get it: it owns its memory unless it says otherwise."""

    @property
    def elements(self) -> View:
        """Where they are."""
        ...

    def numpy(self) -> Array:
        """Return a copy on the host, once the elements are complete."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...


class Exchange(Protocol):
    """What a device does that takes arrays of its own memory from callers, and gives them some."""

    def stream(self, given: Any) -> Stream:
        """Return the caller's stream, or for None the one where callers expect their work.

        Raises:
            UsageError: it is not a stream of this device.
        """
        ...

    def event(self) -> Event:
        """Return a point in no stream yet."""
        ...

    def take(self, array: Any, stream: Stream) -> Lent:
        """Return a caller's array, uncopied, and let `stream` wait for its elements.

        Raises:
            InputError: it lies elsewhere, or has gaps.
        """
        ...

    def empty(self, type_: TensorType, stream: Stream) -> Handle:
        """Return a new array whose elements `stream` is going to write; raises DeviceOutOfMemory.

        Its memory is allocated, and given back, in the order of the stream.
        """
        ...

    def handle(self, view: View, stream: Stream) -> Handle:
        """Return an array that is somebody else's memory, written in the order of the stream."""
        ...

    def copy(self, dst: View, src: View, stream: Stream) -> None:
        """Copy between views of equal type and format in the order of the stream."""
        ...

    def is_pinned(self, data: Array) -> bool:
        """Whether the device reads and writes an array of the host by itself, without a copy."""
        ...

    def fetch(self, view: View, stream: Stream) -> Array:
        """Return a copy on the host, in plain order; the host waits for it."""
        ...

    def trim(self) -> None:
        """Return memory of arrays that are no longer referenced to the system."""
        ...


def exchange_of(device: Device) -> Exchange | None:
    """Return how a device exchanges arrays with callers; None for one that only copies."""
    return getattr(device, "exchange", None)


#: How many runs a plan may be ahead of its device, each keeping its inputs alive.
MAX_AHEAD = 16


@dataclass(slots=True)
class StreamSerializer:
    """Runs of one plan on streams of its callers: the next waits, on the device, for the last.

    What a run reads is kept alive until the device has read it, whatever stream its owner works
    on. A host that is many runs ahead waits for the device.
    """

    exchange: Exchange
    _ahead: deque[tuple[Event, Sequence[object]]] = field(
        default_factory=deque[tuple[Event, Sequence[object]]]
    )
    _spare: list[Event] = field(default_factory=list[Event])

    def begin(self, stream: Stream) -> None:
        """Let `stream` wait for the run before."""
        ahead = self._ahead
        if len(ahead) >= MAX_AHEAD:
            ahead[0][0].synchronize()
        while ahead and ahead[0][0].is_reached:
            self._spare.append(ahead.popleft()[0])
        if ahead:
            ahead[-1][0].precede(stream)

    def end(self, stream: Stream, kept: Sequence[object]) -> None:
        """Note that `stream` has been given all of a run, which reads from `kept`."""
        event = self._spare.pop() if self._spare else self.exchange.event()
        event.record(stream)
        self._ahead.append((event, kept))

    def wait(self) -> None:
        """Wait on the host until every run is done."""
        while self._ahead:
            event, _ = self._ahead.popleft()
            event.synchronize()
            self._spare.append(event)
