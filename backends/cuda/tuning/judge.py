"""Algorithms alone on the GPU: random tensors of a task's shapes, events around a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cuda.bindings import driver

from ....runtime.errors import DeviceError
from ....runtime.ir.dtypes import DType, float32, float64
from ....runtime.ir.types import Array, TensorType
from ....runtime.plan.backend import View
from ....runtime.plan.bind import sequence
from ....runtime.plan.format import Format
from ..algorithms.selection import Candidate, Task
from ..codegen.copies import into_halves
from ..driver.clock import microseconds
from ..driver.device import DriverDevice
from ..driver.memory import CudaBuffer, pointer
from ..driver.status import check
from ..driver.step import addresses, bind_launch
from ..driver.streams import CudaStream
from ..recipe.launch import Launch, launches_of
from ..recipe.operands import Operand, Packed, Scratch, Tensor, ceil_div, index_type, order

#: Blocks and warps per block for comparing results.
BLOCKS, WARPS = 1024, 8


class DeviceJudge:
    """Measures algorithms on the tensors of one task at a time.

    Args:
        device: the GPU.
    """

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        self._task: Task | None = None
        self._held: list[CudaBuffer] = []
        self._at: dict[Any, int] = {}
        self._expected: CudaBuffer | None = None

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Start compiling the kernels to be measured."""
        for candidate in candidates:
            if candidate.recipe is not None:
                for launch in launches_of(candidate.recipe):
                    self._device.compiler.submit(launch.source)

    def begin(self, task: Task, reference: Candidate) -> None:
        """Create the tensors of a task, and the result of a reference.

        Raises:
            DeviceOutOfMemory: there is too little memory.
        """
        self.end()
        self._task = task
        self._stream = self._device.stream()
        type_ = task.y.value.tensor
        self._result = self._hold(self._device.allocate(type_.nbytes))
        self._run_once(reference)
        self._expected = self._hold(self._device.allocate(type_.nbytes))
        self._copy(reference.formats[1], self._expected)

    def end(self) -> None:
        """Free the tensors."""
        for buffer in self._held:
            buffer.close()
        self._held.clear()
        self._at.clear()
        self._task = None

    def judge(self, candidate: Candidate, minimum: float) -> tuple[float, float]:
        """Return the time of an algorithm in microseconds, and its error relative to the reference.

        Args:
            candidate: the algorithm, in the formats that it needs.
            minimum: best time so far; candidates far from it are measured less precisely.

        Raises:
            DeviceFault: it makes the GPU unusable for this process.
            DeviceError: it fails.
            KernelError: it does not compile.
        """
        scratch = self._device.allocate(candidate.workspace)
        try:
            run = self._bound(candidate, scratch)
            status = driver.cuMemsetD8Async(
                self._result.pointer, 0xFF, self._result.nbytes, self._stream.handle
            )
            check("cuMemsetD8Async", status)
            run(self._stream)
            self._stream.synchronize()
            error = self._difference(candidate.formats[1])
            return microseconds(self._device, run, self._stream, minimum), error
        finally:
            scratch.close()

    # ── launches ─────────────────────────────────────────────────────────────────────────────

    def _run_once(self, candidate: Candidate) -> None:
        scratch = self._device.allocate(candidate.workspace)
        try:
            self._bound(candidate, scratch)(self._stream)
            self._stream.synchronize()
        finally:
            scratch.close()

    def _bound(self, candidate: Candidate, scratch: CudaBuffer) -> Any:
        if candidate.recipe is None:
            raise DeviceError(f"{candidate.algorithm} has no recipe")
        return sequence([self._launch(launch, scratch) for launch in launches_of(candidate.recipe)])

    def _launch(self, launch: Launch, scratch: CudaBuffer) -> Any:
        found = addresses(launch, lambda operand: self._address(operand, scratch))
        code = self._device.compiler.submit(launch.source)
        return bind_launch(self._device, launch, code, found)

    # ── tensors ──────────────────────────────────────────────────────────────────────────────

    def _address(self, operand: Operand, scratch: CudaBuffer) -> int:
        task = self._task
        if isinstance(operand, Scratch):
            return scratch.pointer + operand.offset
        if isinstance(operand, Tensor) and task is not None and operand.value is task.y.value:
            return self._result.pointer
        if isinstance(operand, Packed):
            key: Any = (operand.sources, operand.layout)
        else:
            key = (operand.value, operand.format)
        if key not in self._at and isinstance(operand, Tensor) and operand.format.in_halves:
            self._at[key] = self._cut(operand, scratch)
        if key not in self._at:
            self._at[key] = self._upload(_elements(operand))
        return self._at[key]

    def _cut(self, operand: Tensor, scratch: CudaBuffer) -> int:
        """Return where the elements of a tensor are in halves."""
        type_, format = operand.value.tensor, operand.format
        plain = self._address(replace(operand, format=format.plain), scratch)
        halves = self._hold(self._device.allocate(format.nbytes(type_)))
        launch = into_halves(type_, format=format)
        code = self._device.compiler.submit(launch.source)
        at = {"x": plain, "y": halves.pointer}
        bind_launch(self._device, launch, code, at)(self._stream)
        return halves.pointer

    def _upload(self, data: Array) -> int:
        view: View = self._device.upload(data)
        if isinstance(view.buffer, CudaBuffer):
            self._hold(view.buffer)
        return pointer(view)

    def _hold(self, buffer: CudaBuffer) -> CudaBuffer:
        self._held.append(buffer)
        return buffer

    def _copy(self, format: Format, to: CudaBuffer) -> None:
        """Copy the result in logical order; the caller waits for the stream."""
        if self._task is None:
            raise DeviceError("no task has been begun")
        type_ = self._task.y.value.tensor
        plain = View(self._device, to, 0, type_, Format.CONTIGUOUS)
        self._device.copier(plain, View(self._device, self._result, 0, type_, format))(self._stream)

    def _difference(self, format: Format) -> float:
        """Return the relative L2 norm of a result's error; NaN if it contains one."""
        if self._task is None or self._expected is None:
            raise DeviceError("no task has been begun")
        plain = self._device.allocate(self._expected.nbytes)
        try:
            self._copy(format, plain)
            type_ = self._task.y.value.tensor
            return relative_difference(self._device, plain, self._expected, type_, self._stream)
        finally:
            plain.close()


