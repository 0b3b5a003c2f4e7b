"""NVIDIA's driver and cuda.core made of the host's memory, any call of which may be told to fail.

A model is loaded and run on it as on a GPU: with streams, events, pools, pinned memory and graphs,
its kernels computed by the emulator. It shows neither races nor speed. Calls are counted by the
driver's names; a call of the driver that is not here is an AttributeError, so that none goes
unnoticed.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, get_ident
from types import SimpleNamespace
from typing import Any

from cuda import bindings
from cuda.bindings import driver as real

from tercet.backends.cuda import device as device_module
from tercet.backends.cuda.control import conditional_nodes
from tercet.backends.cuda.driver import device as driver_device
from tercet.backends.cuda.driver import events, memory, status, wake
from tercet.backends.cuda.interop import array, exchange
from tercet.backends.cuda.recipe.targets import Target
from tercet.runtime.plan.host import HostBuffer

from .emulator import HostCompiler, Library

Patch = Callable[[Any, str, Any], None]
SUCCESS = real.CUresult.CUDA_SUCCESS
BYTES = 1 << 30
#: What kernels are compiled for: an Ampere GPU.
FAKE = Target("sm_80", 108, 99 << 10)


@dataclass
class Gate:
    """What every call of the driver passes.

    Attributes:
        name, number: the call that fails, the first of its name being number 1.
        status: what it answers then.
        stays: whether all calls behind it answer the same, as after a fault in a kernel.
        calls: how many calls of each name there were.
        failed: whether it has failed.
    """

    name: str = ""
    number: int = 0
    status: Any = SUCCESS
    stays: bool = False
    calls: Counter[str] = field(default_factory=Counter[str])
    failed: bool = False

    def ask(self, name: str) -> Any:
        """Count a call, and return its status."""
        self.calls[name] += 1
        if (name, self.calls[name]) == (self.name, self.number):
            self.failed = True
            return self.status
        return self.status if self.failed and self.stays else SUCCESS

    def enter(self, name: str) -> None:
        """Count a call of cuda.core, which raises where it fails."""
        answer = self.ask(name)
        if answer != SUCCESS:
            raise status.CUDAError(f"{answer.name}: planted in {name}")


Work = Callable[[], object]


class FakeStream:
    """Does its work at once, or writes it down while it is recorded."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.capture = gpu, None
        self.handle = gpu.number(self)

    capture: list[Work] | None

    def record(self, event: FakeEvent | None = None) -> FakeEvent:
        self.gpu.gate.enter("cuEventRecord")
        made = event or FakeEvent(self.gpu)
        made.capture = self.capture
        return made

    def wait(self, event: FakeEvent) -> None:
        self.gpu.gate.enter("cuStreamWaitEvent")
        if self.capture is None:
            self.capture = event.capture

    def sync(self) -> None:
        self.gpu.gate.enter("cuStreamSynchronize")
        assert self.capture is None, "a stream that is recorded cannot be waited for"

    def create_graph_builder(self) -> FakeBuilder:
        return FakeBuilder(self)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.handle, self.capture = gpu.number(self), None
        self.gpu = gpu

    capture: list[Work] | None

    def sync(self) -> None:
        self.gpu.gate.enter("cuEventSynchronize")


