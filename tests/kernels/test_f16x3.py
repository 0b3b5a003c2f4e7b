"""float32 as three float16 products: packing, which weights are refused, and emulated kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import f16x3, f32, f32_tiles
from tercet.backends.cuda.gemm.atoms import F16X3
from tercet.backends.cuda.gemm.f16x3 import (
    MAX_ALPHA,
    MAX_ROW,
    MIN_ROW,
    MIN_TERM,
    cut,
    filter_refusal,
    in_halves,
    matrix_refusal,
    scales_of,
)
from tercet.backends.cuda.gemm.f32_tiles import tiles_of
from tercet.backends.cuda.gemm.problem import Problem
from tercet.backends.cuda.gemm.tile import Config
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.base import parallel
from tercet.runtime.base.parallel import same_threads
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .cubins import assert_nothing_spills
from .dry import launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare, results_of, sample
from .test_split import TENSOR_CORES, device_for, force, with_tile

#: Scaled totals of kernels, relative to products of the packed numbers: see `step_f16x3.cuh`.
LESS = 2.0**-22
FLOAT32_MAX, FLOAT32_MIN = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal


def powers(low: int, high: int, *shape: int) -> Array:
    """Return powers of two with exponents from a range."""
    seed = np.random.default_rng(abs(low) + high)
    return np.exp2(seed.integers(low, high + 1, shape)).astype(np.float32)


# ── packing ──────────────────────────────────────────────────────────────────────────────────────


def unpacked(rows: Array) -> Array:
    """Return [batch, n, k] as `step_f16x3.cuh` reads it: terms of a step by their positions."""
    packed, scales = in_halves(rows).astype(np.float64), scales_of(rows).astype(np.float64)
    count, steps, n, _ = packed.shape
    chunks = packed.reshape(count, steps, n, 8, 8)
    row = np.arange(n)[:, None]
    chunks = chunks[:, :, row, np.arange(8) ^ row % 8]  # not swizzled
    parts = chunks.reshape(count, steps, n, 2, 2, 16).sum(3)  # high and low
    term = np.arange(16)
    position = 8 * (term // 8) + 2 * (term % 4) + term // 4 % 2
    return parts[..., position].swapaxes(1, 2).reshape(count, n, -1) * scales[..., None] * LESS


@pytest.mark.parametrize(
    "rows",
    [
        normal(2, 11, 70),
        normal(1, 8, 32) * powers(-90, 90, 1, 8, 1),
        np.copysign(1.1, normal(3, 5, 40)) * powers(-16, 0, 3, 5, 40),
        np.zeros((1, 3, 9), np.float32),
        np.full((1, 1, 1), -1.0, np.float32),
    ],
)
def test_numbers_are_the_sums_of_their_halves(rows: Array) -> None:
    count, n, k = rows.shape
    found = unpacked(rows)
    assert found.shape == (count, -(-n // 8) * 8, -(-k // 32) * 32)
    wrong = np.abs(found[:, :n, :k] - rows)
    assert (wrong <= 2.0**-22 * np.abs(rows)).all()
    assert not found[:, n:].any()
    assert not found[:, :, k:].any()


def test_small_numbers_are_wrong_by_little_of_the_greatest_one() -> None:
    rows = normal(1, 8, 64) * powers(-60, 0, 1, 8, 64)
    wrong = np.abs(unpacked(rows) - rows)
    limit = np.maximum(2.0**-22 * np.abs(rows), 2.0**-38 * np.abs(rows).max(-1, keepdims=True))
    assert (wrong <= limit).all()


@pytest.mark.parametrize("greatest", [MAX_ROW * MAX_ALPHA, MIN_ROW / MAX_ALPHA])
def test_extreme_rows_have_finite_scales(greatest: float) -> None:
    rows = np.array([[greatest, greatest / 3, 0, -greatest / 7]], np.float32)
    assert np.isfinite(scales_of(rows)).all()
    assert (np.abs(unpacked(rows[None])[0, :1, :4] - rows) <= 2.0**-22 * np.abs(rows)).all()


def test_no_number_becomes_zero() -> None:
    """An infinity times zero would be NaN."""
    numbers = np.array([0, 1e-30, -1e-30, 2.0**-26, 1e-44, 16384, -1], np.float32)
    high, low = cut(numbers)
    np.testing.assert_array_equal(np.sign(high), np.sign(numbers))
    assert np.abs(high.astype(np.float64) + low - numbers).max() <= 2.0**-24


# ── which weights are refused ────────────────────────────────────────────────────────────────────


def with_term(share: float, *, value: float = 1.0) -> Array:
    """Return a matrix [k, n], in which the weights of term 7 are smaller than the others."""
    b = (np.abs(normal(40, 24)) + 0.5) * np.float32(value)
    b[7] = b.max(0) * np.float32(share)
    return b


@pytest.mark.parametrize(
    ("b", "reason"),
    [
        (normal(40, 24), ""),
        (normal(40, 24) * powers(-60, 60, 1, 24), ""),
        (np.zeros((40, 24), np.float32), ""),
        (with_term(MIN_TERM * 1.01), ""),
        (with_term(0), ""),
        (with_term(MIN_TERM * 0.99), "term 7"),
        (with_term(1e-30), "term 7"),
        (with_term(1e-6) * powers(-30, 30, 1, 24), "term 7"),
        (with_term(0.1, value=1e35), "weights of "),
        (with_term(0.1, value=1e-33), "weights of "),
        (with_term(np.inf), "infinities"),
        (with_term(np.nan), "infinities"),
        (normal(40), ""),
    ],
)
def test_refused_matrices(b: Array, reason: str) -> None:
    for answer in (matrix_refusal(b, 1.0, False), matrix_refusal(b.T, 0.5, True)):
        assert reason in answer if reason else answer == ""


def test_extreme_factors_are_refused() -> None:
    assert "alpha" in matrix_refusal(normal(8, 8), 1e30, False)
    assert "alpha" in matrix_refusal(normal(8, 8), 0.0, False)


def test_channels_of_filters_are_terms() -> None:
    w = normal(12, 6, 3, 3)
    w[:, :, 0, 0] = 1e-20  # a corner
    assert filter_refusal(w, 1) == ""
    w[:6, 2] = 1e-20  # of one of two groups
    assert filter_refusal(w, 1) == ""
    assert "term 2" in filter_refusal(w, 2)


def test_answers_are_remembered_with_the_weights() -> None:
    for value in (1.0, np.inf, 1.0):
        b = np.full((8, 8), value, np.float32)
        assert bool(matrix_refusal(b, 1.0, False)) == np.isinf(value)
        del b  # the next array may have the same address


def test_estimates_read_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single row is multiplied by other kernels, whatever the weights are."""
    monkeypatch.setattr(f32, "matrix_refusal", None)
    graph = single("Gemm", [normal(1, 2048), normal(2048, 512)], (1,))
    (launch,) = launches(planned(graph))
    assert launch.entry == "gemv"


