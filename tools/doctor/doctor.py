"""Environment check: what is installed, what is missing, and how to get it."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ... import backends
from ...arguments import public
from ...backends import Availability
from ...backends.numpy.numerics import blas
from ...runtime.base.arguments import number
from ...runtime.base.cache import Cache, default_cache
from ...runtime.base.notebook import Shown
from ...runtime.base.parallel import usable_cpus
from ...runtime.errors import BackendUnavailable, KernelError
from ...version import PACKAGE, __version__
from ..common.console import Say, bytes_text, counted, grid, lines, silent, text_of
from ..profile.peaks import Peaks, all_peaks, show_peaks
from .libraries import SharedLibrary, libraries

PATIENCE = 9.5
PYTHONS = (3, 11), (3, 13)
MIN_CAPABILITY = (8, 0)

_NO_ANSWER = "no answer in time"
_AGAIN = "run it again; if it stays silent, look at nvidia-smi"
_CAPABILITY = 75, 76  # CUdevice_attribute: compute capability, major and minor
_DRIVER_REMEDY = "install an NVIDIA GPU and its driver: https://www.nvidia.com/drivers"
_PROBE = 'extern "C" __global__ void probe(float* x) { x[threadIdx.x] += 1.0f; }'


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the environment.

    Attributes:
        name: its name.
        ok: whether it passed.
        found: version and location, or the problem.
        remedy: what to install or do if it failed.
        purpose: what needs it; empty if everything does.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
    purpose: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Shown):
    """The result of `diagnose`.

    Attributes:
        checks: all checks.
        backends: availability of each backend.
        libraries: NVIDIA's shared libraries, as far as loaded.
        peaks: of the devices, if requested.
    """

    checks: tuple[Check, ...]
    backends: tuple[Availability, ...]
    libraries: tuple[SharedLibrary, ...] = ()
    peaks: tuple[Peaks, ...] = ()

    def _about(self) -> str:
        return "backends that can run: " + ", ".join(b.name for b in self.backends if b)

    def require(self, name: str) -> None:
        """Raise BackendUnavailable unless this backend is available."""
        backends.check_name(name)
        found = next(each for each in self.backends if each.name == name)
        if not found:
            raise BackendUnavailable(name, found.missing, found.remedy)

    def __str__(self) -> str:
        return text_of(show_diagnosis, self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "checks": [asdict(check) for check in self.checks],
            "backends": [{**asdict(found), "ok": bool(found)} for found in self.backends],
            "libraries": [asdict(found) for found in self.libraries],
            "peaks": [found.to_dict() for found in self.peaks],
        }


@public(patience=number(minimum=0))
def diagnose(patience: float = PATIENCE, *, peaks: bool = False, say: Say = silent) -> Diagnosis:
    """Check everything, within `patience` seconds.

    What takes longer, such as a hanging driver, is reported as not answering.

    Args:
        patience: time limit in seconds.
        peaks: whether to also measure peak throughput of devices, which takes a few seconds more.
        say: called with what is being measured.
    """
    deadline = monotonic() + patience
    extra = f"pip install 'tercet[cuda{_cuda_major()}]'"
    # One thread for the driver, one for everything that imports CUDA packages: two threads that
    # import them concurrently see each other's partially initialised modules.
    names = backends.names()
    opening = {name: partial(backends.availability, name) for name in names}
    probes = [
        _Probe({"NVIDIA driver": _driver, "GPU": _gpu}),
        _Probe(
            {"numpy": opening.pop("numpy")}  # first: no driver keeps it waiting
            | {
                "NVRTC": partial(_nvrtc, extra),
                "CUDA headers": partial(_headers, extra),
                "cuDNN": partial(_cudnn, extra),
                "TensorRT": _tensorrt,
                "OpenVINO": _openvino,
            }
            | opening
        ),
    ]
    checks = [call() for call in _packages(extra)]
    able: list[Availability] = []
    for probe in probes:
        for name, found in probe.wait(deadline).items():
            if name in names:
                unanswered = Availability(name, "", _NO_ANSWER, _AGAIN)
                able.append(unanswered if found is None else found)
            else:
                checks.append(found or Check(name, False, _NO_ANSWER, _AGAIN))
    return Diagnosis(tuple(checks), tuple(able), libraries(), all_peaks(say) if peaks else ())


class _Probe:
    """Calls on daemon threads, for which the process does not wait at exit."""

    def __init__(self, calls: Mapping[str, Callable[[], Any]]) -> None:
        self._found: dict[str, Any] = dict.fromkeys(calls)
        self._thread = Thread(target=self._run, args=(calls,), daemon=True)
        self._thread.start()

    def _run(self, calls: Mapping[str, Callable[[], Any]]) -> None:
        for name, call in calls.items():
            self._found[name] = call()

    def wait(self, deadline: float) -> dict[str, Any]:
        """Return the results, None for those missing at the deadline."""
        self._thread.join(max(0.0, deadline - monotonic()))
        return dict(self._found)


# ── checks ───────────────────────────────────────────────────────────────────────────


def _packages(extra: str) -> tuple[Callable[[], Check], ...]:
    gpu = partial(_package, remedy=extra, purpose="the cuda and cudnn backends")
    ort, image = "pip install onnxruntime", "pip install 'tercet[image]'"
    generate = partial(_package, remedy="pip install 'tercet[generate]'")
    return (
        _python,
        _tercet,
        _numpy,
        partial(_package, "onnx"),
        partial(_package, "ml-dtypes"),
        partial(_package, "onnxruntime", remedy=ort, purpose="comparing with onnxruntime"),
        partial(_package, "Pillow", remedy=image, purpose="images as inputs"),
        partial(generate, "tokenizers", purpose="texts for tercet generate"),
        partial(generate, "jinja2", purpose="chat templates"),
        partial(gpu, "cuda-core"),
        partial(gpu, "cuda-bindings"),
    )


def _python() -> Check:
    minimum, maximum = (".".join(map(str, pair)) for pair in PYTHONS)
    ok = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    return Check("Python", ok, found, "" if ok else f"use Python {minimum} to {maximum}")


def _tercet() -> Check:
    kept = Cache(default_cache() / "cuda").refusal() or _kept(default_cache())
    return Check("tercet", True, f"{__version__}, {PACKAGE}; {kept}")


def _kept(folder: Path) -> str:
    """Say whether kernels can be kept in a folder, which need not exist yet."""
    there = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return f"kernels kept in {folder}"
    reason = f"no permission to write in {there}" if there.is_dir() else f"{there} is no folder"
    return f"kernels not kept: {reason}; name another folder in $TERCET_CACHE"


def _numpy() -> Check:
    config: Any = np.show_config(mode="dicts")
    library = config.get("Build Dependencies", {}).get("blas", {})
    threads = blas.threads()
    using = counted(threads, "thread") if threads else "threads not known"
    name = f"{library.get('name', 'BLAS')} {library.get('version', '')}".strip()
    found = f"{np.__version__}, {name}, {using}, {counted(usable_cpus(), 'CPU')}"
    return Check("numpy", True, found)


def _package(name: str, *, remedy: str = "", purpose: str = "") -> Check:
    try:
        return Check(name, True, version(name), purpose=purpose)
    except PackageNotFoundError:
        return Check(name, False, "not installed", remedy or f"pip install {name}", purpose)


def _libcuda() -> ctypes.CDLL | None:
    """Load NVIDIA's driver, without its Python packages."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def _cuda_major() -> int:
    """Return the CUDA major version whose packages fit the driver; the newest without a driver."""
    return 12 if 0 < _driver_version(_libcuda()) < 13000 else 13


