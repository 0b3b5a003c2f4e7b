"""DLPack: descriptions of other libraries' arrays.

numpy reads neither device memory nor the bfloat16 and float8 of ml_dtypes, so the structure in the
capsule (dlpack.h, version 1.1) is parsed here. The capsule itself is not consumed; it keeps the
memory alive.
"""

from __future__ import annotations

import ctypes
import struct
from math import prod
from typing import Any

import numpy as np

from ..base.record import record
from ..ir.dtypes import (
    DType,
    bfloat16,
    bool_,
    float8e4m3fn,
    float8e4m3fnuz,
    float8e5m2,
    float8e5m2fnuz,
    float8e8m0,
)
from ..ir.types import Array

#: DLPack device types that the host can read: CPU, and memory pinned by CUDA or ROCm.
ON_HOST = frozenset({1, 3, 11})
#: DLPack device types of CUDA device memory and managed memory.
ON_CUDA = frozenset({2, 13})

_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}
#: Type code and bits of dtypes beyond numpy's integers and floats.
CODES: dict[DType, tuple[int, int]] = {
    bfloat16: (4, 16),
    bool_: (6, 8),
    float8e4m3fn: (10, 8),
    float8e4m3fnuz: (11, 8),
    float8e5m2: (12, 8),
    float8e5m2fnuz: (13, 8),
    float8e8m0: (14, 8),
}
_DTYPES = {code: dtype for dtype, code in CODES.items()}

# DLTensor: data, device type and number, rank, type code, bits, lanes, shape, strides, offset.
_TENSOR = struct.Struct("PiiiBBHPPQ")
_PLACE_OFFSET, _TYPE_OFFSET = 8, 20
#: Its offset in the structure, by name of the capsule.
_OFFSETS = {b"dltensor": 0, b"dltensor_versioned": 32}

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype = ctypes.c_char_p
_name_of.argtypes = (ctypes.py_object,)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


@record
class ArrayDescription:
    """The description of another library's array.

    Attributes:
        pointer: address of its first element; 0 if it has none.
        place: DLPack's device type and index.
        dtype: type of its elements.
        shape: the sizes of its axes.
        strides: in elements; None for contiguous C order.
        owner: keeps the memory alive.
    """

    pointer: int
    place: tuple[int, int]
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    owner: object

    def order(self) -> tuple[int, ...] | None:
        """Return the axes longer than 1, outermost first; None if there are gaps."""
        axes = [axis for axis, size in enumerate(self.shape) if size != 1]
        strides = self.strides
        if strides is None or 0 in self.shape:
            return tuple(axes)
        axes.sort(key=lambda axis: -strides[axis])
        step = 1
        for axis in reversed(axes):
            if strides[axis] != step:
                return None
            step *= self.shape[axis]
        return tuple(axes)


def place_of(value: object) -> tuple[int, int] | None:
    """Return DLPack's device type and index of an array that the host cannot read, else None.

    The index is -1 if only ``__cuda_array_interface__`` shows that it is on a GPU. None is also for
    an array that DLPack cannot describe; reading it fails, and says why.
    """
    if isinstance(value, np.ndarray | np.generic | list | tuple | float | int):
        return None
    ask = getattr(value, "__dlpack_device__", None)
    if ask is not None:
        try:
            kind, number = ask()
        except (RuntimeError, TypeError, ValueError):
            return None
        return None if kind in ON_HOST else (int(kind), int(number))
    return (2, -1) if hasattr(value, "__cuda_array_interface__") else None


def place_name(place: tuple[int, int]) -> str:
    """Return the usual name of a place: ``cuda:1``."""
    kind, number = place
    if kind in ON_CUDA:
        return f"cuda:{number}" if number >= 0 else "a GPU"
    return f"DLPack's device {kind}, number {number}"


def see(array: Any, stream: int | None = None) -> ArrayDescription:
    """Return the description of an array with ``__dlpack__``.

    Args:
        array: the array.
        stream: handle of the CUDA stream that will read the elements; its owner makes the stream
            wait for them. None for an array on the host.

    Raises:
        BufferError: its owner does not export it, or its dtype is unknown.
    """
    capsule = array.__dlpack__() if stream is None else array.__dlpack__(stream=stream)
    start = _start_of(capsule)
    fields = _TENSOR.unpack(ctypes.string_at(start, _TENSOR.size))
    data, kind, number, rank, code, bits, lanes, dims, steps, offset = fields
    dtype = _dtype_of(code, bits) if lanes == 1 else None
    if dtype is None:
        raise BufferError(f"no supported dtype has DLPack's code {code}, {bits} bits, {lanes}")
    shape = _integers(dims, rank)
    strides = _integers(steps, rank) if steps else None
    return ArrayDescription((data or 0) + offset, (kind, number), dtype, shape, strides, capsule)


def relabel(capsule: object, dtype: DType, place: tuple[int, int]) -> object:
    """Return a new capsule whose elements have `dtype` and are at `place`."""
    start = _start_of(capsule)
    ctypes.memmove(start + _PLACE_OFFSET, struct.pack("ii", *place), 8)
    if dtype in CODES:
        ctypes.memmove(start + _TYPE_OFFSET, bytes(CODES[dtype]), 2)
    return capsule


def on_host(array: Any) -> Array:
    """Return a host array as a numpy array, without a copy, ml_dtypes included.

    Raises:
        BufferError: its owner does not export it, or it is not on the host.
    """
    seen = see(array)
    if seen.place[0] not in ON_HOST:
        raise BufferError(f"it is on {place_name(seen.place)}")
    if seen.pointer == 0 or 0 in seen.shape:
        return np.empty(seen.shape, seen.dtype)
    itemsize = seen.dtype.itemsize
    strides = seen.strides or tuple(prod(seen.shape[i + 1 :]) for i in range(len(seen.shape)))
    if any(step < 0 for step in strides):
        raise BufferError(f"it has the strides {strides}")
    extent = 1 + sum(step * (n - 1) for step, n in zip(strides, seen.shape, strict=True))
    memory = (ctypes.c_uint8 * (extent * itemsize)).from_address(seen.pointer)
    memory.owner = seen.owner  # pyright: ignore[reportAttributeAccessIssue]  # kept alive by numpy
    steps = tuple(step * itemsize for step in strides)
    return np.ndarray(seen.shape, seen.dtype, memoryview(memory), strides=steps)


def _start_of(capsule: object) -> int:
    """Return the address of the DLTensor in a capsule."""
    name = _name_of(capsule)
    return _pointer_of(capsule, name) + _OFFSETS[name]


def _integers(start: int | None, count: int) -> tuple[int, ...]:
    if not start or not count:
        return ()
    return struct.unpack(f"{count}q", ctypes.string_at(start, 8 * count))


def _dtype_of(code: int, bits: int) -> DType | None:
    if (code, bits) in _DTYPES:
        return _DTYPES[code, bits]
    if code not in _KINDS or bits % 8 or bits > 128:
        return None
    try:
        return np.dtype(f"{_KINDS[code]}{bits // 8}")
    except TypeError:
        return None
