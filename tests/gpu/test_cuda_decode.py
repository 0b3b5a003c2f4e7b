"""A decoder's step on the GPU: products of few rows, caches, attention of few queries."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.gemm import packed
from tercet.backends.cuda.gemm.tables.mixed_input import MIXED_INPUT
from tercet.backends.cuda.gemm.tile import CtaTile
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.runtime.session.sampling import SamplingSettings
from tercet.runtime.session.sampling_graph import SamplingGraph

from ..kernels import (
    expert_samples,
    packed_samples,
    test_decode_attention,
    test_gemv,
    test_measured_rows,
    test_mixed_input,
    test_rotate_append,
    test_swap_ab,
)
from ..kernels.dry import normal, single
from ..kernels.few_rows_samples import APART, NORM_APART, NORMALIZED, TOGETHER, Gated, weights
from ..kernels.packed_samples import nbits
from ..kernels.samples import ERROR, OPTIONS, Sample, compare
from ..kernels.test_decode_attention import Decode, check
from ..kernels.test_in_place import SCATTERS, scattered
from ..session import test_sampling_graph

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
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 33, 70, 128, 600])
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


@pytest.mark.parametrize("gated", [*TOGETHER, *NORMALIZED, *APART, *NORM_APART], ids=str)
def test_small_gated_layers(gated: Gated) -> None:
    (backend,) = open_backends("cuda", OPTIONS)
    compare(gated.sample(), backend, error=ERROR[gated.dtype])


@pytest.mark.parametrize(
    "chain",
    [*test_measured_rows.TOGETHER, *test_measured_rows.MORE, *test_measured_rows.APART],
    ids=str,
)
def test_rows_normalized_between_products(chain: test_measured_rows.Chain) -> None:
    (backend,) = open_backends("cuda", OPTIONS)
    compare(chain.sample(), backend, error=ERROR[chain.dtype])


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [1, 3, 8, 1500])
@pytest.mark.parametrize(("k", "n"), [(2048, 3072), (1000, 130), (896, 17)])
def test_gated_layers_against_float64(rows: int, k: int, n: int, dtype: DType) -> None:
    gated = Gated(rows, k, n, dtype)
    found = gated.sample()
    (got,) = on_gpu(found)
    a, b = (found.feeds["x"].astype(np.float64) @ w.astype(np.float64) for w in weights(found))
    exact = a / (1 + np.exp(-a)) * b
    assert np.abs(got.astype(np.float64) - exact).max() <= BOUNDS[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("rows", [1, 8, 20, 40])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("k", "n", "bits", "block"), [(2048, 3072, 4, 32), (4096, 1000, 8, 128)])
def test_packed_gated_layers(rows: int, k: int, n: int, bits: int, block: int, zeros: bool) -> None:
    cuda(Gated(rows, k, n, bits=bits, block=block, zeros=zeros).sample())


@pytest.mark.parametrize("n", [6144, 16999])  # a block per multiprocessor; tiles in turns
def test_long_rows_of_packed_weights(n: int) -> None:
    cuda(nbits(1, 4096, n, 4, 128, dtype=float16))


def test_packed_gated_layers_in_turns() -> None:
    cuda(Gated(1, 4096, 9000, bits=4, block=128).sample())


@pytest.mark.parametrize("sample", test_mixed_input.samples(), ids=test_mixed_input.title)
def test_packed_products_against_float64(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "time_unpacked", lambda *_: inf)
    (got,) = on_gpu(sample)
    test_mixed_input.assert_exact(sample, got)


@pytest.mark.parametrize("tile", MIXED_INPUT, ids=str)
@pytest.mark.parametrize(
    ("splits", "k", "n", "bits", "block", "zeros", "dtype"),
    [
        (1, 2048, 2048, 4, 32, "", float16),
        (2, 4096, 330, 4, 16, "packed", bfloat16),
        (5, 3000, 640, 8, 64, "floats", float16),
        (8, 4096, 512, 2, 64, "packed", float16),
    ],
)
def test_every_tile_of_packed_weights(
    tile: CtaTile,
    splits: int,
    k: int,
    n: int,
    bits: int,
    block: int,
    zeros: str,
    dtype: DType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exact, and the same bits every time."""
    test_mixed_input.forced(tile, splits, monkeypatch)
    sample = nbits(2 * tile.bm - 1, k, n, bits, block, zeros=zeros, dtype=dtype)
    (first,), (second,) = (on_gpu(sample) for _ in range(2))
    test_mixed_input.assert_exact(sample, first)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("way", test_swap_ab.WAYS, ids=str)
