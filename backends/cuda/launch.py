"""Recipes: what a step launches, as plain data; and how a recipe becomes a function of the stream.

A recipe is made without a GPU, can be compared and printed, and says everything: which file and
entry, the types and constants it is compiled with, the grid, and the arguments in order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver

from ...runtime.backend import Format, Site, View, extent
from ...runtime.dtypes import DType, float32, float64, int32, int64
from ...runtime.ir import Value
from ...runtime.lanes import sequence
from ...runtime.types import Array
from .bounds import check_grid, check_ints
from .compile import C_TYPES, Source, Target
from .layout import Ints, strides
from .memory import pointer
from .status import check
from .tensor_map import encoded

if TYPE_CHECKING:
    from cuda.core import Kernel, ObjectCode

    from .device import CudaDevice, CudaStream


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand: a value, and how its elements lie.

    Attributes:
        value: what it is.
        format: the order of its elements.
        pitch: see `View.pitch`; only launches that name the value as `pitched` meet one.
    """

    value: Value
    format: Format = Format.PLAIN
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
        pack: makes the array of the arrays of `sources`, once a model.
    """

    sources: tuple[Value, ...]
    layout: Hashable
    pack: Callable[..., Array] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Part of the workspace: the address `offset` bytes behind its start."""

    offset: int


#: What lies in memory.
Operand = Tensor | Packed | Scratch


@dataclass(frozen=True, slots=True)
class Ints32:
    """A C++ struct of 32-bit integers, passed by value; raises TooLarge where one has more."""

    values: Ints

    def __post_init__(self) -> None:
        check_ints(self.values)


@dataclass(frozen=True, slots=True)
class Ints64:
    """A C++ struct of 64-bit integers, passed by value."""

    values: Ints


@dataclass(frozen=True, slots=True)
class Numbers64:
    """A C++ struct of doubles, passed by value."""

    values: tuple[float, ...]


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


#: A pointer (None is the null pointer), an integer or float of the dtype given, or a struct.
Argument = (
    Operand
    | np.int32
    | np.int64
    | np.float32
    | np.float64
    | Ints32
    | Ints64
    | Numbers64
    | TensorMap
    | None
)


def scalar(value: float, dtype: DType) -> np.int32 | np.int64 | np.float32 | np.float64:
    """Return a number as an argument of one of the dtypes that arguments can have."""
    return dtype.type(value)


def index_type(*sizes: int) -> DType:
    """Return the type that kernels count elements of tensors of these sizes in."""
    # Kernels round up to whole blocks before they compare, so some room must be left.
    return int32 if max(sizes, default=0) < 2**31 - 2**16 else int64


def integer(value: int, index: DType) -> np.int32 | np.int64:
    """Return an argument of the type that `index_type` chose."""
    return np.int32(value) if index == int32 else np.int64(value)


def integers(values: Ints, index: DType) -> Ints32 | Ints64:
    """Return several, as one struct."""
    return Ints32(values) if index == int32 else Ints64(values)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; raises TooLarge where CUDA could not make it.

    Attributes:
        file: the file in `kernels/`.
        entry: its ``extern "C"`` function.
        grid: blocks along x, y and z; no launch happens where one is 0.
        block: threads of a block.
        args: what the function takes, in order.
        types: element type by C++ alias, in pairs.
        constants: compile-time constants by name, in pairs.
        code: generated functions and macros that the file uses.
        shared: bytes of dynamic shared memory.
        scratch: bytes of the workspace that the step needs because of it.
        cluster: blocks along x, y and z that reach each other's memory (Hopper and newer).
        early: it calls `begin_early`, so that it may begin while the kernel before it runs.
        note: what tells it from other launches of its entry, for reports: ``64x64 split 4``.
        pitched: operands whose `Tensor.row` or `Tensor.strides` it goes by, so that they may be
            slices of tensors with more channels; it is a promise, that nothing else tells. Those
            of its tail are read by the row of the result, and so can only be the same slice.
    """

    file: str
    entry: str
    grid: tuple[int, int, int]
    block: int
    args: tuple[Argument, ...]
    types: tuple[tuple[str, DType], ...] = ()
    constants: tuple[tuple[str, int | bool | float], ...] = ()
    code: str = ""
    shared: int = 0
    scratch: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    early: bool = False
    note: str = ""
    pitched: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        check_grid(self.entry, self.grid)

    @property
    def title(self) -> str:
        """The entry with what tells it apart."""
        return f"{self.entry} {self.note}".strip()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return 0 in self.grid

    @property
    def source(self) -> Source:
        """What has to be compiled."""
        names = tuple((alias, C_TYPES[dtype]) for alias, dtype in self.types)
        return Source(self.file, names, self.constants, self.code)


#: Threads of a block of a kernel that gives each result a thread of its own.
THREADS = 256


def each(
    file: str,
    entry: str,
    count: int,
    *args: Argument,
    types: tuple[tuple[str, DType], ...],
    constants: tuple[tuple[str, int | bool | float], ...] = (),
    code: str = "",
    note: str = "",
) -> Launch:
    """Return the launch of a kernel that gives each of `count` results a thread; see `Launch`."""
    grid = (-(-count // THREADS), 1, 1)
    return Launch(file, entry, grid, THREADS, args, types, constants, code, note=note)


Recipe = Launch | tuple[Launch, ...]


def launches_of(recipe: Recipe) -> tuple[Launch, ...]:
    """Return a recipe's launches in order."""
    return (recipe,) if isinstance(recipe, Launch) else recipe


