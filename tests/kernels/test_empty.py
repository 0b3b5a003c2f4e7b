"""What has no elements takes no kernels, whatever computes it; sums of nothing are numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.movement import Slice

from ..plan.nets import Net
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import compare, sample

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

IMAGES, ROWS = normal(0, 16, 8, 8), normal(0, 6, 32)
EMPTY = {
    "Conv": sample("Conv", [IMAGES, normal(8, 16, 3, 3)], (1,), pads=(1, 1, 1, 1)),
    "ConvTranspose": sample("ConvTranspose", [IMAGES, normal(16, 8, 2, 2)], (1,), strides=(2, 2)),
    "MaxPool": sample("MaxPool", [IMAGES], kernel_shape=(2, 2)),
    "Resize": sample("Resize", [IMAGES, None, np.array([1, 1, 2, 2], np.float32)], (2,)),
    "GroupNormalization": sample(
        "GroupNormalization", [IMAGES, normal(16), normal(16)], (1, 2), num_groups=4
    ),
    "InstanceNormalization": sample(
        "InstanceNormalization", [IMAGES, normal(16), normal(16)], (1, 2)
    ),
    "LayerNormalization": sample("LayerNormalization", [ROWS, normal(32)], (1,)),
    "MatMul": sample("MatMul", [ROWS, normal(32, 8)], (1,)),
    "of no columns": sample("MatMul", [normal(4, 8), normal(8, 0)]),
    "Gemm": sample("Gemm", [ROWS[:, 0], normal(8, 32)], (1,), transB=1),
    "Softmax": sample("Softmax", [ROWS]),
    "Attention": sample("Attention", [normal(0, 2, 4, 8)] * 3),
    "LSTM": sample("LSTM", [normal(5, 0, 8), normal(1, 16, 8), normal(1, 16, 4)], hidden_size=4),
    "Transpose": sample("Transpose", [ROWS], perm=(2, 0, 1)),
    "Gather": sample("Gather", [ROWS, np.array([2, 1])], (1,), axis=1),
}


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize("name", EMPTY)
def test_there_is_nothing_to_compute(name: str, target: Target) -> None:
    assert launches(planned(EMPTY[name].graph, DryDevice(compiler=DryCompiler(target)))) == []


def test_steps_of_nothing() -> None:
    """A recurrence, as exporters unroll it."""
    net = Net(6, 5, 0)

    def place(i: int) -> Value:
        bounds = (net.graph.constant(np.array([n]), "") for n in (i, i + 1, 1))
        return net.add(Slice(), net.x, *bounds)

    states = [place(0)]
    for i in range(1, 5):
        states.append(net.add(Add(), net.add(Mul(), states[-1], place(i)), place(i)))
    net.graph.set_outputs({"y": net.join(*states)})
    assert launches(planned(net.graph)) == []


@needs_compiler
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceLogSumExp"])
def test_reductions_of_nothing(kind: str, emulated: CudaBackend) -> None:
    tested = sample(kind, [normal(0, 5), np.array([0])], (1,))
    assert len(launches(planned(tested.graph))) == 1
    with np.errstate(all="ignore"):
        compare(tested, emulated)


@needs_compiler
def test_attention_without_keys(emulated: CudaBackend) -> None:
    tested = sample("Attention", [normal(1, 2, 6, 24), *[normal(1, 2, 0, 24)] * 2])
    assert entries_of(tested.graph) == ["attention"]
    compare(tested, emulated)