class FakeBuilder:
    """A graph that is being recorded from a stream."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream, self.work = stream, list[Work]()

    def begin_building(self, mode: str) -> None:
        self.stream.gpu.gate.enter("cuStreamBeginCapture")
        self.stream.capture = self.work

    def end_building(self) -> None:
        self._end()
        self.stream.gpu.gate.enter("cuStreamEndCapture")

    def _end(self) -> None:
        for stream in self.stream.gpu.streams():
            if stream.capture is self.work:
                stream.capture = None

    def complete(self) -> FakeGraph:
        self.stream.gpu.gate.enter("cuGraphInstantiate")
        return FakeGraph(self.stream.gpu, self.work)

    def close(self) -> None:
        self._end()
        self.stream.gpu.gate.enter("cuGraphDestroy")

    def create_condition(self) -> Any:
        if get_ident() not in self.stream.gpu.threads:
            raise status.CUDAError("the device of this thread is not yet initialized")
        self.stream.gpu.gate.enter("cuGraphConditionalHandleCreate")
        cell = ctypes.c_uint(0)
        return SimpleNamespace(handle=ctypes.addressof(cell), cell=cell)

    def if_else(self, condition: Any) -> tuple[FakeBuilder, FakeBuilder]:
        self.stream.gpu.gate.enter("cuGraphAddNode")
        parts = FakeBuilder(FakeStream(self.stream.gpu)), FakeBuilder(FakeStream(self.stream.gpu))
        self.work.append(lambda: play(parts[0 if condition.cell.value else 1].work))
        return parts

    def while_loop(self, condition: Any) -> FakeBuilder:
        self.stream.gpu.gate.enter("cuGraphAddNode")
        part = FakeBuilder(FakeStream(self.stream.gpu))

        def loop() -> None:
            while condition.cell.value:
                play(part.work)

        self.work.append(loop)
        return part


def play(works: list[Work]) -> None:
    for work in works:
        work()


@dataclass
class FakeGraph:
    gpu: FakeGpu
    work: list[Work]

    def upload(self, stream: FakeStream) -> None:
        self.gpu.gate.enter("cuGraphUpload")

    def launch(self, stream: FakeStream) -> None:
        self.gpu.gate.enter("cuGraphLaunch")
        play(self.work)


class FakeBlock:
    """Memory of the device, or pinned memory of the host."""

    device_id = 0

    def __init__(self, gpu: FakeGpu, nbytes: int, free: str) -> None:
        self.gpu, self.nbytes, self.free = gpu, nbytes, free
        self.memory = HostBuffer(nbytes).memory
        self.memory[:] = 0xAB
        self.handle: int = self.memory.ctypes.data
        gpu.held[free] += nbytes

    def __del__(self) -> None:
        self.gpu.held[self.free] -= self.nbytes

    def close(self, stream: Any = None) -> None:
        self.gpu.gate.enter(self.free)
        self.gpu.held[self.free] -= self.nbytes
        self.nbytes = 0

    def __dlpack__(self, **how: Any) -> Any:
        return self.memory.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class FakePool:
    """Gives memory; `call` and `free` are the driver's names for it."""

    def __init__(self, gpu: FakeGpu, call: str, free: str) -> None:
        self.gpu, self.call, self.free, self.handle = gpu, call, free, gpu.number(self)

    def allocate(self, nbytes: int, stream: Any = None) -> FakeBlock:
        self.gpu.gate.enter(self.call)
        return FakeBlock(self.gpu, nbytes, self.free)


class FakeCode:
    """Machine code as cuda.core has it."""

    def __init__(self, gpu: FakeGpu, library: Library) -> None:
        self.gpu, self.library = gpu, library

    def get_kernel(self, entry: str) -> Any:
        self.gpu.gate.enter("cuLibraryGetKernel")
        kernel = SimpleNamespace(
            run=self.library.kernel(entry), sizes=self.library.sizes(entry), handle=0
        )
        kernel.handle = self.gpu.number(kernel)
        return kernel


class FakeCompiler(HostCompiler):
    """The emulator's compiler, which gives what cuda.core loads."""

    gpu: FakeGpu

    def submit(self, source: Any) -> Any:
        library, codes = super().submit(source).result(), self.gpu.codes
        return SimpleNamespace(result=lambda: codes.setdefault(source, FakeCode(self.gpu, library)))


