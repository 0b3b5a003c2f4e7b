"""A device and a backend that run on the host but behave like an accelerator.

The device keeps its bytes apart from the host's, has formats and streams, records, counts its
allocations and can refuse them. So plans for a GPU are tested where there is none.

Its streams work in the order in which they are given work, but nothing relies on that: for every
byte it is noted who has read and written it, and two streams that touch one without waiting for
each other are a race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from tercet.runtime.errors import DeviceOutOfMemory
from tercet.runtime.ir.graph import Graph, Node, Value
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.movement import Concat, Slice, Split, Transpose
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import BuildContext, Claim, Decline, Formats, Step, Stream, View
from tercet.runtime.plan.format import Format
from tercet.runtime.plan.host import HostBuffer


class FakeBuffer:
    def __init__(self, device: FakeDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self.memory: Array = np.full(nbytes, 0xFF, np.uint8)
        self.written = np.zeros((2, nbytes), np.int64)  # stream and its moment, by byte
        self.read: dict[int, Array] = {}  # moments by stream

    def close(self) -> None:
        if self.nbytes:
            with self.device.lock:
                self.device.allocated -= self.nbytes
            self.nbytes, self.memory = 0, np.empty(0, np.uint8)


class FakeStream:
    """A stream with a clock: how much of the work of each stream is done when its own begins."""

    def __init__(self, device: FakeDevice) -> None:
        with device.lock:
            self.device, self.number, self.waits = device, len(device.streams), 0
            self.clock: dict[int, int] = dict(device.settled)
            device.streams.append(self)

    def mark(self) -> dict[int, int]:
        return dict(self.clock)

    def wait(self, event: dict[int, int]) -> None:
        for number, time in event.items():
            self.clock[number] = max(self.clock.get(number, 0), time)

    def synchronize(self) -> None:
        with self.device.lock:
            self.waits += 1
            self.device.settled.update(self.clock)

    def touch(self, reads: Sequence[View], writes: Sequence[View]) -> None:
        """Note what the next piece of work reads and writes."""
        with self.device.lock:
            self._touch(reads, writes)

    def _touch(self, reads: Sequence[View], writes: Sequence[View]) -> None:
        self.wait(self.device.settled)
        now = self.clock.get(self.number, 0) + 1
        done = np.array([self.clock.get(i, 0) for i in range(len(self.device.streams))])
        for view in (*reads, *writes):
            if isinstance(view.buffer, FakeBuffer):
                who, when = view.buffer.written[:, places(view)]
                self.device.races += int((when > done[who]).sum())
        for view in writes:
            if isinstance(view.buffer, FakeBuffer):
                at = places(view)
                for number, moments in view.buffer.read.items():
                    if number != self.number:
                        self.device.races += int((moments[at] > done[number]).sum())
                view.buffer.written[0, at], view.buffer.written[1, at] = self.number, now
        for view in reads:
            if isinstance(view.buffer, FakeBuffer):
                moments = np.zeros(view.buffer.nbytes, np.int64)
                view.buffer.read.setdefault(self.number, moments)[places(view)] = now
        self.clock[self.number] = now


@dataclass
class FakeDevice:
    name: str = "fake:0"
    limit: int = 1 << 40
    allocated: int = 0
    allocations: int = 0
    recordings: int = 0
    replays: int = 0
    races: int = 0
    entered: int = 0
    pinned: list[HostBuffer] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    settled: dict[int, int] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)

    __hash__ = object.__hash__

    def enter(self) -> None:
        with self.lock:
            self.entered += 1

    def allocate(self, nbytes: int) -> FakeBuffer:
        with self.lock:
            if self.allocated + nbytes > self.limit:
                free = self.limit - self.allocated
                raise DeviceOutOfMemory(f"{self.name}: {nbytes} bytes asked for, {free} free")
            self.allocated += nbytes
            self.allocations += 1
        return FakeBuffer(self, nbytes)

    def staging(self, nbytes: int) -> HostBuffer:
        self.pinned.append(HostBuffer(nbytes))
        return self.pinned[-1]

    def stream(self) -> Stream:
        return FakeStream(self)

    def upload(self, data: Array) -> View:
        buffer = self.allocate(data.nbytes)
        buffer.memory[:] = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        return View(self, buffer, 0, TensorType(data.dtype, data.shape))

    def copier(self, dst: View, src: View) -> Callable[[Stream], None]:
        assert dst.device is self or src.device is self
        target, source = elements(dst), elements(src)
        if dst.format is src.format:
            assert not dst.pitch
            assert not src.pitch

            def copy(stream: Any) -> None:
                stream.touch((src,), (dst,))
                np.copyto(target, source)

            return copy
        assert dst.device is src.device, "a copy between devices keeps the format"
        logical = _logical(target, dst), _logical(source, src)

        def reformat(stream: Any) -> None:
            stream.touch((src,), (dst,))
            np.copyto(*logical)

        return reformat

    def record(self, run: Callable[[Stream], None]) -> Callable[[Stream], None]:
        self.recordings += 1

        def replay(stream: Stream) -> None:
            with self.lock:
                self.replays += 1
            run(stream)

        return replay


def elements(view: View) -> Array:
    """Return the elements as they lie in memory."""
    assert isinstance(view.buffer, FakeBuffer | HostBuffer)
    return _shaped(view.buffer.memory[view.offset : view.offset + view.extent], view)


def _shaped(memory: Array, view: View) -> Array:
    data, shape = memory.view(view.type.dtype), view.format.physical(view.type.dims)
    if not view.pitch:
        return data.reshape(shape)
    outer = [view.pitch * int(np.prod(shape[i + 1 : -1])) for i in range(len(shape) - 1)]
    moves = [step * data.itemsize for step in (*outer, 1)]
    return np.lib.stride_tricks.as_strided(data, shape, moves)


def places(view: View) -> Array:
    """Return the numbers of the bytes that a view covers in its buffer."""
    first = np.arange(view.extent)
    if view.pitch:
        itemsize = view.type.dtype.itemsize
        row = view.format.physical(view.type.dims)[-1] * itemsize
        first = first[first % (view.pitch * itemsize) < row]
    return view.offset + first


def _logical(data: Array, view: View) -> Array:
    if view.format is Format.CONTIGUOUS:
        return data
    return np.moveaxis(data, -1, 1)


@dataclass
class FakeStep:
    nodes: tuple[Node, ...]
    site: BuildContext
    scratch: int
    capturable: bool = True
    kernel: str = "fake"
    fill: float = 0.5

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Callable[[Stream], None]:
        assert all(v.device.name.startswith("fake") for v in (*inputs, *outputs))
        assert [v.type for v in inputs] == [v.tensor.without_value() for v in self.site.inputs]
        used = () if scratch is None else (scratch,)
        for view in used:
            elements(view)[:] = 0
        known = dict(zip(self.site.inputs, (elements(v) for v in inputs), strict=True))
        target = elements(outputs[0])
        pitches = {v: view.pitch for v, view in zip(self.site.inputs, inputs, strict=True)}
        pitches |= {v: view.pitch for v, view in zip(self.site.outputs, outputs, strict=True)}
        assert {v: pitch for v, pitch in pitches.items() if pitch} == self.site.pitches
        moving = self.nodes[0].op
        if isinstance(moving, Concat | Slice | Split):
            wholes, parts = (outputs, inputs) if isinstance(moving, Concat) else (inputs, outputs)
            return _moved(moving, wholes[0], parts, self.nodes[0], self.site)

        def run(stream: Any) -> None:
            stream.touch(inputs, (*outputs, *used))
            result = None
            for node in self.nodes:
                arrays = [
                    elements(self.site.weights.view(v)) if v.is_constant else known.get(v, result)
                    for v in node.inputs
                    if v is not None
                ]
                result = _compute(node.op, [a for a in arrays if a is not None])
            assert result is not None
            target[...] = result

        return run


def _moved(
    op: Concat | Slice | Split, whole: View, parts: Sequence[View], node: Node, site: BuildContext
) -> Callable[[Stream], None]:
    """Return what copies between a tensor and its parts."""
    joins = isinstance(op, Concat)
    listed, found = (node.inputs, site.inputs) if joins else (node.outputs, site.outputs)
    by_value = dict(zip(found, parts, strict=True))
    if isinstance(op, Slice):  # consecutive elements of one axis
        begin, axis = (int(v.data[0]) for v in node.inputs[1:4:2] if v and v.data is not None)
    else:
        begin, axis = 0, op.axis % len(whole.type.dims)
    pairs: list[tuple[Array, Array]] = []
    for value in listed:
        assert value is not None
        size = value.tensor.dims[axis]
        place = (slice(None),) * axis + (slice(begin, begin + size),)
        begin += size
        if value in by_value or value.is_constant:
            view = site.weights.view(value) if value.is_constant else by_value[value]
            inner, outer = _logical(elements(whole), whole)[place], _logical(elements(view), view)
            pairs.append((inner, outer) if joins else (outer, inner))
    written = (whole,) if joins else tuple(parts)

    def run(stream: Any) -> None:
        stream.touch(tuple(parts) if joins else (whole,), written)
        for target, source in pairs:
            np.copyto(target, source)

    return run


def _compute(op: Op, arrays: list[Array]) -> Array:
    if isinstance(op, Relu):
        return np.maximum(arrays[0], 0)
    if isinstance(op, Conv):  # 1x1, channels last
        return np.einsum("nhwc,mc->nhwm", arrays[0], arrays[1].reshape(arrays[1].shape[:2]))
    if isinstance(op, Transpose):
        return arrays[0].transpose(op.order(arrays[0].ndim))
    assert isinstance(op, Add)
    return arrays[0] + arrays[1]


class FakeBackend:
    """Claims Add, Relu, Add + Relu, Concat, Slice, Split, Transpose, and 1x1 Conv channels last.

    All of them take slices, but for those of the operators that `dense` names.
    """

    def __init__(
        self,
        device: FakeDevice,
        name: str = "fake",
        *,
        scratch: int = 0,
        dense: tuple[str, ...] = (),
    ) -> None:
        self.name, self.device, self.scratch, self.dense = name, device, scratch, dense
        self.declines_while_building: set[str] = set()
        self.declines_slices: set[str] = set()
        self.capturable = True
        self.fill = 0.5

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        taken: set[Node] = set()
        for node in graph.nodes:
            if node not in free or node in taken:
                continue
            if not isinstance(node.op, Add | Relu | Conv | Concat | Slice | Split | Transpose):
                yield Decline(node, f"fake runs no {node.kind}")
                continue
            follower = graph.sole_consumer(node.output)
            chain: tuple[Node, ...] = (node,)
            if isinstance(node.op, Add) and follower is not None and follower in free:
                chain = (node, follower) if isinstance(follower.op, Relu) else chain
            taken.update(chain)
            yield Claim(chain, self._builder(chain), self._formats(chain), _in_place(chain))

    def _formats(self, chain: tuple[Node, ...]) -> Formats:
        values = frozenset(v for node in chain for v in (*node.distinct_reads, *node.outputs))
        pitched = frozenset[Value]() if chain[0].kind in self.dense else values
        if isinstance(chain[0].op, Concat | Slice | Split):
            return Formats(follows=True, pitched=pitched)
        if isinstance(chain[0].op, Transpose):
            return Formats(pitched=pitched)
        if not isinstance(chain[0].op, Conv):
            shapes = {v.tensor.shape for n in chain for v in n.distinct_reads}
            return Formats(follows=len(shapes) == 1, pitched=pitched)
        last = Format.CHANNELS_LAST
        return Formats({chain[0].distinct_reads[0]: last}, {chain[0].output: last}, pitched=pitched)

    def _builder(self, chain: tuple[Node, ...]) -> Callable[[BuildContext], Step | Decline]:
        def build(site: BuildContext) -> Step | Decline:
            for node in chain:
                if node.name in self.declines_while_building:
                    return Decline(node, "no engine for this one")
                if node.name in self.declines_slices and site.pitches:
                    return Decline(node, "no engine for slices")
            return FakeStep(chain, site, self.scratch, self.capturable, fill=self.fill)

        return build


def _in_place(chain: tuple[Node, ...]) -> tuple[tuple[Value, Value], ...]:
    if isinstance(chain[0].op, Conv | Concat | Slice | Split | Transpose):
        return ()
    out = chain[-1].output
    same = [v for v in chain[0].distinct_reads if v.tensor.shape == out.tensor.shape]
    return tuple((out, v) for v in same if not v.is_constant)
