"""The programs that a model keeps: who has which, and which goes when there are too many."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakSet

from ..base import forks
from ..control.program import Program
from ..errors import UsageError


@dataclass(slots=True, eq=False)
class Shelf:
    """The idle programs of one key.

    Attributes:
        key: what they are looked up by; comparing keys takes longer than all else here.
        idle: the one that has rested longest first.
        used: when one of them was given back last.
        is_placed: whether it is found by its key.
    """

    key: Hashable
    idle: list[Program] = field(default_factory=list[Program])
    used: int = 0
    is_placed: bool = False


class Shelves:
    """Programs by key, each lent to one caller at a time; the idle ones are a `budget.Reserve`.

    Args:
        maximum: how many idle ones are kept; the one that has rested longest goes first.
        closed: called once, when the last program is closed.
        dropped: called with `maximum` when one goes because there are too many.
    """

    def __init__(
        self,
        maximum: int,
        closed: Callable[[], None],
        dropped: Callable[[int], None] | None = None,
    ) -> None:
        self._maximum = maximum
        self._on_closed, self._on_dropped = closed, dropped
        self._shelves: dict[Hashable, Shelf] = {}
        # What a caller who was interrupted never gave back is gone from here once it is collected.
        self._programs: WeakSet[Program] = WeakSet()
        self._idle = 0
        self._now = count(1)
        self._lock = forks.lock()
        self._closed = False
        forks.forget_in_child(self._forget)

    def _forget(self) -> None:
        """Do without the programs that threads had which a forked process lacks."""
        self._idle = self._rests()
        idle = [program for shelf in self._shelves.values() for program in shelf.idle]
        self._programs = WeakSet(idle)

    def take(self, key: Hashable) -> tuple[Shelf, Program | None]:
        """Return where programs of this key belong, and an idle one, now the caller's, or None.

        Raises:
            UsageError: the model is closed.
        """
        with self._lock:
            if self._closed:
                raise UsageError("the model is closed")
            shelf = self._shelves.get(key)
            if shelf is None:
                return Shelf(key), None
            if not shelf.idle:
                return shelf, None
            program = shelf.idle.pop()
            self._idle -= 1
            return shelf, program

    def add(self, program: Program) -> None:
        """Note a new program, which the caller has."""
        with self._lock:
            self._programs.add(program)
            self._idle = self._rests()

    def give(self, shelf: Shelf, program: Program) -> None:
        """Take a program back from its caller."""
        dropped: list[Program] = []
        with self._lock:
            if self._closed:
                self._programs.discard(program)
                dropped.append(program)
            else:
                if not shelf.is_placed:
                    shelf = self._shelves.setdefault(shelf.key, shelf)
                    shelf.is_placed = True
                shelf.idle.append(program)
                shelf.used = next(self._now)
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
        """Return how many programs are idle."""
        return sum(len(shelf.idle) for shelf in self._shelves.values())

    def _drop(self) -> Program:
        """Let go of an idle program of the key that was not used for longest."""
        shelves = (shelf for shelf in self._shelves.values() if shelf.idle)
        shelf = min(shelves, key=lambda shelf: shelf.used)
        self._idle -= 1
        program = shelf.idle.pop(0)
        self._programs.discard(program)
        if not shelf.idle:
            del self._shelves[shelf.key]
            shelf.is_placed = False
        return program

    @property
    def nbytes(self) -> int:
        """Bytes of the host that `relieve` would give back in the end."""
        with self._lock:
            idle = (program for shelf in self._shelves.values() for program in shelf.idle)
            return sum(program.taken for program in idle)

    def relieve(self) -> bool:
        """Close the idle program that has rested longest; False where there is none."""
        with self._lock:
            self._idle = self._rests()
            old = self._drop() if self._idle else None
        if old is not None:
            old.close()
        return old is not None

    def latest(self, suits: Callable[[Hashable], bool]) -> Program | None:
        """Return the idle program that was used last, of those whose keys suit."""
        with self._lock:
            shelves = [each for each in self._shelves.values() if each.idle and suits(each.key)]
            return max(shelves, key=lambda each: each.used).idle[-1] if shelves else None

    @property
    def idle(self) -> list[Program]:
        """What is idle now, what was used last at the end."""
        with self._lock:
            shelves = sorted(self._shelves.values(), key=lambda shelf: shelf.used)
            return [program for shelf in shelves for program in shelf.idle]

    def close(self) -> None:
        """Close what is idle; what is not follows when its caller gives it back."""
        with self._lock:
            self._closed = True
            idle = [program for shelf in self._shelves.values() for program in shelf.idle]
            self._shelves.clear()
            self._idle = 0
            self._programs.difference_update(idle)
            busy = bool(self._programs)
        for program in idle:
            program.close()
        if not busy:
            self._on_closed()
