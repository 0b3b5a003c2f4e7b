"""A stream of batches: copies to the device, work, and copies back, all three at the same time."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import Any

import numpy as np

from ..base.arguments import refused
from ..base.closable import Closable
from ..errors import DeviceError, InputError, UsageError
from ..ir.types import Array, HostValue
from ..plan.arena import aligned
from ..plan.backend import Buffer, Device, Stream, View
from ..plan.exchange import Event, Exchange, Lent
from ..plan.host import HOST, HostBuffer, array
from ..plan.plan import Plan

#: Batches that may be under way at one time: one in each of the three stages, and one that the
#: host fills or empties.
DEPTH = 4

Result = dict[str, Any]
Feeds = Mapping[str, HostValue | Lent]


class HeldBack:
    """Keeps an error until the results of the batches before it are out."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> HeldBack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.error = error
        return isinstance(error, Exception)


def numbered(index: int, error: BaseException) -> BaseException:
    """Return an error that says in which batch it happened."""
    if isinstance(error, InputError | DeviceError):
        again = type(error)(f"batch {index}: {error}")
        again.__cause__ = error
        return again
    error.add_note(f"batch {index}")
    return error


@dataclass(slots=True)
class Streams:
    """The orders of the three stages."""

    upload: Stream
    compute: Stream
    download: Stream

    @classmethod
    def of(cls, device: Device) -> Streams:
        """Return new ones."""
        return cls(device.stream(), device.stream(), device.stream())

    def wait(self) -> None:
        """Wait until all three are done."""
        for stream in (self.upload, self.compute, self.download):
            with suppress(DeviceError):  # whoever waits for a result hears of it
                stream.synchronize()


class Slot:
    """Memory for one batch, on the device and pinned on the host, and how far the batch is.

    Args:
        plan: whose inputs and results it holds.
        exchange: of the plan's device.
    """

    def __init__(self, plan: Plan, exchange: Exchange) -> None:
        self._plan = plan
        self._buffers: list[Buffer] = []
        self.uploaded: Event = exchange.event()
        self.computed: Event = exchange.event()
        self.downloaded: Event = exchange.event()
        self.kept: list[object] = []
        device = plan.device
        inputs, outputs = plan.inputs, plan.outputs
        try:
            self.inputs = self._place(inputs, device, device.allocate)
            self.outputs = self._place(outputs, device, device.allocate)
            self.received = self._place(outputs, HOST, device.staging)
        except BaseException:
            self.close()
            raise

    def _place(
        self, like: Mapping[str, View], device: Device, allocate: Callable[[int], Buffer]
    ) -> dict[str, View]:
        """Return new places for tensors like these, side by side in one buffer."""
        buffer = allocate(sum(aligned(view.nbytes) for view in like.values()))
        self._buffers.append(buffer)
        places: dict[str, View] = {}
        offset = 0
        for name, view in like.items():
            places[name] = View(device, buffer, offset, view.type, view.format)
            offset += aligned(view.nbytes)
        return places

    @cached_property
    def sent(self) -> dict[str, View]:
        """Pinned memory for inputs that do not lie in such."""
        return self._place(self._plan.inputs, HOST, self._plan.device.staging)

    def close(self) -> None:
        """Give the memory back; nothing may be under way in it."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


class Lane:
    """A plan with a few slots: batches of one set of types.

    Args:
        plan: has all its inputs and results on its device, and is this lane's alone.
        exchange: of the plan's device.
        depth: how many slots.
        release: gives the plan back.
    """

    def __init__(
        self, plan: Plan, exchange: Exchange, depth: int, release: Callable[[], None]
    ) -> None:
        self.plan = plan
        self._exchange, self._release = exchange, release
        self.slots: list[Slot] = []
        try:
            for _ in range(depth):
                self.slots.append(Slot(plan, exchange))
        except BaseException:
            self.close()
            raise
        self.free = deque(self.slots)

    def start(self, feeds: Feeds, streams: Streams, *, copy: bool) -> Slot:
        """Give a batch to the three streams; there must be a free slot."""
        slot = self.free.popleft()
        self._upload(slot, feeds, streams.upload, copy=copy)
        self._compute(slot, streams.compute)
        self._download(slot, streams.download)
        return slot

    def _upload(self, slot: Slot, feeds: Feeds, stream: Stream, *, copy: bool) -> None:
        for name, target in slot.inputs.items():
            feed = feeds[name]
            if isinstance(feed, Lent):
                slot.kept.append(feed)
                source = feed.view
            elif isinstance(feed, np.ndarray) and not copy and self._exchange.is_pinned(feed):
                slot.kept.append(feed)
                source = View(HOST, HostBuffer.around(feed), 0, target.type)
            else:
                source = slot.sent[name]
                np.copyto(array(source), feed)  # pyright: ignore[reportArgumentType]  # checked
            self._exchange.copy(target, source, stream)
        slot.uploaded.record(stream)

    def _compute(self, slot: Slot, stream: Stream) -> None:
        slot.uploaded.precede(stream)
        for name, target in self.plan.inputs.items():
            self._exchange.copy(target, slot.inputs[name], stream)
        self.plan.execute(stream)
        for name, source in self.plan.outputs.items():
            self._exchange.copy(slot.outputs[name], source, stream)
        slot.computed.record(stream)

    def _download(self, slot: Slot, stream: Stream) -> None:
        slot.computed.precede(stream)
        for name, target in slot.received.items():
            self._exchange.copy(target, slot.outputs[name], stream)
        slot.downloaded.record(stream)

    def finish(self, slot: Slot, *, copy: bool) -> dict[str, Array]:
        """Wait for a slot's results and return them: copies, or the pinned memory itself."""
        slot.downloaded.synchronize()
        slot.kept.clear()
        found = {name: array(view) for name, view in slot.received.items()}
        found = {**self.plan.constants, **found}
        names = self.plan.graph.outputs
        return {name: found[name].copy() if copy else found[name] for name in names}

    def reset(self) -> None:
        """Forget what was under way, and is no longer."""
        for slot in self.slots:
            slot.kept.clear()
        self.free = deque(self.slots)

    def close(self) -> None:
        """Give everything back; nothing may be under way."""
        for slot in self.slots:
            slot.close()
        self.slots.clear()
        self._release()