@pytest.mark.parametrize(
    ("rows", "k", "n", "bits", "block", "zeros", "dtype"),
    [
        (31, 4096, 2048, 4, 32, "", float16),
        (100, 2056, 330, 4, 128, "packed", bfloat16),
        (16, 3000, 640, 8, 64, "floats", float16),
        (40, 4096, 9000, 2, 16, "packed", float16),
    ],
)
def test_packed_weights_as_left_operand(
    way: tuple[int, int, int],
    rows: int,
    k: int,
    n: int,
    bits: int,
    block: int,
    zeros: str,
    dtype: DType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exact, and the same bits every time."""
    monkeypatch.setattr(packed, "time_unpacked", lambda *_: inf)
    monkeypatch.setattr(packed, "MIXED_ROWS", 0)
    test_swap_ab.forced(way, monkeypatch)
    sample = nbits(rows, k, n, bits, block, zeros=zeros, dtype=dtype)
    (first,), (second,) = (on_gpu(sample) for _ in range(2))
    test_mixed_input.assert_exact(sample, first)
    np.testing.assert_array_equal(first, second)


# ── mixtures of experts ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sample", expert_samples.samples(), ids=str)
def test_small_mixtures_of_experts(sample: Sample) -> None:
    cuda(sample)


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [1, 8, 60, 300])
@pytest.mark.parametrize("bits", [4, 8])
def test_mixtures_of_experts(rows: int, bits: int, dtype: DType) -> None:
    how = {"k": 4, "swiglu_fusion": 1, "swiglu_limit": 7.0, **expert_samples.SWIGLU}
    cuda(expert_samples.q_moe(rows, 360, 392, 16, bits=bits, block=32, dtype=dtype, **how))


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


# ── rotations, caches and attention as one kernel ────────────────────────────────────────────────


@pytest.mark.parametrize(
    "case", test_decode_attention.CASES.values(), ids=test_decode_attention.CASES
)
def test_steps_of_decoders(case: Decode) -> None:
    (backend,) = open_backends("cuda", OPTIONS)
    check(case, backend)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("new", [1, 8])
@pytest.mark.parametrize(
    ("batch", "size", "heads"),
    [(1, 64, (32, 8)), (8, 64, (4, 1)), (3, 128, (8, 2)), (2, 256, (4, 2))],
    ids=str,
)
def test_steps_of_large_decoders(
    batch: int, size: int, heads: tuple[int, int], new: int, dtype: DType
) -> None:
    """At every length, which neither the graph nor the run before is planned for."""
    (backend,) = open_backends("cuda", OPTIONS)
    for start in (0, 513, 2048 - new):
        before = tuple((start + 100 * n) % (2049 - new) for n in range(batch))
        check(Decode(before, new=new, heads=heads, size=size, room=2048, dtype=dtype), backend)


def test_lengths_that_change_from_run_to_run() -> None:
    """Keys are read by lengths that may still be those of the run before."""
    (backend,) = open_backends("cuda", OPTIONS)
    cases = [Decode((n, 900 - n), heads=(8, 2), size=64, room=1024) for n in (5, 70, 800, 0)]
    with Model(cases[0].graph(), [backend], OPTIONS, evaluate) as model:
        for seed, case in enumerate(cases):
            feeds = case.feeds(seed)
            found = model.run(feeds)
            for name, exact in case.exact(feeds).items():
                error = np.abs(np.asarray(found[name]).astype(np.float64) - exact).max()
                assert error <= ERROR[float16] * np.abs(exact).max()


# ── sampling ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("how", test_sampling_graph.HOWS, ids=str)
def test_sampling_from_large_vocabularies(how: SamplingSettings, dtype: DType, batch: int) -> None:
    """The host's tokens, and the same ones every time."""
    graph = test_sampling_graph.graph_of(SamplingGraph.of(how), dtype, batch, 128256)
    with Model(graph, open_backends("cuda", OPTIONS), OPTIONS, evaluate) as model:
        for seed in range(6):
            logits = test_sampling_graph.logits_of(
                dtype, (0.1, 1.0, 4.0)[seed % 3], seed, batch, 128256
            )
            for _ in range(2):
                np.testing.assert_array_equal(
                    *test_sampling_graph.sampled(model, how, logits, seed)
                )


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("k", [1, 64, 1000, 128256])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_the_greatest_of_long_rows(rows: int, k: int, dtype: DType) -> None:
    x = np.round(8 * normal(rows, 128256)).astype(dtype)
    values, places = on_gpu(Sample(single("TopK", [x, np.array([k])], (1,), 2), {"x0": x}))
    wanted = np.argsort(-x.astype(np.float64), 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))
