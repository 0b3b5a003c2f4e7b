"""Starts CUDA on a thread of its own, while Python imports what will use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cuda.bindings import driver, nvrtc

_awake: set[int] = set()


@contextmanager
def waking(ordinal: int) -> Iterator[None]:
    """Start the driver, the context of a GPU and NVRTC, while the body of the `with` runs.

    The driver takes longer than the imports of a backend, and holds no lock of Python. What fails
    here fails again when the device is opened, which says why.

    Args:
        ordinal: index of the GPU among those visible to CUDA.
    """
    if ordinal in _awake:
        yield
        return
    _awake.add(ordinal)
    thread = threading.Thread(target=_wake, args=(ordinal,), name="waking CUDA", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _wake(ordinal: int) -> None:
    try:
        driver.cuInit(0)
        status, device = driver.cuDeviceGet(ordinal)
        if status == driver.CUresult.CUDA_SUCCESS:
            driver.cuDevicePrimaryCtxRetain(device)
        nvrtc.nvrtcVersion()
    except RuntimeError:  # a library that cannot be loaded
        return
