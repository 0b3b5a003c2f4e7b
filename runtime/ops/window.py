"""The geometry of sliding windows: attributes to pads and sizes, for all operators.

Convolutions, poolings and every backend use it. Operators may have any of the attributes `strides`,
`dilations`, `pads`, `auto_pad`, `ceil_mode`, `output_padding` and `output_shape`; missing ones have
their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Literal, cast

from ..base.record import record
from ..errors import ShapeError
from ..ir.op import Op
from ..ir.types import Dim, Shape
from .shapes import checked, same_dim, shape_text

Ints = tuple[int, ...]
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@record
class Window:
    """Windows over the spatial axes; every field has one integer per spatial axis.

    Output position ``o`` covers the input positions ``o*stride - pad_begin + k*dilation`` for
    ``k < kernel``; those outside of the input are padding. Positions at or after
    ``size + pad_end``, which only `ceil_mode` has, are not padding either: averages ignore them.
    A transposed window is the same with input and output swapped: input position ``i`` adds to
    the output positions ``i*stride - pad_begin + k*dilation``; `pads_end` may be negative there.

    Attributes:
        kernel: number of elements of a window; of one that is larger than the padded input, those
            inside.
        strides: distance between neighbouring windows.
        dilations: distance between neighbouring elements of a window.
        pads_begin: padding before the first element.
        pads_end: padding after the last element.
        output: number of windows; for a transposed window the size of the result.
    """

    kernel: Ints
    strides: Ints
    dilations: Ints
    pads_begin: Ints
    pads_end: Ints
    output: Ints

    @property
    def extent(self) -> Ints:
        """Distance from a window's first element to its last, both included."""
        pairs = zip(self.kernel, self.dilations, strict=True)
        return tuple((k - 1) * dilation + 1 for k, dilation in pairs)

    @property
    def is_dilated(self) -> bool:
        """Whether any dilation exceeds 1."""
        return any(d != 1 for d in self.dilations)


