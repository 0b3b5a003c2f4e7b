"""The environment that measurements depend on."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...runtime.base.parallel import usable_cpus
from ...runtime.plan.backend import Device
from ...version import __version__

#: Packages whose versions affect measurements.
PACKAGES = (
    "numpy",
    "onnx",
    "onnxruntime",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cudnn",
    "nvidia-cudnn-frontend",
)
ROOT = Path(__file__).resolve().parents[2]


def environment(packages: Iterable[str], commit: str = "") -> dict[str, str]:
    """Return tercet's commit, the machine and versions.

    Args:
        packages: packages whose versions to record; missing ones are omitted.
        commit: what to record without git; if empty, ``$TERCET_COMMIT``, else git is asked.
    """
    return {
        "tercet": f"{__version__} ({commit or os.environ.get('TERCET_COMMIT') or _commit()})",
        "CPU": f"{_processor()}, {usable_cpus()} cores",
        "system": platform.platform(terse=True),
        "Python": platform.python_version(),
        **{name: found for name in packages if (found := _version(name))},
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def device_environment(device: Device, packages: Iterable[str], commit: str = "") -> dict[str, str]:
    """Return `environment`, preceded by the GPU and its current state by nvidia-smi.

    Args:
        device: where something was measured; nothing is added for the host.
        packages: as for `environment`.
        commit: likewise.
    """
    about = {"GPU": str(getattr(device, "description", "")), "GPU now": ""}
    if about["GPU"]:
        about["GPU now"] = _clocks(getattr(device, "ordinal", 0))
    return {name: text for name, text in about.items() if text} | environment(packages, commit)


def _clocks(ordinal: int) -> str:
    """Return clocks, power and temperature; empty without nvidia-smi."""
    wanted = "clocks.sm,clocks.max.sm,clocks.mem,power.draw,temperature.gpu,driver_version"
    command = ("nvidia-smi", f"--id={ordinal}", f"--query-gpu={wanted}", "--format=csv,noheader")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = [part.strip() for part in answer.stdout.strip().split(",")]
    if answer.returncode or len(found) != len(wanted.split(",")):
        return ""
    now, maximum, memory, power, heat, driver = found
    return f"{now} of {maximum}, memory {memory}, {power}, {heat} C, driver {driver}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    for candidate in (name, f"{name}-cu13", f"{name}-cu12"):
        try:
            return version(candidate)
        except PackageNotFoundError:
            continue
    return ""


def _commit() -> str:
    command = ("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "no commit known"
    return answer.stdout.strip() or "no commit known"
