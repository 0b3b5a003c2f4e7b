"""Device memory and pinned host memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from sys import is_finalizing

import numpy as np
from cuda.bindings import driver
from cuda.core import Buffer, Device

from ....runtime.base import forks
from ....runtime.plan.backend import View
from ....runtime.plan.host import HOST, HostBuffer
from .status import CUDAError


class CudaBuffer:
    """A device allocation.

    Attributes:
        core: the buffer of cuda.core; None if empty or closed.
        nbytes: its size.
        pointer: its address; 0 if empty.
        is_shared: whether others have read it on their own streams, and may still be reading when
            they release it.
    """

    __slots__ = ("_generation", "_release", "core", "is_shared", "nbytes", "pointer")

    def __init__(
        self, core: Buffer | None, nbytes: int, release: Callable[[Buffer, int], None]
    ) -> None:
        self.core, self.nbytes, self._release = core, nbytes, release
        self.pointer = int(core.handle) if core is not None else 0
        self.is_shared = False
        self._generation = forks.generation()

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        # The driver frees everything then; names of this module may be gone already.
        if not ends():
            self.close()

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        core, nbytes = self.core, self.nbytes
        self.core, self.nbytes, self.pointer = None, 0, 0
        if core is None:
            return
        if self.is_shared and self._generation == forks.generation():
            with suppress(CUDAError):  # after a reported fault, there are no readers
                Device(core.device_id).set_current()
                driver.cuCtxSynchronize()
        self._release(core, nbytes)


class PinnedBuffer(HostBuffer):
    """Pinned host memory, accessible to the device."""

    __slots__ = ("_core", "_generation")

    def __init__(self, core: Buffer) -> None:
        self._generation = forks.generation()
        self._core: Buffer | None = core
        self.memory = np.from_dlpack(core).view(np.uint8)

    def close(self) -> None:
        super().close()
        core, self._core = self._core, None
        if core is not None and self._generation == forks.generation():
            with suppress(CUDAError):  # after a fault, which was reported, the driver frees nothing
                core.close()


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
