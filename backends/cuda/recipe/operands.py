"""What kernels are given: tensors, packed constants, workspace, structs and tensor maps."""

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
    """An operand: a value, and how its elements lie.

    Attributes:
        value: what it is.
        format: the order of its elements.
        pitch: see `View.pitch`; only launches that name the value as `pitched` meet one.
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
        """The elements where they are known before a run: of a constant, or by inference."""
        return self.value.data if self.value.data is not None else self.value.tensor.known

    @property
    def ints(self) -> Ints:
        """The elements of a tensor of integers, which must be `known`."""
        return () if self.known is None else tuple(int(v) for v in self.known.flat)

    @property
    def strides(self) -> Ints:
        """The distance in elements of neighbours along each logical axis."""
        return strides(self.dims, self.format, self.pitch)

    @property
    def row(self) -> int:
        """Elements from one pixel of a channels-last image, or row of a matrix, to the next."""
        return self.pitch or self.format.physical(self.dims)[-1]

    @property
    def extent(self) -> int:
        """Elements from the first to the last, with the gaps of a slice in between."""
        return extent(self.format, self.value.tensor, self.pitch) // self.dtype.itemsize

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels are innermost."""
        return self.format is Format.CHANNELS_LAST and len(self.dims) > 2


@dataclass(frozen=True, slots=True)
class Packed:
    """Constants that a kernel wants in another shape or order.

    Attributes:
        sources: the constants.
        layout: names the order; equal layouts mean equal bytes.
        pack: makes the array of the arrays of `sources`, once per model.
    """

    sources: tuple[Value, ...]
    layout: Hashable
    pack: Callable[..., Array] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Part of the workspace: the address `offset` bytes after its start."""

    offset: int


#: What lies in memory.
Operand = Tensor | Packed | Scratch


@dataclass(frozen=True, slots=True)
class Struct:
    """A C++ struct by value, all of whose numbers are of one dtype.

    Attributes:
        members: the numbers by name, in the order in which the kernel declares them.
        dtype: of the numbers.
    """

    members: tuple[tuple[str, tuple[int | float, ...]], ...]
    dtype: DType

    @property
    def values(self) -> tuple[int | float, ...]:
        """All numbers in order."""
        return tuple(number for _, numbers in self.members for number in numbers)

    def __getitem__(self, name: str) -> tuple[int | float, ...]:
        """Return the numbers of a member; one that is not an array has a single one."""
        return dict(self.members)[name]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How the copy engine of Hopper sees a tensor, by value: 128 bytes.

    Attributes:
        base: where it lies.
        dtype: of its elements.
        dims: extents, the innermost first; of an image channel, column, row, image.
        strides: distances in elements, without the innermost, which is 1.
        box: extents of what is copied at once; of `corners` channels and pixels.
        corners: the box in which windows begin, less the image: the distances of its first and of
            its last place from the image's, (column, row) each; pixels are copied row by row of it.
        steps: distances of what is copied, along every axis; 1 where left out.
    """

    base: Operand
    dtype: DType
    dims: Ints
    strides: Ints
    box: Ints
    corners: tuple[Ints, Ints] | None = None
    steps: Ints = ()


#: What a kernel gets: a pointer (None is the null pointer), a number, or a struct.
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
#: What a recipe gives for a member of a struct: a number, or those of an array or inner struct;
#: and all members by name.
Numbers = int | float | tuple[int, ...] | tuple[float, ...]
Members = Mapping[str, Numbers]
#: What a recipe gives for a parameter. Numbers become what the kernel declares; of a struct they
#: stand by member, or alone if the struct is one array; None is the null pointer, or a struct of
#: zeros.
Given = Argument | int | float | Ints | Members
Arguments = Mapping[str, Given]


def index_type(*sizes: int) -> DType:
    """Return the type that kernels count elements of tensors of these sizes in."""
    # Kernels round up to whole blocks before they compare, so some room must be left.
    return int32 if max(sizes, default=0) < 2**31 - 2**16 else int64
