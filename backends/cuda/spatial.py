"""The structs that kernels over windows take: three spatial axes, whatever the operator has."""

from __future__ import annotations

from ...runtime.ops.window import Window
from .launch import Ints32, Ints64, Tensor
from .layout import Ints


def three(values: Ints, missing: int) -> Ints:
    """Return values for three spatial axes; those in front that an operator lacks are `missing`."""
    return (missing,) * (3 - len(values)) + tuple(values)


def geometry(x: Tensor, y: Tensor, view: Window, *, pads_end: bool = False) -> Ints32:
    """Return struct `Geometry`: sizes, kernel (or, for poolings, pads at the end), steps, pads."""
    sizes = (*three(x.dims[2:], 1), *three(y.dims[2:], 1))
    steps = (*three(view.strides, 1), *three(view.dilations, 1), *three(view.pads_begin, 0))
    if pads_end:
        return Ints32((*sizes, *steps, *three(view.pads_end, 0)))
    return Ints32((*sizes, *three(view.kernel, 1), *steps))


def spatial_strides(x: Tensor) -> Ints64:
    """Return struct `Strides`: distances of images, channels and neighbours along three axes."""
    return Ints64((x.strides[0], x.strides[1], *three(x.strides[2:], 0)))
