"""Products of few rows with constant weights on Hopper: against float64, and what is planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import f16, packed
from tercet.backends.cuda.gemm.schedules import swap_ab, tma
from tercet.backends.cuda.gemm.schedules.swap_ab import SwapAb
from tercet.backends.cuda.gemm.tile import Config, TimedConfig, clusters_of
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.matmul import MatMul

from .cubins import all_compile, assert_arguments, assert_fits
from .dry import apply, compiled_files, launches, normal, planned, single
from .emulator import needs_compiler
from .few_rows_samples import Gated, geglu
from .packed_samples import nbits
from .samples import ERROR, Sample, compare, results_of, sample
from .test_mixed_input import KINDS, LAYERS, assert_exact, samples, title, with_epilogue

COMPILES = {"gemm/swap_ab.cu"}
#: Warpgroups with rows of their own and slices of K, and blocks that share a tile.
WAYS = ((1, 1, 1), (1, 4, 1), (2, 2, 2), (3, 1, 3), (4, 1, 2), (1, 3, 2))


@pytest.fixture
def hopper(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """A Hopper whose other kernels take forever."""
    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", H200)
    monkeypatch.setattr(packed, "time_unpacked", lambda *_: inf)
    monkeypatch.setattr(packed, "MIXED_ROWS", 0)
    monkeypatch.setattr(f16, "time_from_workspace", lambda *_: inf)
    monkeypatch.setattr(swap_ab, "LARGE_WEIGHTS", 0)
    return emulated


def forced(way: tuple[int, int, int], patch: pytest.MonkeyPatch) -> None:
    """Have products done in one way; where it has no room, in that with as many splits at most."""

    def choose(self: SwapAb, target: Target) -> TimedConfig | None:
        def distance(config: Any) -> tuple[bool, int]:
            tile = config.tile
            return config.splits != way[2], abs(tile.groups - way[0]) + abs(tile.slices - way[1])

        found = min(self.configs(target), key=distance, default=None)
        return None if found is None else TimedConfig(0.0, found)

    patch.setattr(SwapAb, "choose", choose)


def linear(m: int, k: int, n: int, dtype: DType) -> Sample:
    """Return a layer with a bias."""
    x, w = normal(m, k).astype(dtype), (normal(k, n) / np.float32(np.sqrt(k))).astype(dtype)
    return sample("Gemm", [x, w, normal(n).astype(dtype)], (1, 2))


def assert_linear(found: Sample, got: Any) -> None:
    """Compare a layer with float64."""
    _, w, b = (v.data for v in found.graph.nodes[0].inputs if v is not None)
    assert w is not None
    assert b is not None
    exact = found.feeds["x0"].astype(np.float64) @ w.astype(np.float64) + b.astype(np.float64)
    bound = 1e-3 if got.dtype == float16 else 8e-3
    assert np.abs(got.astype(np.float64) - exact).max() <= bound * np.abs(exact).max()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("found", "way"),
    [
        (found, WAYS[i % len(WAYS)])
        for i, found in enumerate([s for s in samples() if s.feeds["x0"].shape[1] % 8 == 0])
    ]
    + [
        (nbits(17, 1032, 200, 4, 32, zeros="packed", bias=True, dtype=float16), (2, 2, 2)),
        (nbits(33, 2600, 130, 8, 16, zeros="floats", bias=True, dtype=bfloat16), (3, 1, 3)),
        (nbits(130, 2056, 260, 4, 256, zeros="floats", dtype=float16), (1, 3, 2)),
        (nbits(40, 2048, 300, 2, 16, bias=True, dtype=bfloat16), (1, 4, 1)),
        (nbits(128, 1536, 257, 4, 16, zeros="packed", dtype=bfloat16), (2, 1, 2)),
        (with_epilogue(nbits(9, 4096, 70, 4, 128, dtype=float16)), (1, 2, 1)),
    ],
    ids=lambda value: title(value) if isinstance(value, Sample) else str(value),
)
def test_packed_weights(
    found: Sample, way: tuple[int, int, int], hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More stages than fit in shared memory at a time, and less than one step."""
    forced(way, monkeypatch)
    (got,) = results_of(found, [hopper])
    assert compiled_files(hopper) == COMPILES
    assert_exact(found, got)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("gated", "way"),
    [
        (Gated(17, 1040, 64), (1, 2, 2)),
        (Gated(32, 712, 72, bfloat16, geglu), (1, 3, 1)),
        (Gated(150, 392, 72), (1, 2, 1)),  # two blocks of rows
        (Gated(150, 392, 136), (2, 2, 1)),
    ],
    ids=str,
)
def test_pairs_of_16_bits(
    gated: Gated,
    way: tuple[int, int, int],
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forced(way, monkeypatch)
    compare(gated.sample(), hopper, error=ERROR[gated.dtype])
    assert compiled_files(hopper) == COMPILES


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("sizes", "dtype", "way"),
    [
        ((9, 64, 70), float16, (1, 1, 1)),
        ((32, 1000, 130), bfloat16, (2, 2, 2)),
        ((33, 1800, 66), float16, (1, 4, 1)),
        ((64, 712, 200), bfloat16, (3, 1, 3)),
        ((16, 8, 5), float16, (1, 1, 1)),
        ((104, 600, 130), float16, (1, 2, 3)),
        ((150, 392, 72), bfloat16, (1, 3, 2)),  # two blocks of rows
    ],
    ids=str,
)
def test_weights_of_16_bits(
    sizes: tuple[int, int, int],
    dtype: DType,
    way: tuple[int, int, int],
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forced(way, monkeypatch)
    found = linear(*sizes, dtype)
    (got,) = results_of(found, [hopper])
    assert compiled_files(hopper) == COMPILES
    assert_linear(found, got)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("slices", "stages"), [(2, 3), (3, 4), (3, 2), (2, 9)])
