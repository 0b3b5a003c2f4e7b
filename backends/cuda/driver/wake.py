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

#: By GPU, what is set once its driver has started, or failed to.
_woken: dict[int, threading.Event] = {}


def wake(ordinal: int) -> threading.Event:
    """Start the driver and then the context of a GPU, once; return what is set in between.

    The driver takes as long as the imports, the context as long as planning, and neither holds a
    lock of Python. What fails here fails again when the device is opened or used, which says why.

    Args:
        ordinal: index of the GPU among those visible to CUDA.
    """
    if ordinal not in _woken:
        started = _woken[ordinal] = threading.Event()
        thread = threading.Thread(target=_wake, args=(ordinal, started), name="waking CUDA")
        thread.start()
    return _woken[ordinal]


@contextmanager
def waking(ordinal: int) -> Iterator[None]:
    """Let the driver start while the body of the `with` imports a backend; see `wake`."""
    started = wake(ordinal)
    try:
        with no_collection():
            yield
    finally:
        started.wait()


def _wake(ordinal: int, started: threading.Event) -> None:
    try:
        driver = ctypes.CDLL(LIBRARY)
        failed = driver.cuInit(0)
    except OSError:
        return
    finally:
        started.set()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if not failed and driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
