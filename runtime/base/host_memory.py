"""Host memory available to this process, and the default budget of one model."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

#: Files with the memory limit of a container: control groups v2 and v1.
_CONTROL_GROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@cache
def memory() -> int:
    """Return the bytes of memory available to this process: those of the machine or container."""
    found = [_physical()]
    for path in _CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # ValueError: "max", for no limit
            found.append(int(path.read_text()))
    with suppress(ImportError):
        import resource

        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            limit, _ = resource.getrlimit(kind)
            if limit != resource.RLIM_INFINITY:
                found.append(limit)
    return min(found)


def _physical() -> int:
    """Return the bytes of physical memory; no limit if the system does not report them."""
    if hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "win32":
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX
        if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return status[1]
    return sys.maxsize


def allowance() -> int:
    """Return the default memory budget of a model in bytes: most of the memory."""
    return memory() * 7 // 8
