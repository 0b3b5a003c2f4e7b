"""Status codes of CUDA calls as errors."""

from __future__ import annotations

import re
from typing import Any

from cuda.bindings import driver

from ....runtime.errors import DeviceError, DeviceFault

#: Words in the names of statuses after which the process has lost the device: a kernel corrupted
#: the context, hardware failed, a context or server is gone, or the error is unknown. After other
#: statuses, work may go on.
_FINAL = re.compile(
    r"ILLEGAL_(ADDRESS|INSTRUCTION)|INVALID_(PC|ADDRESS_SPACE)|MISALIGNED_ADDRESS|HARDWARE|_STACK_"
    r"|_ASSERT$|LAUNCH_(FAILED|TIMEOUT)|_ECC_|NVLINK|CONTAINED|EXTERNAL_DEVICE|_MPS_(CLIENT|CONN|RPC)"
    r"|(CONTEXT|DEVICE)_(IS_DESTROYED|UNAVAILABLE)|TENSOR_MEMORY_LEAK|DEINITIALIZED|_UNKNOWN$"
)
#: Statuses that persist for the process, or that only another device fixes.
FAULTS = frozenset(status.name for status in driver.CUresult if _FINAL.search(status.name))


def failure(text: str) -> DeviceError:
    """Return the error for a message with a status: a DeviceFault if the status is final."""
    named = re.findall(r"CUDA_ERROR_\w+", text)
    return DeviceFault(text) if FAULTS.intersection(named) else DeviceError(text)


def check(call: str, answer: tuple[Any, ...]) -> Any:
    """Return the results of a call of the driver's Python bindings.

    Args:
        call: its name, for errors.
        answer: its return value: a status, then results.

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
