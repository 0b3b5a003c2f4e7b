"""Kernels run on the host, as they are, against the numpy backend; needs a C++ compiler, no GPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import simt
from tercet.backends.cuda.ops import norm
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Mul, Relu, Tanh
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.norm import BatchNormalization
from tercet.runtime.session.model import Model

from .dry import normal
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare, edges, samples

pytestmark = [
    pytest.mark.slow,
    needs_compiler,
]


@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


@pytest.mark.parametrize("n", [0, 1, 33])
def test_edges(n: int, emulated: CudaBackend) -> None:
    for sample in edges(n):
        compare(sample, emulated)


def chained(kind: str, dtype: DType) -> Sample:
    """Return tanh(relu(anchor * k + z)), the anchor being a kernel that takes a tail."""
    operators: dict[str, tuple[Op, list[Array], tuple[int, ...]]] = {
        "Conv": (Conv(), [normal(2, 4, 5, 6), normal(4, 4, 3, 3)], (2, 4, 3, 4)),
        "ConvTranspose": (ConvTranspose(), [normal(2, 4, 5, 6), normal(4, 4, 3, 3)], (2, 4, 7, 8)),
        "Gemm": (Gemm(), [normal(5, 7), normal(7, 4)], (5, 4)),
        "BatchNormalization": (
            BatchNormalization(),
            [normal(2, 4, 5, 6), *(np.abs(normal(4)) + np.float32(0.5) for _ in range(4))],
            (2, 4, 5, 6),
        ),
    }
    operator, arrays, shape = operators[kind]
    feeds = {f"x{i}": a.astype(dtype) for i, a in enumerate([*arrays, normal(*shape)])}
    graph = Graph(kind)
    *inputs, z = [graph.add_input(n, TensorType(a.dtype, a.shape)) for n, a in feeds.items()]
    k = graph.constant(normal(*(4, 1, 1)[: 3 if len(shape) > 2 else 1]).astype(dtype), "k")
    value = graph.insert(operator, inputs).output
    value = graph.insert(Add(), [graph.insert(Mul(), [value, k]).output, z]).output
    value = graph.insert(Tanh(), [graph.insert(Relu(), [value]).output]).output
    graph.set_outputs({"y": value})
    infer(graph)
    return Sample(graph, feeds)


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "BatchNormalization"])
def test_tails(kind: str, dtype: DType, emulated: CudaBackend) -> None:
    """What follows a kernel is computed in it, in the arithmetic of the type."""
    found = chained(kind, dtype)
    compare(found, emulated)
    with Model(found.graph.clone(), [emulated], OPTIONS, evaluate) as model:
        assert len([row for row in model.prepare().rows if row.kind == "step"]) == 1


def test_products_too_wide_for_a_grid(
    emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tiles lie along x then, in the order in which they were."""
    monkeypatch.setattr(simt, "MAX_BLOCKS", (1, 1, 1))
    graph = Graph("wide")
    a = graph.add_input("a", TensorType(float32, (70, 20)))
    b = graph.add_input("b", TensorType(float32, (20, 300)))
    graph.set_outputs({"y": graph.insert(MatMul(), [a, b]).output})
    infer(graph)
    given = normal(70, 20), normal(20, 300)
    with Model(graph, [emulated], OPTIONS, evaluate) as model:
        assert "gemm" in str(model.placement())
        (y,) = model(*given)
    np.testing.assert_allclose(y, given[0] @ given[1], 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(7, 24), (9, 6), (1, 5)], ids=str)
@pytest.mark.parametrize("is_fixed", [False, True])
def test_pixels_of_a_thread_that_scales(
    shape: tuple[int, int],
    is_fixed: bool,
    dtype: DType,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several pixels a thread, of which the last one has fewer."""
    monkeypatch.setattr(norm, "BUSY", 0)
    graph = Graph("scaled")
    statistics = [(np.abs(normal(shape[1])) + np.float32(0.5)).astype(dtype) for _ in range(4)]
    feeds = {"x": normal(*shape).astype(dtype)}
    values = [graph.add_input("x", TensorType(dtype, shape))]
    for i, data in enumerate(statistics):
        if is_fixed:
            values.append(graph.constant(data, f"s{i}"))
        else:
            values.append(graph.add_input(f"s{i}", TensorType(dtype, data.shape)))
            feeds[f"s{i}"] = data
    graph.set_outputs({"y": graph.insert(BatchNormalization(), values).output})
    infer(graph)
    compare(Sample(graph, feeds), emulated)
