"""Arrays in device memory, exchanged with other libraries without a copy."""

from __future__ import annotations

from math import prod
from types import TracebackType
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import Buffer
from cuda.core.utils import StridedMemoryView

from ...runtime.backend import View
from ...runtime.dtypes import DType
from ...runtime.errors import InputError
from ...runtime.types import Array, TensorType
from .device import CudaDevice
from .memory import CudaBuffer, pointer
from .status import check

#: DLPack's numbers for CUDA's device memory and its managed memory.
_CUDA_MEMORY = (2, 13)


class DeviceArray:
    """A dense array, in C order, in the memory of a CUDA device.

    Other libraries read it through DLPack or ``__cuda_array_interface__``. Its elements are
    complete when it is made, so no stream has to wait for them.

    Args:
        view: the elements.
        owner: what keeps the memory alive, if that is not the view's buffer.
    """

    def __init__(self, view: View, owner: object = None) -> None:
        self.view = view
        self._owner = owner

    @classmethod
    def upload(cls, device: CudaDevice, data: Array) -> DeviceArray:
        """Return a copy of an array of the host; raises `DeviceOutOfMemory`."""
        return cls(device.upload(data))

    @classmethod
    def wrap(cls, device: CudaDevice, array: Any) -> DeviceArray:
        """Return the memory of another library's array, uncopied.

        Args:
            device: where the memory lies.
            array: has ``__dlpack__`` or ``__cuda_array_interface__`` and lies dense in C order.

        Raises:
            InputError: it lies elsewhere or in another order.
        """
        place = getattr(array, "__dlpack_device__", None)
        if place is not None and place()[0] not in _CUDA_MEMORY:
            raise InputError(f"the array does not lie on {device.name}")
        stream = device.stream()
        seen = StridedMemoryView.from_any_interface(array, stream_ptr=stream.handle)
        stream.synchronize()
        if seen.device_id != device.ordinal:
            raise InputError(f"the array does not lie on {device.name}")
        dims = tuple(seen.shape)
        dense = tuple(prod(dims[i + 1 :]) for i in range(len(dims)))
        if seen.strides is not None and any(
            have != want for have, want, n in zip(seen.strides, dense, dims, strict=True) if n > 1
        ):
            raise InputError(f"an array of strides {seen.strides} and shape {dims} is not dense")
        dtype = np.dtype(seen.dtype)
        nbytes = prod(dims) * dtype.itemsize
        core = Buffer.from_handle(seen.ptr, nbytes, owner=seen) if nbytes else None
        buffer = CudaBuffer(core, nbytes, lambda core, nbytes: core.close())
        return cls(View(device, buffer, 0, TensorType(dtype, dims)), seen)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return self.view.type.dims

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return self.view.type.dtype

    def __repr__(self) -> str:
        return f"<DeviceArray {self.view.type} on {self.view.device.name}>"

    def numpy(self) -> Array:
        """Return a copy on the host."""
        result = np.empty(self.shape, self.dtype)
        if result.nbytes:
            answer = driver.cuMemcpyDtoH(result.ctypes.data, pointer(self.view), result.nbytes)
            check("cuMemcpyDtoH", answer)
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (pointer(self.view), False),
            "strides": None,
            "version": 3,
        }

    def __dlpack__(self, **how: Any) -> Any:
        return self._strided().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._strided().__dlpack_device__()

    def _strided(self) -> StridedMemoryView:
        buffer = self.view.buffer
        if not isinstance(buffer, CudaBuffer) or buffer.core is None:
            raise InputError("an array without elements, or one that is closed, cannot be shared")
        return StridedMemoryView.from_buffer(buffer.core, self.shape, dtype=self.dtype)

    def close(self) -> None:
        """Give the memory back; whoever shares it must not use it any more."""
        self.view.buffer.close()
        self._owner = None

    def __enter__(self) -> DeviceArray:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
