"""The step that runs an operation on cuDNN, and the measurement of choices."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import prod

import numpy as np

from ...runtime.base.record import record
from ...runtime.errors import DeviceError, DeviceFault, DeviceOutOfMemory
from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.types import Array
from ...runtime.plan.backend import BuildContext, PackedConstant, View
from ...runtime.plan.weights import as_it_is
from ..cuda.device import CudaDevice
from ..cuda.driver.clock import microseconds
from ..cuda.driver.memory import CudaBuffer, pointer
from ..cuda.driver.streams import CudaStream
from ..cuda.recipe.operands import Packed
from .choice import EngineChoice, EngineTask
from .epilogue import rest_kernel
from .library import NoPlan
from .operation import Operand
from .prepack import front_kernel
from .registry import NodeGroup

Run = Callable[[CudaStream], None]
#: Results per thread block of cuDNN's products: 128 by 64.
TILE = 128 * 64


def runner(device: CudaDevice, choice: EngineChoice, at: Mapping[str, int], scratch: int) -> Run:
    """Return the function that runs a choice on fixed addresses.

    Args:
        device: the GPU.
        choice: cuDNN's engine, and the kernels before and after it.
        at: addresses of all inputs and results, by role.
        scratch: address of the choice's workspace, 0 if it needs none.
    """
    engine, operation = choice.engine, choice.engine.graph.operation
    known = {role: at[role] for role in operation.operands}
    workspace, runs = scratch, list[Run]()
    if choice.front is not None:
        role = choice.front.role
        known[role], workspace = scratch, scratch + choice.front.nbytes
        runs.append(front_kernel(device, choice.front, at[role], scratch))
    runs.append(lambda stream: engine.execute(known, workspace, stream))
    if choice.rest:
        result = operation.results[0]
        runs.append(rest_kernel(device, choice.rest, result, operation.operands[result], at))

    def run(stream: CudaStream) -> None:
        for each in runs:
            each(stream)

    return run if len(runs) > 1 else runs[0]


@record
class GraphStep:
    """Nodes with their chosen engine.

    Attributes:
        device: the GPU.
        site: its operands.
        wanted: the nodes, with their inputs and results.
        choice: the engine.
    """

    device: CudaDevice
    site: BuildContext
    wanted: NodeGroup
    choice: EngineChoice
    capturable: bool = True

    @property
    def kernel(self) -> str:
        """The engine, and how it was chosen."""
        return str(self.choice)

    @property
    def fill(self) -> float:
        """An estimate of the share of the GPU that it occupies; see `runtime.backend.Filling`.

        cuDNN does not report the number of blocks of an engine: a typical block has `TILE` results.
        """
        operation = self.choice.engine.graph.operation
        results = max(prod(operation.operands[role].dims) for role in operation.results)
        return results / TILE / self.device.compiler.target.processors

    @property
    def scratch(self) -> int:
        """Bytes of workspace for the engine and the kernel before it."""
        return self.choice.scratch

    @property
    def constants(self) -> Iterator[PackedConstant]:
        """The constants that it reads; see `runtime.backend.Reading`."""
        sources = {**self.wanted.reads, **self.wanted.gives}
        for source in (sources[role] for role in self.choice.roles):
            if isinstance(source, Packed):
                yield source.sources, source.layout, source.pack
            elif source.is_constant:
                yield as_it_is(source)

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Return the function that runs the step on these addresses."""
        views = dict(zip(self.site.inputs, inputs, strict=True))
        views.update(zip(self.site.outputs, outputs, strict=True))
        sources = {**self.wanted.reads, **self.wanted.gives}
        read: dict[str, View] = {}
        for role in self.choice.roles:
            source = sources[role]
            if isinstance(source, Packed):
                read[role] = self.site.weights.packed(source.sources, source.layout, source.pack)
            elif source.is_constant:
                read[role] = self.site.weights.view(source)
            else:
                read[role] = views[source]
        workspace = 0 if scratch is None else pointer(scratch)
        at = {role: pointer(view) for role, view in read.items()}
        made = runner(self.device, self.choice, at, workspace)

        def run(stream: CudaStream, _alive: object = read) -> None:
            made(stream)

        return run


class EngineBench:
    """Tries and measures choices for one task; see `choice.EngineTuner`. A context manager.

    Args:
        device: the GPU.
        task: the task of the choices.
        filled: whether to fill tensors with random numbers: zeros would be faster than real data,
            but suffice for a trial.
    """

    def __init__(self, device: CudaDevice, task: EngineTask, *, filled: bool) -> None:
        self._device = device
        self._task = task
        self._filled = filled
        self._buffers: list[CudaBuffer] = []

    def __enter__(self) -> EngineBench:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()

    def trial(self, choice: EngineChoice) -> None:
        """Run a choice once, which makes cuDNN load its kernels, and record it."""
        with self._running(choice) as run:
            run(self._stream)
            self._stream.synchronize()
            self._device.record(run)

    def microseconds(self, choice: EngineChoice, minimum: float) -> float:
        """Return the median time of a choice."""
        with self._running(choice) as run:
            return microseconds(self._device, run, self._stream, minimum)

    @contextmanager
    def _running(self, choice: EngineChoice) -> Generator[Run]:
        """Yield the function that runs a choice; failures inside become `NoPlan`."""
        at = self._at
        try:
            scratch = self._device.allocate(choice.scratch)
        except DeviceOutOfMemory as error:
            raise NoPlan(f"{choice} fails: {error}") from error
        try:
            yield runner(self._device, choice, at, scratch.pointer)
        except DeviceOutOfMemory:
            raise
        except DeviceFault as fault:  # nothing else can be tried in this process
            raise DeviceFault(f"trying {choice}: {fault}") from fault
        except (DeviceError, RuntimeError) as error:  # the latter from an interrupted recording
            raise NoPlan(f"{choice} fails: {error}") from error
        finally:
            scratch.close()

    @cached_property
    def _stream(self) -> CudaStream:
        return self._device.stream()

    @cached_property
    def _at(self) -> dict[str, int]:
        """Addresses of tensors of the task's shapes; integers are zero, which is in range."""
        at: dict[str, int] = {}
        for role, operand in self._task.operands.items():
            if self._filled or operand.dtype not in FLOATS:
                buffer = self._device.upload(_numbers(operand)).buffer
                if not isinstance(buffer, CudaBuffer):
                    raise TypeError(f"{buffer} is not memory of the GPU")
            else:
                buffer = self._device.allocate(operand.extent)
            self._buffers.append(buffer)
            at[role] = buffer.pointer
        return at


def _numbers(operand: Operand) -> Array:
    """Return sample data for an operand: normal numbers, or zeros for integers."""
    count = operand.extent // operand.dtype.itemsize
    if operand.dtype not in FLOATS:
        return np.zeros(count, operand.dtype)
    numbers = np.random.default_rng(0).standard_normal(min(count, 1 << 16), np.float32)
    return np.resize(numbers.astype(operand.dtype), count)