class Pipeline(Closable):
    """Runs streams of batches on one device, several batches at a time.

    It keeps its memory from one stream to the next. Use it as a context manager, or call `close`.

    Args:
        streams: for the three stages.
        check: returns what a batch is for the runtime, and what its lane is looked up by.
        lane: makes the lane for a batch; None where nothing can be overlapped, because the host
            does the work, or must look at data in between.
        alone: runs such a batch.
        maximum: lanes that are kept, one for every set of shapes.
        copy: whether results, and batches that lie in pinned memory, are copied.
    """

    def __init__(
        self,
        streams: Streams,
        check: Callable[[Any], tuple[Hashable, Feeds]],
        lane: Callable[[Feeds], Lane | None],
        alone: Callable[[Feeds], Result],
        *,
        maximum: int,
        copy: bool,
    ) -> None:
        self._streams, self._check = streams, check
        self._make_lane, self._alone = lane, alone
        self._maximum, self._copy = maximum, copy
        self._lanes: OrderedDict[Hashable, Lane | None] = OrderedDict()
        self._under_way: deque[tuple[int, Lane, Slot]] = deque()
        self._is_closed = False

    def map(self, batches: Iterable[Any]) -> Generator[Result]:
        """Yield the results of the batches, in order; see `Model.map`.

        Where a batch fails, the results of those before it come first, and those after it have
        not been taken from `batches`. One stream of batches at a time.
        """
        if self._is_closed or self._under_way:
            raise UsageError("the pipeline is closed, or busy with other batches")
        try:
            source = iter(batches)
        except TypeError as error:
            raise refused("batches", batches, "an iterable of inputs") from error
        key: Hashable = None
        feeds: Feeds = {}
        try:
            for index in count():
                with HeldBack() as held:
                    batch = next(source, self)
                    if batch is self:
                        break
                    key, feeds = self._check(batch)
                if held.error is None and key not in self._lanes:
                    yield from self._make_room()
                    with HeldBack() as held:
                        self._lanes[key] = self._make_lane(feeds)
                if held.error is not None:
                    yield from self._drain()
                    raise numbered(index, held.error)
                yield from self._start(index, key, feeds)
            yield from self._drain()
        finally:
            self._abandon()

    def _make_room(self) -> Iterator[Result]:
        """Give back a lane where there are too many; first, what is under way must arrive."""
        if len(self._lanes) >= self._maximum:
            yield from self._drain()
            _, lane = self._lanes.popitem(last=False)
            if lane is not None:
                self._streams.wait()
                lane.close()

    def _start(self, index: int, key: Hashable, feeds: Feeds) -> Iterator[Result]:
        """Give a batch to its lane, once there is room for it."""
        self._lanes.move_to_end(key)
        lane = self._lanes[key]
        while self._under_way and (lane is None or not lane.free):
            yield from self._finish()
        result = None
        with HeldBack() as held:
            if lane is None:
                result = self._alone(feeds)
            else:
                slot = lane.start(feeds, self._streams, copy=self._copy)
                self._under_way.append((index, lane, slot))
        if held.error is not None:
            yield from self._drain()
            raise numbered(index, held.error)
        if result is not None:
            yield result

    def _finish(self) -> Iterator[Result]:
        """Yield the result of the batch that has been under way longest."""
        index, lane, slot = self._under_way[0]
        result: Result = {}
        with HeldBack() as held:
            result = lane.finish(slot, copy=self._copy)
        if held.error is not None:
            raise numbered(index, held.error)
        yield result
        self._under_way.popleft()
        lane.free.append(slot)

    def _drain(self) -> Iterator[Result]:
        while self._under_way:
            yield from self._finish()

    def _abandon(self) -> None:
        """Wait for what is still under way, and forget it."""
        self._streams.wait()
        self._under_way.clear()
        for lane in self._lanes.values():
            if lane is not None:
                lane.reset()

    def close(self) -> None:
        """Give all memory back."""
        self._is_closed = True
        self._streams.wait()
        for lane in self._lanes.values():
            if lane is not None:
                lane.close()
        self._lanes.clear()
