"""Exchange of device arrays and streams with callers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..base.record import record
from ..ir.types import Array, HostValue, TensorType
from .backend import Device, Stream, View
from .format import Format


@record
class IOPlacement:
    """Where the inputs and results of a plan are.

    Attributes:
        inputs: name and format of each input on the plan's device; other inputs are on the host.
        on_device: whether results stay on the plan's device.
        lent: memory on the plan's device by the name of the input that is always there; a result
            may replace it in place.
        kept: names of results that stay on the device regardless of `on_device`.
        stays: names of inputs among `lent` that no result may overwrite.
    """

    inputs: tuple[tuple[str, Format], ...] = ()
    on_device: bool = False
    lent: Mapping[str, View] = field(default_factory=dict[str, View], hash=False)
    kept: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()


#: All inputs and results are on the host.
HOST_IO = IOPlacement()


@record
class Lent:
    """A caller's array in device memory.

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


#: An input of a model: a value on the host, or an array on the model's device.
Feed = HostValue | Lent


class Event(Protocol):
    """A point in the order of a stream, as a CUDA event."""

    def record(self, stream: Stream) -> None:
        """Set the point after everything enqueued on `stream` so far."""
        ...

    def precede(self, stream: Stream) -> None:
        """Make later work of `stream` wait for the point; the host does not wait."""
        ...

    def synchronize(self) -> None:
        """Wait on the host until the point is reached."""
        ...

    @property
    def is_reached(self) -> bool:
        """Whether the device has reached the point."""
        ...


class Handle(Protocol):
    """An array on a device as callers get it; it owns its memory unless stated otherwise."""

    @property
    def elements(self) -> View:
        """The view of its elements."""
        ...

    def numpy(self) -> Array:
        """Return a copy on the host; waits until the elements are complete."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...


class Exchange(Protocol):
    """How a device accepts arrays in its memory from callers, and returns such arrays."""

    def stream(self, given: Any) -> Stream:
        """Return the caller's stream; for None, the stream on which callers expect their work.

        Raises:
            UsageError: it is not a stream of this device.
        """
        ...

    def event(self) -> Event:
        """Return a new event, not yet recorded."""
        ...

    def take(self, array: Any, stream: Stream) -> Lent:
        """Wrap a caller's array without a copy, and make `stream` wait for its elements.

        Raises:
            InputError: it is on another device, or not contiguous.
        """
        ...

    def empty(self, type_: TensorType, stream: Stream) -> Handle:
        """Return a new array that `stream` will write; raises DeviceOutOfMemory.

        Its memory is allocated and freed in stream order.
        """
        ...

    def handle(self, view: View, stream: Stream) -> Handle:
        """Return an array over memory owned by someone else, written in stream order."""
        ...

    def copy(self, dst: View, src: View, stream: Stream) -> None:
        """Copy between views of equal type and format in stream order."""
        ...

    def is_pinned(self, data: Array) -> bool:
        """Whether a host array is pinned, so that the device can access it directly."""
        ...

    def fetch(self, view: View, stream: Stream) -> Array:
        """Return a contiguous copy on the host; the host waits for it."""
        ...

    def trim(self) -> None:
        """Return the memory of unreferenced arrays to the system."""
        ...


def exchange_of(device: Device) -> Exchange | None:
    """Return a device's exchange with callers; None if it only copies."""
    return getattr(device, "exchange", None)


#: Maximum number of enqueued runs of a plan; each keeps its inputs alive.
MAX_AHEAD = 16


@dataclass(slots=True)
class StreamSerializer:
    """Serializes runs of one plan on several streams: each waits, on the device, for the last.

    Inputs of a run are kept alive until the device has read them, whatever stream their owner uses.
    A host that is too many runs ahead waits for the device.
    """

    exchange: Exchange
    _ahead: deque[tuple[Event, Sequence[object]]] = field(
        default_factory=deque[tuple[Event, Sequence[object]]]
    )
    _spare: list[Event] = field(default_factory=list[Event])

    def begin(self, stream: Stream) -> None:
        """Make `stream` wait for the previous run."""
        ahead = self._ahead
        if len(ahead) >= MAX_AHEAD:
            ahead[0][0].synchronize()
        while ahead and ahead[0][0].is_reached:
            self._spare.append(ahead.popleft()[0])
        if ahead:
            ahead[-1][0].precede(stream)

    def end(self, stream: Stream, kept: Sequence[object]) -> None:
        """Record that all of a run, which reads from `kept`, is enqueued on `stream`."""
        event = self._spare.pop() if self._spare else self.exchange.event()
        event.record(stream)
        self._ahead.append((event, kept))

    def wait(self) -> None:
        """Wait on the host until every run is complete."""
        while self._ahead:
            event, _ = self._ahead.popleft()
            event.synchronize()
            self._spare.append(event)
