"""Two products of many rows that are combined: one kernel that computes what numpy does."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import tma_persistent
from tercet.backends.cuda.gemm.tables.f16 import TMA_PAIRS
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.ir.dtypes import bfloat16, float16, float32

from .dry import launches, planned
from .emulator import needs_compiler
from .few_rows_samples import Gated, geglu, reglu, silu_apart
from .samples import ERROR, compare

BY_TITLE = {str(tile): tile for tile in TMA_PAIRS}

#: Those that become one kernel.
TOGETHER = [
    Gated(4096, 1024, 2816),
    Gated(1600, 512, 2048, bfloat16, silu_apart),
    Gated(4096, 768, 3072, float16, geglu, bias="added"),
    Gated(1024, 2048, 4096, kind="Gemm", bias="both"),
    Gated(2048, 512, 1536, bfloat16, reglu, kind="Gemm", bias="second"),
]
#: Those of small size, for the emulator.
SMALL = [
    Gated(300, 136, 200),
    Gated(9, 72, 8, bfloat16, silu_apart),
    Gated(150, 64, 264, float16, geglu, bias="added"),
    Gated(40, 200, 72, kind="Gemm", bias="both"),
    Gated(130, 72, 136, bfloat16, reglu, kind="Gemm", bias="second"),
]
#: Those whose products stay apart: other dtypes, sizes and readers.
APART = [
    Gated(4096, 1024, 2820),
    Gated(4096, 1020, 2816),
    Gated(4096, 1024, 2816, float32),
    Gated(4096, 1024, 2816, reader="node"),
    Gated(4096, 1024, 2816, reader="output"),
]


def titles(gated: Gated) -> list[str]:
    return [launch.title for launch in launches(planned(gated.sample().graph))]


@pytest.mark.parametrize("gated", TOGETHER, ids=str)
def test_two_products_are_one_kernel(gated: Gated) -> None:
    (title,) = titles(gated)
    assert title.startswith("mma_linear")
    assert "2 products" in title


@pytest.mark.parametrize("gated", APART, ids=str)
def test_others_stay_apart(gated: Gated) -> None:
    assert not any("2 products" in title for title in titles(gated))


def force(tile: CtaTile, patch: pytest.MonkeyPatch) -> None:
    """Let every two products be computed with one tile."""
    patch.setattr(
        tma_persistent,
        "choose",
        lambda gemm, epilogue, target, products=1: TimedConfig(2.0 - products, Config(tile)),
    )


@pytest.mark.parametrize("title", BY_TITLE)
def test_tiles_fit(title: str) -> None:
    tile = BY_TITLE[title]
    assert tma_persistent.shared(tile) <= H200.shared
    assert tile.bn % 128 == 0


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("gated", "title"), list(zip(SMALL, cycle(BY_TITLE), strict=False)), ids=str
)
def test_kernels(
    gated: Gated, title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(BY_TITLE[title], monkeypatch)
    compare(gated.sample(), hopper, error=ERROR[gated.dtype])
    compiler: Any = hopper.device.compiler
    assert [source.file for source in compiler.sources] == ["gemm/tma_persistent.cu"]
