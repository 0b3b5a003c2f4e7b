"""Products of rows with few elements by a constant."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.matmul import Gemm

from .cubins import assert_plans_compile
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .layer_samples import layer as layer_of
from .samples import ERROR, Sample, compare

COMPILES = {"gemm/few_terms.cu"}
#: Columns and terms: words of every size, more threads along a row than a block has, single ones.
SIZES = ((64, 3), (24, 2), (7, 3), (2056, 4), (1, 1), (100, 4))


def layer(
    n: int, k: int, end: str = "", dtype: DType = float32, rows: tuple[int, ...] = (2, 37)
) -> Sample:
    return layer_of(n, k, end, dtype, rows)


def gemm(trans_b: int, dtype: DType = float32) -> Sample:
    """Return a Gemm with a factor, an addend of any size, and maybe a transposed matrix."""
    graph = Graph(f"gemm {trans_b} {dtype.name}")
    feeds = {"x": normal(50, 3).astype(dtype)}
    x = graph.add_input("x", TensorType(dtype, (50, 3)))
    weights = graph.constant(normal(*((40, 3) if trans_b else (3, 40))).astype(dtype))
    addend = graph.constant(normal(1, 40).astype(dtype))
    op = Gemm(alpha=0.5, beta=2.0, transB=trans_b)
    graph.set_outputs({"y": graph.insert(op, [x, weights, addend]).output})
    infer(graph)
    return Sample(graph, feeds)


def samples() -> list[Sample]:
    """Return what the kernel tells apart, for the GPU."""
    ends, dtypes = ("", "gelu", "residual"), (float32, float16, bfloat16)
    made = [layer(n, k, end, dtype) for n, k in SIZES for end in ends for dtype in dtypes]
    many = layer(64, 2, rows=(70001,)), layer(4, 4, rows=(300001,))
    return [*made, layer(64, 3, "sine"), *many, gemm(0), gemm(1)]


@pytest.mark.parametrize(
    ("sample", "entry"),
    [
        (layer(64, 3), "multiply_few_terms"),
        (layer(64, 3, "sine"), "multiply_few_terms"),
        (layer(256, 4, "gelu", float16, (4096,)), "multiply_few_terms"),
        (gemm(1), "multiply_few_terms"),
        (layer(64, 3, rows=(4,)), "gemv"),
        (layer(4, 4, "", float16, (1 << 14,)), "multiply_short"),
        (layer(256, 5, "", float16, (4096,)), "mma"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.graph.name,
)
def test_few_terms(sample: Sample, entry: str) -> None:
    (launch,) = launches(planned(sample.graph))
    assert launch.entry == entry


@pytest.mark.parametrize(("n", "k"), [(1, 4), (4, 4), (7, 3), (8, 4)])
def test_waiting_terms_fit_into_shared_memory(n: int, k: int) -> None:
    (launch,) = launches(planned(layer(n, k, rows=(1 << 20,)).graph))
    assert launch.entry == "multiply_few_terms"
    assert 4 * dict(launch.constants)["ROWS"] * k <= 48 << 10


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compile(target: Target, cache: Path) -> None:
    assert_plans_compile((sample.graph for sample in samples()), target, cache, COMPILES)


@needs_compiler
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("dtype", [float32, float16], ids=lambda dtype: dtype.name)
def test_results(n: int, k: int, dtype: DType, emulated: CudaBackend) -> None:
    compare(layer(n, k, "residual", dtype), emulated, error=ERROR[dtype])


@needs_compiler
@pytest.mark.parametrize(
    "sample", [layer(64, 3, "sine"), gemm(0), gemm(1)], ids=lambda each: each.graph.name
)
def test_forms(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated, error=ERROR[float16])
