"""The step that runs a convolution on cuDNN, and how choices are measured."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from statistics import median
from time import perf_counter

import numpy as np

from ...runtime.backend import Buffer, Format, Site, View
from ...runtime.dtypes import float32
from ...runtime.errors import DeviceError, DeviceOutOfMemory
from ...runtime.ir import Value
from ...runtime.types import Array, TensorType
from ..cuda.device import CudaDevice, CudaStream
from ..cuda.launch import pointer
from ..cuda.layout import Ints
from .choice import Choice, Task
from .conv import Pattern
from .epilogue import epilogue_kernel
from .graph import Role
from .vendor import NoPlan

Run = Callable[[CudaStream], None]


def runner(device: CudaDevice, choice: Choice, at: Mapping[Role, int], scratch: int) -> Run:
    """Return what runs a choice on these addresses.

    Args:
        device: the GPU.
        choice: cuDNN's engine, and what a kernel does behind it.
        at: address by role; what the choice does not read may be left out.
        scratch: address of the engine's workspace, 0 where it wants none.
    """
    engine = choice.engine
    known: dict[Role, int] = {role: at[role] for role in engine.graph.tensors}
    if not choice.rest:
        return lambda stream: engine.execute(known, scratch, stream)
    behind = epilogue_kernel(device, choice.engine.graph.convolution, choice.rest, at)

    def run(stream: CudaStream) -> None:
        engine.execute(known, scratch, stream)
        behind(stream)

    return run


@dataclass(frozen=True, slots=True)
class ConvolutionStep:
    """A pattern with the engine that was chosen for it.

    Attributes:
        device: the GPU.
        site: where it runs.
        pattern: the nodes.
        choice: the engine.
    """

    device: CudaDevice
    site: Site
    pattern: Pattern
    choice: Choice
    capturable: bool = True

    @property
    def kernel(self) -> str:
        """The engine with how it was chosen."""
        return str(self.choice)

    @property
    def scratch(self) -> int:
        """The engine's workspace."""
        return self.choice.engine.scratch

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Return what runs it on these addresses."""
        views = dict(zip(self.site.inputs, inputs, strict=True))
        pattern, convolution = self.pattern, self.choice.engine.graph.convolution
        at: dict[Role, int] = {
            "x": self._address(pattern.x, convolution.format, views),
            "w": self._address(pattern.w, convolution.format, views),
            "y": pointer(outputs[0]),
        }
        if pattern.residual is not None:
            at["residual"] = self._address(pattern.residual, convolution.format, views)
        if pattern.bias is not None:
            at["bias"] = self._address(pattern.bias, Format.PLAIN, views)
        elif convolution.epilogue.bias:
            zeros = self.site.weights.packed((pattern.w,), ("cudnn", "no bias"), _no_bias)
            at["bias"] = pointer(zeros)
        workspace = 0 if scratch is None else pointer(scratch)
        return runner(self.device, self.choice, at, workspace)

    def _address(self, value: Value, format: Format, views: Mapping[Value, View]) -> int:
        if not value.is_constant:
            return pointer(views[value])
        if format is Format.PLAIN:
            return pointer(self.site.weights.view(value))
        return pointer(self.site.weights.packed((value,), ("cudnn", format), _channels_last))


def _no_bias(weights: Array) -> Array:
    return np.zeros(len(weights), np.float32)


def _channels_last(data: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(data, 1, -1))


class Bench:
    """Tries and measures choices for one task; see `choice.Judge`. A context manager.

    Args:
        device: the GPU.
        task: what is chosen for.
        filled: whether its tensors hold numbers: zeros would be faster than what they stand for,
            and a trial needs none.
    """

    #: Calls in one recording, fewer where one takes more than 100 us.
    CALLS = (20, 5)
    REPLAYS = 5

    def __init__(self, device: CudaDevice, task: Task, *, filled: bool) -> None:
        self._device = device
        self._task = task
        self._filled = filled
        self._buffers: list[Buffer] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()

    def trial(self, choice: Choice) -> None:
        """Run a choice, which makes cuDNN load its kernels, and record it."""
        with self._running(choice) as run:
            self._time(run)
            self._device.record(run)

    def microseconds(self, choice: Choice, least: float) -> float:
        """Return the median time of a choice, from recordings of several calls."""
        with self._running(choice) as run:
            self._time(run)
            once = min(self._time(run) for _ in range(3))
            if once > 4 * least + 100:
                return once
            calls = self.CALLS[once > 100]

            def repeat(stream: CudaStream) -> None:
                for _ in range(calls):
                    run(stream)

            recorded = self._device.record(repeat)
            return median(self._time(recorded) for _ in range(self.REPLAYS)) / calls

    @contextmanager
    def _running(self, choice: Choice) -> Generator[Run]:
        """Give what runs a choice; turn what fails inside into `NoPlan`."""
        scratch = self._device.allocate(choice.engine.scratch)
        try:
            yield runner(self._device, choice, self._at, scratch.pointer)
        except DeviceOutOfMemory:
            raise
        except (DeviceError, RuntimeError) as error:  # the latter from an interrupted recording
            raise NoPlan(f"{choice} fails: {error}") from error
        finally:
            scratch.close()

    def _time(self, run: Run) -> float:
        stream = self._stream
        start = perf_counter()
        run(stream)
        stream.synchronize()
        return 1e6 * (perf_counter() - start)

    @cached_property
    def _stream(self) -> CudaStream:
        return self._device.stream()

    @cached_property
    def _at(self) -> dict[Role, int]:
        """Addresses of tensors of the task's shapes."""
        convolution = self._task.convolution
        dims: dict[Role, Ints] = {
            "x": convolution.x,
            "w": convolution.w,
            "bias": convolution.bias,
            "residual": convolution.y,
            "y": convolution.y,
        }
        numbers = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
        at: dict[Role, int] = {}
        for role, shape in dims.items():
            if self._filled:
                buffer = self._device.upload(np.resize(numbers, shape)).buffer
            else:
                buffer = self._device.allocate(prod(shape) * numbers.itemsize)
            self._buffers.append(buffer)
            at[role] = pointer(View(self._device, buffer, 0, TensorType(float32, shape)))
        return at
