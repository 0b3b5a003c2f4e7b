"""Memory maps: tensors in a plan's arenas, and live bytes at each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...runtime.plan.arena import Allocation, peak
from ...runtime.plan.plan import Plan
from ...runtime.plan.rows import Slot

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """The location of a tensor in an arena.

    Attributes:
        name: its first value; tensors computed in place, and views, have no separate location.
        offset: its first byte.
        nbytes: size, rounded up to the arena's alignment.
        first: index of the row that writes it; -1 for inputs.
        last: index of the last row that reads it.
    """

    name: str
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaMap:
    """One device's arena in one plan.

    Attributes:
        plan: index of the plan.
        device: the device.
        rows: number of rows of the plan.
        nbytes: its size.
        floor: maximum number of live bytes; a lower bound of the size.
        tensors: by offset.
    """

    plan: int
    device: str
    rows: int
    nbytes: int
    floor: int
    tensors: tuple[PlacedTensor, ...]

    def live(self) -> list[int]:
        """Return the live bytes at each row."""
        found = [0] * self.rows
        for tensor in self.tensors:
            for row in range(max(0, tensor.first), min(self.rows - 1, tensor.last) + 1):
                found[row] += tensor.nbytes
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**asdict(self), "live": self.live()}


def arenas_of(plan: Plan, number: int = 0) -> list[ArenaMap]:
    """Return the arenas of a plan, largest first."""
    roots: dict[str, dict[int, tuple[Slot, Allocation]]] = {}
    for slot in (slot for row in plan.rows for slot in (*row.inputs, *row.outputs)):
        root = slot.root
        if root.block is not None:
            roots.setdefault(root.device.name, {})[id(root)] = root, root.block
    found = [_arena(plan, number, device, held.values()) for device, held in roots.items()]
    return sorted(found, key=lambda arena: -arena.nbytes)


def _arena(
    plan: Plan, number: int, device: str, held: Iterable[tuple[Slot, Allocation]]
) -> ArenaMap:
    pairs = sorted(held, key=lambda pair: (pair[1].offset, pair[1].first))
    tensors = tuple(
        PlacedTensor(slot.value.name, block.offset, block.nbytes, block.first, block.last)
        for slot, block in pairs
    )
    floor = peak([block for _, block in pairs])
    size = plan.memory.activations.get(device, 0)
    return ArenaMap(number, device, len(plan.rows), size, floor, tensors)


def arena_text(
    arena: ArenaMap, width: int = 64, height: int = 12
) -> tuple[list[str], dict[str, PlacedTensor]]:
    """Draw an arena: rows from left to right, addresses from bottom to top.

    Args:
        arena: what to draw.
        width: maximum characters per line.
        height: number of lines.

    Returns:
        The lines from top to bottom, and the largest tensors by their letter. Where several
        tensors fall on one character, it shows the largest.
    """
    columns = max(1, min(width, arena.rows))
    order = sorted(arena.tensors, key=lambda tensor: -tensor.nbytes)
    letters = {letter: tensor for letter, tensor in zip(_LETTERS, order, strict=False)}
    grid = [["."] * columns for _ in range(height)]
    for rank in reversed(range(len(order))):
        tensor = order[rank]
        letter = _LETTERS[rank] if rank < len(_LETTERS) else "*"
        for line in _cells(tensor.offset, tensor.offset + tensor.nbytes, arena.nbytes, height):
            for column in _cells(max(0, tensor.first), tensor.last + 1, arena.rows, columns):
                grid[line][column] = letter
    return ["".join(line) for line in reversed(grid)], letters


def _cells(begin: int, end: int, whole: int, cells: int) -> Sequence[int]:
    """Return the cells covered by a part of a range."""
    if whole <= 0 or end <= begin:
        return range(0)
    first = begin * cells // whole
    last = -(-end * cells // whole)
    return range(min(first, cells - 1), min(max(last, first + 1), cells))
