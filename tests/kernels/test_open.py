"""What `backend="cuda"` says where it cannot run; every case is simulated, so a GPU is no harm."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import cuda, open_backends
from tercet.backends.cuda import device as opening
from tercet.backends.cuda.driver import device, wake
from tercet.backends.cuda.driver.compile import target_for
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.errors import BackendUnavailable, UsageError
from tercet.runtime.options import Options

OK = opening.driver.CUresult.CUDA_SUCCESS
NO_DEVICE = opening.driver.CUresult.CUDA_ERROR_NO_DEVICE


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A driver of the right version with one GPU, which tests then spoil."""
    fake = SimpleNamespace(
        CUresult=opening.driver.CUresult,
        CUDA_VERSION=13000,
        cuInit=lambda flags: (OK,),
        cuDriverGetVersion=lambda: (OK, 13000),
        cuDeviceGetCount=lambda: (OK, 1),
    )
    monkeypatch.setattr(wake, "LIBRARY", "no library")
    monkeypatch.setattr(wake, "_woken", dict[int, threading.Event]())
    monkeypatch.setattr(opening, "driver", fake)
    monkeypatch.setattr(device, "driver", fake)
    monkeypatch.setattr(opening, "nvrtc", SimpleNamespace(nvrtcVersion=lambda: (OK, 13, 0)))
    monkeypatch.setattr(opening, "_opened", {})
    return fake


def refusal() -> BackendUnavailable:
    with pytest.raises(BackendUnavailable) as caught:
        open_backends("cuda", Options())
    assert caught.value.backend == "cuda"
    assert str(caught.value).startswith("backend 'cuda' cannot run here: ")
    return caught.value


def fails(*_: Any) -> Any:
    raise RuntimeError("Failed to dlopen libcuda.so.1")


def test_no_driver(driver: SimpleNamespace) -> None:
    driver.cuInit = fails
    error = refusal()
    assert "driver cannot be loaded (Failed to dlopen libcuda.so.1)" in error.missing
    assert "nvidia-smi" in error.remedy


def test_no_gpu(driver: SimpleNamespace) -> None:
    driver.cuInit = lambda flags: (NO_DEVICE,)
    assert "CUDA_ERROR_NO_DEVICE" in refusal().missing
    driver.cuInit = lambda flags: (OK,)
    driver.cuDeviceGetCount = lambda: (OK, 0)
    assert "there is no GPU 0; CUDA shows 0" in refusal().missing


def test_one_gpu_of_several(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.cuDeviceGetCount = lambda: (OK, 2)
    driver.cuDeviceGetAttribute = lambda which, ordinal: (OK, 9)
    opened: Any = lambda core, cache: SimpleNamespace(  # noqa: E731 - one line says it
        ordinal=core, check_process=lambda: None, use_cache=lambda folder: None
    )
    monkeypatch.setattr(opening, "CudaDevice", opened)
    devices: list[Any] = [
        open_backends("cuda", Options(device=number, cache=Path(cache)))[0].device
        for number, cache in ((0, "a"), (1, "a"), (1, "b"))
    ]
    first, second, again = devices
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert second is again


def test_a_gpu_that_is_not_there(driver: SimpleNamespace) -> None:
    with pytest.raises(BackendUnavailable, match="there is no GPU 1; CUDA shows 1"):
        open_backends("cuda", Options(device=1))
    with pytest.raises(UsageError, match="device=1: backend 'numpy' runs on the host"):
        open_backends("numpy", Options(device=1))
    with pytest.raises(UsageError, match="device=-1: expected a whole number >= 0"):
        Options(device=-1)


def test_a_driver_older_than_the_packages(driver: SimpleNamespace) -> None:
    driver.cuDriverGetVersion = lambda: (OK, 12040)
    error = refusal()
    assert "the NVIDIA driver is for CUDA 12.4, the installed packages are for CUDA 13" in str(
        error
    )
    assert "pip install 'tercet[cuda12]'" in error.remedy


def test_no_run_time_compiler(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "nvrtc", SimpleNamespace(nvrtcVersion=fails))
    error = refusal()
    assert "NVRTC" in error.missing
    assert error.remedy == "pip install 'tercet[cuda13]'"


def test_a_gpu_that_is_too_old(driver: SimpleNamespace) -> None:
    driver.cuDeviceGetName = lambda length, ordinal: (OK, b"Tesla V100\0\0  ")
    driver.cuDeviceGetAttribute = lambda which, ordinal: (OK, 7 if "MAJOR" in which.name else 0)
    error = refusal()
    assert "Tesla V100 has compute capability 7.0; the kernels need 8.0 (Ampere)" in error.missing


def test_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("tercet.backends.cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'tercet\[cuda13\]'"):
        cuda.open_backends(Options())


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")],
)
def test_targets(capability: tuple[int, int], expected: str) -> None:
    assert target_for(*capability, 132, 232448) == Target(expected, 132, 232448)
    assert target_for(9, 0, 132, 232448) == H200


def test_a_gpu_newer_than_the_compiler_gets_ptx() -> None:
    assert target_for(99, 9, 1, 1).code == "ptx"


def test_cuda_starts_while_the_backend_is_imported(
    driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has started behind that; the context may start while plans are made."""
    imported, planned = threading.Event(), threading.Event()
    started, retained = list[int](), list[int]()

    def initialise(flags: int) -> int:
        assert imported.wait(60)  # the body goes on meanwhile
        started.append(flags)
        return 0

    def find(place: Any, ordinal: int) -> int:
        place._obj.value = 10 + ordinal
        return 0

    def retain(place: Any, gpu: Any) -> int:
        assert planned.wait(60)
        retained.append(gpu.value)
        return 0

    library = SimpleNamespace(cuInit=initialise, cuDeviceGet=find, cuDevicePrimaryCtxRetain=retain)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    for gpu, count in ((1, 1), (1, 1), (0, 2)):  # each starts once
        with wake.waking(gpu):
            imported.set()
        assert len(started) == count
        assert not retained
        imported.clear()
    planned.set()
    for thread in threading.enumerate():
        if thread.name == "waking CUDA":
            thread.join()
    assert sorted(retained) == [10, 11]


def test_what_fails_to_start_is_said_where_it_is_opened(driver: SimpleNamespace) -> None:
    with wake.waking(0):
        pass
    driver.cuInit = fails
    assert "driver cannot be loaded" in refusal().missing
