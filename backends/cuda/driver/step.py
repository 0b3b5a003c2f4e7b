"""Kernel steps: recipes bound to addresses and launched.

Steps are also built where no CUDA package is installed, to plan for a GPU that is not present; only
binding and launching import them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from math import inf, prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ....runtime.errors import UncompiledError
from ....runtime.ir.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from ....runtime.ir.graph import Node, Value
from ....runtime.ops import pool
from ....runtime.ops.conv import ConvOp
from ....runtime.plan.backend import BuildContext, Format, PackedConstant, View
from ....runtime.plan.bind import sequence
from ....runtime.plan.weights import as_it_is
from ..recipe.launch import Launch, Recipe, base_of, fill_of, launches_of
from ..recipe.operands import Argument, Operand, Packed, Scratch, Struct, Tensor, TensorMap

if TYPE_CHECKING:
    from cuda.bindings import driver

    from .device import DriverDevice
    from .streams import CudaStream

_OF_IMAGES = (ConvOp, pool.MaxPool, pool.AveragePool, pool.GlobalMaxPool, pool.GlobalAveragePool)


class Choice(Protocol):
    """A problem that has several recipes."""

    @property
    def microseconds(self) -> float:
        """What the chosen one is expected to take; infinite if there is none."""
        ...


def launches_for(nodes: Iterable[Node], recipe: Recipe) -> tuple[Launch, ...]:
    """Return the launches of a recipe as a step of some nodes makes them."""
    of_images = any(isinstance(node.op, _OF_IMAGES) for node in nodes)
    launches = (one for one in launches_of(recipe) if not one.is_empty)
    return tuple(replace(one, of_images=of_images) for one in launches)


class KernelStep:
    """The step of a recipe; compiles in the background until it is bound.

    Attributes:
        site: what it was built for.
        task: the problem that has other recipes, a `TuningTask`; None if there is none.
        launches: its launches, in order.
        fill: see `runtime.backend.Filling`.
    """

    capturable = True

    def __init__(
        self,
        device: DriverDevice,
        site: BuildContext,
        recipe: Recipe,
        task: Choice | None = None,
    ) -> None:
        self.site, self.task = site, task
        self.launches = launches_for(site.nodes, recipe)
        self._device = device
        self._held: list[View] = []  # constants, which stay where they are when stores forget them
        self._codes = [device.compiler.submit(launch.source) for launch in self.launches]
        self.kernel = " + ".join(dict.fromkeys(one.title for one in self.launches)) or "nothing"
        self.scratch = max((launch.scratch for launch in self.launches), default=0)
        target = device.compiler.target
        self.fill = max((fill_of(launch, target) for launch in self.launches), default=0.0)

    @property
    def fewest_launches(self) -> int:
        """Its launches, without those that some addresses make moot."""
        return sum(launch.moot is None for launch in self.launches)

    @property
    def estimate(self) -> float | None:
        """The seconds that it is expected to take; None if nothing was chosen by them."""
        found = inf if self.task is None else self.task.microseconds
        return found / 1e6 if found < inf else None

    @property
    def constants(self) -> Iterator[PackedConstant]:
        """The constants that its launches read; see `runtime.backend.Reading`."""
        for launch in self.launches:
            for base in map(base_of, launch.arguments.values()):
                if isinstance(base, Packed):
                    yield base.sources, base.layout, base.pack
                elif isinstance(base, Tensor) and base.value.is_constant:
                    yield as_it_is(base.value)

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Callable[[CudaStream], None]:
        """Load the kernels and return a function that launches them on these addresses."""
        site = self.site
        slots = [(value, site.formats[value]) for value in (*site.inputs, *site.outputs)]
        slots += site.also.items()
        views = dict(zip(slots, (*inputs, *outputs), strict=True))
        runs: list[Callable[[CudaStream], None]] = []
        self._held = []
        for launch, code in zip(self.launches, self._codes, strict=True):
            found = addresses(launch, lambda base: self._pointer(base, views, scratch))
            if launch.moot is not None and len({found[name] for name in launch.moot}) == 1:
                continue
            runs.append(bind_launch(self._device, launch, code, found))
        return runs[0] if len(runs) == 1 else sequence(runs)

    def _pointer(
        self, argument: Operand, views: Mapping[tuple[Value, Format], View], scratch: View | None
    ) -> int:
        from .memory import pointer

        if isinstance(argument, Scratch):
            if scratch is None:
                raise ValueError(f"{self.kernel} has no workspace")
            return pointer(scratch) + argument.offset
        site, weights = self.site, self.site.weights
        if isinstance(argument, Packed):
            held = weights.packed(argument.sources, argument.layout, argument.pack)
        elif argument.value.is_constant:
            held = weights.view(argument.value)
        else:
            value, is_second = argument.value, argument.format is site.also.get(argument.value)
            return pointer(views[value, argument.format if is_second else site.formats[value]])
        self._held.append(held)
        return pointer(held)


def addresses(launch: Launch, address: Callable[[Operand], int]) -> dict[str, int]:
    """Return the addresses of all memory arguments, by name."""
    bases = ((name, base_of(argument)) for name, argument in launch.arguments.items())
    return {name: address(base) for name, base in bases if isinstance(base, Operand)}


def bind_launch(
    device: DriverDevice, launch: Launch, code: Future[bytes], pointers: Mapping[str, int]
) -> Callable[[CudaStream], None]:
    """Load a kernel and return a function that launches it.

    Args:
        device: the GPU.
        launch: the launch.
        code: the machine code, possibly still being compiled.
        pointers: addresses of memory arguments by name; null if absent.

    Raises:
        KernelError: it does not compile, or must not be compiled.
        DeviceError: it does not load, or its parameters differ from the recipe's.
        ValueError: a tensor map has no address, which would hang the GPU.
    """
    from cuda.bindings import driver

    from .status import check

    for name, argument in launch.arguments.items():
        if isinstance(argument, TensorMap) and not pointers.get(name):
            raise ValueError(f"{launch.title}: the tensor map {name!r} has no address")
    try:
        made = code.result()
    except UncompiledError:
        raise device.compiler.uncompiled() from None
    kernel = device.load(
        made,
        launch.entry,
        launch.shared,
        prefers_shared=launch.prefers_shared,
        cluster=prod(launch.cluster),
    )
    cells = [cell(argument, pointers.get(name)) for name, argument in launch.arguments.items()]
    _check_parameters(device, kernel, launch, cells)
    table = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
    function = driver.CUfunction(int(kernel))
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
    """Return the launch configuration of a kernel with a cluster or with PDL."""
    from cuda.bindings import driver

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


_SCALARS: dict[DType, Any] = {
    int32: ctypes.c_int32,
    int64: ctypes.c_int64,
    uint32: ctypes.c_uint32,
    uint64: ctypes.c_uint64,
    float32: ctypes.c_float,
    float64: ctypes.c_double,
}


def sizes(launch: Launch) -> list[int]:
    """Return the size of each argument in bytes."""
    return [ctypes.sizeof(cell(argument, None)) for argument in launch.arguments.values()]


def cell(argument: Argument, address: int | None) -> Any:
    """Return one argument as a ctypes object."""
    if isinstance(argument, np.generic):
        return _SCALARS[argument.dtype](argument.item())
    if isinstance(argument, Struct):
        return (_SCALARS[argument.dtype] * len(argument.values))(*argument.values)
    if isinstance(argument, TensorMap):
        from .tensor_map import encoded

        return (ctypes.c_uint64 * 16)(*(encoded(argument, address) if address else ()))
    return ctypes.c_void_p(address)


def _check_parameters(
    device: DriverDevice, kernel: driver.CUkernel, launch: Launch, cells: list[Any]
) -> None:
    """Raise ValueError unless the kernel's parameters have these sizes."""
    from cuda.bindings import driver

    from .status import check

    number, wanted = int(kernel), tuple(map(ctypes.sizeof, cells))
    if (number, wanted) in device.fitting:
        return
    for place, given in enumerate(wanted):
        answer = driver.cuKernelGetParamInfo(kernel, place)
        _, size = check(f"parameter {place} of {launch.title}", answer)
        if size != given:
            raise ValueError(f"{launch.title}: parameter {place} has {size} bytes, not {given}")
    device.fitting.add((number, wanted))
