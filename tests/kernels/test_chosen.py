"""Rows multiplied by matrices that indices choose: these are read where they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.gather import Gather, GatherND
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Expand, Transpose
from tercet.runtime.ops.shape import Reshape, Unsqueeze
from tercet.runtime.session.model import Model

from .cubins import assert_plans_compile
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles.
COMPILES = {"gemm/experts_floats.cu", "gemm/sort_indices.cu"}
MATRICES = 5


@dataclass(frozen=True)
class Case:
    """A product of rows with chosen matrices.

    Attributes:
        rows: number of rows.
        share: matrices that each chooses.
        n, k: sizes of a matrix.
        dtype: of all.
        is_left: whether the matrices are the left operand.
        moved: whether their axes are swapped once they are chosen.
        single: whether a Gather chooses them.
        index: the type of indices, the first of which counts from the end.
    """

    rows: int = 20
    share: int = 2
    n: int = 48
    k: int = 64
    dtype: DType = float16
    is_left: bool = True
    moved: bool = False
    single: bool = False
    index: type = np.int64

    @property
    def pairs(self) -> int:
        """Results."""
        return self.rows * self.share

    @property
    def graph(self) -> Graph:
        graph = Graph("chosen")

        def add(op: Op, *inputs: Value | Array) -> Value:
            values = [v if isinstance(v, Value) else graph.constant(v, "") for v in inputs]
            node = graph.insert(op, values, 1)
            infer(graph)
            return node.output

        x = graph.add_input("x", TensorType(self.dtype, (self.rows, self.k)))
        dims = (self.pairs,) if self.single else (self.pairs, 1)
        indices = graph.add_input("indices", TensorType(np.dtype(self.index), dims))
        if self.share > 1:
            x = add(Unsqueeze(), x, np.array([1]))
            x = add(Expand(), x, np.array([self.rows, self.share, self.k]))
            x = add(Reshape(), x, np.array([self.pairs, self.k]))
        x = add(Unsqueeze(), x, np.array([2 if self.is_left else 1]))
        sizes = (self.n, self.k) if self.is_left != self.moved else (self.k, self.n)
        matrices = (normal(MATRICES, *sizes) * self.k**-0.5).astype(self.dtype)
        chosen = add(Gather() if self.single else GatherND(), matrices, indices)
        if self.moved:
            chosen = add(Transpose(perm=(0, 2, 1)), chosen)
        operands = (chosen, x) if self.is_left else (x, chosen)
        graph.set_outputs({"y": add(MatMul(), *operands)})
        return graph

    @property
    def sample(self) -> Sample:
        indices = np.random.default_rng(0).integers(0, MATRICES - 1, self.pairs).astype(self.index)
        indices[0] = -2
        x = normal(self.rows, self.k).astype(self.dtype)
        shaped = indices if self.single else indices[:, None]
        return Sample(self.graph, {"x": x, "indices": shaped})


CASES = {
    "halves": Case(),
    "words": Case(rows=7, share=1, k=37, n=29),
    "right": Case(dtype=bfloat16, is_left=False, single=True, index=np.int32),
    "many rows": Case(rows=150, moved=True, n=80),
    "right and moved": Case(is_left=False, moved=True, share=3),
    "floats": Case(dtype=float32, k=36, n=70),
    "columns of floats": Case(dtype=float32, is_left=False, k=51, n=20, rows=60),
    "one row": Case(rows=1, share=1, dtype=float32),
}


def samples() -> list[Sample]:
    """Return what runs under compute-sanitizer on a GPU; see tests/gpu/test_cuda_samples.py."""
    return [case.sample for case in CASES.values()]


@pytest.mark.parametrize("name", CASES)
def test_matrices_stay_where_they_are(name: str) -> None:
    made = launches(planned(CASES[name].graph, DryDevice(compiler=DryCompiler(H200))))
    assert [launch.entry for launch in made] == ["sort_indices", "experts_floats"]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    assert_plans_compile([case.graph for case in CASES.values()], target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, emulated: CudaBackend) -> None:
    compare(CASES[name].sample, emulated)


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
def test_rows_without_a_matrix_are_zeros(dtype: DType, emulated: CudaBackend) -> None:
    """As with a Gather of their matrices: see docs/rulings.md."""
    case = Case(rows=9, share=1, n=21, k=16, dtype=dtype)
    feeds = dict(case.sample.feeds)
    outside = {0: -MATRICES - 1, 4: MATRICES, 8: 1 << 32}
    wrong = feeds["indices"].copy()
    wrong[list(outside), 0] = list(outside.values())
    with Model(case.graph, [emulated], OPTIONS, evaluate) as model:
        expected = model.run(feeds)["y"]
        found = model.run({**feeds, "indices": wrong})["y"]
    inside = [row for row in range(case.pairs) if row not in outside]
    np.testing.assert_array_equal(found[inside], expected[inside])
    assert not found[list(outside)].any()


def test_other_readers_and_many_matrices_keep_a_gather() -> None:
    graph = CASES["halves"].graph
    (chosen,) = (node for node in graph.nodes if isinstance(node.op, GatherND))
    graph.set_outputs({**graph.outputs, "chosen": chosen.output})
    entries = entries_of(graph, DryDevice())
    assert "gather_nd" in entries
    assert "sort_indices" not in entries
