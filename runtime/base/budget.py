"""The bytes of the host that a model holds, all of them together."""

from __future__ import annotations

from typing import Protocol

from ..errors import LimitError
from . import forks
from .host_memory import allowance


class Reserve(Protocol):
    """Memory that counts as held and that nobody needs now."""

    @property
    def nbytes(self) -> int:
        """How much there is."""
        ...

    def relieve(self) -> bool:
        """Give some of it back; returns whether there was any."""
        ...


class _Nothing:
    nbytes = 0

    def relieve(self) -> bool:
        return False


class Budget:
    """Bytes that the plans of a model and its runs take, up to a limit.

    Args:
        limit: how many there may be; most of the memory that there is if None.

    Attributes:
        limit: how many there may be.
        reserve: the idle plans, which go where there are not enough bytes left.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = allowance() if limit is None else limit
        self.reserve: Reserve = _Nothing()
        self._held = 0
        self._lock = forks.lock()

    def take(self, nbytes: int, what: str) -> None:
        """Take bytes before they are allocated; idle plans go where there are not enough left.

        None goes where all of them would not do.

        Args:
            nbytes: how many.
            what: they are for, such as ``the plan``.

        Raises:
            LimitError: there are not that many.
        """
        while not self._is_taken(nbytes):
            self.make_room(nbytes, what)

    def make_room(self, nbytes: int, what: str) -> None:
        """Let idle plans go until that many bytes are left, as `take` does, and take none."""
        while (held := self._held) + nbytes > self.limit:
            needed = held - self.reserve.nbytes
            if needed + nbytes > self.limit or not self.reserve.relieve():
                others = f" and the {needed} that the model needs already" if needed else ""
                raise LimitError(
                    f"{nbytes} bytes for {what}{others} are over the limit of {self.limit} "
                    f"(max_bytes)"
                )

    def _is_taken(self, nbytes: int) -> bool:
        with self._lock:
            if self._held + nbytes > self.limit:
                return False
            self._held += nbytes
            return True

    def give(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._held -= nbytes
