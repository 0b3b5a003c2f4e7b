"""Attention without a softmax: two products and what is elementwise between them, as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Relu, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape

from .cubins import all_compile
from .dry import DryCompiler, DryDevice, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS, Sample, compare

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles.
COMPILES = {"attention/weighted.cu"}
HALF = replace(OPTIONS, precision="float16")
HEADS = 3
Weigh = Callable[["Heads", Value], Value]


class Heads:
    """Heads of queries, keys and values that are parts of rows [samples, length, ...]."""

    def __init__(self, size: int, size_v: int, length: int, dtype: DType, *, wide: bool) -> None:
        self.graph, self.dtype = Graph("weighted"), float32 if wide else dtype
        self.length, self.wide, self.stored = length, wide, dtype
        widths = np.array([HEADS * size, HEADS * size, HEADS * size_v])
        x = self.graph.add_input("x", TensorType(dtype, (2, length, int(widths.sum()))))
        self.add(Split(axis=2, num_outputs=3), x, widths, outputs=3)
        self.parts = self.graph.nodes[-1].outputs

    def add(self, op: Op, *inputs: Value | Array, outputs: int = 1) -> Value:
        values = [v if isinstance(v, Value) else self.graph.constant(v, "") for v in inputs]
        node = self.graph.insert(op, values, outputs)
        infer(self.graph)
        return node.output

    def heads(self, part: int, *perm: int) -> Value:
        shape = np.array([2, self.length, HEADS, self.parts[part].tensor.dims[-1] // HEADS])
        transposed = self.add(Transpose(perm=perm), self.add(Reshape(), self.parts[part], shape))
        return self.add(Cast(to=float32), transposed) if self.wide else transposed

    def number(self, *dims: int) -> Array:
        return normal(*dims).astype(self.dtype)

    def attended(self, weigh: Weigh) -> Graph:
        """Return y = weigh(q k') v, whose heads are joined."""
        q, k, v = self.heads(0, 0, 2, 1, 3), self.heads(1, 0, 2, 3, 1), self.heads(2, 0, 2, 1, 3)
        y = self.add(MatMul(), weigh(self, self.add(MatMul(), q, k)), v)
        y = self.add(Transpose(perm=(0, 2, 1, 3)), y)
        if self.wide:
            y = self.add(Cast(to=self.stored), y)
        self.graph.set_outputs({"y": self.add(Reshape(), y, np.array([2, self.length, -1]))})
        return self.graph


def decayed(to: Heads, scores: Value) -> Value:
    """A factor of each head, query and key (retention)."""
    return to.add(Mul(), scores, np.tril(to.number(HEADS, to.length, to.length)))


def causal(to: Heads, scores: Value) -> Value:
    """A squared ReLU and a mask that all heads share (gated attention units)."""
    rectified = to.add(Relu(), scores)
    mask = np.tril(np.ones((to.length, to.length), to.dtype))
    return to.add(Mul(), to.add(Mul(), rectified, rectified), mask)


def sigmoid(to: Heads, scores: Value) -> Value:
    """A bias of each head, and one of each key."""
    shifted = to.add(Add(), scores, to.number(HEADS, 1, 1))
    return to.add(Sigmoid(), to.add(Add(), shifted, to.number(to.length)))


def scaled(to: Heads, scores: Value) -> Value:
    return to.add(Mul(), scores, np.array(0.25, to.dtype))


@dataclass(frozen=True)
class Case:
    """Heads of a size, and what weighs them."""

    weigh: Weigh
    size: int = 16
    size_v: int = 16
    length: int = 20
    dtype: DType = float16
    wide: bool = True

    def __str__(self) -> str:
        wide = "-wide" * self.wide
        return f"{self.weigh.__name__}-{self.size}-{self.size_v}-{self.dtype.name}{wide}"

    def graph(self) -> Graph:
        heads = Heads(self.size, self.size_v, self.length, self.dtype, wide=self.wide)
        return heads.attended(self.weigh)

    def sample(self) -> Sample:
        graph = self.graph()
        x = graph.inputs[0].tensor
        return Sample(graph, {"x": normal(*x.dims).astype(x.dtype)})

    @property
    def error(self) -> float:
        """Of weights in tf32, or in the type of the values."""
        return max(ERROR[self.dtype], 2**-11)


CASES = [
    Case(decayed),
    Case(causal, length=120),
    Case(sigmoid, wide=False),
    Case(scaled, size=8, size_v=24),
    Case(decayed, size=40, size_v=72, dtype=bfloat16),
    Case(causal, size=8, size_v=136, wide=False, length=70),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_nodes_are_one_kernel(case: Case) -> None:
    found = launches(planned(case.graph(), precision="float16"))
    assert [launch.entry for launch in found] == ["weighted"]


def normalized(to: Heads, scores: Value) -> Value:
    """Weights that something else reads."""
    return to.add(Mul(), scores, to.add(ReduceSum(), scores, np.array([-1])))


@pytest.mark.parametrize(
    "case",
    [
        Case(normalized),
        Case(decayed, size=136),
        Case(decayed, size=128, size_v=2048, length=128),
        Case(decayed, length=256),
    ],
    ids=str,
)
def test_what_stays_apart(case: Case) -> None:
    """What others read, long queries, scores computed again, and few blocks of many keys."""
    found = launches(planned(case.graph(), precision="float16"))
    assert "weighted" not in {launch.entry for launch in found}


def test_float32_is_not_rounded() -> None:
    found = launches(planned(Case(decayed).graph(), precision="float32"))
    assert [launch.entry for launch in found] == ["mma", "strided_mma"]


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results(case: Case, emulated: CudaBackend) -> None:
    compare(case.sample(), emulated, options=HALF, error=case.error)


@needs_compiler
def test_weights_beyond_the_range_of_16_bits(emulated: CudaBackend) -> None:
    graph = Case(scaled).graph()
    x = 300 * normal(*graph.inputs[0].tensor.dims)
    x[..., 2 * HEADS * 16 :] /= 1e5
    x = x.astype(np.float16)
    q = x[..., :16].astype(np.float64)
    assert (q**2).sum(-1).max() > np.finfo(np.float16).max
    compare(Sample(graph, {"x": x}), emulated, options=HALF, error=2**-11)


@needs_compiler
def test_values_whose_places_are_in_a_table(emulated: CudaBackend) -> None:
    """Parts of rows of 24 elements, cut into rows of 16."""
    heads = Heads(16, 16, 20, float16, wide=False)
    x = heads.graph.add_input("z", TensorType(float16, (2 * 20 * HEADS * 16 // 24, 72)))
    heads.add(Split(axis=1, num_outputs=3), x, outputs=3)
    part = heads.graph.nodes[-1].outputs[1]
    rows = heads.add(Reshape(), part, np.array([2, 20, HEADS, 16]))
    q, k = heads.heads(0, 0, 2, 1, 3), heads.heads(1, 0, 2, 3, 1)
    values = heads.add(Transpose(perm=(0, 2, 1, 3)), rows)
    y = heads.add(MatMul(), decayed(heads, heads.add(MatMul(), q, k)), values)
    heads.graph.set_outputs({"y": y})
    assert "copy_strided" in {launch.entry for launch in launches(planned(heads.graph))}
    feeds = {v.name: heads.number(*v.tensor.dims) for v in heads.graph.inputs}
    compare(Sample(heads.graph, feeds), emulated, error=2**-9)


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    for case in CASES:
        planned(case.graph(), device, precision="float16")
    all_compile(list(device.compiler.sources), target, cache, COMPILES)
