"""Products of few rows: their kernels compile, and compute what numpy does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.gemv import choose
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import bfloat16, float16, float32

from .cubins import assert_plans_compile
from .dry import normal
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
        matmul(2, 40, 8460, float16),  # blocks of few warps
    ]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    found = assert_plans_compile([each.graph for each in samples()], target, cache, COMPILES)
    assert {launch.file for launch in found} == COMPILES


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize(("n", "warps"), [(768, 16), (2048, 16), (4096, 16), (8448, 4), (32000, 4)])
def test_blocks_are_small_where_many_wait(n: int, warps: int, dtype: Any) -> None:
    tile = choose((1, n, 2048), dtype, H200)
    assert tile.warps == warps
    assert tile.warps * tile.resident == 32, "registers suffice for as many threads"
    assert tile.blocks(n) > H200.processors or tile.eights == 1


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)
