"""Runs on arrays of dtypes and shapes that have been checked before."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..base.budget import Budget
from ..base.guard import bounded
from ..ir.mapped import Mapped
from ..ir.types import Array
from ..plan.exchange import HOST_IO
from .io_types import owned
from .program_cache import ProgramCache
from .program_pool import PoolEntry

#: Maximum number of sets of dtypes and shapes.
_MOST = 64


class KnownArrays:
    """Runs a model again on plain arrays on the host, for all its outputs.

    Whether an array of numbers fits an input depends on its dtype and shape alone, so arrays like
    those of an earlier run need no other check; arrays of objects must hold texts. Arrays that are
    converted, and values whose elements choose a program, are not remembered.

    Args:
        programs: of the model.
        names: of all inputs of the model.
        files: from which the model's weights are mapped.
        budget: of host memory.
    """

    __slots__ = ("_budget", "_entries", "_files", "_names", "_programs", "_texts")

    def __init__(
        self,
        programs: ProgramCache,
        names: Sequence[str],
        files: Sequence[Mapped],
        budget: Budget,
    ) -> None:
        self._programs, self._files, self._budget = programs, files, budget
        self._names = tuple(names)
        self._entries: dict[Hashable, PoolEntry] = {}
        self._texts: tuple[str, ...] = ()

    def run(self, named: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the results for these inputs; None if no program for them is known and idle."""
        key = self._key(named)
        entry = None if key is None else self._entries.get(key)
        if entry is None or not all(map(_has_texts, map(named.get, self._texts))):
            return None
        with bounded(None, self._budget):
            for file in self._files:
                file.check()
            pool = self._programs.pool
            program = pool.take_again(entry)
            if program is None:
                return None
            try:
                results = program.run(named)
                is_plan = program.is_plan
            finally:
                pool.give(entry, program)
        return results if is_plan else owned(results, named)

    def remember(self, feeds: Mapping[str, Any], entry: PoolEntry) -> None:
        """Remember the entry of a program that ran.

        Args:
            feeds: the inputs, as they were checked and converted: arrays that are not like these
                are not found.
            entry: the program's.
        """
        key = self._key(feeds)
        if key is None:
            return
        if entry.key == (self._programs.default, self._programs.types(feeds), HOST_IO):
            if len(self._entries) >= _MOST:
                self._entries.clear()
            self._texts = tuple(name for name, data in feeds.items() if data.dtype.hasobject)
            self._entries[key] = entry

    def _key(self, named: Mapping[str, Any]) -> Hashable | None:
        """Return the dtypes and shapes, in the order of the inputs; None if not all are arrays."""
        if type(cast("object", named)) is not dict or len(named) != len(self._names):
            return None
        found: list[Hashable] = []
        for name in self._names:
            data = cast("object", named.get(name))
            if type(data) is not np.ndarray:
                return None
            array = cast("Array", data)
            found += (array.dtype, array.shape)
        return tuple(found)


def _has_texts(data: Any) -> bool:
    return all(isinstance(text, str) for text in data.flat)
