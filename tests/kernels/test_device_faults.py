"""What a GPU's failures become, and what can go on behind them; the driver is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from cuda.bindings import driver

from tercet.backends.cuda.device import CudaDevice
from tercet.backends.cuda.driver import device as driver_device
from tercet.backends.cuda.driver import memory as driver_memory
from tercet.backends.cuda.driver import status
from tercet.runtime.base import forks
from tercet.runtime.errors import DeviceError, DeviceFault, DeviceOutOfMemory

SUCCESS = driver.CUresult.CUDA_SUCCESS
#: Statuses with which CUDA's documentation says that the process must be ended, or the device is
#: gone; what an installation does not know is left out.
FINAL = [
    "ASSERT",
    "CONTAINED",
    "CONTEXT_IS_DESTROYED",
    "DEVICE_UNAVAILABLE",
    "ECC_UNCORRECTABLE",
    "EXTERNAL_DEVICE",
    "HARDWARE_STACK_ERROR",
    "ILLEGAL_ADDRESS",
    "ILLEGAL_INSTRUCTION",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "MISALIGNED_ADDRESS",
    "MPS_CLIENT_TERMINATED",
    "MPS_RPC_FAILURE",
    "NVLINK_UNCORRECTABLE",
    "TENSOR_MEMORY_LEAK",
    "UNKNOWN",
]
#: Statuses behind which the next call may do well.
PASSING = [
    "INVALID_VALUE",
    "INVALID_HANDLE",
    "INVALID_IMAGE",
    "INVALID_CONTEXT",
    "INVALID_SOURCE",
    "NOT_READY",
    "OUT_OF_MEMORY",
    "NOT_SUPPORTED",
    "NOT_FOUND",
    "LAUNCH_OUT_OF_RESOURCES",
    "STREAM_CAPTURE_INVALIDATED",
    "TIMEOUT",
    "COOPERATIVE_LAUNCH_TOO_LARGE",
]


@pytest.mark.parametrize("name", [*FINAL, *PASSING])
def test_which_statuses_are_final(name: str) -> None:
    name = f"CUDA_ERROR_{name}"
    if name not in driver.CUresult.__members__:
        pytest.skip(f"these bindings do not know {name}")
    error = status.failure(f"graph launch failed with {name}: whatever the driver says")
    assert isinstance(error, DeviceFault) == (name[11:] in FINAL)


class Memory:
    """Memory of a device that refuses some allocations and notes what it holds."""

    def __init__(self, refused: dict[int, str]) -> None:
        self.refused, self.calls, self.held = refused, 0, dict[int, int]()

    def allocate(self, nbytes: int, stream: Any = None) -> tuple[Any, int]:
        self.calls += 1
        if self.calls in self.refused:
            return driver.CUresult.__members__[self.refused[self.calls]], 0
        self.held[self.calls] = nbytes
        return SUCCESS, self.calls

    def free(self, pointer: int, stream: Any = None) -> tuple[Any]:
        del self.held[pointer]
        return (SUCCESS,)


def device_with(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """Return a device without a GPU."""
    fake = SimpleNamespace(
        CUresult=driver.CUresult,
        cuCtxSetCurrent=lambda context: (SUCCESS,),
        cuGetErrorString=lambda status: (SUCCESS, b"no"),
        cuMemAlloc=memory.allocate,
        cuMemAllocHost=memory.allocate,
        cuMemFree=memory.free,
        cuMemGetInfo=lambda: (SUCCESS, 100, 1000),
        cuDeviceGetAttribute=lambda which, ordinal: (SUCCESS, 0),  # no pools
    )
    for module in (driver_device, driver_memory, status):
        monkeypatch.setattr(module, "driver", fake)
    made: Any = object.__new__(CudaDevice)
    made._context, made._memory = 7, driver_memory.MemoryPool(0, keeps=False)
    made._service = SimpleNamespace(synchronize=lambda: None)
    made._lock, made._generation = forks.lock(), forks.generation()
    made.name, made.allocated, made.trimmed = "cuda:0", 0, []
    made.__dict__["exchange"] = SimpleNamespace(trim=lambda: made.trimmed.append(memory.calls))
    return made


@pytest.mark.parametrize("at", range(1, 51))
def test_every_allocation_may_fail(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dropped arrays have left is given back before memory counts as full."""
    memory = Memory(dict.fromkeys((at, at + 1), "CUDA_ERROR_OUT_OF_MEMORY"))
    device: Any = device_with(memory, monkeypatch)
    buffers = [device.allocate(64) for _ in range(at - 1)]
    with pytest.raises(DeviceOutOfMemory, match=r"no 512 bytes: 100 of 1000 are free, \d+ are"):
        device.allocate(512)
    assert device.trimmed == [at]
    buffers.append(device.allocate(512))  # it can go on
    for buffer in buffers:
        buffer.close()
    assert (memory.held, device.allocated) == ({}, 0)


def test_memory_of_dropped_arrays_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_with(Memory({1: "CUDA_ERROR_OUT_OF_MEMORY"}), monkeypatch)
    device.allocate(512).close()
    assert device.allocated == 0


@pytest.mark.parametrize("name", ["ILLEGAL_ADDRESS", "ECC_UNCORRECTABLE", "INVALID_VALUE"])
def test_allocations_that_fail_otherwise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory({1: f"CUDA_ERROR_{name}"})
    device: Any = device_with(memory, monkeypatch)
    with pytest.raises(DeviceError, match=f"allocating 512 bytes failed with .*{name}") as caught:
        device.allocate(512)
    assert isinstance(caught.value, DeviceFault) == (name in FINAL)
    assert (memory.calls, device.trimmed, device.allocated) == (1, [], 0)


def test_memory_that_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_with(Memory({1: "CUDA_ERROR_OUT_OF_MEMORY"}), monkeypatch)
    with pytest.raises(
        DeviceOutOfMemory, match=r"pinning 4096 bytes .* bytes of host memory .*ulimit"
    ):
        device.staging(4096)


def test_a_device_does_not_outlive_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process gets an error at once, and what it drops calls nothing."""
    memory = Memory({})
    device = device_with(memory, monkeypatch)
    buffer = device.allocate(512)
    monkeypatch.setattr(forks, "_generation", forks.generation() + 1)
    for call in (
        device.enter,
        device.stream,
        lambda: device.allocate(1),
        lambda: device.staging(1),
    ):
        with pytest.raises(DeviceFault, match=r"before this process was forked.*spawn"):
            call()
    buffer.close()
    assert list(memory.held.values()) == [512]
    assert memory.calls == 1


def test_memory_may_outlive_the_names_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may have removed them when a process ends whose models are open."""
    buffer = driver_memory.CudaBuffer(0, 0)
    monkeypatch.setattr(driver_memory, "is_finalizing", None)
    buffer.__del__()
    assert buffer.pointer == 0
