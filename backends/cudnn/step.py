"""The step that runs a convolution on cuDNN, and how choices are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import perf_counter

import numpy as np

from ...runtime.backend import Format, Site, View
from ...runtime.ir import Value
from ...runtime.types import Array
from ..cuda.device import CudaDevice, CudaStream
from ..cuda.launch import pointer
from ..cuda.layout import Ints
from .choice import Choice, Task
from .conv import Pattern
from .epilogue import epilogue_kernel
from .graph import Role

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
        return lambda stream: engine.execute(known, scratch, stream.handle)
    behind = epilogue_kernel(device, choice.engine.graph.convolution, choice.rest, at)

    def run(stream: CudaStream) -> None:
        engine.execute(known, scratch, stream.handle)
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
        """Return what runs it; it has run once then, because cuDNN loads its kernels late."""
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
        run = runner(self.device, self.choice, at, 0 if scratch is None else pointer(scratch))
        stream = self.device.stream()
        run(stream)
        stream.synchronize()
        return run

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
    """Measures choices for one task, on memory of its own; a context manager."""

    #: Calls in one recording, fewer where one takes more than 100 us.
    CALLS = (20, 5)
    REPLAYS = 5

    def __init__(self, device: CudaDevice, task: Task) -> None:
        self._device = device
        self._task = task
        self._views: list[View] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for view in self._views:
            view.buffer.close()
        self._views.clear()

    def microseconds(self, choice: Choice, least: float) -> float:
        """Return the median time of a choice; see `choice.Judge`.

        It is taken from recordings of several calls, so that the host's share is small.

        Raises:
            DeviceOutOfMemory: the GPU has no room for the tensors.
        """
        scratch = self._device.allocate(choice.engine.scratch)
        try:
            run = runner(self._device, choice, self._at, scratch.pointer)
            self._time(run)
            once = min(self._time(run), self._time(run))
            if once > 2 * least + 60:
                return once
            calls = self.CALLS[once > 100]

            def repeat(stream: CudaStream) -> None:
                for _ in range(calls):
                    run(stream)

            recorded = self._device.record(repeat)
            return median(self._time(recorded) for _ in range(self.REPLAYS)) / calls
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
        """Addresses of tensors full of numbers: zeros would be faster than what they stand for."""
        convolution = self._task.convolution
        numbers = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
        dims: dict[Role, Ints] = {
            "x": convolution.x,
            "w": convolution.w,
            "bias": convolution.bias,
            "residual": convolution.y,
            "y": convolution.y,
        }
        at: dict[Role, int] = {}
        for role, shape in dims.items():
            self._views.append(self._device.upload(np.resize(numbers, shape)))
            at[role] = pointer(self._views[-1])
        return at