def test_copies_may_end_in_any_order(
    slices: int, stages: int, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices share stages; the emulated copy that began last ends first."""
    own = SwapAb.configs

    def configs(self: SwapAb, target: Target) -> Iterator[Config]:
        for config in own(self, target):
            yield replace(config, tile=replace(config.tile, stages=stages))

    monkeypatch.setattr(SwapAb, "configs", configs)
    forced((1, slices, 1), monkeypatch)
    found = linear(16, 24 * 64, 70, float16)
    (got,) = results_of(found, [hopper])
    assert_linear(found, got)


# ── what is compiled, and planned ────────────────────────────────────────────────────────────────

#: Weights as models have them, packed or not.
WEIGHTS = (*KINDS, (16, 0, "", float16))


def made(patch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Yield launches of all numbers of warpgroups, and of each number of threads all weights.

    What is kept in registers depends on the weights, and how many there are on the threads.
    """
    patch.setattr(packed, "time_unpacked", lambda *_: inf)
    patch.setattr(packed, "MIXED_ROWS", 0)
    patch.setattr(f16, "time_from_workspace", lambda *_: inf)
    patch.setattr(swap_ab, "LARGE_WEIGHTS", 0)
    ways = [(g, s, 1) for g in range(1, 5) for s in range(1, 8) if g * s <= 7]
    seen = set[tuple[int, int]]()
    for i, way in enumerate(ways):
        forced(way, patch)
        for j, (bits, block, zeros, dtype) in enumerate(WEIGHTS):
            if (prod(way), j) in seen and j != i % len(WEIGHTS):
                continue
            seen.add((prod(way), j))
            rows = (9, 32, 64, 128)[(i + j) % 4] if prod(way) < 5 else 16 + 16 * (j % 2)
            if bits == 16:
                found = linear(rows, 2048, 300, dtype)
            else:
                found = nbits(rows, 2048, 300, bits, block, zeros=zeros, dtype=dtype)
            yield from (x for x in launches(planned(found.graph)) if x.file in COMPILES)


@pytest.mark.slow
def test_nothing_spills(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, found = Compiler(H200, cache), list(made(monkeypatch))
    assert len({launch.source for launch in found}) > 30
    assert_fits(found, compiler)


def test_compiles(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(made(monkeypatch))
    all_compile([launch.source for launch in found], H200, cache, COMPILES)
    assert_arguments(found, H200, cache)


@pytest.mark.parametrize(("k", "n"), [*LAYERS, (14336, 4096), (4096, 14336), (4096, 1024)])
@pytest.mark.parametrize("rows", [33, 64, 128])
def test_all_blocks_of_a_decoding_step_run_at_once(rows: int, k: int, n: int) -> None:
    (launch,) = launches(planned(nbits(rows, k, n, 4, 32, dtype=float16).graph))
    tiles, splits, _ = launch.grid
    assert launch.entry == "swap_ab"
    assert launch.cluster == (1, splits, 1)
    together = dict(launch.constants)["RESIDENT"] * H200.processors
    assert 0.45 * H200.processors <= prod(launch.grid) <= together
    assert splits == 1 or tiles <= clusters_of(splits, H200)
    if prod(launch.grid) <= H200.processors:
        assert 2 * (launch.shared + 1024) > H200.shared + 1024, "two blocks on a multiprocessor"


def test_rows_that_the_copy_engine_cannot_read_are_left_to_others() -> None:
    for k in (2044, 2050):
        (launch, *_) = launches(planned(nbits(64, k, 512, 4, 32, dtype=float16).graph))
        assert launch.entry == "mixed_input"
        x, w = normal(32, k).astype(float16), normal(k, 512).astype(float16)
        graph = single("MatMul", [x, w])
        assert launches(planned(graph))[-1].entry != "swap_ab"


def test_equal_layers_are_compared_with_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def count(owner: Any) -> None:
        choose = owner.choose

        def counting(*given: Any, **named: Any) -> Any:
            compared.append(owner)
            return choose(*given, **named)

        monkeypatch.setattr(owner, "choose", counting)

    for owner in (SwapAb, tma):
        count(owner)
    graph = Graph("layers")
    x = graph.add_input("x", TensorType(float16, (128, 768)))
    for layer in range(3):
        x = apply(graph, MatMul(), x, (normal(768, 768) * (layer + 1)).astype(np.float16))
    graph.set_outputs({"y": x})
    infer(graph)
    planned(graph)
    assert compared == [SwapAb, tma]
