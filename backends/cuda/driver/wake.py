"""Starts CUDA on a separate thread, while Python imports what will use it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ....runtime.base.collecting import no_collection

#: The library of the driver; ctypes loads it in less time than the packages for CUDA.
LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"

_woken: dict[int, threading.Thread] = {}


def wake(ordinal: int) -> threading.Thread:
    """Start the driver and the context of a GPU, once, and return the thread that does.

    The driver takes as long as the imports, and holds no lock of Python. What fails here fails
    again when the device is opened, which says why.

    Args:
        ordinal: index of the GPU among those visible to CUDA.
    """
    if ordinal not in _woken:
        thread = threading.Thread(target=_wake, args=(ordinal,), name="waking CUDA")
        _woken[ordinal] = thread
        thread.start()
    return _woken[ordinal]


@contextmanager
def waking(ordinal: int) -> Iterator[None]:
    """Let a GPU start while the body of the `with` imports a backend; see `wake`."""
    thread = wake(ordinal)
    try:
        with no_collection():
            yield
    finally:
        thread.join()


def _wake(ordinal: int) -> None:
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
