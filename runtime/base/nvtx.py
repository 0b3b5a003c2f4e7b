"""NVTX ranges, by which NVIDIA's profilers know what a kernel belongs to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any


@contextmanager
def nvtx_range(name: str) -> Generator[None]:
    """Name what is launched within the block; nothing if the package ``nvtx`` is not installed."""
    nvtx = _package()
    if nvtx is None:
        yield
        return
    nvtx.push_range(name)
    try:
        yield
    finally:
        nvtx.pop_range()


@cache
def _package() -> Any:
    try:
        return import_module("nvtx")
    except ImportError:
        return None
