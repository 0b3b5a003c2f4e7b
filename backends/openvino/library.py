"""The OpenVINO library: finding the package, its version, and summaries of its messages."""

from __future__ import annotations

import os
from dataclasses import field
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...runtime.base.record import record
from ...runtime.errors import BackendUnavailable

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


@record
class OpenvinoLibrary:
    """OpenVINO, loaded into this process.

    Attributes:
        version: such as ``2026.4.1``.
        file: path of the package.
        cpu: the processor that the plugin compiles for, with its enabled features.
        api: the package.
        core: its ``Core``.
        used: the generation of the process (`runtime/base/forks.py`) that compiled something; empty
            if none did.
    """

    version: str
    file: str
    cpu: str
    api: Any
    core: Any
    used: list[int] = field(default_factory=list[int])


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
    return OpenvinoLibrary(found, str(api.__file__), f"{cpu} ({', '.join(abilities)})", api, core)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def gist(error: BaseException) -> str:
    """Return a message of OpenVINO without the locations in its sources."""
    lines = (line.strip().removeprefix("-- ") for line in str(error).splitlines())
    message = "; ".join(line for line in lines if line and not line.startswith(_NOISE))
    message = message or " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= _MAX_TEXT else f"{message[: _MAX_TEXT - 1]}…"
