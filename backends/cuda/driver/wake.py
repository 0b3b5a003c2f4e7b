"""Starts CUDA on a thread of its own, while Python imports what will use it."""

from __future__ import annotations

import threading

from cuda.bindings import driver, nvrtc

from ....runtime.base import forks

_threads: dict[int, threading.Thread] = {}
_starting = forks.lock()


def wake(ordinal: int) -> None:
    """Begin to start the driver, the context of a GPU and NVRTC, unless that has begun.

    The driver takes as long as all imports, and holds no lock of Python. What fails here fails
    again when the device is opened, which says why.

    Args:
        ordinal: index of the GPU among those visible to CUDA.
    """
    with _starting:
        if ordinal not in _threads:
            thread = threading.Thread(
                target=_wake, args=(ordinal,), name="waking CUDA", daemon=True
            )
            thread.start()
            _threads[ordinal] = thread


def wait(ordinal: int) -> None:
    """Wait until what `wake` began has ended."""
    if ordinal in _threads:
        _threads[ordinal].join()


def _wake(ordinal: int) -> None:
    try:
        driver.cuInit(0)
        status, device = driver.cuDeviceGet(ordinal)
        if status == driver.CUresult.CUDA_SUCCESS:
            driver.cuDevicePrimaryCtxRetain(device)
        nvrtc.nvrtcVersion()
    except RuntimeError:  # a library that cannot be loaded
        return
