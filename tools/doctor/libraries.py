"""NVIDIA's shared libraries in this process: loaded files and versions."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...backends.cudnn.library import mapped


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """A library loaded by tercet or its dependencies.

    Attributes:
        name: prefix of its file name, or the package's name.
        version: its own version; empty if absent.
        file: the loaded file; empty if none.
        purpose: what needs it, and is unavailable without it.
    """

    name: str
    version: str
    file: str
    purpose: str


def libraries() -> tuple[SharedLibrary, ...]:
    """Return the libraries of the backends, as loaded in this process."""
    found = [_look(name, *known) for name, known in _KNOWN.items()]
    package: Any = sys.modules.get("cudnn")
    # Another thread may be importing it, in which case it has no version yet.
    version = getattr(package, "__version__", None)
    about = ("", "") if version is None else (str(version), str(package.__file__))
    return *found, SharedLibrary("nvidia-cudnn-frontend", *about, "the cudnn backend")


def _look(name: str, purpose: str, version: Callable[[ctypes.CDLL], str]) -> SharedLibrary:
    file = mapped(f"{name}.so") if sys.platform == "linux" else ""
    return SharedLibrary(name, version(ctypes.CDLL(file)) if file else "", file, purpose)


def _of_cuda(function: str) -> Callable[[ctypes.CDLL], str]:
    """Return a function that reads a version encoded as 13020 for 13.2."""

    def ask(library: ctypes.CDLL) -> str:
        number = ctypes.c_int()
        library[function](ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    return ask


def _of_library(function: str) -> Callable[[ctypes.CDLL], str]:
    """Return a function that reads a version encoded as 91900 for 9.19.0."""

    def ask(library: ctypes.CDLL) -> str:
        call = library[function]
        call.restype = ctypes.c_size_t
        number = int(call())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    return ask


def _of_nvrtc(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


_KNOWN: Mapping[str, tuple[str, Callable[[ctypes.CDLL], str]]] = {
    "libcuda": ("running on a GPU", _of_cuda("cuDriverGetVersion")),
    "libnvrtc": ("compiling CUDA kernels", _of_nvrtc),
    "libcudnn": ("the cudnn backend", _of_library("cudnnGetVersion")),
    "libcublasLt": ("the cudnn backend", _of_library("cublasLtGetVersion")),
    "libcudart": ("the cudnn backend", _of_cuda("cudaRuntimeGetVersion")),
    "libnvinfer": ("the tensorrt backend", _of_library("getInferLibVersion")),
    "libtensorrt_rtx": ("the tensorrt backend, by TensorRT-RTX", _of_library("getInferLibVersion")),
}
