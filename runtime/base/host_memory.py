"""Host memory available to this process, and the default budget of one model."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

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


def used_by(process: int) -> int:
    """Return the bytes of memory that a process takes; 0 if the system does not report them."""
    if sys.platform == "win32":
        return _used_on_windows(process)
    if sys.platform == "darwin":
        usage = (ctypes.c_uint64 * 12)()  # rusage_info_v0; ri_phys_footprint is its 10th word
        failed = ctypes.CDLL("libproc.dylib").proc_pid_rusage(process, 0, ctypes.byref(usage))
        return 0 if failed else usage[9]
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _used_on_windows(process: int) -> int:
    kernel = cast("Any", ctypes).windll.kernel32
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel.OpenProcess(0x1010, False, process))  # query, read
    counters = (ctypes.c_uint64 * 9)(72)  # PROCESS_MEMORY_COUNTERS; PagefileUsage is its 8th word
    try:
        answered: int = kernel.K32GetProcessMemoryInfo(handle, ctypes.byref(counters), 72)
        return counters[7] if answered else 0
    finally:
        kernel.CloseHandle(handle)
