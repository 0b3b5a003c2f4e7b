"""Memory layout of tensors: strides by format, merging of axes, and structs of window kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....runtime.ops.window import Window
from ....runtime.plan.backend import Format

Ints = tuple[int, ...]


def order(rank: int, format: Format) -> Ints:
    """Return the logical axes from outermost to innermost in memory."""
    if format is Format.CONTIGUOUS or rank < 3:
        return tuple(range(rank))
    return (0, *range(2, rank), 1)


def strides(dims: Ints, format: Format, pitch: int = 0) -> Ints:
    """Return the stride in elements along each logical axis.

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
    """Return the strides of a tensor broadcast to `shape`: 0 where it is repeated."""
    own = strides(dims, format, pitch)
    padded = (1,) * (len(shape) - len(dims)) + dims
    moves = (0,) * (len(shape) - len(dims)) + own
    return tuple(0 if d == 1 else s for d, s in zip(padded, moves, strict=True))


def merge(dims: Sequence[int], moves: Sequence[Ints]) -> tuple[Ints, tuple[Ints, ...]]:
    """Merge adjacent axes that are contiguous in every tensor.

    Args:
        dims: sizes, outermost first.
        moves: for each tensor, its stride along each axis.

    Returns:
        The fewest possible axes, at least one, with their strides.
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


# ── structs of kernels over windows ──────────────────────────────────────────────────────────────


def three(values: Ints, missing: int) -> Ints:
    """Return values for three spatial axes; missing leading axes get `missing`."""
    return (missing,) * (3 - len(values)) + tuple(values)


def by_axis(**values: Ints) -> dict[str, int]:
    """Return values for two spatial axes as members ``name_h``, ``name_w``; one is the width."""
    return {
        f"{name}_{letter}": value
        for name, pair in values.items()
        for letter, value in zip("hw"[-len(pair) :], pair, strict=True)
    }


def sizes(prefix: str, dims: Ints) -> dict[str, int]:
    """Return the spatial sizes of an image as members ``prefixheight`` and ``prefixwidth``."""
    height, width = dims if len(dims) == 2 else (1, *dims)
    return {f"{prefix}height": height, f"{prefix}width": width}


def moves(prefix: str, strides: Ints) -> dict[str, int]:
    """Return strides of images, channels, rows and columns as members ``prefix_image``, …."""
    image, channel, *steps = strides
    row, column = steps if len(steps) == 2 else (0, *steps)
    numbers = {"image": image, "channel": channel, "row": row, "column": column}
    return {f"{prefix}_{name}": number for name, number in numbers.items()}


def geometry(x: Ints, y: Ints, view: Window) -> dict[str, Ints]:
    """Return struct `Geometry` of conv.cu, for spatial sizes of the input and the result."""
    return {**_windows(x, y, view), "kernel": three(view.kernel, 1)}


def pool_geometry(x: Ints, y: Ints, view: Window) -> dict[str, Ints]:
    """Return struct `Geometry` of pool.cu, for spatial sizes of the input and the result."""
    return {**_windows(x, y, view), "pad_end": three(view.pads_end, 0)}


def _windows(x: Ints, y: Ints, view: Window) -> dict[str, Ints]:
    return {
        **{"in": three(x, 1), "out": three(y, 1), "stride": three(view.strides, 1)},
        **{"dilation": three(view.dilations, 1), "pad": three(view.pads_begin, 0)},
    }


def spatial_strides(strides: Ints) -> dict[str, int | Ints]:
    """Return struct `Strides`: strides of images, channels and three spatial axes."""
    image, channel, *steps = strides
    return {"image": image, "channel": channel, "spatial": three(tuple(steps), 0)}
