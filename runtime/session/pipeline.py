"""Overlapped upload, compute and download for a stream of batches."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import Any, cast

import numpy as np

from ..base.arguments import refused
from ..base.closable import CheckedClosable
from ..base.copying import copy as copy_elements
from ..errors import DeviceError, InputError, UsageError
from ..ir.types import Array, HostValue
from ..plan.arena import aligned
from ..plan.backend import Buffer, Device, Stream, View
from ..plan.exchange import Event, Exchange, Lent
from ..plan.host import HOST, HostBuffer, array
from ..plan.plan import Plan

#: Batches in flight: one in each of the three stages, and one that the host fills or empties.
DEPTH = 4

Result = dict[str, Any]
Feeds = Mapping[str, HostValue | Lent]


class HeldBack:
    """Holds back an error until the results of earlier batches have been returned."""

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
    """Return an error with the index of its batch added."""
    if isinstance(error, InputError | DeviceError):
        again = type(error)(f"batch {index}: {error}")
        again.__cause__ = error
        return again
    error.add_note(f"batch {index}")
    return error


@dataclass(slots=True)
class Streams:
    """The streams of the three stages."""

    upload: Stream
    compute: Stream
    download: Stream

    @classmethod
    def of(cls, device: Device) -> Streams:
        """Create them."""
        return cls(device.stream(), device.stream(), device.stream())

    def wait(self) -> None:
        """Wait until all three are idle."""
        for stream in (self.upload, self.compute, self.download):
            with suppress(DeviceError):  # the result raises the error
                stream.synchronize()


class BatchBuffers:
    """Buffers of one batch, on the device and pinned on the host, with its events.

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
        """Return views in one new buffer for tensors of these types."""
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
        """Pinned memory for inputs that are not pinned."""
        return self._place(self._plan.inputs, HOST, self._plan.device.staging)

    def close(self) -> None:
        """Free the buffers; nothing may be in flight in them."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


class BufferedPlan:
    """A plan with buffers for several batches in flight, all of one set of types.

    Args:
        plan: has all its inputs and results on its device; owned by this object.
        exchange: of the plan's device.
        depth: number of batches in flight.
        release: returns the plan to its model.
    """

    def __init__(
        self, plan: Plan, exchange: Exchange, depth: int, release: Callable[[], None]
    ) -> None:
        self.plan = plan
        self._exchange, self._release = exchange, release
        self.buffers: list[BatchBuffers] = []
        try:
            for _ in range(depth):
                self.buffers.append(BatchBuffers(plan, exchange))
        except BaseException:
            self.close()
            raise
        self.free = deque(self.buffers)

    def start(self, feeds: Feeds, streams: Streams, *, copy: bool) -> BatchBuffers:
        """Enqueue a batch on the three streams; some buffers must be free."""
        batch = self.free.popleft()
        self._upload(batch, feeds, streams.upload, copy=copy)
        self._compute(batch, streams.compute)
        self._download(batch, streams.download)
        return batch

    def _upload(self, batch: BatchBuffers, feeds: Feeds, stream: Stream, *, copy: bool) -> None:
        for name, target in batch.inputs.items():
            feed = feeds[name]
            if isinstance(feed, Lent):
                batch.kept.append(feed)
                source = feed.view
            elif isinstance(feed, np.ndarray) and not copy and self._exchange.is_pinned(feed):
                batch.kept.append(feed)
                source = View(HOST, HostBuffer.around(feed), 0, target.type)
            else:
                source = batch.sent[name]
                copy_elements(array(source), cast("Array", feed))  # checked
            self._exchange.copy(target, source, stream)
        batch.uploaded.record(stream)

    def _compute(self, batch: BatchBuffers, stream: Stream) -> None:
        batch.uploaded.precede(stream)
        for name, target in self.plan.inputs.items():
            self._exchange.copy(target, batch.inputs[name], stream)
        self.plan.execute(stream)
        for name, source in self.plan.outputs.items():
            self._exchange.copy(batch.outputs[name], source, stream)
        batch.computed.record(stream)

    def _download(self, batch: BatchBuffers, stream: Stream) -> None:
        batch.computed.precede(stream)
        for name, target in batch.received.items():
            self._exchange.copy(target, batch.outputs[name], stream)
        batch.downloaded.record(stream)

    def finish(self, batch: BatchBuffers, *, copy: bool) -> dict[str, Array]:
        """Wait for a batch's results and return them: copies, or the pinned memory itself."""
        batch.downloaded.synchronize()
        batch.kept.clear()
        found = {name: array(view) for name, view in batch.received.items()}
        found = {**self.plan.constants, **found}
        names = self.plan.graph.outputs
        return {name: found[name].copy() if copy else found[name] for name in names}

    def reset(self) -> None:
        """Discard completed batches."""
        for batch in self.buffers:
            batch.kept.clear()
        self.free = deque(self.buffers)

    def close(self) -> None:
        """Free everything; nothing may be in flight."""
        for batch in self.buffers:
            batch.close()
        self.buffers.clear()
        self._release()


