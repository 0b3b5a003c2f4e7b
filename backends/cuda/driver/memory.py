"""Device memory and pinned host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from sys import is_finalizing

import numpy as np
from cuda.bindings import driver

from ....runtime.base import forks
from ....runtime.plan.backend import View
from ....runtime.plan.host import HOST, HostBuffer
from .status import check
from .streams import CudaStream

_POOLS = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
_KEPT = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


class MemoryPool:
    """Device memory that is allocated and freed in the order of streams.

    Args:
        ordinal: index of the GPU, which is the thread's current one.
        keeps: whether freed memory stays for later allocations, rather than with the system.
    """

    def __init__(self, ordinal: int, *, keeps: bool) -> None:
        self._handle: driver.CUmemoryPool | None = None  # where the GPU has no pools
        if not check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(_POOLS, ordinal)):
            return
        about = driver.CUmemPoolProps()
        about.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        about.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        about.location.id = ordinal
        self._handle = check("creating a memory pool", driver.cuMemPoolCreate(about))
        if keeps:
            everything = driver.cuuint64_t(2**64 - 1)
            answer = driver.cuMemPoolSetAttribute(self._handle, _KEPT, everything)
            check("cuMemPoolSetAttribute", answer)

    def allocate(self, nbytes: int, stream: CudaStream) -> int:
        """Return the address of new memory; raises DeviceError."""
        if self._handle is None:
            answer = driver.cuMemAlloc(nbytes)
        else:
            answer = driver.cuMemAllocFromPoolAsync(nbytes, self._handle, stream.handle)
        return int(check(f"allocating {nbytes} bytes", answer))

    def free(self, pointer: int, stream: CudaStream) -> None:
        """Free memory behind what is enqueued on a stream."""
        if self._handle is None:
            check("cuMemFree", driver.cuMemFree(pointer))
        else:
            check("cuMemFreeAsync", driver.cuMemFreeAsync(pointer, stream.handle))

    def trim(self) -> None:
        """Return the memory that nobody holds to the system."""
        if self._handle is not None:
            check("cuMemPoolTrimTo", driver.cuMemPoolTrimTo(self._handle, 0))


class CudaBuffer:
    """A device allocation.

    Args:
        release: is given the address, the size and `is_shared` when it is closed; None if the
            memory is not its own.
        owner: keeps memory alive that is not its own.

    Attributes:
        pointer: its address; 0 if empty or closed.
        nbytes: its size.
        is_shared: whether others have read it on their own streams, and may still be reading when
            they release it.
    """

    __slots__ = ("_release", "is_shared", "nbytes", "owner", "pointer")

    def __init__(
        self,
        pointer: int,
        nbytes: int,
        release: Callable[[int, int, bool], None] | None = None,
        owner: object = None,
    ) -> None:
        self.pointer, self.nbytes, self._release, self.owner = pointer, nbytes, release, owner
        self.is_shared = False

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        # The driver frees everything then; names of this module may be gone already.
        if not ends():
            self.close()

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        pointer, nbytes, release = self.pointer, self.nbytes, self._release
        self.pointer, self.nbytes, self._release, self.owner = 0, 0, None, None
        if pointer and release is not None:
            release(pointer, nbytes, self.is_shared)


class PinnedBuffer(HostBuffer):
    """Pinned host memory, accessible to the device; arrays of it keep it alive."""

    __slots__ = ("_pinned",)

    def __init__(self, nbytes: int) -> None:
        pinned = _Pinned(nbytes)
        self._pinned: _Pinned | None = pinned
        memory = (ctypes.c_uint8 * nbytes).from_address(pinned.pointer)
        memory.owner = pinned  # pyright: ignore[reportAttributeAccessIssue]  # kept alive by numpy
        self.memory = np.frombuffer(memoryview(memory), np.uint8)

    def close(self) -> None:
        super().close()
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.close()


class _Pinned:
    """Memory of the host that is page-locked until it is closed or collected."""

    __slots__ = ("_generation", "pointer")

    def __init__(self, nbytes: int) -> None:
        self._generation, self.pointer = forks.generation(), 0
        call = f"pinning {nbytes} bytes of host memory"
        self.pointer = int(check(call, driver.cuMemAllocHost(nbytes)))

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        if not ends():
            self.close()

    def close(self) -> None:
        """Free it; a second call does nothing."""
        pointer, self.pointer = self.pointer, 0
        if pointer and self._generation == forks.generation():
            driver.cuMemFreeHost(pointer)  # after a fault, which was reported, it frees nothing


def address(view: View) -> int:
    """Return the address of a view, on the device or on the host."""
    if isinstance(view.buffer, HostBuffer):
        return view.buffer.memory.ctypes.data + view.offset
    return pointer(view)


def pointer(view: View) -> int:
    """Return the address by which kernels access a view; raises TypeError if it is elsewhere.

    What is of the device but in memory of the host is pinned; see `Device.staging`.
    """
    if isinstance(view.buffer, HostBuffer) and view.device is not HOST:
        return address(view)
    if not isinstance(view.buffer, CudaBuffer):
        raise TypeError(f"{view.type} is on {view.device.name}, not on a CUDA device")
    return view.buffer.pointer + view.offset