@pytest.mark.parametrize("threads", [True, False])
def test_weights_of_many_rows_are_judged_before_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    monkeypatch.setattr(f16x3, "MIN_JUDGED", 1)
    monkeypatch.setattr(parallel, "usable_cpus", lambda: 4)
    monkeypatch.setattr(parallel, "WORTH_SHARING", 1 if threads else 1 << 20)
    layers = [
        single("MatMul", [normal(640, 40), with_term(1e-9)], (1,)),
        single("Gemm", [normal(640, 40), normal(24, 40)], (1,), transB=1),
        single("Conv", [normal(1, 6, 40, 40), normal(4, 3, 3, 3)], (1,), group=2),
        single("Gemm", [normal(1, 40), normal(40, 24)], (1,)),
    ]
    vectors = [single("MatMul", [rows, normal(40)], (1,)) for rows in (normal(640, 40), normal(40))]
    with same_threads():
        f16x3.judge(node for graph in (*layers, *vectors) for node in graph.nodes)()
    read = list[int]()
    monkeypatch.setattr(f16x3, "refusal", lambda weights: str(read.append(weights.size)))
    constants = (graph.nodes[0].operands[1].data for graph in layers)
    product, transposed, filters, row = (data for data in constants if data is not None)
    assert "term 7" in matrix_refusal(product, 1.0, False)
    assert matrix_refusal(transposed, 1.0, True) == filter_refusal(filters, 2) == ""
    assert read == []
    matrix_refusal(row, 1.0, False)
    assert read == [40 * 24]