class FakeGpu:
    """The GPU, the driver's functions and the classes of cuda.core for it.

    Attributes:
        gate: what every call passes.
        held: bytes that are not given back, by the call that gives them back.
        codes: machine code by source.
        threads: those that have a device of cuda.core, which are apart.
    """

    device_id, name, compute_capability = 0, "Fake", (8, 0)

    def __init__(self, compiler: FakeCompiler, gate: Gate) -> None:
        self.gate, self.compiler = gate, compiler
        compiler.gpu = self
        self.held: Counter[str] = Counter()
        self.codes: dict[Any, FakeCode] = {}
        self.threads = set[int]()
        self.running = Lock()  # the emulator has one block of threads
        self._numbered: dict[int, Any] = {}
        self.default = FakeStream(self)
        self.default.handle = 1
        self._numbered[1] = self.default

    def number(self, made: Any) -> int:
        """Return a handle for an object."""
        handle = 100 + len(self._numbered)
        self._numbered[handle] = made
        return handle

    def streams(self) -> list[FakeStream]:
        """Return all streams."""
        return [one for one in self._numbered.values() if isinstance(one, FakeStream)]

    def do(self, stream: Any, work: Work) -> None:
        """Do some work of a stream, or write it down."""
        capture = self._numbered[int(stream)].capture
        work() if capture is None else capture.append(work)

    # ── cuda.core ────────────────────────────────────────────────────────────────────────────

    def open(self, ordinal: int = 0) -> FakeGpu:
        self.threads.add(get_ident())
        return self

    @property
    def properties(self) -> Any:
        return SimpleNamespace(
            max_shared_memory_per_block_optin=FAKE.shared,
            multiprocessor_count=FAKE.processors,
            memory_pools_supported=True,
        )

    def set_current(self) -> None:
        self.gate.enter("cuCtxSetCurrent")

    def create_stream(self) -> FakeStream:
        self.gate.enter("cuStreamCreate")
        return FakeStream(self)

    def pinned(self) -> FakePool:
        return FakePool(self, "cuMemAllocHost", "cuMemFreeHost")

    # ── the driver ───────────────────────────────────────────────────────────────────────────

    def __getattr__(self, name: str) -> Any:
        """Return what of the driver is no call."""
        if name.startswith("cu") and name[2:3].isupper():
            raise AttributeError(f"the fake driver has no {name}")
        return getattr(real, name)

    def cuInit(self, flags: int) -> Any:
        return (self.gate.ask("cuInit"),)

    def cuDriverGetVersion(self) -> Any:
        return self.gate.ask("cuDriverGetVersion"), real.CUDA_VERSION

    def cuDeviceGetCount(self) -> Any:
        return self.gate.ask("cuDeviceGetCount"), 1

    def cuGetErrorString(self, error: Any) -> Any:
        return SUCCESS, b"planted"

    def cuMemGetInfo(self) -> Any:
        return self.gate.ask("cuMemGetInfo"), BYTES - sum(self.held.values()), BYTES

    def _copy(self, name: str, stream: Any, target: Any, source: Any, nbytes: int) -> Any:
        answer = self.gate.ask(name)
        if answer == SUCCESS:
            self.do(stream, partial(ctypes.memmove, int(target), int(source), nbytes))
        return (answer,)

    def cuMemcpyHtoDAsync(self, target: Any, source: Any, nbytes: int, stream: Any) -> Any:
        return self._copy("cuMemcpyHtoDAsync", stream, target, source, nbytes)

    def cuMemcpyDtoHAsync(self, target: Any, source: Any, nbytes: int, stream: Any) -> Any:
        return self._copy("cuMemcpyDtoHAsync", stream, target, source, nbytes)

    def cuMemcpyAsync(self, target: Any, source: Any, nbytes: int, stream: Any) -> Any:
        return self._copy("cuMemcpyAsync", stream, target, source, nbytes)

    def cuMemcpyDtoH(self, target: Any, source: Any, nbytes: int) -> Any:
        return self._copy("cuMemcpyDtoH", 1, target, source, nbytes)

    def cuStreamSynchronize(self, stream: Any) -> Any:
        return (self.gate.ask("cuStreamSynchronize"),)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> Any:
        return (self.gate.ask("cuStreamWaitEvent"),)

    def cuStreamIsCapturing(self, stream: Any) -> Any:
        return self.gate.ask("cuStreamIsCapturing"), exchange._NOT_CAPTURING

    def cuCtxSynchronize(self) -> Any:
        return (self.gate.ask("cuCtxSynchronize"),)

    def cuEventCreate(self, flags: int) -> Any:
        return self.gate.ask("cuEventCreate"), self.number(None)

    def cuEventDestroy(self, event: Any) -> Any:
        return (self.gate.ask("cuEventDestroy"),)

    def cuEventRecord(self, event: Any, stream: Any) -> Any:
        return (self.gate.ask("cuEventRecord"),)

    def cuEventSynchronize(self, event: Any) -> Any:
        return (self.gate.ask("cuEventSynchronize"),)

    def cuEventQuery(self, event: Any) -> Any:
        return (self.gate.ask("cuEventQuery"),)

    def cuPointerGetAttribute(self, kind: Any, pointer: Any) -> Any:
        return self.gate.ask("cuPointerGetAttribute"), 0

    def cuPointerGetAttributes(self, count: int, kinds: Any, pointer: Any) -> Any:
        return self.gate.ask("cuPointerGetAttributes"), [0] * count

    def cuMemPoolTrimTo(self, pool: Any, nbytes: int) -> Any:
        return (self.gate.ask("cuMemPoolTrimTo"),)

    def cuMemPoolSetAttribute(self, pool: Any, kind: Any, value: Any) -> Any:
        return (self.gate.ask("cuMemPoolSetAttribute"),)

    def cuKernelGetAttribute(self, kind: Any, kernel: Any, device: Any) -> Any:
        return self.gate.ask("cuKernelGetAttribute"), 0

    def cuKernelSetAttribute(self, kind: Any, value: int, kernel: Any, device: Any) -> Any:
        return (self.gate.ask("cuKernelSetAttribute"),)

    def cuKernelGetParamInfo(self, kernel: Any, place: int) -> Any:
        size = self._numbered[int(kernel)].sizes[place]
        return self.gate.ask("cuKernelGetParamInfo"), 0, size

    def cuLaunchKernel(self, function: Any, *how: Any) -> Any:
        answer = self.gate.ask("cuLaunchKernel")
        (*grid, threads, _, _, _, stream, table, _) = how
        if answer == SUCCESS:
            kernel = self._numbered[int(function)]
            cells, grid = _copied(table, kernel.sizes), (ctypes.c_uint * 3)(*grid)

            def work() -> None:
                with self.running:
                    kernel.run(cells[0], grid, ctypes.c_uint(threads))

            self.do(stream, work)
        return (answer,)


