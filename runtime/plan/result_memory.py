"""Reuse of the memory of results that callers have released.

The system provides large arrays with fresh pages, and clears each at its first write, which takes
several times as long as copying a result.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from ..base.parallel import copy
from ..ir.types import Array

#: Minimum size in bytes for reuse; the allocator caches smaller blocks by itself.
MIN_BYTES = 1 << 22


class ResultMemory:
    """Memory for the results of one plan, returned by its last holder for the next run.

    It keeps at most one array of each name, so that no more is held between runs than one run's
    results.
    """

    def __init__(self) -> None:
        self._spare: dict[str, Array] = {}

    def copy(self, name: str, data: Array) -> Array:
        """Return a copy of the result `name`, an array owned by the caller."""
        if data.nbytes < MIN_BYTES or data.dtype.hasobject:
            return data.copy()
        memory = self._spare.pop(name, None)
        if memory is None or memory.nbytes != data.nbytes:
            memory = np.empty(data.nbytes, np.uint8)
        loan = np.asarray(_Loan(memory, name, self))
        result = loan.view(data.dtype).reshape(data.shape)
        copy(result, data)
        return result

    def take_back(self, name: str, memory: Array) -> None:
        """Keep memory without other holders for the next result of this name."""
        self._spare[name] = memory

    @property
    def nbytes(self) -> int:
        """Bytes kept without a holder."""
        return sum(memory.nbytes for memory in list(self._spare.values()))


class _Loan:
    """Memory held by callers; every view of it keeps the loan alive."""

    __slots__ = ("__array_interface__", "_memory", "_name", "_owner")

    def __init__(self, memory: Array, name: str, owner: ResultMemory) -> None:
        self._memory, self._name, self._owner = memory, name, ref(owner)
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        owner = self._owner()
        if owner is not None:
            owner.take_back(self._name, self._memory)
