"""Support for forked processes: locks that are free in the child, and cleanup of thread state.

A fork copies the memory of all threads but continues with one. A lock held by another thread would
stay locked in the child forever, and what that thread was changing stays half done. So every lock
of tercet is made here and released in the child, and objects that hand work to other threads
register here how to do without them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakSet, ref

_locks: WeakSet[Any] = WeakSet()
#: Objects and functions of theirs by identity: other objects may be equal.
_forgetting: dict[int, tuple[ref[Any], Callable[[Any], None]]] = {}
_generation = 0


def lock() -> threading.Lock:
    """Return a new lock that is free in forked processes."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> threading.RLock:
    """Return a new reentrant lock that is free in forked processes."""
    made = threading.RLock()
    _locks.add(made)
    return made


def forget_in_child(method: Callable[[], None]) -> None:
    """Have a bound method, one of its object, called in every forked process while that lives."""
    assert isinstance(method, MethodType)
    known, number = _forgetting, id(method.__self__)  # at exit, globals go first
    _forgetting[number] = ref(method.__self__, lambda _: known.pop(number, None)), method.__func__


def generation() -> int:
    """Return how many forks separate this process from the one that imported tercet."""
    return _generation


def _renew() -> None:
    global _generation
    _generation += 1
    for held in list(_locks):
        held._at_fork_reinit()
    for owner, forget in list(_forgetting.values()):
        if (living := owner()) is not None:
            forget(living)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