def relative_difference(
    device: DriverDevice,
    found: CudaBuffer,
    expected: CudaBuffer,
    type_: TensorType,
    stream: CudaStream,
) -> float:
    """Return the relative L2 norm of the difference of two arrays; NaN if one contains a NaN.

    Args:
        device: the GPU.
        found: the array, contiguous.
        expected: what it should be, contiguous.
        type_: dtype and shape of both.
        stream: on which both have been written.
    """
    sums = device.allocate(BLOCKS * 2 * 8)
    try:
        launch = difference(type_.dtype, type_.size)
        at = {"found": found.pointer, "expected": expected.pointer, "sums": sums.pointer}
        code = device.compiler.submit(launch.source)
        bind_launch(device, launch, code, at)(stream)
        stream.synchronize()
        parts = np.empty((launch.grid[0], 2))
        answer = driver.cuMemcpyDtoH(parts.ctypes.data, sums.pointer, parts.nbytes)
        check("cuMemcpyDtoH", answer)
    finally:
        sums.close()
    apart, whole = parts.sum(axis=0)
    return float(np.sqrt(apart / (whole or 1.0)))


def difference(dtype: DType, count: int) -> Launch:
    """Return the launch that compares two arrays and writes the sums of squares.

    Args:
        dtype: a float.
        count: elements of each.
    """
    index = index_type(count)
    return Launch(
        "norm/squared_error.cu",
        "difference",
        grid=(min(BLOCKS, ceil_div(count, 32 * WARPS)), 1, 1),
        block=32 * WARPS,
        args={**dict.fromkeys(("found", "expected", "sums"), Scratch(0)), "count": count},
        types=(("T", dtype), ("W", float64 if dtype == float64 else float32), ("Index", index)),
        constants=(("WARPS", WARPS),),
    )


def _elements(operand: Tensor | Packed) -> Array:
    """Return the elements of an operand: constants, or random numbers for computed values."""
    if isinstance(operand, Packed):
        return operand.pack(*(_constant(value.data) for value in operand.sources))
    if operand.data is not None:
        return operand.data
    numbers = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
    data = np.resize(numbers, operand.dims).astype(operand.dtype)
    return np.ascontiguousarray(data.transpose(order(operand.rank, operand.format)))


def _constant(data: Array | None) -> Array:
    if data is None:
        raise DeviceError("weights of run time cannot be packed")
    return data
