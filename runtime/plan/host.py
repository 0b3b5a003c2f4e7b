"""The host as a device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..base.host_memory import memory
from ..errors import DeviceOutOfMemory
from ..ir.types import Array, TensorType
from .backend import Stream, View
from .format import Format

ALIGNMENT = 256


def _check_fits(nbytes: int) -> None:
    """Refuse what exceeds the machine's memory: overcommit would get the process killed."""
    if nbytes > memory():
        raise DeviceOutOfMemory(
            f"cpu: {nbytes} bytes requested in one allocation; the machine has {memory()}"
        )


class HostBuffer:
    """Host memory, aligned to 256 bytes."""

    __slots__ = ("memory",)

    def __init__(self, nbytes: int) -> None:
        _check_fits(nbytes)
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise DeviceOutOfMemory(
                f"cpu: {nbytes} bytes requested in one allocation, which the system refused"
            ) from error
        start = -raw.ctypes.data % ALIGNMENT
        self.memory: Array = raw[start : start + nbytes]

    @classmethod
    def around(cls, data: Array) -> HostBuffer:
        """Return a buffer over the memory of `data` (contiguous; may be read-only)."""
        buffer = cls.__new__(cls)
        buffer.memory = data
        return buffer

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def close(self) -> None:
        self.memory = np.empty(0, np.uint8)


class HostStream:
    """A stream whose work is done immediately."""

    __slots__ = ()

    def synchronize(self) -> None:
        return None


class HostDevice:
    """The host: numpy memory, one implicit stream, no recordings."""

    name = "cpu"

    def enter(self) -> None:
        return None

    def allocate(self, nbytes: int) -> HostBuffer:
        return HostBuffer(nbytes)

    def staging(self, nbytes: int) -> HostBuffer:
        return HostBuffer(nbytes)

    def stream(self) -> HostStream:
        return HostStream()

    def upload(self, data: Array) -> View:
        """Return `data` itself if it is contiguous, else a contiguous copy."""
        if not data.flags.c_contiguous:
            _check_fits(data.nbytes)
            data = np.ascontiguousarray(data).reshape(data.shape)
        return View(self, HostBuffer.around(data), 0, TensorType(data.dtype, data.shape))

    def copier(self, dst: View, src: View) -> Callable[[Stream], None]:
        target, source = logical(dst), logical(src)
        return lambda stream: np.copyto(target, source)

    def record(self, run: Callable[[Stream], None]) -> Callable[[Stream], None] | None:
        return None


#: There is one host.
HOST = HostDevice()


def array(view: View) -> Array:
    """Return the elements of a host view in memory order, without a copy."""
    if not isinstance(view.buffer, HostBuffer):
        raise TypeError(f"{view.type} is on {view.device.name}, not on the host")
    memory = view.buffer.memory
    shape = view.format.physical(view.type.dims)
    if memory.dtype == view.type.dtype and memory.shape == shape and view.offset == 0:
        return memory
    octets = memory.reshape(-1).view(np.uint8)
    elements = octets[view.offset : view.offset + view.extent].view(view.type.dtype)
    if not view.pitch:
        return elements.reshape(shape)
    steps = [view.pitch * int(np.prod(shape[axis + 1 : -1])) for axis in range(len(shape) - 1)]
    moves = [step * elements.itemsize for step in (*steps, 1)]
    return np.lib.stride_tricks.as_strided(elements, shape, moves)


def logical(view: View) -> Array:
    """Return the elements of a host view in the order of the logical shape, without a copy."""
    elements = array(view)
    if view.format is Format.CONTIGUOUS or elements.ndim < 3:
        return elements
    return np.moveaxis(elements, -1, 1)