def _driver_version(library: ctypes.CDLL | None) -> int:
    """Return the driver's CUDA version, such as 13000; 0 without one."""
    number = ctypes.c_int()
    if library is not None:
        library.cuDriverGetVersion(ctypes.byref(number))
    return number.value


def _driver() -> Check:
    check = partial(Check, "NVIDIA driver", purpose="running on a GPU")
    library = _libcuda()
    if library is None:
        return check(False, "not found", _DRIVER_REMEDY)
    number = _driver_version(library)
    status = library.cuInit(0)
    found = f"for CUDA {number // 1000}.{number % 1000 // 10} and older"
    if status:
        return check(False, f"{found}; cuInit fails with status {status}", "look at nvidia-smi")
    return check(True, found)


def _gpu() -> Check:
    check = partial(Check, "GPU", purpose="running on a GPU")
    library = _libcuda()
    count = ctypes.c_int()
    if library is not None and not library.cuInit(0):
        library.cuDeviceGetCount(ctypes.byref(count))
    if library is None:
        return check(False, "none", _DRIVER_REMEDY)
    if not count.value:
        return check(False, "none", "run nvidia-smi; CUDA_VISIBLE_DEVICES may hide a GPU")
    found = [_describe_gpu(library, ordinal) for ordinal in range(count.value)]
    ok = any(capability >= MIN_CAPABILITY for _, capability in found)
    remedy = "" if ok else "the kernels need compute capability 8.0 (Ampere) or newer"
    minimum = "sm_{}{} is the minimum".format(*MIN_CAPABILITY)
    return check(ok, "; ".join(dict.fromkeys([*(text for text, _ in found), minimum])), remedy)


