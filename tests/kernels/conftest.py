"""Compiled kernels, and the cuda backend on an emulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend


@pytest.fixture(scope="session")
def cache(cubins: Path) -> Path:
    """The folder of machine code that the functions of cubins.py take."""
    return cubins


@pytest.fixture
def emulated(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """The cuda backend on an emulated A100."""
    from .emulator import open_emulated

    return open_emulated(libraries, monkeypatch.setattr)


@pytest.fixture
def hopper(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """A GPU with wgmma and two multiprocessors, whose blocks have several tiles each."""
    from tercet.backends.cuda.recipe.targets import H200, Target

    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", Target("sm_90a", 2, H200.shared))
    return emulated


@pytest.fixture
def h200(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """A GPU with wgmma and clusters, and all multiprocessors of an H200."""
    from tercet.backends.cuda.recipe.targets import H200

    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", H200)
    return emulated