@record
class _Axis:
    """The attributes of one spatial axis."""

    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    extra: int  # output_padding
    auto_pad: str
    ceil: bool

    @property
    def extent(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    def split(self, total: int) -> tuple[int, int]:
        """Return the padding before and after; SAME_UPPER puts the odd element at the end."""
        total = max(total, 0)
        small = total // 2
        return (small, total - small) if self.auto_pad == "SAME_UPPER" else (total - small, small)

    def slide(self, size: int) -> tuple[int, int, int]:
        """Return padding before, padding after and the number of windows."""
        begin, end = self.begin, self.end
        if self.auto_pad.startswith("SAME"):
            output = -(-size // self.stride)
            return *self.split((output - 1) * self.stride + self.extent - size), output
        room = size + begin + end - self.extent
        if room < 0 and not (self.ceil and room > -self.stride):
            raise ShapeError(
                f"a window of {self.extent} does not fit into {size} elements"
                f" padded by {begin} and {end}"
            )
        if not self.ceil:
            return begin, end, room // self.stride + 1
        last = -(-room // self.stride)
        # A window that would start in the padding at the end is dropped.
        return begin, end, last if last * self.stride >= size + begin else last + 1

    def reached(self, size: int, begin: int, end: int, output: int) -> int:
        """Return the elements of a window, without those beyond the padding of its only place."""
        room = size + begin + end
        is_cut = output == 1 and room < self.extent
        return (room - 1) // self.dilation + 1 if is_cut else self.kernel

    def spread(self, size: int, output: int | None) -> tuple[int, int, int]:
        """Return padding before and after, and the output size of a transposed window."""
        need_elements([size])
        full = (size - 1) * self.stride + self.extent + self.extra
        begin, end = self.begin, self.end
        if output is not None:
            begin, end = self.split(full - output)
        elif self.auto_pad.startswith("SAME"):
            begin, end = self.split(full - size * self.stride)
        output = full - begin - end if output is None else output
        if output < 1:
            raise ShapeError(
                f"the result of {size} elements, stride {self.stride}, a window of {self.extent}"
                f" and pads {begin} and {end} would have {output} elements"
            )
        # Elements added by output_padding and output_shape are at the end.
        return begin, full - self.extra - begin - output, output


@lru_cache(1024)  # planning asks for the same one many times
def window(op: Op, spatial: Ints, kernel: Ints) -> Window:
    """Return the windows of a convolution or a pooling.

    ``output = (size + pads - extent) / stride + 1``, rounded down, or up with `ceil_mode` as long
    as the last window begins inside the input or the padding before it; ``ceil(size / stride)``
    with SAME_UPPER and SAME_LOWER. With `ceil_mode`, the only window may be larger than the input.

    Args:
        op: the operator with its attributes.
        spatial: sizes of the input's spatial axes.
        kernel: sizes of the window, dilation not counted.

    Raises:
        ShapeError: attributes of wrong length or sign, or a window larger than the padded input.
    """
    axes = _axes(op, kernel, len(spatial))
    found = [axis.slide(size) for axis, size in zip(axes, spatial, strict=True)]
    reached = (a.reached(size, *pads) for a, size, pads in zip(axes, spatial, found, strict=True))
    return replace(_window(axes, found), kernel=tuple(reached))


def transposed_window(op: Op, spatial: Ints, kernel: Ints) -> Window:
    """Return the windows of a transposed convolution, whose `output` is the result's size.

    ``output = (size - 1) * stride + extent + output_padding - pads``; ``size * stride`` with
    SAME_UPPER and SAME_LOWER (less if the windows do not extend that far, as in onnxruntime);
    or `output_shape`, in which case `pads` are ignored and found from it.

    Args:
        op: the operator with its attributes.
        spatial: sizes of the input's spatial axes.
        kernel: sizes of the window, dilation not counted.

    Raises:
        ShapeError: attributes of wrong length or sign, or an empty result.
    """
    axes = _axes(op, kernel, len(spatial))
    wanted = _output_shape(op, len(spatial))
    found = [a.spread(s, out) for a, s, out in zip(axes, spatial, wanted, strict=True)]
    return _window(axes, found)


def window_dims(op: Op, spatial: Shape, kernel: Shape) -> Shape:
    """Return the spatial axes of the result of `window` where some sizes are not known yet."""
    known = tuple(k if isinstance(k, int) else 1 for k in kernel)
    axes = _axes(op, known, len(spatial))
    return checked(map(_slide_dim, axes, spatial, kernel))


def transposed_window_dims(op: Op, spatial: Shape, kernel: Shape) -> Shape:
    """Return the spatial axes of the result of `transposed_window` likewise."""
    known = tuple(k if isinstance(k, int) else 1 for k in kernel)
    axes = _axes(op, known, len(spatial))
    return checked(map(_spread_dim, axes, spatial, kernel, _output_shape(op, len(spatial))))


def may_pad(op: Op) -> bool:
    """Whether windows may reach beyond the image; `auto_pad` makes `pads` irrelevant."""
    auto_pad = cast(str, getattr(op, "auto_pad", "NOTSET"))
    return any(getattr(op, "pads", None) or ()) if auto_pad == "NOTSET" else "SAME" in auto_pad


def need_elements(spatial: Iterable[Dim]) -> None:
    """Raise ShapeError if a spatial axis is known to have no elements."""
    for size in spatial:
        if isinstance(size, int) and size < 1:
            raise ShapeError(f"a spatial axis of {size} elements")


def kernel_dims(kernel_shape: Ints | None, weight: Shape) -> Shape:
    """Return the window of a convolution; its attribute and weights must agree.

    Args:
        kernel_shape: the attribute, or None.
        weight: the spatial axes of the weights.
    """
    if kernel_shape is None:
        return weight
    if len(kernel_shape) != len(weight):
        raise ShapeError(f"kernel_shape={kernel_shape} for weights of {shape_text(weight)}")
    what = f"kernel_shape={kernel_shape} and the weights' {shape_text(weight)}"
    return tuple(same_dim(a, b, what) for a, b in zip(kernel_shape, weight, strict=True))


def _window(axes: list[_Axis], found: list[tuple[int, int, int]]) -> Window:
    return Window(
        kernel=tuple(a.kernel for a in axes),
        strides=tuple(a.stride for a in axes),
        dilations=tuple(a.dilation for a in axes),
        pads_begin=tuple(f[0] for f in found),
        pads_end=tuple(f[1] for f in found),
        output=tuple(f[2] for f in found),
    )


def _slide_dim(axis: _Axis, size: Dim, kernel: Dim) -> Dim:
    same = axis.auto_pad.startswith("SAME")
    if isinstance(size, int):
        return axis.slide(size)[2] if same or isinstance(kernel, int) else None
    if axis.stride != 1:
        return None
    fits = isinstance(kernel, int) and axis.begin + axis.end == axis.extent - 1
    return size if same or fits else None


def _spread_dim(axis: _Axis, size: Dim, kernel: Dim, output: int | None) -> Dim:
    if output is not None:
        return output
    if not isinstance(kernel, int):
        return None
    if isinstance(size, int):
        return axis.spread(size, None)[2]
    if axis.stride != 1:
        return None
    enough = axis.extent + axis.begin + axis.end
    return size if axis.spread(enough, None)[2] == enough else None


def _axes(op: Op, kernel: Ints, rank: int) -> list[_Axis]:
    """Return the attributes axis by axis, checked."""
    if len(kernel) != rank:
        raise ShapeError(f"a window of {len(kernel)} axes {kernel} over {rank} spatial axes")
    auto_pad = cast(str, getattr(op, "auto_pad", "NOTSET"))
    if auto_pad not in AUTO_PADS:
        raise ShapeError(f"auto_pad={auto_pad!r}; ONNX has {', '.join(AUTO_PADS)}")
    pads = _ints(op, "pads", 2 * rank, default=0, minimum=0)
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * rank)
    if any(k < 1 for k in kernel):
        raise ShapeError(f"a window of {kernel}; every size must be 1 or more")
    per_axis = zip(
        kernel,
        _ints(op, "strides", rank, default=1, minimum=1),
        _ints(op, "dilations", rank, default=1, minimum=1),
        pads[:rank],
        pads[rank:],
        _ints(op, "output_padding", rank, default=0, minimum=0),
        strict=True,
    )
    ceil = bool(getattr(op, "ceil_mode", 0))
    return [_Axis(*values, auto_pad=auto_pad, ceil=ceil) for values in per_axis]


def _output_shape(op: Op, rank: int) -> tuple[int | None, ...]:
    if getattr(op, "output_shape", None) is None:
        return (None,) * rank
    return _ints(op, "output_shape", rank, default=1, minimum=1)


def _ints(
    op: Op, name: str, length: int, *, default: Literal[0, 1], minimum: Literal[0, 1]
) -> Ints:
    """Return an attribute of `length` integers, or its default for each axis."""
    value = cast(Ints | None, getattr(op, name, None))
    if value is None:
        return (default,) * length
    if len(value) != length:
        raise ShapeError(f"{name}={value} has {len(value)} elements; {length} are needed")
    if any(v < minimum for v in value):
        raise ShapeError(f"{name}={value}; every element must be {minimum} or more")
    return value