def _describe_gpu(library: ctypes.CDLL, ordinal: int) -> tuple[str, tuple[int, int]]:
    name, total, device = ctypes.create_string_buffer(128), ctypes.c_size_t(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    numbers: list[int] = []
    for attribute in _CAPABILITY:
        number = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    major, minor = numbers
    text = f"{name.value.decode(errors='replace')}, sm_{major}{minor}, {bytes_text(total.value)}"
    return text, (major, minor)


def _nvrtc(remedy: str) -> Check:
    check = partial(Check, "NVRTC", purpose="compiling CUDA kernels")
    try:
        nvrtc: Any = import_module("cuda.bindings.nvrtc")
        compiling: Any = import_module("...backends.cuda.driver.compile", __package__)
    except ImportError as error:
        return check(False, f"not installed ({error})", remedy)
    try:
        _, major, minor = nvrtc.nvrtcVersion()
        options = [f"--gpu-architecture=sm_{MIN_CAPABILITY[0]}{MIN_CAPABILITY[1]}"]
        size = len(compiling.compiled("probe.cu", _PROBE, options, "cubin"))
    except (KernelError, RuntimeError) as error:
        return check(False, f"fails: {_first_line(error)}", remedy)
    return check(True, f"{major}.{minor}, compiles a kernel ({size} bytes)")


def _headers(remedy: str) -> Check:
    check = partial(Check, "CUDA headers", purpose="float16 and bfloat16 kernels")
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        return check(False, f"not found ({error})", remedy)
    folder = find_nvidia_header_directory("cudart")
    if folder is None or not (Path(folder) / "cuda_fp16.h").is_file():
        return check(False, "cuda_fp16.h not found", remedy)
    return check(True, str(folder))


def _cudnn(remedy: str) -> Check:
    check = partial(Check, "cuDNN", purpose="the cudnn backend")
    try:
        from ...backends.cudnn import library

        found = library.load()
    except ImportError as error:
        return check(False, f"not installed ({error})", remedy)
    except BackendUnavailable as error:
        return check(False, error.missing, remedy)
    return check(True, f"{found.version}, frontend {found.frontend_version}, {found.file}")


def _tensorrt() -> Check:
    check = partial(Check, "TensorRT", purpose="the tensorrt backend")
    from ...backends.tensorrt import library

    try:
        found = library.load()
    except BackendUnavailable as error:
        return check(False, error.missing, error.remedy)
    able = ", ".join(found.product.capabilities(found.module))
    builds = f"; builds for compute capability {able}" if able else ""
    return check(True, f"{found}{builds}; {_runs_engines(str(found))}; {found.file}")


def _runs_engines(vendor: str) -> str:
    """Return whether a library can run engines on this GPU, else its reason."""
    from ...backends.tensorrt import open_backends
    from ...runtime.options import Options

    try:
        (backend, *_) = open_backends(Options())
    except BackendUnavailable as error:
        is_its_own = error.missing.startswith(vendor)
        return error.missing.removeprefix(f"{vendor} ") if is_its_own else "no GPU to run engines"
    return f"runs engines on {backend.device.name}"


def _openvino() -> Check:
    check = partial(Check, "OpenVINO", purpose="the openvino backend")
    from ...backends.openvino import library

    try:
        found = library.load()
    except BackendUnavailable as error:
        return check(False, error.missing, error.remedy)
    return check(True, f"{found.version}, {found.cpu}, {found.file}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# ── showing ──────────────────────────────────────────────────────────────────────────────────────


def show_diagnosis(console: Console, found: Diagnosis) -> None:
    """Print what is installed, what is missing with remedies, and the backends."""
    table = grid("check", "", "found", left=3)
    for check in found.checks:
        table.add_row(check.name, _mark(check.ok, bool(check.purpose)), Text(check.found))
    console.print(table)
    console.print()
    missing = [check for check in found.checks if not check.ok]
    if missing:
        _show_remedies(console, missing)
    table = grid("backend", "", "runs on", left=3)
    for each in found.backends:
        said = each.device if each else f"cannot run here: {each.missing}\n{each.remedy}"
        table.add_row(each.name, _mark(bool(each), True), lines(said))
    console.print(table)
    console.print()
    _show_libraries(console, found.libraries)
    if found.peaks:
        console.print()
        show_peaks(console, found.peaks)


def _show_libraries(console: Console, found: Sequence[SharedLibrary]) -> None:
    table = grid("library", "version", "file", left=3)
    for each in found:
        said = each.file or f"not loaded; unavailable without it: {each.purpose}"
        table.add_row(each.name, each.version, Text(said, "" if each.file else "dim"))
    console.print(table)


def _mark(ok: bool, optional: bool) -> Text:
    return Text("ok", "green") if ok else Text("no", "yellow" if optional else "bold red")


def _show_remedies(console: Console, missing: Sequence[Check]) -> None:
    by_remedy: dict[str, list[Check]] = {}
    for check in missing:
        by_remedy.setdefault(check.remedy, []).append(check)
    table = grid("missing", "needed for", "how to get it", left=3)
    for remedy, checks in by_remedy.items():
        purposes = dict.fromkeys(check.purpose or "everything" for check in checks)
        names = ", ".join(check.name for check in checks)
        table.add_row(names, Text(", ".join(purposes)), Text(remedy))
    console.print(table)
    console.print()
