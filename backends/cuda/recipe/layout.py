"""Where the elements of a tensor lie: strides by format, and axes that can be merged."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....runtime.plan.backend import Format

Ints = tuple[int, ...]


def order(rank: int, format: Format) -> Ints:
    """Return the logical axes from the outermost to the innermost in memory."""
    if format is Format.CONTIGUOUS or rank < 3:
        return tuple(range(rank))
    return (0, *range(2, rank), 1)


def strides(dims: Ints, format: Format, pitch: int = 0) -> Ints:
    """Return the distance in elements of neighbours along each logical axis.

    Args:
        dims: the logical shape.
        format: the order in memory.
        pitch: see `View.pitch`.
    """
    physical = format.physical(dims)
    if pitch:
        physical = (*physical[:-1], pitch)
    found = [0] * len(dims)
    for place, axis in enumerate(order(len(dims), format)):
        found[axis] = prod(physical[place + 1 :])
    return tuple(found)


def broadcast_strides(dims: Ints, format: Format, shape: Ints, pitch: int = 0) -> Ints:
    """Return the strides of a tensor read as if it had `shape`: 0 where it is repeated."""
    own = strides(dims, format, pitch)
    padded = (1,) * (len(shape) - len(dims)) + dims
    moves = (0,) * (len(shape) - len(dims)) + own
    return tuple(0 if d == 1 else s for d, s in zip(padded, moves, strict=True))


def merge(dims: Sequence[int], moves: Sequence[Ints]) -> tuple[Ints, tuple[Ints, ...]]:
    """Merge neighbouring axes that every tensor walks through alike.

    Args:
        dims: sizes, outermost first.
        moves: for each tensor its stride along each of the axes.

    Returns:
        As few axes as will do, at least one, with the strides along them.
    """
    axes: list[tuple[int, Ints]] = []
    for i, size in enumerate(dims):
        here = tuple(move[i] for move in moves)
        if size == 1:
            continue
        if axes and all(o == size * s for o, s in zip(axes[-1][1], here, strict=True)):
            axes[-1] = (axes[-1][0] * size, here)
        else:
            axes.append((size, here))
    if not axes:
        axes = [(1, (1,) * len(moves))]
    sizes = tuple(size for size, _ in axes)
    return sizes, tuple(tuple(walk[i] for _, walk in axes) for i in range(len(moves)))


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)
