"""cuDNN itself: finding the library, its version, NVIDIA's frontend, a handle per GPU."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ...runtime.base.record import record
from ...runtime.errors import BackendUnavailable, DeviceError

#: The frontend whose calls this package uses. Older ones have no handles; newer ones depend on
#: CUTLASS, and with 1.32 and cuDNN 9.19, HardSwish in the epilogue of a convolution is wrong.
FRONTEND = "1.28"
_CUDNN = "libcudnn.so.9"
_INSTALL = "pip install 'tercet[cuda13]'   (or 'tercet[cuda12]', for a driver older than CUDA 13)"


class NoPlan(Exception):
    """CuDNN has no engine for a graph, or none that is allowed."""


@record
class CudnnLibrary:
    """CuDNN, loaded into this process.

    Attributes:
        frontend: the module `cudnn` of nvidia-cudnn-frontend.
        frontend_version: such as ``1.28.0``.
        version: cuDNN's own, such as ``9.19.0``.
        file: the libcudnn that was loaded.
    """

    frontend: Any
    frontend_version: str
    version: str
    file: str

    @contextmanager
    def planning(self, call: str) -> Generator[None]:
        """Convert cuDNN's refusals in the block to `NoPlan` with the name of the call."""
        try:
            yield
        except self._raised as error:
            raise NoPlan(f"{call}: {_brief(error)}") from error

    @contextmanager
    def calling(self, call: str) -> Generator[None]:
        """Convert every error status in the block to a DeviceError with the name of the call."""
        try:
            yield
        except self._raised as error:
            raise DeviceError(f"cuDNN {self.version}: {call}: {_brief(error)}") from error

    @property
    def _raised(self) -> tuple[type[Exception], ...]:
        """The exceptions of the frontend for error statuses and for invalid parameters."""
        return (self.frontend.cudnnGraphNotSupportedError, RuntimeError, ValueError)


@cache
def load() -> CudnnLibrary:
    """Load cuDNN and the frontend, once per process; needs no GPU.

    ``LD_LIBRARY_PATH`` comes first, then ``nvidia/cudnn/lib`` on Python's path, then the system.

    Raises:
        BackendUnavailable: one of them is missing or of an unsupported version.
    """
    _preload(_CUDNN, "cudnn/lib")
    try:
        frontend: Any = import_module("cudnn")
    except ImportError as error:
        raise _unavailable("the package nvidia-cudnn-frontend", f" ({error})") from error
    found = str(getattr(frontend, "__version__", "?"))
    if not found.startswith(f"{FRONTEND}."):
        raise _unavailable(f"nvidia-cudnn-frontend {FRONTEND} (found {found})")
    try:
        frontend.backend_version()
    except RuntimeError as error:
        raise _unavailable(f"{_CUDNN}, cuDNN's library,") from error
    _load_companions()
    return CudnnLibrary(frontend, found, str(frontend.backend_version_string()), mapped(_CUDNN))


def _unavailable(missing: str, why: str = "") -> BackendUnavailable:
    return BackendUnavailable("cudnn", f"{missing} is not installed{why}", _INSTALL)


def _preload(name: str, *folders: str) -> ctypes.CDLL | None:
    """Load a library from NVIDIA's wheels, or by name, so that later requests by name find it."""
    chosen = [Path(f) for f in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if f]
    wheels = [Path(entry) / "nvidia" / folder for entry in sys.path for folder in folders]
    for file in (folder / name for folder in (*chosen, *wheels)):
        if file.is_file():
            return ctypes.CDLL(str(file))
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _load_companions() -> None:
    """Load the libraries that cuDNN and the frontend look up by name, from NVIDIA's wheels.

    Without cublasLt, cuDNN aborts the process when it plans its first graph. Without NVRTC it lacks
    runtime-compiled engines; without cudart the frontend finds no GPU.
    """
    cudart = ctypes.CDLL(_CUDNN).cudnnGetCudartVersion
    cudart.restype = ctypes.c_size_t
    major = cudart() // 1000
    cublas = f"libcublasLt.so.{major}"
    if _preload(cublas, f"cu{major}/lib", "cublas/lib") is None:
        raise _unavailable(f"{cublas}, which cuDNN needs,")
    for name, wheel in (("nvrtc", "cuda_nvrtc"), ("cudart", "cuda_runtime")):
        file = f"lib{name}.so.{major}"
        if not mapped(file):
            _preload(file, f"cu{major}/lib", f"{wheel}/lib")


def mapped(name: str) -> str:
    """Return the path of a library that this process has loaded; empty if it has not.

    Args:
        name: the beginning of its file name, such as ``libcudnn.so``.
    """
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = (line.split(maxsplit=5)[-1].strip() for line in maps)
        return next((path for path in paths if Path(path).name.startswith(name)), "")


def _brief(error: Exception) -> str:
    """Return the first line of a cuDNN message, which may be very long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
