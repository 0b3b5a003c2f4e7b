"""One GPU: memory, streams, copies and recorded graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import local

import numpy as np
from cuda.bindings import driver

from ....runtime.base import forks
from ....runtime.base.host_memory import memory
from ....runtime.errors import DeviceError, DeviceFault, DeviceOutOfMemory
from ....runtime.ir.types import Array, TensorType
from ....runtime.plan.backend import View
from ....runtime.plan.host import HostBuffer
from ..recipe.launch import Launch
from . import launching
from .compile import Compiler, target_for
from .memory import CudaBuffer, MemoryPool, PinnedBuffer, address
from .status import check
from .streams import CudaEvent, CudaStream, OwnStream, RecordedGraph

#: Shared memory per block in bytes, static plus dynamic, available without opt-in.
UNASKED = 48 << 10
OWN_SHARED = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
MAX_SHARED = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_SHARE = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
LARGE_CLUSTERS = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
#: Maximum blocks of a cluster without opt-in.
PORTABLE = 8
_NO_MEMORY = "OUT_OF_MEMORY"
_ATTRIBUTES = driver.CUdevice_attribute


class DriverDevice:
    """One GPU: its memory, streams and compiled kernels.

    Args:
        ordinal: index of the GPU.
        cache: see `use_cache`.

    Attributes:
        name: such as ``cuda:0``.
        description: the GPU's name, its architecture and the driver's CUDA version.
        compiler: compiles kernels, with the most recently requested cache folder.
        allocated: bytes of device memory held by buffers.
        fitting: handles of kernels with the sizes of parameters that they have been found to take.
    """

    def __init__(self, ordinal: int, cache: Path | None) -> None:
        self.ordinal, self.name = ordinal, f"cuda:{ordinal}"
        self._lock, self._loading = forks.lock(), forks.lock()
        self._own = local()
        self._generation = forks.generation()
        self._context: driver.CUcontext | None = None
        major, minor = capability(ordinal)
        about = f"{name_of(ordinal)}, sm_{major}{minor}"
        self.description = f"{about}, driver CUDA {driver_version()}"
        processors = attribute(ordinal, _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        most = _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        self._target = target_for(major, minor, processors, attribute(ordinal, most))
        self._compilers: dict[Path | None, Compiler] = {}
        self.fitting: set[tuple[int, tuple[int, ...]]] = set()
        # Code keeps its id as long as it is here.
        self._libraries: dict[int, tuple[bytes, driver.CUlibrary]] = {}
        self._kernels: dict[tuple[object, ...], driver.CUkernel] = {}
        self.use_cache(cache)
        self.allocated = 0

    def use_cache(self, folder: Path | None) -> None:
        """Use this cache folder for compiled code from now on."""
        with self._lock:
            if folder not in self._compilers:
                self._compilers[folder] = Compiler(self._target, folder, on_code=self.preload)
            self.compiler = self._compilers[folder]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.description}>"

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def allocate(self, nbytes: int) -> CudaBuffer:
        """Return new memory, aligned to 512 bytes; see `runtime.backend.Device`."""
        if nbytes == 0:
            return CudaBuffer(0, 0)
        self.enter()
        buffer = self.allocate_in(self._service, nbytes)
        self._service.synchronize()
        return buffer

    def allocate_in(self, stream: CudaStream, nbytes: int, *, passing: bool = False) -> CudaBuffer:
        """Return new memory for what a stream does from now on; its context is current.

        Args:
            stream: the stream.
            nbytes: the size, not 0.
            passing: whether it ends behind what the stream does when it is closed, which waits for
                nothing then; memory that the stream asks for next is the same.
        """
        pointer = self.obtain(nbytes, partial(self._memory.allocate, stream=stream))
        if passing:
            release = partial(self.give_back, self._memory, stream=stream)
            return CudaBuffer(pointer, nbytes, lambda p, n, shared: release(p, n, is_shared=shared))
        return CudaBuffer(pointer, nbytes, self._release)

    def obtain(self, nbytes: int, take: Callable[[int], int]) -> int:
        """Return what `take` allocates, releasing cached memory and retrying if necessary.

        Raises:
            DeviceOutOfMemory: there is too little memory; states how much.
            DeviceError: another failure of the device.
        """
        try:
            pointer = take(nbytes)
        except DeviceError as error:
            if _NO_MEMORY not in str(error):
                raise
            pointer = self._obtain_again(nbytes, take)
        self.account(nbytes)
        return pointer

    def _obtain_again(self, nbytes: int, take: Callable[[int], int]) -> int:
        try:
            self._service.synchronize()
            self.reclaim()
            return take(nbytes)
        except DeviceError as error:
            if _NO_MEMORY not in str(error):
                raise
            free, total = check("cuMemGetInfo", driver.cuMemGetInfo())
            raise DeviceOutOfMemory(
                f"{self.name} has no {nbytes} bytes: {free} of {total} are free, "
                f"{self.allocated} are in use here"
            ) from error

    def reclaim(self) -> None:
        """Release memory cached for future arrays."""

    def account(self, nbytes: int) -> None:
        """Record that a buffer was allocated, or freed if negative."""
        with self._lock:
            self.allocated += nbytes

    def _release(self, pointer: int, nbytes: int, is_shared: bool) -> None:
        self.give_back(self._memory, pointer, nbytes, self._service, is_shared=is_shared)
        if not self.is_lost:
            with suppress(DeviceError):
                self._service.synchronize()

    def give_back(
        self,
        pool: MemoryPool,
        pointer: int,
        nbytes: int,
        stream: CudaStream,
        *,
        is_shared: bool,
    ) -> None:
        """Free memory in the order of a stream, on any thread; in a forked process, nothing.

        Args:
            pool: where it came from.
            pointer: its address.
            nbytes: its size.
            stream: the stream.
            is_shared: see `CudaBuffer`.
        """
        if self.is_lost:
            return
        with suppress(DeviceError):
            self.enter()
        if is_shared:
            driver.cuCtxSynchronize()
        with suppress(DeviceError):  # after a reported fault, the driver frees nothing
            pool.free(pointer, stream)
        self.account(-nbytes)

    def staging(self, nbytes: int) -> HostBuffer:
        """Return pinned host memory."""
        if nbytes == 0:
            return HostBuffer(0)
        self.enter()
        try:
            return PinnedBuffer(nbytes)
        except DeviceError as error:
            if _NO_MEMORY not in str(error):
                raise
            raise DeviceOutOfMemory(
                f"{error}; {memory()} bytes of host memory are available, and the system may "
                "allow fewer to be pinned: see `ulimit -l`"
            ) from error

    def upload(self, data: Array) -> View:
        """Return a new buffer with these elements; the copy is complete."""
        data = np.ascontiguousarray(data).reshape(data.shape)
        if not data.nbytes:
            return View(self, CudaBuffer(0, 0), 0, TensorType(data.dtype, data.shape))
        stream = self.own_stream()
        view = self.upload_in(stream, data, passing=False)
        stream.synchronize()  # cuMemcpyHtoDAsync may return before the last part has arrived
        return view

    def upload_in(self, stream: CudaStream, data: Array, *, passing: bool) -> View:
        """Return a buffer that a stream fills with elements in C order; see `allocate_in`."""
        buffer = self.allocate_in(stream, data.nbytes, passing=passing)
        source = data.ctypes.data
        answer = driver.cuMemcpyHtoDAsync(buffer.pointer, source, data.nbytes, stream.handle)
        check("cuMemcpyHtoDAsync", answer)
        return View(self, buffer, 0, TensorType(data.dtype, data.shape))

    def own_stream(self) -> CudaStream:
        """Return the stream for what this thread waits for; others would wait for it as well."""
        self.enter()
        stream: CudaStream | None = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = self.stream()
        return stream

    # ── work ─────────────────────────────────────────────────────────────────────────────────

    def stream(self) -> CudaStream:
        """Return a new stream, independent of the default one."""
        self.enter()
        return OwnStream()

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
        self.enter()
        return RecordedGraph(run).launch

    def time(self, run: Callable[[CudaStream], None], stream: CudaStream) -> float:
        """Return the device time in seconds of what `run` enqueues, by events."""
        begin, end = CudaEvent(timed=True), CudaEvent(timed=True)
        begin.record(stream)
        run(stream)
        end.record(stream)
        end.synchronize()
        return end.seconds_since(begin)

    def launcher(
        self, launch: Launch, code: bytes, pointers: Mapping[str, int]
    ) -> Callable[[CudaStream], None]:
        """Return a function that launches a kernel; see `launching.launcher`."""
        return launching.launcher(self, launch, code, pointers)

    def load(
        self,
        code: bytes,
        entry: str,
        shared: int = 0,
        *,
        prefers_shared: bool = False,
        cluster: int = 1,
    ) -> driver.CUkernel:
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
        with self._loading:
            if key not in self._kernels:
                self._kernels[key] = self._load(code, entry, shared, prefers_shared, cluster)
            return self._kernels[key]

    def preload(self, code: bytes) -> None:
        """Load all kernels of compiled code, on a thread that would do nothing else meanwhile.

        The driver loads a kernel when its function is asked for, at the latest at its first launch.
        What fails here fails again in `load`, whose caller can say for what it was.
        """
        call = "loading kernels ahead"
        with suppress(DeviceError):
            self.enter()
            with self._loading:
                library = self._library(code, call)
                count = check(call, driver.cuLibraryGetKernelCount(library))
                for kernel in check(call, driver.cuLibraryEnumerateKernels(count, library)):
                    check(call, driver.cuKernelGetFunction(kernel))

    def _library(self, code: bytes, call: str) -> driver.CUlibrary:
        if id(code) not in self._libraries:
            library = check(call, driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))
            self._libraries[id(code)] = code, library
        return self._libraries[id(code)][1]

    def _load(
        self, code: bytes, entry: str, shared: int, prefers_shared: bool, cluster: int
    ) -> driver.CUkernel:
        loading = f"loading {entry}"
        library = self._library(code, loading)
        kernel = check(loading, driver.cuLibraryGetKernel(library, entry.encode()))
        if shared:
            self._grant(kernel, entry, shared)
        device = driver.CUdevice(self.ordinal)
        if prefers_shared:
            call = f"asking for most of the memory as shared memory for {entry}"
            check(call, driver.cuKernelSetAttribute(SHARED_SHARE, 100, kernel, device))
        if cluster > PORTABLE:
            call = f"asking for clusters of {cluster} blocks for {entry}"
            check(call, driver.cuKernelSetAttribute(LARGE_CLUSTERS, 1, kernel, device))
        return kernel

    def _grant(self, kernel: driver.CUkernel, entry: str, shared: int) -> None:
        """Opt a kernel in to this much dynamic shared memory, unless it already has more."""
        device = driver.CUdevice(self.ordinal)
        call = f"asking for {shared} bytes of shared memory for {entry}"
        own, granted = (
            check(call, driver.cuKernelGetAttribute(attribute, kernel, device))
            for attribute in (OWN_SHARED, MAX_SHARED)
        )
        if own + shared > UNASKED and shared >= granted:
            check(call, driver.cuKernelSetAttribute(MAX_SHARED, shared, kernel, device))

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second of its memory by clock and bus width, at two transfers per cycle."""
        kilohertz = attribute(self.ordinal, _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
        bits = attribute(self.ordinal, _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
        return 2 * kilohertz * 1e3 * bits / 8

    def enter(self) -> None:
        """Make it the thread's current device.

        Raises:
            DeviceFault: the process was forked after the device was opened.
            DeviceError: the driver refuses it.
        """
        self.check_process()
        if self._context is None:
            self._start()
        answer = driver.cuCtxSetCurrent(self._context)
        if answer[0]:
            check(f"making {self.name} current", answer)

    def check_process(self) -> None:
        """Raise DeviceFault if the process was forked after the device was opened."""
        if self.is_lost:
            raise DeviceFault(
                f"{self.name} was opened before this process was forked, and CUDA does not survive "
                "a fork: start such processes with multiprocessing's 'spawn' or 'forkserver', or "
                "load the first model on the GPU after the fork"
            )

    def _start(self) -> None:
        """Wait for its context, which starts while plans are made, and make what allocates."""
        opening = f"opening GPU {self.ordinal}"
        with self._lock:
            if self._context is not None:
                return
            context = check(opening, driver.cuDevicePrimaryCtxRetain(self.ordinal))
            check(opening, driver.cuCtxSetCurrent(context))
            self._service = OwnStream()
            self._memory = MemoryPool(self.ordinal, keeps=False)
            self._context = context

    @property
    def is_lost(self) -> bool:
        """Whether the process was forked after the device was opened."""
        return self._generation != forks.generation()


def attribute(ordinal: int, which: driver.CUdevice_attribute) -> int:
    """Return an attribute of a GPU."""
    return check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(which, ordinal))


def capability(ordinal: int) -> tuple[int, int]:
    """Return the compute capability of a GPU."""
    major = attribute(ordinal, _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    return major, attribute(ordinal, _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)


def name_of(ordinal: int) -> str:
    """Return the name of a GPU, such as ``NVIDIA H200``."""
    name = check("cuDeviceGetName", driver.cuDeviceGetName(128, ordinal))
    return name.partition(b"\0")[0].decode(errors="replace")


def driver_version() -> str:
    """Return the newest CUDA version supported by the driver, such as ``12.8``."""
    version = check("cuDriverGetVersion", driver.cuDriverGetVersion())
    return f"{version // 1000}.{version % 1000 // 10}"