def _copied(table: int, sizes: Sequence[int]) -> tuple[Any, list[Any]]:
    """Return a table of arguments, and what it points to: copies, as a graph has its own."""
    given = (ctypes.c_void_p * len(sizes)).from_address(table)
    pairs = zip(given, sizes, strict=True)
    cells = [ctypes.create_string_buffer(ctypes.string_at(a, n), n) for a, n in pairs]
    return (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells)), cells


def plant(compiler: FakeCompiler, gate: Gate, patch: Patch) -> FakeGpu:
    """Put a GPU that is none in the place of all of CUDA.

    Args:
        compiler: may have served other GPUs, so that each kernel is compiled once.
        gate: what fails.
        patch: sets an attribute; pytest's `monkeypatch.setattr` undoes it later.
    """
    gpu = FakeGpu(compiler, gate)

    class Pool(FakePool):
        def __init__(self, *_: Any) -> None:
            gate.enter("cuMemPoolCreate")
            super().__init__(gpu, "cuMemAllocFromPoolAsync", "cuMemFreeAsync")

    # The package is for `step`, which imports the driver when it binds a launch.
    for module in (device_module, driver_device, events, memory, status, array, exchange, bindings):
        patch(module, "driver", gpu)
    patch(conditional_nodes, "driver", gpu)
    for module in (device_module, driver_device, memory):
        patch(module, "Device", gpu.open)
    for module in (driver_device, exchange):
        patch(module, "DeviceMemoryResource", Pool)
        patch(module, "DeviceMemoryResourceOptions", lambda: None)
    patch(driver_device, "LegacyPinnedMemoryResource", gpu.pinned)
    patch(driver_device, "Compiler", lambda target, folder: gpu.compiler)
    patch(exchange, "_DEFAULTS", dict.fromkeys((0, 1, 2), gpu.default))
    patch(device_module, "_opened", {})
    patch(wake, "_wake", lambda ordinal: None)  # the real one sleeps on
    return gpu
