"""What is found by reading constants, which takes as long as their memory does: once for each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

import numpy as np

from ....runtime.base import forks
from ....runtime.ir.types import Array

T = TypeVar("T")


class _Known(Generic[T]):
    """What is known of one array, by the question; one thread at a time looks at it."""

    def __init__(self, array: Array, forget: Callable[[ref[Array]], None]) -> None:
        self.array = ref(array, forget)
        self.answers: dict[Hashable, T] = {}
        self.lock = forks.lock()


class Findings(Generic[T]):
    """Answers to questions about arrays that are still in use."""

    def __init__(self) -> None:
        self._known: dict[int, _Known[T]] = {}
        self._lock = forks.lock()

    def __contains__(self, array: Array) -> bool:
        found = self._known.get(id(array))
        return found is not None and found.array() is array

    def of(self, array: Array, question: Hashable, look: Callable[[], T]) -> T:
        """Return ``look()``, which reads an array to answer a question; once for both."""
        known = self._of(array)
        with known.lock:
            if question not in known.answers:
                known.answers[question] = look()
            return known.answers[question]

    def _of(self, array: Array) -> _Known[T]:
        with self._lock:
            if array not in self:
                self._known[id(array)] = _Known(array, partial(self._forget, id(array)))
            return self._known[id(array)]

    def _forget(self, name: int, gone: ref[Array]) -> None:
        if name in self._known and self._known[name].array is gone:
            del self._known[name]


_FINITE = Findings[bool]()


def is_finite(constant: Array) -> bool:
    """Whether an array has neither infinities nor NaNs."""

    def look() -> bool:
        return bool(np.isfinite(constant.astype(np.float32, copy=False)).all())

    return _FINITE.of(constant, None, look)
