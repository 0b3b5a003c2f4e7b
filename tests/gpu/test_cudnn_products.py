"""Products and attentions on cuDNN: right, or declined with a reason, in every variation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..cudnn.products import Case, linear, random_attentions, random_products

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn import matmul
from tercet.backends.cudnn.choice import Division

pytestmark = pytest.mark.gpu

#: Relative L2 error of a product; float32 stands for TF32.
PRODUCTS: dict[DType, float] = {float16: 1e-3, bfloat16: 8e-3, float32: 2e-3}
#: That of an attention, in which weights of 16 bits are rounded before they are multiplied.
ATTENTIONS: dict[DType, float] = {float16: 1e-3, bfloat16: 8e-3, float32: 1e-5}
#: Also where it is known to be slow.
CUDNN: dict[str, str] = dict.fromkeys(("MatMul", "Gemm", "Attention"), "cudnn")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def ran(case: Case, dtype: DType, feeds: dict[str, Array], cache: Path) -> tuple[Array, str]:
    """Return the result of a case, and what ran."""
    tf32 = dtype == float32 and not isinstance(case.op, Attention)
    chosen = Options(
        cache=cache,
        algorithms=CUDNN,
        precision="tf32" if tf32 else "float32",
        skip=("fold_constants",),
    )
    with Model(case.graph(dtype), open_backends("cudnn", chosen), chosen, evaluate) as model:
        (got,) = model.run(feeds).values()
        rows = [row for row in model.placement() if row.kind == "step"]
        assert all(row.backend == "cudnn" or row.reason for row in rows), "every decline is told"
    return got, "; ".join(f"{row.backend}: {row.kernel} {row.reason}".strip() for row in rows)


def exact(case: Case, dtype: DType, feeds: dict[str, Array]) -> Array:
    """Return the result of a case in float64, of numbers that were rounded to a dtype."""
    graph, _ = case.exact(dtype)
    wide = {name: data.astype(float64) for name, data in feeds.items()}
    chosen = Options(skip=("fold_constants",))
    with Model(graph, open_backends("numpy", chosen), chosen, evaluate) as model:
        (want,) = model.run(wide).values()
    return want


def error_of(case: Case, dtype: DType, cache: Path) -> tuple[float, str]:
    """Return the distance to float64, infinite where other elements are not finite; what ran."""
    feeds = case.feeds(dtype)
    got, text = ran(case, dtype, feeds, cache)
    want = exact(case, dtype, feeds)
    assert (got.shape, got.dtype) == (want.shape, dtype)
    finite = np.isfinite(want)
    if not np.array_equal(np.isfinite(got), finite):
        return np.inf, text
    difference = np.linalg.norm(got[finite].astype(float64) - want[finite])
    return float(difference / max(np.linalg.norm(want[finite]), 1e-30)), text


def check(cases: list[Case], dtype: DType, bound: float, cache: Path) -> None:
    """Check that all are right and nearly all are cuDNN's."""
    wrong: list[str] = []
    declined: list[str] = []
    for case in cases:
        error, text = error_of(case, dtype, cache)
        if "cudnn: " not in text:
            declined.append(f"{case}: {text}")
        if error > bound:
            wrong.append(f"{case}: {error:.1e} by {text}")
    assert not wrong, "\n".join(wrong)
    assert len(declined) <= len(cases) // 10, "\n".join(declined)


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
def test_random_products_are_right(dtype: DType, cache: Path) -> None:
    check(random_products(16, seed=1), dtype, PRODUCTS[dtype], cache)


@pytest.mark.parametrize("dtype", ATTENTIONS, ids=str)
def test_random_attentions_are_right(dtype: DType, cache: Path) -> None:
    check(random_attentions(16, seed=1), dtype, ATTENTIONS[dtype], cache)


@pytest.mark.parametrize("tail", [("bias", "relu"), ("bias", "add"), ("bias", "gelu")])
@pytest.mark.parametrize("way", range(3))
def test_every_way_is_right(
    tail: tuple[str, ...], way: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = linear((2, 65), 96, 136, *tail)
    all_ways = matmul.divide

    def one(*given: Any) -> tuple[Division, ...]:
        ways = all_ways(*given)
        return (ways[min(way, len(ways) - 1)],)

    monkeypatch.setattr(matmul, "divide", one)
    error, text = error_of(case, float16, cache)
    assert error <= PRODUCTS[float16]
    assert text.startswith("cudnn: ")
    assert "; " not in text, "one step"


@pytest.mark.parametrize("tail", [("gelu",), ("bias", "gelu"), ("gelu_tanh",)])
def test_gelu_is_the_one_that_was_asked_for(tail: tuple[str, ...], cache: Path) -> None:
    """The approximation by tanh differs by up to 5e-4, where float16 has steps of 3e-5."""
    case = Case(MatMul(), [(64, 64), (64, 64)], (), tail)
    feeds = {
        "x0": np.diag(np.linspace(-4, -1, 64)).astype(float16),
        "x1": np.eye(64, dtype=float16),
    }
    got, text = ran(case, float16, feeds, cache)
    assert "cudnn: " in text
    np.testing.assert_allclose(
        got.astype(float64), exact(case, float16, feeds), rtol=1e-3, atol=4e-5
    )


@pytest.mark.parametrize("tail", [(), ("relu",), ("bias", "relu"), ("bias", "gelu"), ("add",)])
def test_products_pass_on_what_is_not_finite(tail: tuple[str, ...], cache: Path) -> None:
    case = Case(MatMul(), [(24, 40), (40, 16)], (), tail)
    feeds = case.feeds(float16)
    feeds["x0"][3, 5], feeds["x0"][7, 1], feeds["x1"][2, 9] = np.nan, np.inf, -np.inf
    got, text = ran(case, float16, feeds, cache)
    want = exact(case, float16, feeds)
    assert "cudnn: " in text
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_attention_passes_on_what_is_not_finite(place: int, poison: float, cache: Path) -> None:
    case = Case(Attention(), [(2, 3, 24, 64), (2, 3, 40, 64), (2, 3, 40, 64)])
    feeds = case.feeds(float16)
    feeds[f"x{place}"][0, 1, 7, 3] = poison
    got, text = ran(case, float16, feeds, cache)
    assert "cudnn: " in text
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(exact(case, float16, feeds)))


@pytest.mark.parametrize("dtype", ATTENTIONS, ids=str)
def test_rows_that_see_nothing_are_zero(dtype: DType, cache: Path) -> None:
    case = Case(Attention(), [(2, 3, 24, 64), (2, 3, 40, 64), (2, 3, 40, 64), (2, 1, 24, 40)])
    feeds = case.feeds(dtype)
    feeds["x3"][1, 0, 5] = -np.inf
    got, text = ran(case, dtype, feeds, cache)
    assert "cudnn: " in text
    assert not got[1, :, 5].any()
    assert np.isfinite(got).all()
