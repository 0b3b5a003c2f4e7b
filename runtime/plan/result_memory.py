"""Reuse of the memory of results that callers have released.

The system provides large arrays with fresh pages, and clears each at its first write, which takes
several times as long as copying a result. Pinning memory takes longer still.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import is_finalizing
from typing import Any
from weakref import ref

import numpy as np

from ..base.copying import copy
from ..errors import DeviceOutOfMemory
from ..ir.types import Array, TensorType
from .host import HostBuffer

#: Minimum size in bytes for reuse; the allocator itself caches smaller blocks.
MIN_BYTES = 1 << 22
#: Maximum pinned buffers of a result: one that a run writes, and one that its caller still holds.
MAX_PINNED = 2


class ResultMemory:
    """Memory for the results of one plan, returned by its last holder for the next run.

    Between runs, it keeps at most one array of each name, and `MAX_PINNED` pinned ones.

    Args:
        pin: returns a new buffer of pinned memory.
    """

    def __init__(self, pin: Callable[[int], HostBuffer] = HostBuffer) -> None:
        self._pin = pin
        self._spare: dict[str, HostBuffer] = {}
        self._pinned: dict[str, list[HostBuffer]] = {}
        self._count: dict[str, int] = {}
        self._is_open = True

    def copying(self, name: str, data: Array) -> Callable[[], Array]:
        """Return a function that copies an array, which stays where it is; see `copy`."""
        if data.nbytes < MIN_BYTES or data.dtype.hasobject:
            return data.copy
        return partial(self.copy, name, data)

    def copy(self, name: str, data: Array) -> Array:
        """Return a copy of the result `name`, an array owned by the caller."""
        if data.nbytes < MIN_BYTES or data.dtype.hasobject:
            return data.copy()
        result = self._ordinary(name, TensorType(data.dtype, data.shape))
        copy(result, data)
        return result

    def pinned(self, name: str, type_: TensorType) -> Array:
        """Return memory for the result `name`, of the same type each time, owned by the caller.

        It is pinned unless callers hold `MAX_PINNED` results of this name.
        """
        self.reserve(name, type_.nbytes)
        spare = self._pinned[name]
        if not spare:
            return self._ordinary(name, type_)
        return self._lend(_Loan(name, spare.pop(), self, is_pinned=True), type_)

    def reserve(self, name: str, nbytes: int) -> None:
        """Pin memory for the next result `name` if none is spare and the system has some."""
        spare = self._pinned.setdefault(name, [])
        if not spare and self._count.get(name, 0) < MAX_PINNED:
            self._count[name] = self._count.get(name, 0) + 1
            try:
                spare.append(self._pin(nbytes))
            except DeviceOutOfMemory:
                self._count[name] = MAX_PINNED

    def _ordinary(self, name: str, type_: TensorType) -> Array:
        buffer = self._spare.pop(name, None)
        if buffer is None or buffer.nbytes != type_.nbytes:
            buffer = HostBuffer.around(np.empty(type_.nbytes, np.uint8))
        return self._lend(_Loan(name, buffer, self, is_pinned=False), type_)

    @staticmethod
    def _lend(loan: _Loan, type_: TensorType) -> Array:
        return np.asarray(loan).view(type_.dtype).reshape(type_.dims)

    def take_back(self, name: str, buffer: HostBuffer, *, is_pinned: bool) -> None:
        """Keep a buffer without other holders for the next result of this name."""
        if not self._is_open:
            buffer.close()
        elif is_pinned:
            self._pinned[name].append(buffer)
        else:
            self._spare[name] = buffer

    def _kept(self) -> list[HostBuffer]:
        return [*self._spare.values(), *(b for each in self._pinned.values() for b in each)]

    @property
    def nbytes(self) -> int:
        """Bytes kept without a holder."""
        return sum(buffer.nbytes for buffer in self._kept())

    def close(self) -> None:
        """Free what nobody holds; results that callers hold stay valid."""
        self._is_open = False
        for buffer in self._kept():
            buffer.close()
        self._spare.clear()
        self._pinned.clear()


class _Loan:
    """Memory held by callers; every view of it keeps the loan alive."""

    __slots__ = ("__array_interface__", "_buffer", "_is_pinned", "_name", "_owner")

    def __init__(
        self, name: str, buffer: HostBuffer, owner: ResultMemory, *, is_pinned: bool
    ) -> None:
        self._name, self._buffer, self._owner = name, buffer, ref(owner)
        self._is_pinned = is_pinned
        self.__array_interface__: dict[str, Any] = buffer.memory.__array_interface__

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        if ends():
            return
        owner = self._owner()
        if owner is None:
            self._buffer.close()
        else:
            owner.take_back(self._name, self._buffer, is_pinned=self._is_pinned)
