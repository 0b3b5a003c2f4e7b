"""Products of few rows: their kernels compile, and compute what numpy does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.gemv import choose
from tercet.backends.cuda.recipe.operands import Packed
from tercet.backends.cuda.recipe.packing import KernelPacking
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import bfloat16, float16, float32

from .cubins import assert_plans_compile
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample

COMPILES = {"gemm/gemv.cu"}


def gemm(m: int, k: int, n: int, dtype: Any, **attributes: Any) -> Sample:
    """Return x @ w + c."""
    w = normal(n, k) if attributes.get("transB") else normal(k, n)
    inputs = [normal(m, k).astype(dtype), (w / 8).astype(dtype), normal(n).astype(dtype)]
    return sample("Gemm", inputs, (1, 2), **attributes)


def matmul(m: int, k: int, n: int, dtype: Any) -> Sample:
    """Return x @ w."""
    inputs = [normal(m, k).astype(dtype), (normal(k, n) / 8).astype(dtype)]
    return sample("MatMul", inputs, (1,))


def samples() -> list[Sample]:
    """Return products of one to eight rows, whole and broken words, few and many columns."""
    return [
        *(matmul(1, 256, 40, dtype) for dtype in (float16, bfloat16, float32)),
        *(gemm(3, 1100, 17, dtype, transB=1) for dtype in (float16, bfloat16, float32)),
        *(gemm(8, 75, 9, dtype, alpha=0.5) for dtype in (float16, float32)),
        matmul(5, 2080, 8, float16),
        matmul(2, 8, 1, float32),
        matmul(2, 40, 8460, float16),  # many blocks
    ]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    found = assert_plans_compile([each.graph for each in samples()], target, cache, COMPILES)
    assert {launch.file for launch in found} == COMPILES


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("n", [768, 2048, 4096, 8448, 32000])
def test_all_multiprocessors_have_loads_in_flight(n: int, dtype: Any) -> None:
    tile, processors = choose((1, n, 2048), dtype, H200), H200.processors
    # Blocks that nearly fill the GPU are alone on their multiprocessors, with more loads each.
    alone = 0.75 * processors <= tile.blocks(n) <= processors
    assert tile.resident == (1 if alone else 2)
    assert tile.warps == 16
    assert tile.blocks(n) >= 0.75 * processors or tile.eights == 1


@pytest.mark.parametrize(("terms", "steps"), [(512, 1), (1280, 3), (2048, 4)])
def test_weights_of_a_classifier_are_all_in_flight(terms: int, steps: int) -> None:
    """A single row of float32, of few blocks: each thread has two buffers of these steps."""
    tile = choose((1, 1000, terms), float32, H200)
    assert (tile.eights, tile.warps, tile.steps) == (1, 16, steps)
    assert choose((1, 4096, terms), float32, H200).warps == 8
    assert choose((2, 1000, terms), float32, H200).warps == 8
    assert choose((1, 1000, terms + 2048), float32, H200).warps == 8
    assert choose((1, 1000, 192), float32, H200).warps == 8


@pytest.mark.parametrize(("terms", "warps"), [(4, 4), (200, 8), (448, 16)])
def test_many_blocks_of_short_rows_have_few_warps(terms: int, warps: int) -> None:
    """A warp without terms only waits; few blocks keep all, as they take no turns."""
    assert choose((8, 30000, terms), float16, H200).warps == warps
    assert choose((8, 256, terms), float16, H200).warps == 16


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32])
def test_a_kernel_transposes_weights(dtype: Any) -> None:
    (launch,) = launches(planned(matmul(1, 256, 400, dtype).graph))
    weights = launch.args["w0"]
    assert isinstance(weights, Packed)
    assert isinstance(weights.pack, KernelPacking)
    assert weights.pack.launch(normal(256, 400).astype(dtype)) is not None


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("m", "k", "n", "tile"),
    [
        (1, 2100, 30, "16 rows, 16 warps, 2 steps"),
        (3, 8200, 32, "16 rows, 16 warps, 4 steps"),
        (2, 1100, 130, "16 rows, 16 warps, 1 steps"),
    ],
)
def test_tiles_of_few_multiprocessors(
    m: int, k: int, n: int, tile: str, hopper: CudaBackend
) -> None:
    found = matmul(m, k, n, float16)
    device: Any = hopper.device
    assert tile in launches(planned(found.graph, device))[0].title
    compare(found, hopper)
