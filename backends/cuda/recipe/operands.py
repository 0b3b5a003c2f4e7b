"""Kernel operands: tensors, packed constants, workspace, structs and tensor maps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ....runtime.ir.dtypes import DType, int32, int64
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.plan.backend import Format, extent
from .layout import Ints, strides


@dataclass(frozen=True, slots=True)
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
        return self.value.data if self.value.data is not None else self.value.tensor.known

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


@dataclass(frozen=True, slots=True)
class Packed:
    """Constants in another shape or order.

    Attributes:
        sources: the constants.
        layout: identifies the packing; equal layouts mean equal bytes.
        pack: computes the array from the arrays of `sources`, once per model.
    """

    sources: tuple[Value, ...]
    layout: Hashable
    pack: Callable[..., Array] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Part of the workspace, `offset` bytes after its start."""

    offset: int


#: An operand in memory.
Operand = Tensor | Packed | Scratch


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
