"""What a forked process needs: locks that nobody holds, and no trace of threads that it lacks.

A fork copies the memory of all threads and goes on with one. A lock that another thread held would
stay locked in the new process for ever, and what that thread was about to change stays half done.
So every lock of tercet comes from here and is opened in the new process, and whoever has handed
something to other threads says here how to do without it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod, WeakSet

_locks: WeakSet[Any] = WeakSet()
_forgetting: list[WeakMethod[Callable[[], None]]] = []
_generation = 0


def lock() -> threading.Lock:
    """Return a new lock, which is open in a forked process."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> threading.RLock:
    """Return a new lock that its owner may take again; it is open in a forked process."""
    made = threading.RLock()
    _locks.add(made)
    return made


def forget_in_child(method: Callable[[], None]) -> None:
    """Have a bound method called in every forked process in which its object still lives."""
    _forgetting[:] = [known for known in _forgetting if known() is not None]
    _forgetting.append(WeakMethod(method))


def generation() -> int:
    """Return how many forks lie between this process and the one that imported tercet."""
    return _generation


def _renew() -> None:
    global _generation
    _generation += 1
    for held in list(_locks):
        held._at_fork_reinit()
    for known in list(_forgetting):
        forget = known()
        if forget is not None:
            forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
