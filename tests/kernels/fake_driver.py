"""NVIDIA's driver made of the host's memory, any call of which may be told to fail.

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
from threading import Lock, Thread, get_ident
from types import SimpleNamespace
from typing import Any

from cuda import bindings
from cuda.bindings import driver as real

from tercet.backends.cuda import device as device_module
from tercet.backends.cuda.control import conditional_nodes
from tercet.backends.cuda.driver import device as driver_device
from tercet.backends.cuda.driver import events, launching, memory, status, streams, wake
from tercet.backends.cuda.interop import array, exchange
from tercet.backends.cuda.recipe.targets import Target
from tercet.runtime.ir.types import Array
from tercet.runtime.plan.host import HostBuffer

from .emulator import HostCompiler, Library, grid_of

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


Work = Callable[[], object]


@dataclass(eq=False)
class FakeStream:
    """Does its work at once, or writes it down while it is recorded."""

    capture: list[Work] | None = None


@dataclass(eq=False)
class FakeEvent:
    """Knows what was recorded into where it was put."""

    capture: list[Work] | None = None


@dataclass(eq=False)
class FakeGraph:
    """What a graph does."""

    work: list[Work]


def play(works: list[Work]) -> None:
    for work in works:
        work()


@dataclass(eq=False)
class FakeBlock:
    """Memory of the device, or pinned memory of the host."""

    memory: Array
    free: str


class FakeCode:
    """Machine code."""

    def __init__(self, gpu: FakeGpu, library: Library) -> None:
        self.gpu, self.library = gpu, library

    def kernel(self, entry: str) -> Any:
        return SimpleNamespace(run=self.library.kernel(entry), sizes=self.library.sizes(entry))


@dataclass
class FakeCompiler(HostCompiler):
    """The emulator's compiler, which gives what the fake driver loads.

    Attributes:
        ahead: whether a thread loads kernels when their code is there, which `Compiler` always has;
            without, a run makes the first calls that need the GPU.
    """

    ahead: bool = False
    gpu: FakeGpu = field(init=False)

    def submit(self, source: Any, *, here: bool = False) -> Any:
        library, codes = super().submit(source).result(), self.gpu.codes
        if self.ahead and source not in codes:
            codes[source] = FakeCode(self.gpu, library)
            thread = Thread(target=self.gpu.on_code, args=(codes[source],))
            thread.start()
            thread.join()
        return SimpleNamespace(result=lambda: codes.setdefault(source, FakeCode(self.gpu, library)))


class FakeGpu:
    """The GPU, and the driver's functions for it.

    Attributes:
        gate: what every call passes.
        held: bytes that are not given back, by the call that gives them back.
        codes: machine code by source.
        on_code: the device's, see `Compiler`.
        threads: those that have a current context.
    """

    def __init__(self, compiler: FakeCompiler, gate: Gate) -> None:
        self.gate, self.compiler = gate, compiler
        compiler.gpu = self
        self.held: Counter[str] = Counter()
        self.codes: dict[Any, FakeCode] = {}
        self.on_code: Callable[[Any], None] | None = None
        self.threads = set[int]()
        self.running = Lock()  # the emulator has one block of threads
        self._numbered: dict[int, Any] = {}
        self._numbered[1] = FakeStream()
        self._blocks: dict[int, FakeBlock] = {}

    def compiler_for(self, target: Target, folder: object, on_code: Any) -> FakeCompiler:
        """Return its compiler in the place of a new one."""
        self.on_code = on_code
        return self.compiler

    def number(self, made: Any) -> int:
        """Return a handle for an object."""
        handle = 100 + len(self._numbered)
        self._numbered[handle] = made
        return handle

    def made(self, name: str, made: Any) -> Any:
        """Return what a call of the driver answers that makes something."""
        answer = self.gate.ask(name)
        return answer, self.number(made) if answer == SUCCESS else None

    def do(self, stream: Any, work: Work) -> None:
        """Do some work of a stream, or write it down."""
        capture = self._numbered[int(stream)].capture
        work() if capture is None else capture.append(work)

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

    def cuDevicePrimaryCtxRetain(self, ordinal: int) -> Any:
        return self.gate.ask("cuDevicePrimaryCtxRetain"), 7

    def cuDeviceGetName(self, length: int, ordinal: int) -> Any:
        return self.gate.ask("cuDeviceGetName"), b"Fake"

    def cuDeviceGetAttribute(self, which: Any, ordinal: int) -> Any:
        found = {
            "COMPUTE_CAPABILITY_MAJOR": 8,
            "COMPUTE_CAPABILITY_MINOR": 0,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": FAKE.shared,
            "MULTIPROCESSOR_COUNT": FAKE.processors,
            "MEMORY_POOLS_SUPPORTED": 1,
        }
        name = which.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return self.gate.ask("cuDeviceGetAttribute"), found[name]

    def cuCtxSetCurrent(self, context: int) -> Any:
        self.threads.add(get_ident())
        return (self.gate.ask("cuCtxSetCurrent"),)

    def cuCtxGetCurrent(self) -> Any:
        return self.gate.ask("cuCtxGetCurrent"), 7 if get_ident() in self.threads else 0

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def _block(self, name: str, nbytes: int, free: str) -> Any:
        answer = self.gate.ask(name)
        if answer != SUCCESS:
            return answer, None
        block = FakeBlock(HostBuffer(nbytes).memory, free)
        block.memory[:] = 0xAB
        self.held[free] += nbytes
        start = block.memory.ctypes.data
        self._blocks[start] = block
        return answer, start

    def _free(self, name: str, pointer: int) -> Any:
        answer = self.gate.ask(name)
        if answer == SUCCESS:
            block = self._blocks.pop(pointer)
            assert block.free == name
            self.held[name] -= block.memory.nbytes
        return (answer,)

    def cuMemPoolCreate(self, about: Any) -> Any:
        return self.made("cuMemPoolCreate", None)

    def cuMemAllocFromPoolAsync(self, nbytes: int, pool: int, stream: int) -> Any:
        return self._block("cuMemAllocFromPoolAsync", nbytes, "cuMemFreeAsync")

    def cuMemFreeAsync(self, pointer: int, stream: int) -> Any:
        return self._free("cuMemFreeAsync", pointer)

    def cuMemAllocHost(self, nbytes: int) -> Any:
        return self._block("cuMemAllocHost", nbytes, "cuMemFreeHost")

    def cuMemFreeHost(self, pointer: int) -> Any:
        return self._free("cuMemFreeHost", pointer)

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

    # ── streams and events ───────────────────────────────────────────────────────────────────

    def cuStreamCreate(self, flags: int) -> Any:
        return self.made("cuStreamCreate", FakeStream())

    def cuStreamDestroy(self, stream: Any) -> Any:
        return (self.gate.ask("cuStreamDestroy"),)

    def cuStreamSynchronize(self, stream: Any) -> Any:
        answer = self.gate.ask("cuStreamSynchronize")
        is_recorded = self._numbered[int(stream)].capture is not None
        assert not is_recorded, "a stream that is recorded cannot be waited for"
        return (answer,)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> Any:
        answer = self.gate.ask("cuStreamWaitEvent")
        waiting, point = self._numbered[int(stream)], self._numbered[int(event)]
        if answer == SUCCESS and waiting.capture is None:
            waiting.capture = point.capture
        return (answer,)

    def cuStreamIsCapturing(self, stream: Any) -> Any:
        return self.gate.ask("cuStreamIsCapturing"), exchange._NOT_CAPTURING

    def cuCtxSynchronize(self) -> Any:
        return (self.gate.ask("cuCtxSynchronize"),)

    def cuEventCreate(self, flags: int) -> Any:
        return self.made("cuEventCreate", FakeEvent())

    def cuEventDestroy(self, event: Any) -> Any:
        return (self.gate.ask("cuEventDestroy"),)

    def cuEventRecord(self, event: Any, stream: Any) -> Any:
        answer = self.gate.ask("cuEventRecord")
        if answer == SUCCESS:
            self._numbered[int(event)].capture = self._numbered[int(stream)].capture
        return (answer,)

    def cuEventSynchronize(self, event: Any) -> Any:
        return (self.gate.ask("cuEventSynchronize"),)

    def cuEventQuery(self, event: Any) -> Any:
        return (self.gate.ask("cuEventQuery"),)

    # ── graphs ───────────────────────────────────────────────────────────────────────────────

    def cuStreamBeginCapture(self, stream: int, mode: Any) -> Any:
        answer = self.gate.ask("cuStreamBeginCapture")
        if answer == SUCCESS:
            self._numbered[stream].capture = []
        return (answer,)

    def cuStreamBeginCaptureToGraph(self, stream: int, graph: int, *_: Any) -> Any:
        answer = self.gate.ask("cuStreamBeginCaptureToGraph")
        if answer == SUCCESS:
            self._numbered[stream].capture = self._numbered[graph].work
        return (answer,)

    def cuStreamEndCapture(self, stream: int) -> Any:
        work = self._numbered[stream].capture
        for each in self._numbered.values():
            if isinstance(each, FakeStream) and each.capture is work:
                each.capture = None
        return self.made("cuStreamEndCapture", FakeGraph(work))

    def cuStreamGetCaptureInfo(self, stream: int) -> Any:
        work = self._numbered[stream].capture
        assert work is not None, "the stream is not recorded"
        return self.gate.ask("cuStreamGetCaptureInfo"), None, 1, self.number(work), [], None, 0

    def cuStreamUpdateCaptureDependencies(self, stream: int, *_: Any) -> Any:
        return (self.gate.ask("cuStreamUpdateCaptureDependencies"),)

    def cuGraphConditionalHandleCreate(self, graph: int, context: int, *_: Any) -> Any:
        answer = self.gate.ask("cuGraphConditionalHandleCreate")
        if not context:
            return real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        cell = ctypes.c_uint(0)
        self._numbered[ctypes.addressof(cell)] = cell
        return answer, ctypes.addressof(cell)

    def CUgraphNodeParams(self) -> Any:
        return SimpleNamespace(type=None, conditional=SimpleNamespace())

    def cuGraphAddNode(self, graph: int, ends: Any, edges: Any, count: int, node: Any) -> Any:
        answer, about = self.gate.ask("cuGraphAddNode"), node.conditional
        bodies = [FakeGraph([]) for _ in range(about.size)]
        about.phGraph_out = [self.number(body) for body in bodies]
        cell = self._numbered[int(about.handle)]

        def branch() -> None:
            play(bodies[0 if cell.value else 1].work)

        def loop() -> None:
            while cell.value:
                play(bodies[0].work)

        self._numbered[graph].append(branch if about.type == streams.IF else loop)
        return answer, self.number(None)

    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        return self.made("cuGraphInstantiate", self._numbered[graph])

    def cuGraphUpload(self, graph: int, stream: int) -> Any:
        return (self.gate.ask("cuGraphUpload"),)

    def cuGraphLaunch(self, graph: int, stream: int) -> Any:
        answer = self.gate.ask("cuGraphLaunch")
        if answer == SUCCESS:
            play(self._numbered[graph].work)
        return (answer,)

    def cuGraphDestroy(self, graph: int) -> Any:
        return (self.gate.ask("cuGraphDestroy"),)

    def cuGraphExecDestroy(self, graph: int) -> Any:
        return (self.gate.ask("cuGraphExecDestroy"),)

    # ── kernels ──────────────────────────────────────────────────────────────────────────────

    def cuLibraryLoadData(self, code: Any, *_: Any) -> Any:
        return self.made("cuLibraryLoadData", code)

    def cuLibraryGetKernel(self, library: int, entry: bytes) -> Any:
        return self.made("cuLibraryGetKernel", self._numbered[library].kernel(entry.decode()))

    def cuLibraryGetKernelCount(self, library: int) -> Any:
        return self.gate.ask("cuLibraryGetKernelCount"), 1

    def cuLibraryEnumerateKernels(self, count: int, library: int) -> Any:
        return self.gate.ask("cuLibraryEnumerateKernels"), [library] * count

    def cuKernelGetFunction(self, kernel: int) -> Any:
        assert get_ident() in self.threads, "the thread has no context"
        return self.made("cuKernelGetFunction", self._numbered[kernel])

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
            cells, grid = _copied(table, kernel.sizes), grid_of(grid)

            def work() -> None:
                with self.running:
                    kernel.run(cells[0], grid, threads)

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
    # The package is for `step`, which imports the driver when it binds a launch.
    for module in (device_module, driver_device, events, launching, memory, status, streams):
        patch(module, "driver", gpu)
    for module in (array, exchange, bindings):
        patch(module, "driver", gpu)
    patch(conditional_nodes, "driver", gpu)
    patch(driver_device, "Compiler", gpu.compiler_for)
    patch(device_module, "_opened", {})
    patch(wake, "_wake", lambda ordinal, started: started.set())  # the real one sleeps on
    return gpu
