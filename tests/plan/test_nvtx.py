"""NVTX ranges: one for each step that runs on its own, closed before the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import tercet
from tercet.runtime.base.nvtx import _package, nvtx_range  # pyright: ignore[reportPrivateUsage]
from tercet.tools.cli import main

DIGITS = str(Path(tercet.__file__).parent / "demo" / "digits.onnx")


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a profiler would see; the package is not needed."""
    seen: list[str] = []
    package = SimpleNamespace(push_range=seen.append, pop_range=lambda: seen.append("/"))
    monkeypatch.setitem(sys.modules, "nvtx", package)
    _package.cache_clear()
    yield seen
    _package.cache_clear()


def test_steps_are_ranges_with_check_each(ranges: list[str]) -> None:
    digits = ["run", DIGITS, "--repeat", "0"]
    for arguments in (digits, [*digits, "--check-each"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    names = [name for name in ranges if name != "/"]
    assert ranges == [each for name in names for each in (name, "/")]
    assert names[0].startswith("conv1 + ")
    assert len(names) == len(set(names)), "once, and only in the second run"


def test_a_range_ends_with_an_error(ranges: list[str]) -> None:
    with pytest.raises(ValueError, match="broken"), nvtx_range("step"):
        raise ValueError("broken")
    assert ranges == ["step", "/"]


def test_without_the_package_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    _package.cache_clear()
    with nvtx_range("step"):
        assert _package() is None
    _package.cache_clear()
