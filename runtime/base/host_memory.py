"""How much memory of the host there is for this process, and for one model."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

#: Where Linux says how much memory a container may have: control groups of version 2 and 1.
_CONTROL_GROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@cache
def memory() -> int:
    """Return the bytes of memory that this process can have: the machine's, or a container's."""
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
    """Return the bytes of memory in the machine; no limit where the system does not tell."""
    if hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "win32":
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its own size, load, then bytes in all
        if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return status[1]
    return sys.maxsize


def allowance() -> int:
    """Return the bytes that a model may take by default: most of the memory."""
    return memory() * 7 // 8