def test_a_refusal_is_reported() -> None:
    x = normal(8192, 40)
    for b, reason in ((with_term(1), ""), (with_term(1e-9), "term 7")):
        graph = single("Gemm", [x, np.tile(b, (1, 32))], (1,))
        (launch,) = launches(planned(graph, algorithms=WAYS["algorithms"]))
        assert launch.note.startswith("3xtf32" if reason else "3xf16")
        assert ("not 3xf16" in launch.note) == bool(reason)
        assert reason in launch.note


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_nothing_spills(cache: Path) -> None:
    """Of any tile, for a matrix or for windows."""
    compiler, x = Compiler(H200, cache), normal(1, 64, 28, 28)
    graphs = (
        single("Conv", [x, normal(64, 64, 3, 3), normal(64)], (1, 2), pads=(1,) * 4),
        single("Gemm", [normal(640, 512), normal(512, 512), normal(512)], (1, 2)),
    )
    found = [
        with_tile(F16X3, Config(tile), graphs[i % 2], H200)[-1]
        for i, tile in enumerate(tiles_of(F16X3, H200))
    ]
    assert_nothing_spills(found, compiler)


# ── on the emulator ──────────────────────────────────────────────────────────────────────────────

WAYS: dict[str, Any] = {
    "conv": "tensor_cores",
    "algorithms": {"MatMul": "tensor_cores", "Gemm": "tensor_cores"},
}


def spots(*shape: int) -> Array:
    """Return numbers with some infinities and NaNs."""
    x = normal(*shape)
    x.flat[7], x.flat[100], x.flat[250] = np.inf, -np.inf, np.nan
    x.flat[300], x.flat[301] = np.inf, -np.inf
    return x


def zeros(*shape: int) -> Array:
    x = normal(*shape)
    x[3], x[:, 5], x[6, 32:64] = 0, 0, 0
    return x


def sparse(*shape: int) -> Array:
    """Return weights of which some are zero, and some are beyond the precision of halves."""
    w = normal(*shape)
    w[7, :5], w[33, 3], w[34, 4] = 0, 1e-30, 0.5
    return w


COLUMNS, STACK = powers(-6, 6, 75), normal(3, 75, 20) * powers(-20, 20, 3, 1, 20)


def assert_product(a: Array, b: Array, backend: CudaBackend, options: Options) -> None:
    """Compare a product with float64, relative to the products that each result is the sum of."""
    (got,) = results_of(sample("MatMul", [a, b], (1,)), [backend], options)
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        want = a @ b
        limit = 4e-7 * (np.abs(a) @ np.abs(b)) + FLOAT32_MIN
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite].astype(np.float32))
    assert (np.abs(got[finite] - want[finite]) <= limit[finite]).all()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (normal(20, 75), normal(75, 11)),
        (np.maximum(normal(70, 75), 0), normal(75, 20)),
        (np.exp(2 * normal(20, 75)) * np.sign(normal(20, 75)), normal(75, 20)),
        (normal(20, 75) * COLUMNS, normal(75, 20) / COLUMNS[:, None]),
        (normal(20, 75) * powers(-100, 100, 20, 1), normal(75, 20)),
        (normal(20, 75), normal(75, 20) * powers(-50, 50, 1, 20)),
        (normal(20, 75) * np.float32(1e-30), normal(75, 20)),
        (normal(20, 75) * np.float32(1e37), normal(75, 20) * np.float32(0.05)),
        (normal(20, 75) * np.float32(1e30), normal(75, 20) * np.float32(1e-30)),
        (np.full((9, 64), FLOAT32_MAX * np.float32(1 - 2**-21)), np.eye(64, dtype=np.float32)),
        (zeros(20, 75), normal(75, 20)),
        (spots(20, 75), sparse(75, 20)),
        (np.where(normal(20, 75) > 0, 1e-40, normal(20, 75)).astype(np.float32), normal(75, 20)),
        (normal(16, 1200), normal(1200, 8)),
        (normal(3, 9, 75), STACK),
        (np.abs(normal(16, 1200)), np.abs(normal(1200, 8))),
    ],
)
def test_products(a: Array, b: Array, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result against float64, relative to the products that it is the sum of."""
    force(monkeypatch, F16X3, Config(tiles_of(F16X3, H200)[0]))
    assert_product(a, b, hopper, replace(OPTIONS, **WAYS))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("spread", "kind"), [(6, "3xf16"), (20, "3xtf32")])
def test_weights_that_make_up_for_activations(
    spread: int, kind: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are precise either way: where float16 would not do, they are refused."""
    monkeypatch.setattr(f32, "fastest", lambda *_: F16X3)
    scales = powers(-spread, spread, 75)
    a, b = normal(20, 75) * scales, normal(75, 20) / scales[:, None]
    made = sample("MatMul", [a, b], (1,))
    with Model(made.graph.clone(), [hopper], replace(OPTIONS, **WAYS), evaluate) as model:
        (got,) = model.run(made.feeds).values()
        assert kind in " ".join(row.kernel for row in model.prepare().rows).split(", not")[0]
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert (np.abs(got - a @ b) <= 4e-7 * (np.abs(a) @ np.abs(b))).all()


@pytest.mark.slow
@needs_compiler
def test_denormal_rows_keep_some_bits(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, F16X3, Config(tiles_of(F16X3, H200)[0]))
    a, b = normal(20, 75) * np.float32(1e-39), normal(75, 20)
    (got,) = results_of(sample("Gemm", [a, b], (1,)), [hopper], replace(OPTIONS, **WAYS))
    want = a.astype(np.float64) @ b
    assert np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want)


