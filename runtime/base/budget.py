"""The bytes of the host that a model holds, all of them together."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import LimitError
from . import forks
from .host_memory import allowance


class Budget:
    """Bytes that the plans of a model and its runs take, up to a limit.

    Args:
        limit: how many there may be; most of the memory that there is where None.

    Attributes:
        limit: how many there may be.
        relieve: gives memory back that nobody needs now; returns whether there was any.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = allowance() if limit is None else limit
        self.relieve: Callable[[], bool] = _nothing_to_give
        self._held = 0
        self._lock = forks.lock()

    @property
    def left(self) -> int:
        """The bytes that may still be taken."""
        return max(0, self.limit - self._held)

    def take(self, nbytes: int, what: str) -> None:
        """Take bytes before they are allocated; idle plans go where there are not enough left.

        Args:
            nbytes: how many.
            what: they are for, such as ``the plan``.

        Raises:
            LimitError: there are not so many.
        """
        while True:
            with self._lock:
                held = self._held
                if held + nbytes <= self.limit:
                    self._held = held + nbytes
                    return
            if nbytes > self.limit or not self.relieve():
                others = f" and the {held} that the model holds already" if held else ""
                raise LimitError(
                    f"{nbytes} bytes for {what}{others} are over the limit of {self.limit} "
                    f"(max_bytes)"
                )

    def give(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._held -= nbytes


def _nothing_to_give() -> bool:
    return False
