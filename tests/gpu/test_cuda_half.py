"""16-bit floats of the cuda backend against float64 on the same, rounded inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.cuda.gemm import normalized
from tercet.backends.cuda.gemm.schedules import tma, tma_persistent, tma_staging
from tercet.backends.cuda.gemm.schedules.tma_staging import SmemLayout, Staging, TmaProduct
from tercet.backends.cuda.gemm.tables.f16 import TMA, TMA_PAIRS, TMA_PERSISTENT
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.operands import ceil_div
from tercet.backends.cuda.recipe.targets import Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Gelu, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..kernels import test_gated, test_rotated_product, test_stacked_products
from ..kernels import test_half_sums as half_sums
from ..kernels.dry import normal
from ..kernels.few_rows_samples import Gated
from ..kernels.normalized_cases import Case, exact_of, graph_of
from ..kernels.samples import ERROR, OPTIONS, compare
from ..kernels.test_normalized import CASES
from .test_cuda_convolutions import random_case
from .test_cuda_operators import run

pytestmark = pytest.mark.gpu

#: Rounding the result once, and a little for sums in another order.
BOUNDS: dict[DType, float] = {float16: 5e-4, bfloat16: 4e-3}


def check_half(
    operator: str,
    inputs: list[Array],
    constant: tuple[int, ...] = (),
    dtype: DType = float16,
    **attributes: Any,
) -> None:
    narrow = [a.astype(dtype) for a in inputs]
    (got,) = run("cuda", operator, narrow, constant, **attributes)
    (again,) = run("cuda", operator, narrow, constant, **attributes)
    wide = [a.astype(np.float64) for a in narrow]
    (want,) = run("numpy", operator, wide, constant, **attributes)
    assert got.dtype == dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint16), again.view(np.uint16))
    error = np.linalg.norm(got.astype(np.float64) - want)
    assert error <= BOUNDS[dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("seed", range(120))
def test_random_convolutions(seed: int) -> None:
    inputs, attributes = random_case(seed)
    check_half("Conv", inputs, (1, 2), bfloat16 if seed % 4 == 3 else float16, **attributes)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 224, 224), (64, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
        ((2, 3, 65, 67), (32, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((2, 1, 31, 33), (24, 1, 5, 4), {"strides": (1, 2), "pads": (2, 0, 1, 3)}),
        ((1, 512, 7, 7), (512, 512, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 2048, 7, 7), (512, 2048, 1, 1), {}),
        ((16, 64, 56, 56), (256, 64, 1, 1), {}),
        ((32, 256, 28, 28), (512, 256, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((33, 512, 13, 13), (300, 512, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 272, 14, 14), (272, 68, 1, 1), {"group": 4}),
        ((1, 96, 54, 54), (256, 48, 5, 5), {"group": 2, "pads": (2, 2, 2, 2)}),
        ((8, 96, 56, 56), (96, 1, 3, 3), {"group": 96, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
        ((16, 96, 57, 55), (96, 1, 3, 3), {"group": 96, "pads": (1, 1, 1, 1)}),
        ((2, 24, 100), (16, 24, 9), {"pads": (4, 4)}),
    ],
)
def test_real_layers(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check_half("Conv", [normal(*x), normal(*w), normal(w[0])], (1, 2), **attributes)


# ── what the copy engine brings ──────────────────────────────────────────────────────────────────


def forced(layout: SmemLayout, patch: pytest.MonkeyPatch) -> list[CtaTile]:
    """Let convolutions be done in one layout by one tile after the other; return those left."""
    left = [tile for tile in TMA if layout in tma_staging.layouts(tile)]

    def take(
        p: TmaProduct, target: Target, *, along: bool = False
    ) -> tuple[TimedConfig, Staging] | None:
        staging, splits = (
            tma_staging.staged(p, left[0], layout),
            min(2, ceil_div(p.channels, p.chunk)),
        )
        config = Config(left[0], splits if len(left) % 2 else 1)
        if staging is None or not tma.resources(p, config, staging).fits(target):
            return None
        return TimedConfig(0.0, config), staging

    patch.setattr(tma, "choose", take)
    return left


@pytest.mark.parametrize(
    ("layout", "x", "w", "attributes"),
    [
        (SmemLayout.MATRIX, (5, 72, 14, 13), (200, 72, 1, 1), {}),
        (SmemLayout.RUN, (5, 72, 14, 13), (200, 72, 3, 3), {"pads": (1, 1, 1, 1)}),
        (
            SmemLayout.RUN,
            (3, 24, 9, 20),
            (40, 24, 5, 3),
            {"pads": (0, 2, 3, 1), "dilations": (2, 1)},
        ),
        (SmemLayout.RUN, (3, 128, 7, 9), (33, 128, 3, 3), {}),
        (SmemLayout.RUN, (3, 40, 9, 7), (36, 40, 3, 1), {"pads": (3, 3, 3, 2)}),
        (SmemLayout.SQUARES, (5, 72, 14, 13), (200, 72, 3, 3), {"pads": (1, 1, 1, 1)}),
        (SmemLayout.SQUARES, (2, 16, 9, 20), (64, 16, 3, 5), {"pads": (0, 2, 3, 1)}),
        (SmemLayout.TAPWISE, (5, 72, 14, 13), (200, 72, 3, 3), {"strides": (2, 2)}),
        (SmemLayout.TAPWISE, (3, 96, 15, 15), (64, 96, 1, 1), {"strides": (2, 1)}),
        (SmemLayout.TAPWISE, (3, 40, 15, 17), (96, 40, 3, 3), {"pads": (2, 1, 0, 3)}),
    ],
)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_layouts(
    layout: SmemLayout,
    x: tuple[int, ...],
    w: tuple[int, ...],
    attributes: dict[str, Any],
    dtype: DType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = forced(layout, monkeypatch)
    while left:
        check_half("Conv", [normal(*x), normal(*w), normal(w[0])], (1, 2), dtype, **attributes)
        del left[0]


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 40, 44), (64, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 1, 33, 31), (40, 1, 3, 3), {"strides": (2, 1)}),
        ((2, 4, 40, 41), (72, 4, 5, 5), {"strides": (1, 3), "pads": (2, 2, 2, 2)}),
        ((2, 3, 65, 67), (64, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
        ((2, 3, 65, 67), (64, 3, 3, 2), {"strides": (3, 4), "pads": (0, 1, 1, 0)}),
    ],
)
@pytest.mark.parametrize("layout", list(SmemLayout)[1:], ids=lambda layout: layout.name)
def test_first_layers(
    x: tuple[int, ...],
    w: tuple[int, ...],
    attributes: dict[str, Any],
    layout: SmemLayout,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = forced(layout, monkeypatch)
    while left:
        check_half("Conv", [normal(*x), normal(*w), normal(w[0])], (1, 2), **attributes)
        del left[0]


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("x", "filters"), [((2, 64, 224, 224), 64), ((4, 128, 112, 112), 128), ((16, 72, 64, 96), 40)]
)
def test_pooled(x: tuple[int, ...], filters: int, dtype: DType) -> None:
    """A max-pooling by 2 x 2 is part of the convolution before it; NaN goes through both."""
    data, weights = normal(*x).astype(dtype), normal(filters, x[1], 3, 3).astype(dtype)
    data[0, 3, 17, 20] = np.nan
    got, kernels = pooled_convolution("cuda", data, weights)
    assert "pool_words" not in kernels
    want, _ = pooled_convolution("numpy", data.astype(np.float32), weights.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    there = ~np.isnan(want)
    error = np.linalg.norm(got.astype(np.float64)[there] - want[there])
    assert error <= BOUNDS[dtype] * np.linalg.norm(want[there])


def pooled_convolution(backend: str, x: Array, w: Array) -> tuple[Array, str]:
    """Return MaxPool(Relu(Conv(x, w))), by 2 x 2, and the kernels that computed it."""
    graph = Graph()
    value = graph.add_input("x", TensorType(x.dtype, x.shape))
    convolved = Conv(pads=(1, 1, 1, 1))
    value = graph.insert(convolved, [value, graph.constant(w)]).output
    value = graph.insert(Relu(), [value]).output
    pool = MaxPool(kernel_shape=(2, 2), strides=(2, 2))
    graph.set_outputs({"y": graph.insert(pool, [value]).output})
    infer(graph)
    options = Options(conv="direct" if backend == "numpy" else None)
    with Model(graph, open_backends(backend, options), options, evaluate) as model:
        return model.run({"x": x})["y"], " ".join(row.kernel for row in model.prepare().rows)


# ── matrix products ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 2), (1, 1000, 2048), (7, 33, 30), (32, 4096, 6272), (197, 77, 192), (4100, 520, 776)],
)
def test_linear(m: int, n: int, k: int, dtype: DType) -> None:
    inputs = [normal(m, k), normal(k, n), normal(n)]
    check_half("Gemm", inputs, (1, 2), dtype)
    check_half("Gemm", [inputs[0], normal(n, k), inputs[2]], (1, 2), dtype, transB=1, alpha=0.5)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1024, 1024, 1024), (2056, 2056, 2056), (1000, 520, 776), (40, 72, 8)]
)
def test_products_of_run_time(m: int, n: int, k: int, dtype: DType) -> None:
    a, b, c = normal(m, k), normal(k, n) / np.sqrt(k), normal(n)
    check_half("MatMul", [a, b], (), dtype)
    check_half("Gemm", [a, b, c], (2,), dtype)
    check_half("Gemm", [a, np.ascontiguousarray(b.T)], (), dtype, transB=1)


@pytest.mark.parametrize("tile", TMA_PERSISTENT, ids=str)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_linear_tiles(tile: CtaTile, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile and many, whole ones and parts; with what is added, and a Gelu."""
    monkeypatch.setattr(tma_persistent, "choose", lambda *_: TimedConfig(0.0, Config(tile)))
    monkeypatch.setattr(tma_persistent, "patch_of", lambda *_: 3)
    for m, n, k in [(9, 8, 8), (197, 776, 72), (130, 200, 1000), (6305, 3080, 776), (64, 64, 64)]:
        check_linear(m, n, k, dtype, residual=True)
        check_linear(m, n, k, dtype, residual=False)
        check_linear(m, n, k, dtype, residual=True, run_time=True)


