"""Kernel steps: recipes bound to addresses and launched.

Steps are also built where no CUDA package is installed, to plan for a GPU that is not present; only
binding and launching import them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ....runtime.base.record import record
from ....runtime.errors import UncompiledError
from ....runtime.ir.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from ....runtime.ir.graph import Node, Value
from ....runtime.ops import pool
from ....runtime.ops.conv import ConvOp
from ....runtime.plan.backend import BuildContext, PackedConstant, View
from ....runtime.plan.bind import sequence
from ....runtime.plan.format import Format
from ....runtime.plan.weights import as_it_is
from ..recipe.launch import Launch, Recipe, base_of, fill_of, launches_of
from ..recipe.operands import Argument, Operand, Packed, Scratch, Struct, Tensor, TensorMap

if TYPE_CHECKING:
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
    return tuple(one.noted(of_images=True) if of_images else one for one in launches)


@record
class Estimate:
    """What stands for the problem of a step that was kept; see `Choice`."""

    microseconds: float


class KernelStep:
    """The step of a recipe; compiles in the background until it is bound.

    Attributes:
        site: what it was built for.
        task: the problem that has other recipes, a `TuningTask`; None if there is none.
        launches: its launches, in order.
        fill: see `runtime.backend.Filling`.
    """

    capturable = portable = True

    def __init__(
        self,
        device: DriverDevice,
        site: BuildContext,
        recipe: Recipe,
        task: Choice | None = None,
    ) -> None:
        launches = launches_for(site.nodes, recipe)
        if site.at_end and launches and launches[0].is_reversible:  # it reads the inputs
            launches = (launches[0].noted(backwards=True), *launches[1:])
        self._begin(device, site, launches, task)

    def _begin(
        self,
        device: DriverDevice,
        site: BuildContext,
        launches: tuple[Launch, ...],
        task: Choice | None,
    ) -> None:
        self.site, self.task, self.launches = site, task, launches
        self._device = device
        self._held: list[View] = []  # constants, which stay where they are when stores forget them
        self._codes = [device.compiler.submit(launch.source) for launch in self.launches]
        self.kernel = " + ".join(dict.fromkeys(one.title for one in self.launches)) or "nothing"
        self.scratch = max((launch.scratch for launch in self.launches), default=0)
        target = device.compiler.target
        self.fill = max((fill_of(launch, target) for launch in self.launches), default=0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it again; see `runtime.plan.keeping.Portable`."""
        task = None if self.task is None else Estimate(self.task.microseconds)
        return KernelStep.again, (self._device, self.site, self.launches, task)

    @staticmethod
    def again(
        device: DriverDevice,
        site: BuildContext,
        launches: tuple[Launch, ...],
        task: Choice | None,
    ) -> KernelStep:
        """Return a step that was kept."""
        step = object.__new__(KernelStep)
        step._begin(device, site, launches, task)
        return step

    @property
    def ends_at_end(self) -> bool:
        """See `runtime.plan.backend.Turning`."""
        return not (self.launches and self.launches[-1].backwards)

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
            if scratch is None and self.scratch:
                raise ValueError(f"{self.kernel} has no workspace")
            return 0 if scratch is None else pointer(scratch) + argument.offset
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
    for name, argument in launch.arguments.items():
        if isinstance(argument, TensorMap) and not pointers.get(name):
            raise ValueError(f"{launch.title}: the tensor map {name!r} has no address")
    try:
        made = code.result()
    except UncompiledError:
        raise device.compiler.uncompiled() from None
    return device.launcher(launch, made, pointers)


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
