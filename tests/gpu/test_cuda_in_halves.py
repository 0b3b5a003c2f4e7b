"""Products of float32 operands in halves, and what stores them so, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.gemm import normalized_halves
from tercet.backends.cuda.gemm.tables.f16x3 import HALVES
from tercet.backends.cuda.gemm.tile import CtaTile
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..kernels.dry import normal
from ..kernels.normalized_cases import Case, exact_of, graph_of
from ..kernels.test_f16x3 import powers
from ..kernels.test_in_halves import WAYS, attended, force, layers
from ..kernels.test_normalized_halves import CASES, in_halves
from .test_cuda_operators import run

pytestmark = pytest.mark.gpu

#: Relative L2 distance that nothing here may exceed.
BOUND = 1e-6


def check_product(a: Array, b: Array) -> None:
    """Compare all results with float64, and with a second run, bit by bit."""
    got, again = (run("cuda", "MatMul", [a, b], (1,), options=WAYS)[0] for _ in range(2))
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(got.view(np.uint32), again.view(np.uint32))
    assert np.linalg.norm(got - want) <= BOUND * np.linalg.norm(want)
    of_rows = np.linalg.norm(want, axis=-1)
    assert (np.linalg.norm(got - want, axis=-1) <= 4 * BOUND * of_rows).all()


@pytest.mark.parametrize("tile", HALVES, ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "splits"), [(3001, 904, 512, 1), (130, 200, 1024, 3), (9, 64, 64, 1)]
)
def test_every_tile(
    tile: CtaTile, m: int, n: int, k: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, f"{tile} split {splits}" if splits > 1 else str(tile))
    check_product(normal(m, k) * powers(-60, 60, m, 1), normal(k, n))


@pytest.mark.parametrize("m", [128, 197, 257, 394])
@pytest.mark.parametrize(("n", "k"), [(2304, 768), (768, 768), (3072, 768), (768, 3072)])
def test_few_rows(m: int, n: int, k: int) -> None:
    """Weights are the left operand; see swap_f16x3.cu."""
    check_product(normal(m, k) * powers(-60, 60, m, 1), normal(k, n))


@pytest.mark.parametrize(("m", "n", "k"), [(6304, 768, 3072), (4096, 3072, 768), (1000, 640, 64)])
def test_large_products(m: int, n: int, k: int) -> None:
    check_product(normal(m, k), normal(k, n))


def check_network(graph: Any, feeds: dict[str, Array]) -> None:
    """Compare a network with the reference in float32, whose error it may not exceed by much."""
    options = Options(**WAYS)
    with Model(graph.clone(), open_backends("cuda", options), options, evaluate) as model:
        got, again = model.run(feeds), model.run(feeds)
    plain = Options()
    with Model(graph.clone(), open_backends("numpy", plain), plain, evaluate) as model:
        want = model.run(feeds)
    for name, expected in want.items():
        np.testing.assert_array_equal(got[name], again[name])
        assert np.linalg.norm(got[name] - expected) <= BOUND * np.linalg.norm(expected)


@pytest.mark.parametrize("norm", ["", "LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("rows", [17, 100, 2000])
def test_layers(norm: str, residual: bool, rows: int) -> None:
    check_network(
        layers(256, 1024, 256, rows=rows, norm=norm, residual=residual),
        {"x": normal(2, rows, 256)},
    )


@pytest.mark.parametrize("rows", [33, 197, 1000])
@pytest.mark.parametrize("read_elsewhere", [False, True])
def test_attention(rows: int, read_elsewhere: bool) -> None:
    check_network(*attended(rows, read_elsewhere=read_elsewhere))


@pytest.mark.parametrize(
    "case",
    [
        *CASES.values(),
        in_halves((1, 197), columns=3072, inner=768, follows=True),
        in_halves((1, 197), columns=2304, inner=3072, follows=True),
        in_halves((1, 50), columns=3072, inner=768, follows=True),  # ViT-B/32's
        in_halves((1, 257), columns=768, terms=384, inner=1536, follows=True),  # DINOv2's of ViT-S
        in_halves((2, 197), columns=576, terms=192, inner=768, follows=True),
        in_halves((1, 32), columns=2304, inner=3072, ends=False, is_read=True, follows=True),
        in_halves((1, 128), columns=3072, inner=768, ends=False, is_read=True, follows=True),
    ],
    ids=str,
)
def test_normalized_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product stores its results with moments, and the next one normalizes them."""
    monkeypatch.setattr(normalized_halves, "SAVED", 100.0)
    graph, feeds = graph_of(case, float32, float32)
    options = Options(skip=("fold_constants",))
    with Model(graph, open_backends("cuda", options), options, evaluate) as model:
        assert any("after" in row.kernel for row in model.prepare().rows if row.kind == "step")
        got, again = model.run(feeds), model.run(feeds)
    for name, expected in exact_of(case, float32, feeds).items():
        np.testing.assert_array_equal(got[name], again[name])
        error = np.linalg.norm(got[name] - expected)
        assert error <= BOUND * (1 + abs(case.offset)) * np.linalg.norm(expected)
