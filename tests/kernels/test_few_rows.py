"""Products of few rows: one kernel reads two matrices, normalizes, and computes what numpy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.norm import RMSNormalization
from tercet.runtime.ops.packed import MatMulNBits
from tercet.tools.workshop.decoder_files import DecoderSizes, Packing, write

from .cubins import assert_plans_compile
from .dry import DryDevice, launches, normal, planned, planned_model
from .emulator import needs_compiler
from .few_rows_samples import APART, NORM_APART, NORMALIZED, TOGETHER, TOO_LONG, Gated
from .samples import ERROR, Sample, compare, results_of

COMPILES = {"gemm/gemv.cu", "gemm/gemv_packed.cu"}


def titles(gated: Gated) -> list[str]:
    return [launch.title for launch in launches(planned(gated.sample().graph))]


@pytest.mark.parametrize("gated", TOGETHER, ids=str)
def test_two_products_are_one_kernel(gated: Gated) -> None:
    (title,) = titles(gated)
    assert "2 products" in title


@pytest.mark.parametrize("gated", NORMALIZED, ids=str)
def test_a_normalization_is_a_part_of_the_product(gated: Gated) -> None:
    (title,) = titles(gated)
    assert "Normalization" in title


@pytest.mark.parametrize("gated", NORM_APART, ids=str)
def test_a_normalization_with_other_readers_is_not(gated: Gated) -> None:
    found = titles(gated)
    assert not any("behind" in title for title in found)
    assert sum(title.startswith("normalize_rows") for title in found) == 1


def test_what_is_too_much_for_an_epilogue_is_a_chain() -> None:
    product, rest = titles(TOO_LONG)
    assert product.startswith("gemv after RMSNormalization")
    assert rest == "elementwise Add"


@pytest.mark.parametrize("gated", APART, ids=str)
def test_others_stay_apart(gated: Gated) -> None:
    found = titles(gated)
    assert len(found) >= 2
    assert not any("2 products" in title for title in found)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    graphs = [gated.sample().graph for gated in [*TOGETHER, *NORMALIZED]]
    assert_plans_compile(graphs, target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("gated", [*TOGETHER, *NORMALIZED, *APART, *NORM_APART, TOO_LONG], ids=str)
def test_kernels(gated: Gated, emulated: CudaBackend) -> None:
    compare(gated.sample(), emulated, error=ERROR[gated.dtype])


MAGNITUDES = [1e-5, 1e-4, 1e-3, 1.0, 1e3, 6e3]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("magnitudes", [MAGNITUDES, *([one] for one in MAGNITUDES)], ids=str)
def test_normalized_rows_of_any_magnitude_keep_their_digits(
    magnitudes: list[float], emulated: CudaBackend
) -> None:
    """Products of rows and factors alone would be subnormal, or too large."""
    size = 512
    graph = Graph("normalized")
    data = (normal(len(magnitudes), size) * np.array(magnitudes)[:, None]).astype(float16)
    x = graph.add_input("x", TensorType(data.dtype, data.shape))
    factors = (20 * normal(size)[:size]).astype(float16)
    random = np.random.default_rng(0)
    b = random.integers(0, 256, (128, size // 32, 16)).astype(np.uint8)
    scales = (np.abs(normal(128 * size // 32)) / np.float32(size)).astype(float16)
    norm = graph.insert(RMSNormalization(epsilon=1e-16), [x, graph.constant(factors)])
    op = MatMulNBits(K=size, N=128, bits=4, block_size=32)
    y = graph.insert(op, [norm.output, graph.constant(b), graph.constant(scales)])
    graph.set_outputs({"y": y.output})
    infer(graph)
    (title,) = [launch.title for launch in launches(planned(graph))]
    assert title.startswith("gemv_packed after RMSNormalization")
    (got,) = results_of(Sample(graph, {"x": data}), [emulated])
    wide = data.astype(np.float64)
    rows = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-16) * factors.astype(np.float64)
    integers = np.stack([b & 15, b >> 4], -1).reshape(128, -1, 32) - 8.0
    exact = rows @ (integers * scales.astype(np.float64).reshape(128, -1, 1)).reshape(128, size).T
    off = np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert off.max() < 6e-4


def test_what_the_user_asks_for_is_heeded() -> None:
    """Products of another algorithm have separate kernels."""
    graph = Gated(1, 64, 24).sample().graph
    found = launches(planned(graph, algorithms={"MatMul": "tensor_cores"}))
    assert "gemv" not in {launch.entry for launch in found}
    (both,) = launches(planned(graph, algorithms={"MatMul": "gemv"}))
    assert "2 products" in both.title


@pytest.mark.parametrize("bits", [16, 4])
def test_a_decoder_has_no_kernels_between_its_products(bits: int, tmp_path: Path) -> None:
    """A layer has four products, as its gate and what it gates are one."""
    path, layers = tmp_path / "decoder.onnx", 2
    write(path, DecoderSizes(256, 1024, layers, 8, 2, 1000, 128), Packing(bits))
    with tercet.load(path) as model:
        found = [launch.title for launch in launches(planned_model(model, DryDevice()))]
    products = [title for title in found if title.startswith("gemv")]
    assert not any("normalize_rows" in title for title in found)
    assert len(products) == 4 * layers + 1
    assert sum("after RMSNormalization" in title for title in products) == 2 * layers + 1
    assert sum("2 products" in title for title in products) == layers
