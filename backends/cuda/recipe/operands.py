"""Kernel operands and their memory layout.

Operands are tensors, packed constants, workspace, structs and tensor maps. A tensor's layout is its
strides by format; structs of window kernels hold these with the geometry of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, int32, int64, uint8, uint16, uint32, uint64
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ....runtime.plan.backend import extent
from ....runtime.plan.format import Format

Ints = tuple[int, ...]


@record
class Tensor:
    """An operand: a value and its memory layout.

    Attributes:
        value: the value.
        format: the memory order of its elements.
        pitch: see `View.pitch`; only launches that list the value in `pitched` get one.
    """

    value: Value
    format: Format = Format.CONTIGUOUS
    pitch: int = 0

    @property
    def dims(self) -> Ints:
        """The logical shape."""
        return self.value.tensor.dims

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.dims)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.value.tensor.dtype

    @property
    def size(self) -> int:
        """Number of elements of the logical shape."""
        return self.value.tensor.size

    @property
    def data(self) -> Array | None:
        """The elements of a constant."""
        return self.value.data

    @property
    def known(self) -> Array | None:
        """The elements if known before a run: of a constant, or by inference."""
        return self.value.known

    @property
    def ints(self) -> Ints:
        """The elements of an integer tensor, which must be `known`."""
        return () if self.known is None else tuple(int(v) for v in self.known.flat)

    @property
    def strides(self) -> Ints:
        """The stride in elements along each logical axis."""
        return strides(self.dims, self.format, self.pitch)

    @property
    def row(self) -> int:
        """Elements from one pixel of a channels-last image, or row of a matrix, to the next."""
        return self.pitch or self.format.physical(self.dims)[-1]

    @property
    def extent(self) -> int:
        """Elements from the first to the last, gaps of a slice included."""
        return extent(self.format, self.value.tensor, self.pitch) // self.dtype.itemsize

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels are innermost."""
        return self.format is Format.CHANNELS_LAST and len(self.dims) > 2

    @property
    def rows_in_halves(self) -> int:
        """The rows of a tensor in halves, padding included; see `store_halves.cuh`."""
        return rows_in_halves(self.dims, self.format)


@record
class Packed:
    """Constants in another shape or order.

    Attributes:
        sources: the constants.
        layout: identifies the packing; equal layouts mean equal bytes.
        pack: computes the array from the arrays of `sources`, once per model; can be pickled.
    """

    sources: tuple[Value, ...]
    layout: Hashable
    pack: Callable[..., Array] = field(compare=False)


def as_it_is(data: Array) -> Array:
    """Return an array: what packs a constant that needs nothing, or that a recipe has made."""
    return data


@record
class Scratch:
    """Part of the workspace, `offset` bytes after its start."""

    offset: int


#: An operand in memory.
Operand = Tensor | Packed | Scratch


@record
class Struct:
    """A C++ struct passed by value, with numbers of one dtype.

    Attributes:
        members: the numbers by name, in the kernel's order.
        dtype: of the numbers.
    """

    members: tuple[tuple[str, tuple[int | float, ...]], ...]
    dtype: DType

    @property
    def values(self) -> tuple[int | float, ...]:
        """All numbers in order."""
        return tuple(number for _, numbers in self.members for number in numbers)

    def __getitem__(self, name: str) -> tuple[int | float, ...]:
        """Return the numbers of a member; a scalar has a single one."""
        return dict(self.members)[name]


@record
class TensorMap:
    """A TMA tensor map, passed by value: 128 bytes.

    Attributes:
        base: the tensor in memory.
        dtype: the element type.
        dims: sizes, innermost first; for an image channel, column, row, image.
        strides: in elements, except the innermost, which is 1.
        box: sizes of the box; with `corners`, channels and pixels.
        corners: offsets of the first and last window start from the image's corners, (column, row)
            each (im2col mode); pixels in between are copied row by row.
        steps: element strides within the box; 1 if omitted.
    """

    base: Operand
    dtype: DType
    dims: Ints
    strides: Ints
    box: Ints
    corners: tuple[Ints, Ints] | None = None
    steps: Ints = ()


#: A kernel argument: a pointer (None is null), a number, or a struct.
Argument = (
    Operand
    | np.int32
    | np.int64
    | np.uint32
    | np.uint64
    | np.float32
    | np.float64
    | Struct
    | TensorMap
    | None
)
#: What a recipe passes for a struct member: a number, or those of an array or inner struct;
#: and all members by name.
Numbers = int | float | tuple[int, ...] | tuple[float, ...]
Members = Mapping[str, Numbers]
#: What a recipe passes for a parameter. Numbers are converted to the declared type; a struct is
#: given by members, or as numbers if it is one array; None is the null pointer, or a struct of
#: zeros.
Given = Argument | int | float | Ints | Members
Arguments = Mapping[str, Given]


def index_type(*sizes: int) -> DType:
    """Return the integer type with which kernels index tensors of these sizes."""
    # Kernels round up to whole blocks before comparing, which needs some margin.
    return int32 if max(sizes, default=0) < 2**31 - 2**16 else int64


def divisor(d: int) -> tuple[int, int]:
    """Return multiplier (signed) and shift for the division of 31-bit numbers by `d`."""
    shift = 31 + (d - 1).bit_length()
    factor = ceil_div(1 << shift, d)
    return factor - (1 << 32 if factor >= 1 << 31 else 0), shift


def divisors(sizes: Ints) -> Arguments:
    """Return multipliers and shifts that divide by sizes; see `quotient` of `axes.cuh`.

    Indices of 64 bits are divided: no shift is right for all of them.
    """
    found = [divisor(size) if 0 < size < 2**31 else (0, 0) for size in sizes]
    return {"factors": tuple(f for f, _ in found), "shifts": tuple(s for _, s in found)}


_WORDS: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32, 8: uint64}
#: Maximum size of an element in bytes that kernels copy.
MAX_WORD = max(_WORDS)


def words_of(dtype: DType) -> DType:
    """Return the unsigned integer with an element's size, which suffices for copies."""
    return _WORDS[dtype.itemsize]


def widest_words(dtype: DType, run: int) -> DType:
    """Return the widest word for runs of this many contiguous elements."""
    size = dtype.itemsize
    return max(
        (
            word
            for word in _WORDS.values()
            if word.itemsize >= size and run * size % word.itemsize == 0
        ),
        key=lambda word: word.itemsize,
    )


def rows_in_halves(dims: Ints, format: Format) -> int:
    """Return the rows of a tensor in halves: a multiple of eight, or as many as pixels."""
    rows = prod(format.physical(dims)[:-1])
    return rows if format is Format.PIXEL_HALVES else ceil_div(rows, 8) * 8


# ── memory layout ─────────────────────────────────────────────────────────────────────────────────


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


# ── structs of kernels over windows ───────────────────────────────────────────────────────────────


def three(values: Ints, missing: int) -> Ints:
    """Return values for three spatial axes; missing leading axes get `missing`."""
    return (missing,) * (3 - len(values)) + tuple(values)


def by_axis(**values: Ints) -> dict[str, int]:
    """Return values for spatial axes as members ``name_d``, ``name_h``, ``name_w``, last ones."""
    return {
        f"{name}_{letter}": value
        for name, pair in values.items()
        for letter, value in zip("dhw"[-len(pair) :], pair, strict=True)
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
