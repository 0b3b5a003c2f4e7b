"""The pool of programs: which are in use, and which are evicted."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakSet

from ..base import forks
from ..base.budget import Budget
from ..control.program import Program
from ..errors import UsageError


@dataclass(slots=True, eq=False)
class PoolEntry:
    """The idle programs of one key.

    Attributes:
        key: their key in the cache; comparing keys is the most expensive part of a lookup.
        idle: least recently used first.
        used: when one of them was last returned.
        is_placed: whether it is found by its key.
    """

    key: Hashable
    idle: list[Program] = field(default_factory=list[Program])
    used: int = 0
    is_placed: bool = False


class ProgramPool:
    """Programs by key, each lent to one caller at a time; see `IdlePrograms` for idle ones.

    Args:
        maximum: maximum number of idle programs; the least recently used is evicted.
        closed: called once, when the last program is closed.
        dropped: called with `maximum` when a program is evicted.
    """

    def __init__(
        self,
        maximum: int,
        closed: Callable[[], None],
        dropped: Callable[[int], None] | None = None,
    ) -> None:
        self._maximum = maximum
        self._on_closed, self._on_dropped = closed, dropped
        self._entries: dict[Hashable, PoolEntry] = {}
        # Programs that interrupted callers never returned disappear when they are collected.
        self._programs: WeakSet[Program] = WeakSet()
        self._idle = 0
        self._now = count(1)
        self._lock = forks.lock()
        self._closed = False
        forks.forget_in_child(self._forget)

    def _forget(self) -> None:
        """Drop the programs held by threads that a forked process lacks."""
        self._idle = self._rests()
        idle = [program for entry in self._entries.values() for program in entry.idle]
        self._programs = WeakSet(idle)

    def take(self, key: Hashable) -> tuple[PoolEntry, Program | None]:
        """Return the entry for this key, and an idle program for the caller, or None.

        Raises:
            UsageError: the model is closed.
        """
        with self._lock:
            self.check_open()
            entry = self._entries.get(key)
            if entry is None:
                return PoolEntry(key), None
            if not entry.idle:
                return entry, None
            program = entry.idle.pop()
            self._idle -= 1
            return entry, program

    def take_again(self, entry: PoolEntry) -> Program | None:
        """Return an idle program of an entry for the caller, or None.

        Raises:
            UsageError: the model is closed.
        """
        with self._lock:
            self.check_open()
            if not entry.idle:
                return None
            self._idle -= 1
            return entry.idle.pop()

    @property
    def is_closed(self) -> bool:
        """Whether the model is closed."""
        return self._closed

    def check_open(self) -> None:
        """Raise UsageError if the model is closed."""
        if self.is_closed:
            raise UsageError("the model is closed")

    def add(self, program: Program) -> None:
        """Register a new program, held by the caller."""
        with self._lock:
            self._programs.add(program)
            self._idle = self._rests()

    def give(self, entry: PoolEntry, program: Program) -> None:
        """Take a program back from its caller."""
        dropped: list[Program] = []
        with self._lock:
            if self._closed:
                self._programs.discard(program)
                dropped.append(program)
            else:
                if not entry.is_placed:
                    entry = self._entries.setdefault(entry.key, entry)
                    entry.is_placed = True
                entry.idle.append(program)
                entry.used = next(self._now)
                self._idle += 1
                if self._idle > self._maximum:
                    self._idle = self._rests()
                while self._idle > self._maximum:
                    dropped.append(self._drop())
            last = self._closed and not self._programs
        for old in dropped:
            old.close()
            if not last and self._on_dropped is not None:
                self._on_dropped(self._maximum)
        if last:
            self._on_closed()

    def _rests(self) -> int:
        """Return the number of idle programs."""
        return sum(len(entry.idle) for entry in self._entries.values())

    def _drop(self) -> Program:
        """Drop an idle program of the least recently used key."""
        entries = (entry for entry in self._entries.values() if entry.idle)
        entry = min(entries, key=lambda entry: entry.used)
        self._idle -= 1
        program = entry.idle.pop(0)
        self._programs.discard(program)
        if not entry.idle:
            del self._entries[entry.key]
            entry.is_placed = False
        return program

    def taken(self, budget: Budget) -> int:
        """Return the bytes of a budget that `relieve` can release."""
        with self._lock:
            idle = (program for entry in self._entries.values() for program in entry.idle)
            return sum(program.taken(budget) for program in idle)

    def relieve(self) -> bool:
        """Close the least recently used idle program; False if there is none."""
        with self._lock:
            self._idle = self._rests()
            old = self._drop() if self._idle else None
        if old is not None:
            old.close()
        return old is not None

    def latest(self, suits: Callable[[Hashable], bool]) -> Program | None:
        """Return the most recently used idle program with a matching key."""
        with self._lock:
            entries = [each for each in self._entries.values() if each.idle and suits(each.key)]
            return max(entries, key=lambda each: each.used).idle[-1] if entries else None

    @property
    def idle(self) -> list[Program]:
        """Idle programs, the most recently used last."""
        with self._lock:
            entries = sorted(self._entries.values(), key=lambda entry: entry.used)
            return [program for entry in entries for program in entry.idle]

    def close(self) -> None:
        """Close idle programs; others are closed when their callers return them."""
        with self._lock:
            self._closed = True
            idle = [program for entry in self._entries.values() for program in entry.idle]
            for entry in self._entries.values():
                entry.idle.clear()  # callers may hold entries
            self._entries.clear()
            self._idle = 0
            self._programs.difference_update(idle)
            busy = bool(self._programs)
        for program in idle:
            program.close()
        if not busy:
            self._on_closed()


@dataclass(frozen=True, slots=True)
class IdlePrograms:
    """What the idle programs of a pool hold of a budget, as its `Reserve`."""

    pool: ProgramPool
    budget: Budget

    @property
    def nbytes(self) -> int:
        """Bytes that `relieve` can release."""
        return self.pool.taken(self.budget)

    def relieve(self) -> bool:
        """Close the least recently used idle program; False if there is none."""
        return self.pool.relieve()
