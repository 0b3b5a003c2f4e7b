"""Products of many short rows by a constant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.matmul import Gemm

from .cubins import assert_plans_compile
from .dry import entries_of, launches, normal, planned
from .emulator import needs_compiler
from .layer_samples import layer as layer_of
from .samples import ERROR, Sample, compare

COMPILES = {"gemm/short.cu"}
ROWS = (2, 1 << 13)


def layer(
    n: int, k: int, end: str = "", dtype: DType = float16, rows: tuple[int, ...] = ROWS
) -> Sample:
    return layer_of(n, k, end, dtype, rows)


def samples() -> list[Sample]:
    """Return what the kernel tells apart, for the GPU."""
    sizes, ends = ((4, 4), (3, 7), (16, 16)), ("", "gelu", "residual")
    dtypes = (float16, bfloat16)
    return [layer(n, k, end, dtype) for n, k in sizes for end in ends for dtype in dtypes]


@pytest.mark.parametrize(
    ("sample", "entry"),
    [
        (layer(4, 4), "multiply_short"),
        (layer(16, 16, "gelu"), "multiply_short"),
        (layer(17, 4), "multiply_few_terms"),
        (layer(4, 24), "mma"),
        (layer(4, 4, rows=(2, 1000)), "multiply_few_terms"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.graph.name,
)
def test_short_rows(sample: Sample, entry: str) -> None:
    (launch,) = launches(planned(sample.graph))
    assert launch.entry == entry


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compile(target: Target, cache: Path) -> None:
    assert_plans_compile((sample.graph for sample in samples()), target, cache, COMPILES)


def test_transposed_weights_are_for_others() -> None:
    graph = Graph("transposed")
    x = graph.add_input("x", TensorType(float16, (1 << 14, 8)))
    weights = graph.constant(normal(8, 8).astype(np.float16))
    graph.set_outputs({"y": graph.insert(Gemm(transB=1), [x, weights]).output})
    infer(graph)
    assert "multiply_short" not in entries_of(graph)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("end", ["", "gelu", "residual", "cast"])
@pytest.mark.parametrize(("n", "k"), [(4, 4), (3, 7), (16, 16)])
def test_results(n: int, k: int, end: str, dtype: DType, emulated: CudaBackend) -> None:
    compare(layer(n, k, end, dtype, rows=(1, (1 << 14) + 3)), emulated, error=ERROR[dtype])
