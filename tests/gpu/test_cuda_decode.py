"""A decoder's step on the GPU: products of few rows, caches, attention of few queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..kernels import packed_samples, test_gemv, test_rotate_append
from ..kernels.dry import normal, single
from ..kernels.packed_samples import nbits
from ..kernels.samples import OPTIONS, Sample, compare
from ..kernels.test_in_place import SCATTERS, scattered

pytestmark = pytest.mark.gpu

#: Largest error by the largest result, of sums of some thousand terms.
BOUNDS: dict[DType, float] = {float32: 3e-6, float16: 1e-3, bfloat16: 8e-3}


def on_gpu(sample: Sample, **options: Any) -> list[Array]:
    chosen = Options(skip=("fold_constants",), **options)
    with Model(sample.graph.clone(), open_backends("cuda", chosen), chosen, evaluate) as model:
        return [np.asarray(a) for a in model.run(sample.feeds).values()]


def cuda(sample: Sample) -> None:
    (backend,) = open_backends("cuda", OPTIONS)
    compare(sample, backend)


# ── products of few rows ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(("k", "n"), [(2048, 3072), (8192, 2048), (1000, 130), (4096, 17)])
def test_gemv_against_float64(rows: int, k: int, n: int, dtype: DType) -> None:
    x, w = normal(rows, k).astype(dtype), normal(k, n).astype(dtype)
    graph = single("MatMul", [x, w], (1,))
    (got,) = on_gpu(Sample(graph, {"x0": x}), algorithms={"MatMul": "gemv"})
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(got.astype(np.float64) - exact).max() <= BOUNDS[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("sample", test_gemv.samples(), ids=str)
def test_small_products(sample: Sample) -> None:
    cuda(sample)


@pytest.mark.parametrize("sample", packed_samples.samples(), ids=str)
def test_small_packed_products(sample: Sample) -> None:
    cuda(sample)


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [1, 8, 16, 70])
@pytest.mark.parametrize(
    ("k", "n", "bits", "block", "zeros"),
    [
        (2048, 3072, 4, 32, ""),
        (8192, 2048, 4, 32, "packed"),
        (4096, 4096, 4, 128, "floats"),
        (2048, 8192, 8, 32, "packed"),
        (2000, 100, 4, 64, ""),
    ],
)
def test_packed_products(
    rows: int, k: int, n: int, bits: int, block: int, zeros: str, dtype: DType
) -> None:
    cuda(nbits(rows, k, n, bits, block, zeros=zeros, dtype=dtype))


# ── caches ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", SCATTERS, ids=lambda case: str(case[0]))
@pytest.mark.parametrize("kept", [False, True], ids=["dies", "is kept"])
def test_scatters_in_place(case: tuple[Any, list[Any]], kept: bool) -> None:
    cuda(scattered(*case, kept=kept))


@pytest.mark.parametrize(
    "sample", test_rotate_append.SAMPLES.values(), ids=test_rotate_append.SAMPLES
)
def test_rotations_and_caches(sample: Sample) -> None:
    cuda(sample)


# ── attention ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("new", [1, 4, 8])
@pytest.mark.parametrize("capacity", [640, 2048, 9000])
@pytest.mark.parametrize("attributes", [{}, {"left_window_size": 100}, {"softcap": 5.0}], ids=str)
def test_few_queries_over_a_cache(
    capacity: int, new: int, attributes: dict[str, Any], dtype: DType
) -> None:
    """Whatever the lengths are, that the graph is not planned for: one, some, all that there is."""
    for lengths in ((new, 513), (capacity, capacity - 1)):
        q = normal(2, 8, new, 64).astype(dtype)
        k, v = (normal(2, 2, capacity, 64 + i)[..., :64].astype(dtype) for i in range(2))
        inputs = [q, k, v, None, None, None, np.array(lengths)]
        graph = single("Attention", inputs, is_causal=1, **attributes)
        feeds = {"x0": q, "x1": k, "x2": v, "x6": np.array(lengths)}
        cuda(Sample(graph, feeds))
