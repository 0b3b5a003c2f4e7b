"""The structs that kernels over windows take: three spatial axes, whatever the operator has."""

from __future__ import annotations

from ....runtime.ops.window import Window
from .layout import Ints
from .operands import Tensor


def three(values: Ints, missing: int) -> Ints:
    """Return values for three spatial axes; those in front that an operator lacks are `missing`."""
    return (missing,) * (3 - len(values)) + tuple(values)


def by_axis(**values: Ints) -> dict[str, int]:
    """Return values for two spatial axes as members ``name_h`` and ``name_w``; one is the width."""
    return {
        f"{name}_{letter}": value
        for name, pair in values.items()
        for letter, value in zip("hw"[-len(pair) :], pair, strict=True)
    }


def sizes(prefix: str, dims: Ints) -> dict[str, int]:
    """Return the extents of an image as members ``prefixheight`` and ``prefixwidth``."""
    height, width = dims if len(dims) == 2 else (1, *dims)
    return {f"{prefix}height": height, f"{prefix}width": width}


def moves(prefix: str, strides: Ints) -> dict[str, int]:
    """Return strides of images, channels, rows and columns as members ``prefix_image`` and on."""
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


def spatial_strides(x: Tensor) -> dict[str, int | Ints]:
    """Return struct `Strides`: distances of images, channels and neighbours along three axes."""
    image, channel, *steps = x.strides
    return {"image": image, "channel": channel, "spatial": three(tuple(steps), 0)}
