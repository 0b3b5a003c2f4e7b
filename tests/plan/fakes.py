"""A device and a backend that run on the host but behave like an accelerator.

The device keeps its bytes apart from the host's, has formats and streams, records, counts its
allocations and can refuse them. So plans for a GPU are tested where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

import numpy as np

from tercet.runtime.backend import Claim, Decline, Format, Formats, Site, Step, Stream, View
from tercet.runtime.errors import DeviceOutOfMemory
from tercet.runtime.host import HostBuffer
from tercet.runtime.ir import Graph, Node, Value
from tercet.runtime.op import Op
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.options import Options
from tercet.runtime.types import Array, TensorType


class FakeBuffer:
    def __init__(self, device: FakeDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self.memory: Array = np.full(nbytes, 0xFF, np.uint8)

    def close(self) -> None:
        if self.nbytes:
            self.device.allocated -= self.nbytes
            self.nbytes, self.memory = 0, np.empty(0, np.uint8)


class FakeStream:
    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


@dataclass
class FakeDevice:
    name: str = "fake:0"
    limit: int = 1 << 40
    allocated: int = 0
    allocations: int = 0
    recordings: int = 0
    replays: int = 0
    pinned: list[HostBuffer] = field(default_factory=list)

    __hash__ = object.__hash__

    def allocate(self, nbytes: int) -> FakeBuffer:
        if self.allocated + nbytes > self.limit:
            free = self.limit - self.allocated
            raise DeviceOutOfMemory(f"{self.name}: {nbytes} bytes asked for, {free} free")
        self.allocated += nbytes
        self.allocations += 1
        return FakeBuffer(self, nbytes)

    def staging(self, nbytes: int) -> HostBuffer:
        self.pinned.append(HostBuffer(nbytes))
        return self.pinned[-1]

    def stream(self) -> FakeStream:
        return FakeStream()

    def upload(self, data: Array) -> View:
        buffer = self.allocate(data.nbytes)
        buffer.memory[:] = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        return View(self, buffer, 0, TensorType(data.dtype, data.shape))

    def copier(self, dst: View, src: View) -> Callable[[Stream], None]:
        assert dst.device is self or src.device is self
        target, source = elements(dst), elements(src)
        if dst.format is src.format:
            return lambda stream: np.copyto(target, source)
        assert dst.device is src.device, "a copy between devices keeps the format"
        padded = dst.format is Format.CHANNELS_LAST_8
        logical = _logical(target, dst), _logical(source, src)

        def reformat(stream: Stream) -> None:
            if padded:
                target[...] = 0
            np.copyto(*logical)

        return reformat

    def record(self, run: Callable[[Stream], None]) -> Callable[[Stream], None]:
        self.recordings += 1

        def replay(stream: Stream) -> None:
            self.replays += 1
            run(stream)

        return replay


def elements(view: View) -> Array:
    """Return the elements as they lie in memory."""
    assert isinstance(view.buffer, FakeBuffer | HostBuffer)
    memory = view.buffer.memory[view.offset : view.offset + view.nbytes]
    return memory.view(view.type.dtype).reshape(view.format.physical(view.type.dims))


def _logical(data: Array, view: View) -> Array:
    if view.format is Format.PLAIN:
        return data
    return np.moveaxis(data, -1, 1)[:, : view.type.dims[1]]


@dataclass
class FakeStep:
    nodes: tuple[Node, ...]
    site: Site
    scratch: int
    capturable: bool = True
    kernel: str = "fake"

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Callable[[Stream], None]:
        assert all(v.device.name.startswith("fake") for v in (*inputs, *outputs))
        assert [v.type for v in inputs] == [v.tensor.without_value() for v in self.site.inputs]
        if scratch is not None:
            elements(scratch)[:] = 0
        known = dict(zip(self.site.inputs, (elements(v) for v in inputs), strict=True))
        target = elements(outputs[0])

        def run(stream: Stream) -> None:
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


def _compute(op: Op, arrays: list[Array]) -> Array:
    if isinstance(op, Relu):
        return np.maximum(arrays[0], 0)
    if isinstance(op, Conv):  # 1x1, channels last
        return np.einsum("nhwc,mc->nhwm", arrays[0], arrays[1].reshape(arrays[1].shape[:2]))
    assert isinstance(op, Add)
    return arrays[0] + arrays[1]


class FakeBackend:
    """Claims Add, Relu, Add + Relu, and 1x1 Conv in channels-last format."""

    def __init__(self, device: FakeDevice, name: str = "fake", *, scratch: int = 0) -> None:
        self.name, self.device, self.scratch = name, device, scratch
        self.declines_while_building: set[str] = set()
        self.capturable = True

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        taken: set[Node] = set()
        for node in graph.nodes:
            if node not in free or node in taken:
                continue
            if not isinstance(node.op, Add | Relu | Conv):
                yield Decline(node, f"fake runs no {node.kind}")
                continue
            follower = graph.sole_consumer(node.output)
            chain: tuple[Node, ...] = (node,)
            if isinstance(node.op, Add) and follower is not None and follower in free:
                chain = (node, follower) if isinstance(follower.op, Relu) else chain
            taken.update(chain)
            yield Claim(chain, self._builder(chain), self._formats(chain), _in_place(chain))

    def _formats(self, chain: tuple[Node, ...]) -> Formats:
        if not isinstance(chain[0].op, Conv):
            shapes = {v.tensor.shape for n in chain for v in n.reads}
            return Formats(follows=len(shapes) == 1)
        last = Format.CHANNELS_LAST
        return Formats({chain[0].reads[0]: last}, {chain[0].output: last})

    def _builder(self, chain: tuple[Node, ...]) -> Callable[[Site], Step | Decline]:
        def build(site: Site) -> Step | Decline:
            for node in chain:
                if node.name in self.declines_while_building:
                    return Decline(node, "no engine for this one")
            return FakeStep(chain, site, self.scratch, self.capturable)

        return build


def _in_place(chain: tuple[Node, ...]) -> tuple[tuple[Value, Value], ...]:
    if isinstance(chain[0].op, Conv):
        return ()
    out = chain[-1].output
    same = [v for v in chain[0].reads if v.tensor.shape == out.tensor.shape]
    return tuple((out, v) for v in same if not v.is_constant)
