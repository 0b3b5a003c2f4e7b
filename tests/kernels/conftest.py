"""Compiled kernels, and the cuda backend on an emulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend


@pytest.fixture(scope="session")
def cache(cubins: Path) -> Path:
    """The folder of machine code that the functions of cubins.py take."""
    return cubins


@pytest.fixture
def emulated(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """The cuda backend on an emulated GPU of its own."""
    from .emulator import open_emulated

    return open_emulated(libraries, monkeypatch.setattr)
