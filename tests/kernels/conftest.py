"""Folders of compiled kernels that all tests share, so that each source is compiled once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of machine code for `cubins`, one for all workers of a run."""
    return _shared(tmp_path_factory, "cubins")


def _shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of kernels for the emulator, likewise."""
    return _shared(tmp_path_factory, "libraries")


@pytest.fixture
def emulated(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """The cuda backend on an emulated GPU of its own."""
    from .emulator import open_emulated

    return open_emulated(libraries, monkeypatch.setattr)