def convolutions() -> list[Sample]:
    x = normal(2, 8, 9, 7)
    return [
        sample("Conv", [x, normal(12, 8, 3, 3), normal(12)], (1, 2), pads=(1,) * 4, strides=(2, 1)),
        sample("Conv", [x, normal(20, 4, 3, 2)], (1,), group=2, dilations=(2, 1)),
        sample("Conv", [normal(2, 40, 30), normal(24, 40, 1)], (1,)),
        sample("Conv", [normal(1, 3, 9, 10), normal(16, 3, 5, 5)], (1,), pads=(2,) * 4),
    ]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("found", convolutions(), ids=str)
@pytest.mark.parametrize("name", ["w64x16", "w128x64"])
def test_convolutions(
    found: Sample, name: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one group of warps, and by two that multiply in turn."""
    force(monkeypatch, F16X3, Config.parse(name, tiles_of(F16X3, H200)))
    compare(found, hopper, options=replace(OPTIONS, **WAYS), error=1e-6)


@needs_compiler
@pytest.mark.parametrize("name", ["w64x16 split 8", "w64x96 split 2", "w128x64 lean split 3"])
def test_shares_of_clusters(
    name: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fragments of 16 rows and eight columns; results end within one."""
    force(monkeypatch, F16X3, Config.parse(name, tiles_of(F16X3, H200)))
    found = sample("Gemm", [normal(70, 300), normal(300, 52), normal(52)], (1, 2))
    compare(found, hopper, options=replace(OPTIONS, **WAYS), error=1e-6)


def test_clusters_that_must_wait_take_a_second_wave() -> None:
    """An H200 has room for 14 clusters of seven blocks that fill a multiprocessor each."""
    (tile,) = (tile for tile in tiles_of(F16X3, H200) if str(tile) == "w128x96")
    fits, waits = (
        f32_tiles.estimator(Problem(256, 96 * columns, 3072), F16X3, H200)(Config(tile, 7))
        for columns in (7, 8)
    )
    assert waits > 1.5 * fits


def test_few_blocks_have_a_multiprocessor_each() -> None:
    """Short ones of a convolution share it, and those that may run beside another's."""
    tile = next(tile for tile in tiles_of(F16X3, H200) if tile.resident > 1)
    beside = Net(1, 768, 12, 10)
    beside.graph.set_outputs({name: beside.conv(beside.x, 768) for name in "yz"})
    with pytest.MonkeyPatch.context() as patch:
        force(patch, F16X3, Config(tile))
        found = [
            launches(planned(graph, device_for(H200), **TENSOR_CORES))[-1]
            for graph in (
                single("Gemm", [normal(128, 768), normal(768, 768), normal(768)], (1, 2)),
                single("Conv", [normal(1, 768, 12, 10), normal(768, 768, 1, 1)], (1,)),
                single("Conv", [normal(1, 64, 12, 10), normal(768, 64, 1, 1)], (1,)),
                beside.graph,
            )
        ]
    assert {launch.entry for launch in found} == {"split_wgmma"}
    apart = [2 * (launch.shared + 1024) > H200.shared + 1024 for launch in found]
    assert apart == [True, True, False, False]
