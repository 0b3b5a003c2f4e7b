"""One GPU: memory, streams, copies and recorded graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import local

import numpy as np
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    Event,
    EventOptions,
    Kernel,
    LegacyPinnedMemoryResource,
    MemoryResource,
    ObjectCode,
    Stream,
)
from cuda.core.graph import GraphBuilder

from ....runtime.base import forks
from ....runtime.base.host_memory import memory
from ....runtime.errors import DeviceError, DeviceFault, DeviceOutOfMemory
from ....runtime.ir.types import Array, TensorType
from ....runtime.plan.backend import View
from ....runtime.plan.host import HostBuffer
from .compile import Compiler, target_for
from .memory import CudaBuffer, PinnedBuffer, address
from .status import CUDAError, check, failure, translated

#: Shared memory per block in bytes, static plus dynamic, available without opt-in.
UNASKED = 48 << 10
OWN_SHARED = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
MAX_SHARED = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_SHARE = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
LARGE_CLUSTERS = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
#: Maximum blocks of a cluster without opt-in.
PORTABLE = 8
_LAUNCH = "graph launch"
_NO_MEMORY = "OUT_OF_MEMORY"


class CudaStream:
    """A CUDA stream.

    Attributes:
        core: the stream of cuda.core.
        handle: the driver's handle.
    """

    __slots__ = ("core", "handle")

    def __init__(self, core: Stream) -> None:
        self.core = core
        self.handle = int(core.handle)

    def mark(self) -> Event:
        """Record an event after everything enqueued on the stream so far."""
        try:
            return self.core.record()
        except CUDAError as error:
            raise failure(f"recording an event failed with {error}") from error

    def wait(self, event: Event) -> None:
        """Make later work of the stream wait for an event of another stream."""
        try:
            self.core.wait(event)
        except CUDAError as error:
            raise failure(f"waiting for an event failed with {error}") from error

    def synchronize(self) -> None:
        """Wait until all work of the stream is done; see `runtime.backend.Stream`."""
        answer = driver.cuStreamSynchronize(self.handle)
        if answer[0]:
            check("a kernel or copy before cuStreamSynchronize", answer)


class Recording(CudaStream):
    """The stream of a CUDA graph that is being recorded.

    Attributes:
        builder: the builder of the graph, or of a conditional body in it.
    """

    __slots__ = ("builder",)

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__(builder.stream)
        self.builder = builder

    def record(self, run: Callable[[CudaStream], None]) -> None:
        """Record what `run` enqueues on the stream."""
        # In any other mode, a garbage collection that frees memory of other models
        # during the capture would invalidate it.
        self.builder.begin_building("relaxed")
        run(self)
        self.builder.end_building()


class DriverDevice:
    """One GPU: its memory, streams and compiled kernels.

    Attributes:
        name: such as ``cuda:0``.
        description: the GPU's name, its architecture and the driver's CUDA version.
        compiler: compiles kernels, with the most recently requested cache folder.
        allocated: bytes of device memory held by buffers.
        fitting: handles of kernels with the sizes of parameters that they have been found to take.
    """

    def __init__(self, core: Device, cache: Path | None) -> None:
        about = core.properties
        major, minor = core.compute_capability
        self._core = core
        self._lock = forks.lock()
        self._own = local()
        self._generation = forks.generation()
        with translated(f"opening GPU {core.device_id}"):
            self._service = core.create_stream()
            self._memory = _memory_of(core)
            self._pinned = LegacyPinnedMemoryResource()
        self.name = f"cuda:{core.device_id}"
        self.description = f"{core.name}, sm_{major}{minor}, driver CUDA {driver_version()}"
        shared = about.max_shared_memory_per_block_optin
        self._target = target_for(major, minor, about.multiprocessor_count, shared)
        self._compilers: dict[Path | None, Compiler] = {}
        self.fitting: set[tuple[int, tuple[int, ...]]] = set()
        self._loaded: dict[tuple[object, ...], tuple[ObjectCode, Kernel]] = {}
        self.use_cache(cache)
        self.allocated = 0

    def use_cache(self, folder: Path | None) -> None:
        """Use this cache folder for compiled code from now on."""
        with self._lock:
            if folder not in self._compilers:
                self._compilers[folder] = Compiler(self._target, folder)
            self.compiler = self._compilers[folder]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.description}>"

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def allocate(self, nbytes: int) -> CudaBuffer:
        """Return new memory, aligned to 512 bytes; see `runtime.backend.Device`."""
        if nbytes == 0:
            return CudaBuffer(None, 0, self._release)
        self.enter()
        core = self.obtain(nbytes, self._take)
        self.account(nbytes)
        return CudaBuffer(core, nbytes, self._release)

    def _take(self, nbytes: int) -> Buffer:
        core = self._memory.allocate(nbytes, stream=self._service)
        self._service.sync()
        return core

    def obtain(self, nbytes: int, take: Callable[[int], Buffer]) -> Buffer:
        """Return what `take` allocates, releasing cached memory and retrying if necessary.

        Raises:
            DeviceOutOfMemory: there is too little memory; states how much.
            DeviceError: another failure of the device.
        """
        try:
            return take(nbytes)
        except CUDAError as error:
            if _NO_MEMORY not in str(error):
                raise self.refusal(nbytes, error) from error
        try:
            self._service.sync()
            self.reclaim()
            return take(nbytes)
        except CUDAError as error:
            raise self.refusal(nbytes, error) from error

    def reclaim(self) -> None:
        """Release memory cached for future arrays."""

    def refusal(self, nbytes: int, error: Exception) -> DeviceError:
        """Return the error for an allocation that failed with an error of cuda.core."""
        if _NO_MEMORY not in str(error):
            return failure(f"allocating {nbytes} bytes failed with {error}")
        free, total = check("cuMemGetInfo", driver.cuMemGetInfo())
        return DeviceOutOfMemory(
            f"{self.name} has no {nbytes} bytes: {free} of {total} are free, "
            f"{self.allocated} are in use here"
        )

    def account(self, nbytes: int) -> None:
        """Record that a buffer was allocated, or freed if negative."""
        with self._lock:
            self.allocated += nbytes

    def _release(self, core: Buffer, nbytes: int) -> None:
        if self.is_lost:
            return
        with suppress(CUDAError):  # after a reported fault, the driver frees nothing
            core.close(self._service)
            self._service.sync()
        self.account(-nbytes)

    def staging(self, nbytes: int) -> HostBuffer:
        """Return pinned host memory."""
        if nbytes == 0:
            return HostBuffer(0)
        self.enter()
        try:
            return PinnedBuffer(self._pinned.allocate(nbytes))
        except CUDAError as error:
            text = f"pinning {nbytes} bytes of host memory failed with {error}"
            if _NO_MEMORY not in str(error):
                raise failure(text) from error
            raise DeviceOutOfMemory(
                f"{text}; {memory()} bytes of host memory are available, and the system may "
                "allow fewer to be pinned: see `ulimit -l`"
            ) from error

    def upload(self, data: Array) -> View:
        """Return a new buffer with these elements; the copy is complete."""
        data = np.ascontiguousarray(data).reshape(data.shape)
        buffer = self.allocate(data.nbytes)
        if data.nbytes:
            # cuMemcpyHtoD may return before the last part has arrived.
            stream, source = self._own_stream(), data.ctypes.data
            answer = driver.cuMemcpyHtoDAsync(buffer.pointer, source, data.nbytes, stream.handle)
            check("cuMemcpyHtoDAsync", answer)
            stream.synchronize()
        return View(self, buffer, 0, TensorType(data.dtype, data.shape))

    def _own_stream(self) -> CudaStream:
        """Return the stream for what this thread waits for; others would wait for it as well."""
        stream: CudaStream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = self.stream()
        return stream

    # ── work ─────────────────────────────────────────────────────────────────────────────────

    def stream(self) -> CudaStream:
        """Return a new stream, independent of the default one."""
        self.enter()
        with translated("creating a stream"):
            return CudaStream(self._core.create_stream())

    def copier(self, dst: View, src: View) -> Callable[[CudaStream], None]:
        """Return a run that copies `src` to `dst`, which have the same format."""
        nbytes = dst.nbytes
        if nbytes == 0:
            return lambda stream: None
        target, source = address(dst), address(src)

        def copy(stream: CudaStream, _alive: object = (dst, src)) -> None:
            answer = driver.cuMemcpyAsync(target, source, nbytes, stream.handle)
            if answer[0]:
                check(f"cuMemcpyAsync of {nbytes} bytes", answer)

        return copy

    def record(self, run: Callable[[CudaStream], None]) -> Callable[[CudaStream], None]:
        """Return a CUDA graph of what `run` enqueues; a replay is one call."""
        stream = self.stream()
        with translated("recording a CUDA graph"):
            builder = stream.core.create_graph_builder()
            try:
                Recording(builder).record(run)
                graph = builder.complete()
            finally:
                with suppress(CUDAError):  # an interrupted recording cannot be closed
                    builder.close()
            graph.upload(stream.core)
            stream.core.sync()
        replay = graph.launch

        def launch(stream: CudaStream) -> None:
            try:
                replay(stream.core)
            except CUDAError as error:
                raise failure(f"{_LAUNCH} failed with {error}") from error

        return launch

    def time(self, run: Callable[[CudaStream], None], stream: CudaStream) -> float:
        """Return the device time in seconds of what `run` enqueues, by events."""
        with translated("timing"):
            timed = EventOptions(timing_enabled=True)
            begin, end = self._core.create_event(timed), self._core.create_event(timed)
            stream.core.record(begin)
            run(stream)
            stream.core.record(end)
            end.sync()
            return (end - begin) / 1e3

    def load(
        self,
        code: ObjectCode,
        entry: str,
        shared: int = 0,
        *,
        prefers_shared: bool = False,
        cluster: int = 1,
    ) -> Kernel:
        """Return one function of compiled code, which is loaded once for all equal launches.

        Args:
            code: the compiled code.
            entry: the function's name.
            shared: dynamic shared memory per block in bytes.
            prefers_shared: see `Launch.prefers_shared`.
            cluster: blocks of a cluster.
        """
        self.enter()
        key = (id(code), entry, shared, prefers_shared, cluster)
        if key not in self._loaded:
            kernel = self._load(code, entry, shared, prefers_shared, cluster)
            self._loaded[key] = code, kernel  # the code keeps its id
        return self._loaded[key][1]

    def _load(
        self, code: ObjectCode, entry: str, shared: int, prefers_shared: bool, cluster: int
    ) -> Kernel:
        with translated(f"loading {entry}"):
            kernel = code.get_kernel(entry)
        if shared:
            self._grant(kernel, entry, shared)
        handle, device = driver.CUkernel(int(kernel.handle)), driver.CUdevice(self.ordinal)
        if prefers_shared:
            call = f"asking for most of the memory as shared memory for {entry}"
            check(call, driver.cuKernelSetAttribute(SHARED_SHARE, 100, handle, device))
        if cluster > PORTABLE:
            call = f"asking for clusters of {cluster} blocks for {entry}"
            check(call, driver.cuKernelSetAttribute(LARGE_CLUSTERS, 1, handle, device))
        return kernel

    def _grant(self, kernel: Kernel, entry: str, shared: int) -> None:
        """Opt a kernel in to this much dynamic shared memory, unless it already has more."""
        handle, device = driver.CUkernel(int(kernel.handle)), driver.CUdevice(self.ordinal)
        call = f"asking for {shared} bytes of shared memory for {entry}"
        own, granted = (
            check(call, driver.cuKernelGetAttribute(attribute, handle, device))
            for attribute in (OWN_SHARED, MAX_SHARED)
        )
        if own + shared > UNASKED and shared >= granted:
            check(call, driver.cuKernelSetAttribute(MAX_SHARED, shared, handle, device))

    @property
    def ordinal(self) -> int:
        """Index of the GPU."""
        return self._core.device_id

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second of its memory by clock and bus width, at two transfers per cycle."""
        about = self._core.properties
        return 2 * about.memory_clock_rate * 1e3 * about.global_memory_bus_width / 8

    def enter(self) -> Device:
        """Make it the thread's current device; return the device of cuda.core.

        Raises:
            DeviceFault: the process was forked after the device was opened.
            DeviceError: the driver refuses it.
        """
        if self.is_lost:
            raise DeviceFault(
                f"{self.name} was opened before this process was forked, and CUDA does not survive "
                "a fork: start such processes with multiprocessing's 'spawn' or 'forkserver', or "
                "load the first model on the GPU after the fork"
            )
        try:
            core = Device(self._core.device_id)  # of this thread: cuda.core asks no other one
            core.set_current()
        except CUDAError as error:
            raise failure(f"making {self.name} current failed with {error}") from error
        return core

    @property
    def is_lost(self) -> bool:
        """Whether the process was forked after the device was opened."""
        return self._generation != forks.generation()


def _memory_of(core: Device) -> MemoryResource:
    """Return a pool that releases freed memory to the system; the default one if unsupported."""
    if not core.properties.memory_pools_supported:
        return core.memory_resource
    return DeviceMemoryResource(core.device_id, DeviceMemoryResourceOptions())


def driver_version() -> str:
    """Return the newest CUDA version supported by the driver, such as ``12.8``."""
    version = check("cuDriverGetVersion", driver.cuDriverGetVersion())
    return f"{version // 1000}.{version % 1000 // 10}"
