"""The OpenVINO library: finding the package, its version, and summaries of its messages."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakSet

from ...runtime.base import forks
from ...runtime.base.record import record
from ...runtime.errors import BackendUnavailable, DeviceError

#: The oldest supported release.
MIN_VERSION = (2025, 0)
DEVICE = "CPU"
#: Environment variables that disable CPU instructions in its kernels, such as AVX-512.
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_INSTALL = "pip install 'tercet[openvino]'"
#: Prefixes of lines that give only locations in OpenVINO's sources.
_NOISE = (
    "Exception from",
    "Check '",
    "FrontEnd API failed",
    "Summary:",
    "To facilitate",
    "Model was",
)
#: Maximum number of characters of a message.
_MAX_TEXT = 300


class Uses:
    """Which process uses OpenVINO, and its objects there.

    A fork copies neither its threads nor who holds its locks: a call in the child may wait forever,
    and so may the destruction of an object, at the latest when the child ends. So the child calls
    nothing, and destroys nothing, nor do the libraries that OpenVINO consists of.

    Args:
        version: of OpenVINO.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._generation: int | None = None
        self._objects: WeakSet[Any] = WeakSet()
        forks.forget_in_child(self._keep)

    @property
    def is_usable(self) -> bool:
        """Whether this process may call OpenVINO."""
        return self._generation in (None, forks.generation())

    def check(self) -> None:
        """Raise DeviceError in a process forked from one that had used OpenVINO."""
        if not self.is_usable:
            raise DeviceError(
                f"OpenVINO {self._version} cannot run in this process, which was forked from one "
                "that had used it, and would wait for its threads: start processes with 'spawn' "
                "or 'forkserver', or fork before the first run"
            )

    def begin(self) -> None:
        """Note that this process uses OpenVINO; see `check`."""
        self.check()
        self._generation = forks.generation()

    def own(self, made: Any) -> Any:
        """Return an object of OpenVINO that a forked process never destroys."""
        self._objects.add(made)
        return made

    def _keep(self) -> None:
        for made in list(self._objects):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        if self._generation is not None:
            _end_without_destructors()


def _end_without_destructors() -> None:
    """Have this process end, once Python has, before libraries destroy what they hold.

    Exit handlers are called from the last one to the first: the buffers of C's files are written.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


@record
class OpenvinoLibrary:
    """OpenVINO, loaded into this process.

    Attributes:
        version: such as ``2026.4.1``.
        file: path of the package.
        cpu: the processor that the plugin compiles for, with its enabled features.
        api: the package.
        core: its ``Core``.
        uses: which process uses it.
    """

    version: str
    file: str
    cpu: str
    api: Any
    core: Any
    uses: Uses


@cache
def load() -> OpenvinoLibrary:
    """Load OpenVINO, once per process.

    Raises:
        BackendUnavailable: it is not installed, lacks a library or the CPU plugin, or is too old.
    """
    try:
        found = version("openvino")
        api: Any = import_module("openvino")
    except (PackageNotFoundError, ImportError, OSError) as error:
        missing = f"the package openvino is not installed or lacks its libraries ({error})"
        raise BackendUnavailable("openvino", missing, _INSTALL) from error
    if _numbers(found) < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        missing = f"OpenVINO {wanted} or newer is needed, {found} is installed"
        raise BackendUnavailable("openvino", missing, _INSTALL)
    core = api.Core()
    if DEVICE not in core.available_devices:
        missing = f"OpenVINO {found} has no {DEVICE} plugin (it has {core.available_devices})"
        raise BackendUnavailable("openvino", missing, _INSTALL)
    cpu = str(core.get_property(DEVICE, "FULL_DEVICE_NAME"))
    abilities = [*core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")]
    abilities += [f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name)]
    uses = Uses(found)
    uses.own(core)
    cpu = f"{cpu} ({', '.join(abilities)})"
    return OpenvinoLibrary(found, str(api.__file__), cpu, api, core, uses)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def gist(error: BaseException) -> str:
    """Return a message of OpenVINO without the locations in its sources."""
    lines = (line.strip().removeprefix("-- ") for line in str(error).splitlines())
    message = "; ".join(line for line in lines if line and not line.startswith(_NOISE))
    message = message or " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= _MAX_TEXT else f"{message[: _MAX_TEXT - 1]}…"
