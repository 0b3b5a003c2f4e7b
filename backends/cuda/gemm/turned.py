"""Heads in the first columns of a product that its kernel rotates before it stores them."""

from __future__ import annotations

from collections.abc import Mapping

from ....runtime.base.record import record
from ....runtime.ops.attention import RotaryEmbedding
from ..recipe.operands import Given, Tensor

#: More columns than a product has.
ALL = 2**30


@record
class Turned:
    """What rotates heads in the first columns of a product; see `rotated_strip.cuh`.

    Attributes:
        op: the rotation.
        columns: how many columns are rotated, whole strips.
        cosines, sines: its tables [..., pairs].
        positions: the rows of the tables, [1 or samples, length]; None if these have one for each.
        size: elements of a head.
        length: rows of a sample.
        others: the columns behind, as a tensor of their own; None if there are none.
    """

    op: RotaryEmbedding
    columns: int
    cosines: Tensor
    sines: Tensor
    positions: Tensor | None
    size: int
    length: int
    others: Tensor | None

    @property
    def half(self) -> int:
        """Pairs of a head."""
        return (self.op.rotary_embedding_dim or self.size) // 2

    @property
    def args(self) -> dict[str, Given]:
        """The arguments of `tma_persistent.cu`, besides the map of the columns behind."""
        tables = {"z0": self.cosines, "z1": self.sines, "positions": self.positions}
        return {**tables, "turns": self._turns}

    @property
    def args_of_rows(self) -> dict[str, Given]:
        """The arguments of `swap_ab.cu`."""
        tables = {"cosine": self.cosines, "sine": self.sines, "positions": self.positions}
        return {**tables, "turns": self._turns, "others": self.others}

    @property
    def _turns(self) -> dict[str, int]:
        whole = self.cosines if self.positions is None else self.positions
        columns = ALL if self.others is None else self.columns
        numbers = {"columns": columns, "length": self.length, "batches": whole.dims[0]}
        return {**numbers, "places": self.cosines.size // self.half}

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The constants of the kernel."""
        pairs = ("HALF", self.half), ("INTERLEAVED", bool(self.op.interleaved))
        return ("ROTATES", True), ("HEAD", self.size), *pairs


#: The arguments and constants of products whose columns are not rotated.
STILL: Mapping[str, Given] = {
    **dict.fromkeys(("cosine", "sine", "positions", "others")),
    "turns": {"columns": 0, "length": 1, "batches": 1, "places": 0},
}
UNTURNED = ("ROTATES", False), ("HEAD", 64), ("HALF", 32), ("INTERLEAVED", False)
