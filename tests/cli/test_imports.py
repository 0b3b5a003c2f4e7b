"""What is measured leaves out imports."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tercet.tools.common import imports


class Time:
    """A time that passes as modules and calls say."""

    now = 0.0

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Time]:
    """The time of the clock, and of modules to import, as ``sys.passes``."""
    found = Time()
    monkeypatch.setattr(imports, "perf_counter", lambda: found.now)
    monkeypatch.setattr(sys, "passes", found.passes, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "outer_module_here.py").write_text(
        "import sys\nsys.passes(4)\nimport inner_module_here\nsys.passes(8)\n"
    )
    (tmp_path / "inner_module_here.py").write_text("import sys\nsys.passes(16)\n")
    (tmp_path / "broken_module_here.py").write_text("import sys\nsys.passes(32)\n1 / 0\n")
    yield found
    for name in ("outer_module_here", "inner_module_here"):
        sys.modules.pop(name, None)


def test_imports_are_not_measured(time: Time) -> None:
    def call() -> ModuleType:
        time.passes(1)
        found = import_module("outer_module_here")
        time.passes(2)
        return found

    module, seconds = imports.clocked(call)
    assert seconds == 3
    assert time.now == 31
    assert module.__name__ == "outer_module_here"
    _, seconds = imports.clocked(call)
    assert seconds == 3
    assert time.now == 34


def test_failing_imports_are_not_measured(time: Time) -> None:
    def call() -> None:
        time.passes(1)
        with pytest.raises(ZeroDivisionError):
            import_module("broken_module_here")

    assert imports.clocked(call)[1] == 1


def test_other_threads_are_not_subtracted(time: Time) -> None:
    def call() -> None:
        thread = threading.Thread(target=import_module, args=("inner_module_here",))
        thread.start()
        thread.join()

    assert imports.clocked(call)[1] == 16


def test_modules_keep_their_loaders(time: Time) -> None:
    before = list(sys.meta_path)
    module, _ = imports.clocked(lambda: import_module("inner_module_here"))
    assert isinstance(module.__loader__, SourceFileLoader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert sys.meta_path == before


def test_nothing_stays_behind_an_error(time: Time) -> None:
    before = list(sys.meta_path)
    with pytest.raises(KeyError):
        imports.clocked(lambda: dict[str, int]()["missing"])
    assert sys.meta_path == before
