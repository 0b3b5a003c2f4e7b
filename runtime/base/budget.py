"""The budgets of memory of one model: on the host, and on each device."""

from __future__ import annotations

from typing import Protocol

from ..errors import LimitError
from . import forks
from .host_memory import allowance


class Reserve(Protocol):
    """Memory that counts as held, but can be released on demand."""

    @property
    def nbytes(self) -> int:
        """Bytes that can be released."""
        ...

    def relieve(self) -> bool:
        """Release some of it; returns whether there was any."""
        ...


class _NoReserve:
    nbytes = 0

    def relieve(self) -> bool:
        return False


class Budget:
    """Memory of one kind that the plans and runs of a model may hold together.

    Args:
        limit: number of bytes; most of the host's memory if None.
        option: the field of `Options` that sets it.

    Attributes:
        limit: number of bytes.
        reserve: the idle plans, which go where there are not enough bytes left.
    """

    def __init__(self, limit: int | None = None, option: str = "max_bytes") -> None:
        self.limit = allowance() if limit is None else limit
        self._option = option
        self.reserve: Reserve = _NoReserve()
        self._held = 0
        self._lock = forks.lock()

    def take(self, nbytes: int, what: str) -> None:
        """Account for bytes before they are allocated, evicting idle plans if needed.

        No plan is evicted if evicting all of them would not suffice.

        Args:
            nbytes: number of bytes.
            what: what they are for, such as ``the plan``.

        Raises:
            LimitError: the budget is exceeded.
        """
        while not self._is_taken(nbytes):
            self.make_room(nbytes, what)

    def make_room(self, nbytes: int, what: object) -> None:
        """Evict idle plans until this many bytes are free, as `take` does, but take none."""
        while (held := self._held) + nbytes > self.limit:
            needed = held - self.reserve.nbytes
            if needed + nbytes > self.limit or not self.reserve.relieve():
                others = f" and the {needed:,} that the model needs already" if needed else ""
                raise LimitError(
                    f"{nbytes:,} bytes for {what}{others} are over the limit of {self.limit:,} "
                    f"({self._option}, --{self._option.replace('_', '-')})"
                )

    def _is_taken(self, nbytes: int) -> bool:
        with self._lock:
            if self._held + nbytes > self.limit:
                return False
            self._held += nbytes
            return True

    def give(self, nbytes: int) -> None:
        """Return bytes to the budget."""
        with self._lock:
            self._held -= nbytes


def device_budget(limit: int | None) -> Budget | None:
    """Return the budget of a GPU's memory; None if it has no limit."""
    return None if limit is None else Budget(limit, "max_device_bytes")