@pytest.mark.parametrize("tile", TMA_PERSISTENT, ids=str)
def test_stacked_tiles(tile: CtaTile, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles than multiprocessors."""
    test_stacked_products.forced(tile, monkeypatch)
    for sample, error in test_stacked_products.samples_of(tile, 40):
        compare(sample, *open_backends("cuda", OPTIONS), error=error)


def check_linear(
    m: int, n: int, k: int, dtype: DType, *, residual: bool, run_time: bool = False
) -> None:
    x, z = normal(m, k).astype(dtype), normal(m + 1, n)[1:].astype(dtype)
    w, b = (normal(k, n) / np.sqrt(k)).astype(dtype), normal(n).astype(dtype)
    results = []
    for backend, wide in (("cuda", dtype), ("numpy", float64)):
        graph = Graph()
        value = graph.add_input("x", TensorType(wide, x.shape))
        weights = graph.constant(w.astype(wide))
        if run_time:
            weights = graph.add_input("w", TensorType(wide, w.shape))
        value = graph.insert(MatMul(), [value, weights]).output
        value = graph.insert(Add(), [value, graph.constant(b.astype(wide))]).output
        if residual:
            other = graph.add_input("z", TensorType(wide, z.shape))
            value = graph.insert(Add(), [value, other]).output
        else:
            value = graph.insert(Gelu(), [value]).output
        graph.set_outputs({"y": value})
        infer(graph)
        options = Options()
        with Model(graph, open_backends(backend, options), options, evaluate) as model:
            feeds = {"x": x.astype(wide)} | ({"z": z.astype(wide)} if residual else {})
            feeds |= {"w": w.astype(wide)} if run_time else {}
            results.append(model.run(feeds)["y"].astype(float64))
            if backend == "cuda":
                assert "mma_linear" in " ".join(row.kernel for row in model.prepare().rows)
    error = np.linalg.norm(results[0] - results[1])
    assert error <= BOUNDS[dtype] * np.linalg.norm(results[1])


@pytest.mark.parametrize("tile", TMA_PAIRS, ids=str)
@pytest.mark.parametrize("gated", test_gated.SMALL, ids=str)
def test_gated_products(gated: Gated, tile: CtaTile, monkeypatch: pytest.MonkeyPatch) -> None:
    test_gated.force(tile, monkeypatch)
    (backend,) = open_backends("cuda", Options())
    compare(gated.sample(), backend, error=ERROR[gated.dtype])


@pytest.mark.parametrize("tile", TMA_PERSISTENT, ids=str)
def test_rotated_products(tile: CtaTile, monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles that begin with whole heads; by others they are rotated apart."""
    test_rotated_product.force(tile, monkeypatch)
    for layer in test_rotated_product.SMALL.values():
        compare(layer.sample(), *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize(
    "layer",
    [*test_rotated_product.SAMPLES.values(), *test_rotated_product.NORMALIZED.values()],
    ids=str,
)
def test_rotated_products_of_all_sizes(
    layer: test_rotated_product.Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normalized, "SAVED", 100.0)
    compare(layer.sample(), *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize("gated", [gated for gated, _ in test_gated.SOME_ROWS], ids=str)
def test_gated_products_of_some_rows(gated: Gated) -> None:
    compare(gated.sample(), *open_backends("cuda", OPTIONS), error=ERROR[gated.dtype])


@pytest.mark.parametrize("name", half_sums.graphs())
def test_sums_in_float16(name: str) -> None:
    """They are told from sums in float32 by their errors, which are greater."""
    (backend,) = open_backends("cuda", Options())
    exact = half_sums.computed(*half_sums.graphs(float64)[name])
    narrow, wide = (
        np.linalg.norm(
            half_sums.computed(*half_sums.graphs()[name], backend, algorithms=ways) - exact
        )
        for ways in (half_sums.WAYS, {})
    )
    assert wide < narrow < 5e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("MaxPool", {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ("AveragePool", {"kernel_shape": (3, 2), "ceil_mode": 1, "strides": (2, 3)}),
        ("AveragePool", {"kernel_shape": (3, 3), "pads": (1, 1, 0, 1), "count_include_pad": 1}),
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("LRN", {"size": 5, "alpha": 0.1}),
        ("LRN", {"size": 4, "bias": 2.0}),
    ],
)
@pytest.mark.parametrize("channels", [8, 136])
def test_words(operator: str, attributes: dict[str, Any], channels: int) -> None:
    """Behind a convolution and a Relu, which changes nothing, images lie channels last."""
    x = np.abs(normal(2, channels, 17, 13)).astype(float16)
    graph = Graph()
    value = graph.add_input("x", TensorType(float16, x.shape))
    ones = graph.constant(np.eye(channels, dtype=float16)[..., None, None])
    same = graph.insert(Relu(), [graph.insert(Conv(), [value, ones]).output]).output
    node = graph.insert(OPERATORS["", operator](**attributes), [same])
    graph.set_outputs({"y": node.output})
    infer(graph)
    options = Options()
    with Model(graph, open_backends("cuda", options), options, evaluate) as model:
        got = model.run({"x": x})["y"]
        kernels = " ".join(row.kernel for row in model.prepare().rows)
    assert "_words" in kernels or "reduce_columns" in kernels
    (want,) = run("numpy", operator, [x.astype(np.float64)], **attributes)
    error = np.linalg.norm(got.astype(np.float64) - want)
    assert error <= BOUNDS[float16] * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "case",
    [
        *CASES.values(),
        *(Case((1, rows), columns=3072, inner=768) for rows in (17, 32, 64, 197, 257)),
        *(Case((1, rows), columns=2304, inner=3072) for rows in (17, 50, 128, 256, 394)),
        *(Case((1, rows), columns=1152, terms=384, inner=1536) for rows in (197, 512)),
        *(Case((1, rows), columns=4096, terms=1024, inner=4096) for rows in (128, 257)),
        Case((2, 20), columns=2304, inner=3072, ends=False, is_read=True),
        Case((1, 24), columns=512, inner=1024, centred=False, shifted=False),
    ],
    ids=str,
)
def test_normalized_rows(case: Case, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product stores its results with moments, and the next one normalizes them."""
    monkeypatch.setattr(normalized, "SAVED", 100.0)
    graph, feeds = graph_of(case, dtype, dtype)
    with Model(graph, open_backends("cuda", OPTIONS), OPTIONS, evaluate) as model:
        assert any("after" in row.kernel for row in model.prepare().rows if row.kind == "step")
        got, again = model.run(feeds), model.run(feeds)
    for name, expected in exact_of(case, dtype, feeds).items():
        np.testing.assert_array_equal(got[name].view(np.uint16), again[name].view(np.uint16))
        limit = ERROR[dtype] * np.abs(expected).max()
        np.testing.assert_allclose(got[name].astype(float64), expected, rtol=0, atol=limit)
