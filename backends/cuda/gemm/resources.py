"""What a block of a product takes of a multiprocessor: for choosing a tile, and for its launch."""

from __future__ import annotations

from ....runtime.base.record import record
from ..recipe.targets import Target, resident_with


@record
class Resources:
    """What a block takes of a multiprocessor.

    Attributes:
        threads: per block.
        ring: bytes of shared memory for stages of operands and their barriers, also if results pass
            through them at the end.
        store: bytes for other buffers of results.
        inbox: bytes for sums of the other blocks of a cluster.
        resident: how many blocks are meant to share a multiprocessor.
        registers: of threads that compute and of those that copy, if they differ.
    """

    threads: int
    ring: int
    store: int = 0
    inbox: int = 0
    resident: int = 1
    registers: tuple[int, int] = (0, 0)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.ring + self.store + self.inbox

    def fits(self, target: Target) -> bool:
        """Whether as many blocks fit as are meant to.

        With other buffers of results, which few products need, fewer may fit, but one must.
        """
        usual = self.ring + self.inbox
        return usual <= target.room(self.resident) and self.shared <= target.shared

    def fitting(self, target: Target, registers: int) -> int:
        """Return how many blocks fit, at least one, whose threads have this many registers."""
        return max(1, min(target.resident(self.shared), resident_with(registers, self.threads)))
