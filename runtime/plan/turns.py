"""The direction in which steps go through their tensors: each begins where an earlier one ended.

Of a tensor that is larger than the cache of its device, the part that was stored last is still
there when the next step starts. A step that begins with the other end reads this part last, when
what it stores itself has displaced it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.record import record
from .backend import Turning, knows

if TYPE_CHECKING:
    from .rows import Row, Slot

#: Bytes that the cache keeps of those touched last, of 40 to 50 MB of an A100 or H100; and bytes
#: found there for which a step begins at the end: kernels of either direction are two.
CACHE, LEAST = 40 << 20, 4 << 20


@record
class _Touch:
    """When rows have last touched a tensor.

    Attributes:
        until: bytes that all rows have touched by then.
        together: bytes of all tensors of that row.
        at_end: whether it ended at the end.
    """

    until: int
    together: int
    at_end: bool


class Turns:
    """What rows have touched so far, in the order of a plan."""

    def __init__(self) -> None:
        self._total = 0
        self._last: dict[Slot, _Touch] = {}

    def begins_at_end(self, row: Row) -> bool:
        """Whether a row finds most of its inputs in the cache if it begins at their end."""
        found = [(self._found(slot), slot.root) for slot in row.inputs]
        most, slot = max(found, key=lambda each: each[0], default=(0, None))
        return slot is not None and most >= LEAST and self._last[slot].at_end

    def _found(self, slot: Slot) -> int:
        """Return the bytes of a tensor in the cache; 0 if it has all, or none is known to be."""
        touch = self._last.get(slot.root)
        if touch is None:
            return 0
        left = max(0, CACHE - (self._total - touch.until)) * slot.nbytes // max(touch.together, 1)
        return left if left < slot.nbytes else 0

    def note(self, row: Row) -> None:
        """Note that a row, which has been built, touches its tensors."""
        together = sum(slot.nbytes for slot in (*row.inputs, *row.outputs))
        self._total += together
        at_end = row.step.ends_at_end if knows(row.step, Turning) else True
        touch = _Touch(self._total, together, at_end)
        self._last |= dict.fromkeys((slot.root for slot in (*row.inputs, *row.outputs)), touch)
