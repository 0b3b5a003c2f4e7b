"""The time that Python needs to import modules, which is not a model's.

Modules are imported when they are first needed: passes and kernels by the first model that has
something for them. In a comparison, this would make the first runner seem slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def clocked(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and the seconds that it takes without imports."""
    with _Clock() as clock:
        start = clock.now()
        return call(), clock.now() - start


class _Clock(MetaPathFinder):
    """A clock that stands still while this thread imports; a context manager."""

    def __init__(self) -> None:
        self._spent, self._thread, self._depth = 0.0, get_ident(), 0

    def __enter__(self) -> _Clock:
        sys.meta_path = [self, *sys.meta_path]  # other threads may be in the middle of the old list
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path = [each for each in sys.meta_path if each is not self]

    def now(self) -> float:
        """Return seconds without those of imports; see `time.perf_counter`."""
        return perf_counter() - self._spent

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return what the other finders find, with a loader that stops the clock."""
        if get_ident() != self._thread:
            return None
        with self.stopped():
            others = (each for each in sys.meta_path if not isinstance(each, _Clock))
            specs = (each.find_spec(fullname, path, target) for each in others)
            spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _StoppingLoader(spec.loader, self)
        return spec

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock; nested blocks count once."""
        start, self._depth = perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._spent += perf_counter() - start


class _StoppingLoader(Loader):
    """A loader that stops the clock, and leaves the module to the one that it stands for."""

    def __init__(self, loader: Any, clock: _Clock) -> None:
        self._loader, self._clock = loader, clock

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the other loader's module."""
        with self._clock.stopped():
            return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._clock.stopped():
            self._loader.exec_module(module)
