"""The statuses of CUDA calls as errors of tercet."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver
from cuda.core._utils import cuda_utils

from ...runtime.errors import DeviceError, DeviceFault

#: What cuda.core raises; it gives them no public name.
CUDAError: type[Exception] = cuda_utils.CUDAError
NVRTCError: type[Exception] = cuda_utils.NVRTCError

#: Statuses that every later call of the process gets as well.
FAULTS = (
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
)


def failure(text: str) -> DeviceError:
    """Return the error of this text, which names a status: a DeviceFault where that is final."""
    return DeviceFault(text) if any(fault in text for fault in FAULTS) else DeviceError(text)


def check(call: str, answer: tuple[Any, ...]) -> Any:
    """Return what a call of the driver's Python bindings gave.

    Args:
        call: its name, for the error.
        answer: what it returned: a status, then its results.

    Returns:
        None, the result, or a tuple of several.

    Raises:
        DeviceError: the status is not success.
    """
    status, *results = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        reason = f": {text.decode()}" if text else ""
        raise failure(f"{call} failed with {status.name}{reason}")
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


@contextmanager
def translated(what: str) -> Generator[None]:
    """Turn the errors of cuda.core inside into a DeviceError that says what was tried."""
    try:
        yield
    except CUDAError as error:
        raise failure(f"{what} failed with {error}") from error
