"""Callers' arrays in device memory, and callers' streams."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver

from ....runtime.base import forks
from ....runtime.errors import InputError, UsageError
from ....runtime.ir.types import Array, TensorType
from ....runtime.plan.backend import View
from ....runtime.plan.exchange import Lent
from ....runtime.plan.format import Format
from ....runtime.session.dlpack import ON_CUDA, ArrayDescription, place_name, place_of, see
from ..driver.device import DriverDevice
from ..driver.memory import CudaBuffer, MemoryPool, address, pointer
from ..driver.status import check
from ..driver.streams import CudaEvent, CudaStream
from .array import DeviceArray

#: Maximum number of callers' streams to cache.
_MAX_STREAMS = 64
_HOST_MEMORY = int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
_NOT_CAPTURING = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


class CudaExchange:
    """Implements `runtime.exchange.Exchange` for one GPU.

    Without a stream, work goes to the legacy default stream, as with PyTorch and CuPy: memory that
    they reuse at once is then reused after it.
    """

    def __init__(self, device: DriverDevice) -> None:
        self.device = device
        self._pool: MemoryPool | None = None
        self._streams: OrderedDict[int, CudaStream] = OrderedDict()
        self._lock = forks.lock()

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def stream(self, given: Any) -> CudaStream:
        """Return the caller's stream, or the default stream for None.

        Args:
            given: has ``__cuda_stream__`` (cuda.core, PyTorch, CuPy), or is a driver handle.

        Raises:
            UsageError: it is not a stream, or one that is being captured.
        """
        self.device.enter()
        handle = _handle_of(given)
        with self._lock:
            stream = self._streams.get(handle)
            if stream is None:
                # A stream given as a handle must be kept alive by its owner.
                stream = self._streams[handle] = CudaStream(handle, given)
                while len(self._streams) > _MAX_STREAMS:
                    self._streams.popitem(last=False)  # its users keep it alive as well
        if handle > 2 and check("cuStreamIsCapturing", driver.cuStreamIsCapturing(handle)) != (
            _NOT_CAPTURING
        ):
            raise UsageError("the stream is capturing a CUDA graph; tercet replays its own graphs")
        return stream

    def event(self) -> CudaEvent:
        """Return a new event, not yet recorded."""
        self.device.enter()
        return CudaEvent()

    # ── arrays of callers ────────────────────────────────────────────────────────────────────

    def take(self, array: Any, stream: CudaStream) -> Lent:
        """Wrap a caller's array without a copy, and make `stream` wait for its elements.

        Raises:
            InputError: it is on another device, or neither contiguous nor channels-last.
        """
        if isinstance(array, DeviceArray):
            if array.elements.device is not self.device:
                raise InputError(self._elsewhere(array.device))
            array.precede(stream.handle)
            return Lent(array.elements, array)
        seen = self._see(array, stream)
        if seen.place[0] not in ON_CUDA or seen.place[1] != self.device.ordinal:
            raise InputError(self._elsewhere(place_name(seen.place)))
        type_ = TensorType(seen.dtype, seen.shape)
        format = _format_of(seen)
        if format is None:
            raise InputError(
                f"has shape {list(seen.shape)} and strides {list(seen.strides or ())}, which is "
                "neither C order nor channels last; give array.contiguous() or the like"
            )
        nbytes = type_.nbytes
        buffer = CudaBuffer(seen.pointer if nbytes else 0, nbytes, owner=seen.owner)
        return Lent(View(self.device, buffer, 0, type_, format), array)

    def _elsewhere(self, place: str) -> str:
        return (
            f"is on {place}; the model runs on {self.device.name}: copy the array there, or "
            "give it as a numpy array"
        )

    def _see(self, array: Any, stream: CudaStream) -> ArrayDescription:
        """Return the description of an array by the fastest protocol that both sides support."""
        if getattr(array, "requires_grad", False):
            raise InputError("requires a gradient, which is not supported; give tensor.detach()")
        from cuda.core.utils import StridedMemoryView  # takes as long to import as all of tercet

        try:
            seen = StridedMemoryView.from_any_interface(array, stream_ptr=stream.handle)
            dtype = seen.dtype
        except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError):
            dtype = seen = None  # cuda.core lacks some dtypes; the next protocol gives the error
        if dtype is not None and seen is not None and dtype.type is not np.void:
            place = (2 if seen.is_device_accessible else 1, seen.device_id)
            return ArrayDescription(seen.ptr, place, dtype, seen.shape, seen.strides, seen)
        if not hasattr(array, "__dlpack__"):
            return self._see_interface(array, stream)
        place = place_of(array)
        if place is not None and (place[0] not in ON_CUDA or place[1] != self.device.ordinal):
            raise InputError(self._elsewhere(place_name(place)))
        try:
            return see(array, stream.handle)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InputError(f"cannot be read through DLPack: {error}") from error

    def _see_interface(self, array: Any, stream: CudaStream) -> ArrayDescription:
        """Read ``__cuda_array_interface__``, version 3."""
        about = array.__cuda_array_interface__
        start, _ = about["data"]
        dtype = np.dtype(about["typestr"])
        shape = tuple(about["shape"])
        strides = about.get("strides")
        producer = about.get("stream")
        if producer is not None and start:
            point = self.event()
            point.record(self.stream(int(producer)))
            point.precede(stream)
        steps = None if strides is None else tuple(step // dtype.itemsize for step in strides)
        return ArrayDescription(start, (2, _ordinal_of(start)), dtype, shape, steps, array)

    # ── arrays for callers ───────────────────────────────────────────────────────────────────

    def empty(self, type_: TensorType, stream: CudaStream) -> DeviceArray:
        """Return a new array that `stream` will write; raises DeviceOutOfMemory.

        Its memory comes from a pool and is freed in stream order.
        """
        nbytes = type_.nbytes
        start, pool = 0, self._memory()
        if nbytes:
            start = self.device.obtain(nbytes, partial(pool.allocate, stream=stream))

        def release(start: int, nbytes: int, is_shared: bool) -> None:
            self.device.give_back(pool, start, nbytes, stream, is_shared=is_shared)

        view = View(self.device, CudaBuffer(start, nbytes, release), 0, type_)
        return DeviceArray(view, stream=stream)

    def handle(self, view: View, stream: CudaStream) -> DeviceArray:
        """Return an array over memory owned by someone else, written in stream order."""
        return DeviceArray(view, stream=stream)

    def copy(self, dst: View, src: View, stream: CudaStream) -> None:
        """Copy between views of equal type and format, on the device or pinned on the host."""
        if dst.nbytes:
            answer = driver.cuMemcpyAsync(address(dst), address(src), dst.nbytes, stream.handle)
            if answer[0]:
                check(f"cuMemcpyAsync of {dst.nbytes} bytes", answer)

    def is_pinned(self, data: Array) -> bool:
        """Whether a host array is contiguous and in page-locked memory."""
        if not data.flags.c_contiguous or not data.nbytes:
            return False
        kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        # Of one attribute alone, the driver would fail for other memory, which memcheck reports.
        status, found = driver.cuPointerGetAttributes(1, (kind,), data.ctypes.data)
        return status == driver.CUresult.CUDA_SUCCESS and int(found[0]) == _HOST_MEMORY

    def fetch(self, view: View, stream: CudaStream) -> Array:
        """Return a contiguous copy on the host; the host waits for it."""
        result = np.empty(view.format.physical(view.type.dims), view.type.dtype)
        if result.nbytes:
            target = result.ctypes.data
            answer = driver.cuMemcpyDtoHAsync(target, pointer(view), result.nbytes, stream.handle)
            check("cuMemcpyDtoHAsync", answer)
            stream.synchronize()
        if view.format is Format.CONTIGUOUS or result.ndim < 3:
            return result
        return np.ascontiguousarray(np.moveaxis(result, -1, 1))

    def trim(self) -> None:
        """Return the memory of unreferenced arrays to the system."""
        if self._pool is not None:
            self._pool.trim()

    def _memory(self) -> MemoryPool:
        """Return what callers' arrays are allocated from, made for the first of them."""
        with self._lock:
            if self._pool is None:
                self.device.enter()
                self._pool = MemoryPool(self.device.ordinal, keeps=True)
            return self._pool


def _handle_of(given: Any) -> int:
    """Return the handle of a caller's stream; 1, the legacy default stream, for None."""
    if given is None:
        return 1
    if isinstance(given, int):
        return given or 1
    if (protocol := getattr(given, "__cuda_stream__", None)) is not None:
        return int(protocol()[1]) or 1
    for name in ("cuda_stream", "ptr"):  # older PyTorch and CuPy without the protocol
        if isinstance(found := getattr(given, name, None), int):
            return found or 1
    raise UsageError(
        f"stream={given!r} is not a CUDA stream: give one that has __cuda_stream__, or its handle"
    )


def _ordinal_of(start: int) -> int:
    if not start:
        return 0
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check("cuPointerGetAttribute", driver.cuPointerGetAttribute(kind, start)))


def _format_of(seen: ArrayDescription) -> Format | None:
    order = seen.order()
    for format in (Format.CONTIGUOUS, Format.CHANNELS_LAST):
        if order == tuple(axis for axis, _ in format.order(seen.shape)):
            return format
    return None
