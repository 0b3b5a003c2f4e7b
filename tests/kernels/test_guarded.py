"""The emulator finds what kernels read and write where they have no memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.memory import pointer
from tercet.backends.cuda.recipe import source as kernel_source
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.operands import Operand, Scratch, Tensor
from tercet.runtime.errors import KernelError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.plan.weights import WeightStore, as_it_is

from . import emulator
from .emulator import needs_compiler

pytestmark = needs_compiler
#: Elements of x and y, which fill no words of 16 bytes.
COUNT = 33
KERNEL = """
extern "C" __global__ void misplaced(const float* x, float* y, int n, int read, int write)
{
    const float found = threadIdx.x < n ? x[threadIdx.x + read] : 0;
    __syncthreads();
    if (threadIdx.x < n) y[threadIdx.x + write] = found;
}
"""


@pytest.fixture(autouse=True)
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "misplaced.cu").write_text(KERNEL)
    monkeypatch.setattr(kernel_source, "KERNELS", tmp_path)


def operand(data: Array | None = None) -> Tensor:
    return Tensor(Value("x", TensorType(float32, (COUNT,)), data=data))


def run(
    device: Any, read: int, write: int, x: Operand | None = None, at: int = 0, scratch: int = 0
) -> Array:
    """Copy x from `read` on to y from `write` on; return the 1024 numbers of which both are part.

    Args:
        device: the emulated one.
        read: where reading starts, in elements of x, the 256th number.
        write: where writing starts, in elements of y, the 512th number.
        x: what is read, if it is another operand.
        at: its address, if it is elsewhere.
        scratch: bytes of the workspace.
    """
    memory = device.upload(np.arange(1024, dtype=np.float32))
    start = pointer(memory)
    args = {"x": x or operand(), "y": operand(), "n": COUNT, "read": read, "write": write}
    launch = Launch("misplaced.cu", "misplaced", (2, 1, 1), 64, args, scratch=scratch)
    pointers = {"x": at or start + 256 * 4, "y": start + 512 * 4}
    emulator.emulated(device, launch, device.compiler.submit(launch.source), pointers)(None)
    return memory.buffer.owner.buffer.memory.view(np.float32)


def test_what_is_right_is_no_error(emulated: CudaBackend) -> None:
    found = run(emulated.device, 0, 0)
    np.testing.assert_array_equal(found[512 : 512 + COUNT], np.arange(256, 256 + COUNT))
    rest = np.delete(found, range(512, 512 + COUNT))
    np.testing.assert_array_equal(rest, np.delete(np.arange(1024), range(512, 512 + COUNT)))


@pytest.mark.parametrize("where", [4, 5000])
def test_reads(where: int, emulated: CudaBackend) -> None:
    with pytest.raises(KernelError, match="misplaced: there is no byte"):
        run(emulated.device, where, 0)
    run(emulated.device, 0, 0)  # another block of threads


@pytest.mark.parametrize("where", [1, 4, -1, 5000])
def test_writes(where: int, emulated: CudaBackend) -> None:
    with pytest.raises(KernelError, match="misplaced: there is no byte"):
        run(emulated.device, 0, where)


def test_what_follows_is_no_number(emulated: CudaBackend) -> None:
    assert np.isnan(run(emulated.device, 3, 0)[512 + COUNT - 3 : 512 + COUNT]).all()


def test_the_message_names_the_argument(emulated: CudaBackend) -> None:
    size = COUNT * 4
    with pytest.raises(KernelError, match=f"no byte {size + 12} of x, which has {size} bytes"):
        run(emulated.device, 4, 0)


def test_a_workspace_ends_where_the_launch_says(emulated: CudaBackend) -> None:
    needed, scratch = 64 + COUNT * 4, Scratch(64)
    assert np.isfinite(run(emulated.device, 0, 0, scratch, scratch=needed)[512 : 512 + COUNT]).all()
    with pytest.raises(KernelError, match="of x"):
        run(emulated.device, 4, 0, scratch, scratch=needed)


def test_constants_have_memory_of_their_own(emulated: CudaBackend) -> None:
    """What is read behind one is not the next one."""
    store = WeightStore(emulated.device)
    values = [operand(np.full(COUNT, each, np.float32)).value for each in (1, 2)]
    store.prepare(map(as_it_is, values))
    for value in values:
        at = pointer(store.view(value))
        run(emulated.device, 0, 0, Tensor(value), at=at)
        with pytest.raises(KernelError, match="of x"):
            run(emulated.device, 4, 0, Tensor(value), at=at)
