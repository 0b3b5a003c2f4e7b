"""Two products of many rows that are combined: one kernel that computes what numpy does."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import tma_persistent
from tercet.backends.cuda.gemm.schedules.mixed_input import MixedInput, fitted
from tercet.backends.cuda.gemm.schedules.swap_ab import SwapAb
from tercet.backends.cuda.gemm.tables.f16 import TMA_PAIRS
from tercet.backends.cuda.gemm.tables.mixed_input import MIXED_INPUT
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.targets import H200, Target
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
#: Those of some rows, and which kernel they become.
SOME_ROWS = [
    (Gated(197, 1024, 2816), "swap_ab"),
    (Gated(257, 768, 2048, bfloat16, geglu, bias="added"), "swap_ab"),
    (Gated(32, 1536, 8960), "swap_ab"),
    (Gated(128, 896, 4864), "mma_linear"),
    (Gated(600, 1024, 2816), "mma_linear"),
]
#: Those of small size, for the emulator.
SMALL = [
    Gated(300, 136, 200),
    Gated(9, 72, 8, bfloat16, silu_apart),
    Gated(150, 64, 264, float16, geglu, bias="added"),
    Gated(40, 200, 72, kind="Gemm", bias="both"),
    Gated(130, 72, 136, bfloat16, reglu, kind="Gemm", bias="second"),
]
#: Those with weights of a few bits that become one kernel, and which.
PACKED = [
    (Gated(9, 2048, 5632, bits=4), "swap_ab"),
    (Gated(32, 4096, 14336, bfloat16, silu_apart, bits=4, block=128, zeros=True), "swap_ab"),
    (Gated(24, 896, 4864, float16, geglu, bits=8, block=16, bias="both"), "mixed_input"),
    (Gated(100, 2048, 8192, bits=4), "swap_ab"),
]
#: Those of small size, for the emulator.
SMALL_PACKED = [
    Gated(9, 300, 40, bits=4),
    Gated(20, 130, 72, bfloat16, silu_apart, bits=4, zeros=True),
    Gated(33, 264, 8, float16, geglu, bits=8, block=16, bias="both"),
    Gated(17, 75, 136, float16, reglu, bits=2, block=64, bias="second"),
    Gated(40, 600, 24, float16, bits=4, block=128, bias="added"),
]
#: Those whose products stay apart: other dtypes, sizes and readers.
APART = [
    Gated(4096, 1024, 2820),
    Gated(4096, 1020, 2816),
    Gated(4096, 1024, 2816, float32),
    Gated(4096, 1024, 2816, reader="node"),
    Gated(4096, 1024, 2816, reader="output"),
    Gated(32, 1024, 2820, bits=4),
    Gated(32, 1024, 2816, float32, bits=4),
    Gated(32, 1024, 2816, bits=4, reader="node"),
]


def titles(gated: Gated) -> list[str]:
    return [launch.title for launch in launches(planned(gated.sample().graph))]


@pytest.mark.parametrize("gated", TOGETHER, ids=str)
def test_two_products_are_one_kernel(gated: Gated) -> None:
    (title,) = titles(gated)
    assert title.startswith("mma_linear")
    assert "2 products" in title


@pytest.mark.parametrize(("gated", "entry"), SOME_ROWS, ids=str)
def test_some_rows_are_those_of_the_right_operand(gated: Gated, entry: str) -> None:
    (title,) = titles(gated)
    assert title.startswith(entry)
    assert "2 products" in title


@pytest.mark.parametrize("gated", APART, ids=str)
def test_others_stay_apart(gated: Gated) -> None:
    assert not any("2 products" in title for title in titles(gated))


@pytest.mark.parametrize(("gated", "entry"), PACKED, ids=str)
def test_two_products_of_a_few_bits_are_one_kernel(gated: Gated, entry: str) -> None:
    (title,) = titles(gated)
    assert title.startswith(entry)
    assert "2 products" in title


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
    assert tma_persistent.resources(tile).fits(H200)
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


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("way", ["whole", "cluster"])
@pytest.mark.parametrize("gated", SMALL_PACKED, ids=str)
def test_packed_kernels(
    gated: Gated, way: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tiles that several blocks share, too, whatever is estimated to be fastest."""
    splits = 1 if way == "whole" else 2
    monkeypatch.setattr(SwapAb, "choose", lambda *_: None)
    monkeypatch.setattr(
        MixedInput, "choose", lambda product, target: chosen_of(product, target, splits)
    )
    compare(gated.sample(), hopper, error=ERROR[gated.dtype])
    compiler: Any = hopper.device.compiler
    assert [source.file for source in compiler.sources] == ["gemm/mixed_input.cu"]


def chosen_of(product: MixedInput, target: Target, splits: int) -> TimedConfig:
    """Return a tile for a product of few bits; two products together seem faster."""
    tile = next(
        found for tile in MIXED_INPUT if (found := fitted(tile, product.weights, target, splits))
    )
    return TimedConfig(2.0 - product.products, Config(tile, splits))