class Pipeline(CheckedClosable):
    """Runs streams of batches on one device, several batches at a time.

    It keeps its memory between streams of batches. Use it as a context manager, or call `close`.

    Args:
        streams: for the three stages.
        check: returns the key of a batch's plan, and its inputs as the runtime takes them.
        buffered: makes the plan for a batch; None if nothing can overlap, because the host
            computes, or must read data in between.
        alone: runs a batch for which there is no such plan.
        maximum: number of plans to keep, one per set of shapes.
        copy: whether results, and batches in pinned memory, are copied.
    """

    def __init__(
        self,
        streams: Streams,
        check: Callable[[Any], tuple[Hashable, Feeds]],
        buffered: Callable[[Feeds], BufferedPlan | None],
        alone: Callable[[Feeds], Result],
        *,
        maximum: int,
        copy: bool,
    ) -> None:
        self._streams, self._check = streams, check
        self._make_plan, self._alone = buffered, alone
        self._maximum, self._copy = maximum, copy
        self._plans: OrderedDict[Hashable, BufferedPlan | None] = OrderedDict()
        self._under_way: deque[tuple[int, BufferedPlan, BatchBuffers]] = deque()
        self._is_closed = False

    def map(self, batches: Iterable[Any]) -> Generator[Result]:
        """Yield the results of the batches, in order; see `Model.map`.

        If a batch fails, the results of earlier ones are yielded first, and later ones have not
        been read. Only one stream of batches at a time.
        """
        self.check_open()
        if self._under_way:
            raise UsageError("the pipeline is busy with other batches")
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
                if held.error is None and key not in self._plans:
                    yield from self._make_room()
                    with HeldBack() as held:
                        self._plans[key] = self._make_plan(feeds)
                if held.error is not None:
                    yield from self._drain()
                    raise numbered(index, held.error)
                yield from self._start(index, key, feeds)
            yield from self._drain()
        finally:
            self._abandon()

    def _make_room(self) -> Iterator[Result]:
        """Close a plan if there are too many; the results in flight come first."""
        if len(self._plans) >= self._maximum:
            yield from self._drain()
            _, plan = self._plans.popitem(last=False)
            if plan is not None:
                self._streams.wait()
                plan.close()

    def _start(self, index: int, key: Hashable, feeds: Feeds) -> Iterator[Result]:
        """Enqueue a batch on its plan once that has free buffers."""
        self._plans.move_to_end(key)
        plan = self._plans[key]
        while self._under_way and (plan is None or not plan.free):
            yield from self._finish()
        result = None
        with HeldBack() as held:
            if plan is None:
                result = self._alone(feeds)
            else:
                batch = plan.start(feeds, self._streams, copy=self._copy)
                self._under_way.append((index, plan, batch))
        if held.error is not None:
            yield from self._drain()
            raise numbered(index, held.error)
        if result is not None:
            yield result

    def _finish(self) -> Iterator[Result]:
        """Yield the result of the batch that has been in flight longest."""
        index, plan, batch = self._under_way[0]
        result: Result = {}
        with HeldBack() as held:
            result = plan.finish(batch, copy=self._copy)
        if held.error is not None:
            raise numbered(index, held.error)
        yield result
        self._under_way.popleft()
        plan.free.append(batch)

    def _drain(self) -> Iterator[Result]:
        while self._under_way:
            yield from self._finish()

    def _abandon(self) -> None:
        """Wait for batches in flight, and discard them."""
        self._streams.wait()
        self._under_way.clear()
        for plan in self._plans.values():
            if plan is not None:
                plan.reset()

    def check_open(self) -> None:
        """Raise UsageError if it is closed."""
        if self._is_closed:
            raise UsageError("the pipeline is closed")

    def close(self) -> None:
        """Free all memory."""
        self._is_closed = True
        self._streams.wait()
        for plan in self._plans.values():
            if plan is not None:
                plan.close()
        self._plans.clear()