def pitched_by(recipe: Recipe) -> frozenset[Value]:
    """Return the values that may be slices: all launches that touch them name them so."""
    named: set[Value] = set()
    refused: set[Value] = set()
    for launch in launches_of(recipe):
        able = {operand.value for operand in launch.pitched}
        named |= able
        touched = (base_of(argument) for argument in launch.args)
        refused |= {base.value for base in touched if isinstance(base, Tensor)} - able
    return frozenset(named - refused)


#: Threads and blocks that a multiprocessor holds at most.
MOST_THREADS, MOST_BLOCKS = 2048, 32


def fill_of(launch: Launch, target: Target) -> float:
    """Return the blocks of a launch by those that a GPU holds, as threads and memory allow."""
    memory = (target.shared + 1024) // (launch.shared + 1024)
    resident = max(1, min(MOST_THREADS // launch.block, MOST_BLOCKS, memory))
    return prod(launch.grid) / (target.processors * resident)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


class KernelStep:
    """A recipe for one site; compiles in the background until it is bound.

    Attributes:
        launches: what it launches, in order.
        fill: see `runtime.backend.Filling`.
    """

    capturable = True

    def __init__(self, device: CudaDevice, site: Site, recipe: Recipe) -> None:
        self.launches = tuple(one for one in launches_of(recipe) if not one.is_empty)
        self._device = device
        self._site = site
        self._codes = [device.compiler.submit(launch.source) for launch in self.launches]
        self.kernel = " + ".join(dict.fromkeys(one.title for one in self.launches)) or "nothing"
        self.scratch = max((launch.scratch for launch in self.launches), default=0)
        target = device.compiler.target
        self.fill = max((fill_of(launch, target) for launch in self.launches), default=0.0)

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Callable[[CudaStream], None]:
        """Load the kernels and return what launches them on these addresses."""
        views = dict(zip(self._site.inputs, inputs, strict=True))
        views.update(zip(self._site.outputs, outputs, strict=True))
        runs: list[Callable[[CudaStream], None]] = []
        for launch, code in zip(self.launches, self._codes, strict=True):
            found = addresses(launch, lambda base: self._pointer(base, views, scratch))
            runs.append(bound(self._device, launch, code, found))
        return runs[0] if len(runs) == 1 else sequence(runs)

    def _pointer(self, argument: Operand, views: Mapping[Value, View], scratch: View | None) -> int:
        if isinstance(argument, Scratch):
            if scratch is None:
                raise ValueError(f"{self.kernel} has no workspace")
            return pointer(scratch) + argument.offset
        if isinstance(argument, Packed):
            weights = self._site.weights
            return pointer(weights.packed(argument.sources, argument.layout, argument.pack))
        if argument.value.is_constant:
            return pointer(self._site.weights.view(argument.value))
        return pointer(views[argument.value])


def base_of(argument: Argument) -> Argument:
    """Return what an argument points to; of numbers and structs the argument itself."""
    return argument.base if isinstance(argument, TensorMap) else argument


def addresses(launch: Launch, address: Callable[[Operand], int]) -> dict[int, int]:
    """Return the addresses by position in `Launch.args`, of all that lies in memory."""
    bases = ((i, base_of(argument)) for i, argument in enumerate(launch.args))
    return {i: address(base) for i, base in bases if isinstance(base, Operand)}


def bound(
    device: CudaDevice, launch: Launch, code: Future[ObjectCode], pointers: Mapping[int, int]
) -> Callable[[CudaStream], None]:
    """Load a kernel and return what launches it.

    Args:
        device: whose kernel it becomes.
        launch: the recipe.
        code: the machine code, perhaps still being compiled.
        pointers: address by position in `launch.args`; for the rest, see there.

    Raises:
        KernelError: it does not compile.
        DeviceError: it does not load, or its parameters are not those of the recipe.
        ValueError: a tensor map has no address, which would stop the GPU for good.
    """
    for i, argument in enumerate(launch.args):
        if isinstance(argument, TensorMap) and not pointers.get(i):
            raise ValueError(f"{launch.title}: the tensor map of argument {i} has no address")
    kernel = device.load(code.result(), launch.entry, launch.shared)
    cells = [cell(argument, pointers.get(i)) for i, argument in enumerate(launch.args)]
    _check_parameters(kernel, launch, cells)
    table = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
    function = driver.CUfunction(int(kernel.handle))
    shape = (*launch.grid, launch.block, 1, 1, launch.shared)
    call = f"launch of {launch.title}"
    if device.compiler.target.has_clusters and (launch.early or launch.cluster != (1, 1, 1)):
        config = _config(launch)

        def run_early(stream: CudaStream, _alive: object = (kernel, cells)) -> None:
            config.hStream = driver.CUstream(stream.handle)
            answer = driver.cuLaunchKernelEx(config, function, ctypes.addressof(table), 0)
            if answer[0]:
                check(call, answer)

        return run_early

    def run(stream: CudaStream, _alive: object = (kernel, cells)) -> None:
        answer = driver.cuLaunchKernel(function, *shape, stream.handle, ctypes.addressof(table), 0)
        if answer[0]:
            check(call, answer)

    return run


def _config(launch: Launch) -> driver.CUlaunchConfig:
    """Return how a kernel is launched that has a cluster or may begin early."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
    config.sharedMemBytes = launch.shared
    kinds, attributes = driver.CUlaunchAttributeID, list[driver.CUlaunchAttribute]()
    if launch.early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if launch.cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extent = attribute.value.clusterDim
        extent.x, extent.y, extent.z = launch.cluster
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


_SCALARS: dict[DType, Callable[[Any], Any]] = {
    int32: ctypes.c_int32,
    int64: ctypes.c_int64,
    float32: ctypes.c_float,
    float64: ctypes.c_double,
}


def sizes(launch: Launch) -> list[int]:
    """Return the bytes of each argument."""
    return [ctypes.sizeof(cell(argument, None)) for argument in launch.args]


def cell(argument: Argument, address: int | None) -> Any:
    """Return the bytes of one argument as a ctypes object."""
    if isinstance(argument, np.generic):
        return _SCALARS[argument.dtype](argument.item())
    if isinstance(argument, Ints32):
        return (ctypes.c_int32 * len(argument.values))(*argument.values)
    if isinstance(argument, Ints64):
        return (ctypes.c_int64 * len(argument.values))(*argument.values)
    if isinstance(argument, Numbers64):
        return (ctypes.c_double * len(argument.values))(*argument.values)
    if isinstance(argument, TensorMap):
        return (ctypes.c_uint64 * 16)(*(encoded(argument, address) if address else ()))
    return ctypes.c_void_p(address)


def _check_parameters(kernel: Kernel, launch: Launch, cells: list[Any]) -> None:
    """Raise ValueError unless the kernel has parameters of these sizes."""
    handle = driver.CUkernel(int(kernel.handle))
    for place, cell in enumerate(cells):
        answer = driver.cuKernelGetParamInfo(handle, place)
        _, size = check(f"parameter {place} of {launch.title}", answer)
        if size != ctypes.sizeof(cell):
            given = ctypes.sizeof(cell)
            raise ValueError(f"{launch.title}: parameter {place} has {size} bytes, not {given}")
