"""Device arrays, shared with other libraries without copies."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from ....runtime.base.closable import Closable
from ....runtime.errors import UsageError
from ....runtime.ir.dtypes import DType, bool_, name_of
from ....runtime.ir.types import Array, TensorType
from ....runtime.plan.backend import View
from ....runtime.session.dlpack import CODES, relabel
from ..driver.device import DriverDevice
from ..driver.memory import CudaBuffer, pointer
from ..driver.status import check
from ..driver.streams import CudaStream


class DeviceArray(Closable):
    """A contiguous array in the memory of a CUDA device.

    Other libraries read it through DLPack or ``__cuda_array_interface__``, without a copy. The
    memory is freed when neither this array nor any consumer holds it.

    Args:
        elements: the view of its elements.
        stream: the stream that writes them; None if they are complete.
    """

    def __init__(self, elements: View, stream: CudaStream | None = None) -> None:
        self.elements = elements
        self.stream = stream

    @classmethod
    def upload(cls, device: DriverDevice, data: Array) -> DeviceArray:
        """Return a copy of a host array; raises `DeviceOutOfMemory`."""
        return cls(device.upload(data))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.elements.type.dims

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.elements.type.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return self.elements.nbytes

    @property
    def device(self) -> str:
        """The name of the device: ``cuda:0``."""
        return self.elements.device.name

    def __repr__(self) -> str:
        return f"<DeviceArray {self.elements.type} on {self.device}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    # ── elements ─────────────────────────────────────────────────────────────────────────────

    def numpy(self) -> Array:
        """Return a copy on the host; waits until the elements are complete."""
        result = np.empty(self.shape, self.dtype)
        if not result.nbytes:
            return result
        target, source = result.ctypes.data, self._pointer()
        if self.stream is None:
            check("cuMemcpyDtoH", driver.cuMemcpyDtoH(target, source, result.nbytes))
            return result
        answer = driver.cuMemcpyDtoHAsync(target, source, result.nbytes, self.stream.handle)
        check("cuMemcpyDtoHAsync", answer)
        self.stream.synchronize()
        return result

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        raise TypeError(f"{self!r} is not on the host; array.numpy() copies it there")

    def synchronize(self) -> None:
        """Wait on the host until the elements are complete."""
        if self.stream is not None:
            self.stream.synchronize()

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return the same memory as elements of another dtype with equal size.

        Raises:
            UsageError: elements of that dtype take more or fewer bytes.
        """
        other = np.dtype(dtype)
        if other.itemsize != self.dtype.itemsize:
            raise UsageError(
                f"elements of {name_of(self.dtype)} take {self.dtype.itemsize} bytes, "
                f"those of {name_of(other)} {other.itemsize}"
            )
        return self._as(TensorType(other, self.shape))

    def reshape(self, *shape: int) -> DeviceArray:
        """Return the same elements with another shape, in C order.

        Raises:
            UsageError: that shape has more or fewer elements, or a negative size.
        """
        if min(shape, default=0) < 0 or prod(shape) != self.elements.type.size:
            raise UsageError(f"{self!r} cannot have the shape {list(shape)}")
        return self._as(TensorType(self.dtype, shape))

    def _as(self, type_: TensorType) -> DeviceArray:
        old = self.elements
        return DeviceArray(View(old.device, old.buffer, old.offset, type_), self.stream)

    def _pointer(self) -> int:
        if not isinstance(self.elements.buffer, CudaBuffer) or not self.elements.buffer.pointer:
            raise UsageError(f"{self!r} is closed")
        return pointer(self.elements)

    # ── sharing ──────────────────────────────────────────────────────────────────────────────

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype in CODES and self.dtype != bool_:
            raise AttributeError(f"the interface lacks {name_of(self.dtype)}; DLPack has it")
        # Not every consumer respects the stream in the interface.
        self.synchronize()
        self._share(None)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._pointer() if self.nbytes else 0, False),
            "strides": None,
            "version": 3,
        }

    def __dlpack__(self, *, stream: int | None = None, **how: Any) -> Any:
        """Return a DLPack capsule; the consumer's `stream` waits for the elements."""
        if self.dtype not in CODES and self.dtype.kind not in "iufc":
            name = name_of(self.dtype)
            raise BufferError(f"DLPack packs {name}; array.view('uint8') has one byte per element")
        consumer = stream or 1
        self.precede(consumer)
        self._share(consumer)
        from cuda.core import Buffer  # takes as long to import as all that runs a model
        from cuda.core.utils import StridedMemoryView

        carrier = np.dtype(f"u{self.dtype.itemsize}") if self.dtype in CODES else self.dtype
        start = self._pointer() if self.nbytes else 0
        memory = Buffer.from_handle(start, self.nbytes, owner=self.elements.buffer)
        seen = StridedMemoryView.from_buffer(memory, self.shape, dtype=carrier)
        # cuda.core supports neither all dtypes nor empty arrays.
        return relabel(seen.__dlpack__(stream=-1, **how), self.dtype, self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self.elements.device
        return (2, device.ordinal if isinstance(device, DriverDevice) else 0)

    def precede(self, handle: int) -> None:
        """Make later work of a stream wait for the elements; -1 means no stream."""
        if self.stream is None or handle in (-1, self.stream.handle):
            return
        device = self.elements.device
        if isinstance(device, DriverDevice):
            device.enter()
        self.stream.mark().precede(CudaStream(handle))

    def _share(self, handle: int | None) -> None:
        """Record that others read the memory, possibly on another stream than its own."""
        buffer = self.elements.buffer
        own = None if self.stream is None else self.stream.handle
        if isinstance(buffer, CudaBuffer) and (handle is None or handle != own):
            buffer.is_shared = True

    def close(self) -> None:
        """Release the memory."""
        old = self.elements
        self.elements = View(old.device, CudaBuffer(0, 0), 0, old.type)
