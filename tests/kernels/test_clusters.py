"""Products whose sums the blocks of a cluster share (split-K), on the emulator against numpy."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.gemm import conv_f16, f16, int8
from tercet.backends.cuda.gemm.problem import Problem
from tercet.backends.cuda.gemm.schedules import multistage, tma
from tercet.backends.cuda.gemm.schedules.tma_staging import Staging, TmaProduct
from tercet.backends.cuda.gemm.tables.f16 import MULTISTAGE, TMA
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig, inbox
from tercet.backends.cuda.recipe.operands import ceil_div
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.pool import MaxPool

from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

TILES = {str(tile): tile for tile in MULTISTAGE}
#: Tiles of wgmma and of mma.sync with numbers of blocks that divide their sums or do not.
FORMS = [("w64x16", 2), ("w64x64", 3), ("w128x64", 2), ("32x32", 4), ("64x64", 5)]


def force(patch: pytest.MonkeyPatch, tile: CtaTile, splits: int) -> None:
    """Compute all products by `multistage.cu` in this form."""
    for module in (multistage, int8):
        patch.setattr(module, "choose", lambda *_, **__: TimedConfig(0.0, Config(tile, splits)))
    others = {f16: ("fed_by_tma", "persistent", "swapped"), conv_f16: ("_by_tma", "persistent")}
    for module, names in others.items():
        for other in names:
            patch.setattr(module, other, lambda *_: None)


def convolution(x: Array, w: Array, *, adds: bool = False, **attributes: Any) -> Sample:
    """Return a convolution with bias and Relu, and with a residual if it `adds` one."""
    graph, dtype = Graph(), x.dtype
    image = graph.add_input("x", TensorType(dtype, x.shape))
    constants = [graph.constant(a.astype(dtype)) for a in (w, normal(w.shape[0]))]
    y = graph.insert(Conv(**attributes), [image, *constants]).output
    infer(graph)
    feeds = {"x": x}
    if adds:
        dims = y.tensor.dims
        feeds["z"] = normal(*dims).astype(dtype)
        y = graph.insert(Add(), [y, graph.add_input("z", TensorType(dtype, dims))]).output
    graph.set_outputs({"y": graph.insert(Relu(), [y]).output})
    infer(graph)
    return Sample(graph, feeds)


def half(*dims: int) -> Array:
    return normal(*dims).astype(float16)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("name", "splits"), FORMS)
def test_convolutions(
    name: str, splits: int, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, and groups of pixels, whose results do not fill their tiles."""
    force(monkeypatch, TILES[name], splits)
    windows = convolution(half(2, 40, 5, 7), normal(24, 40, 3, 3) / 16, adds=True, pads=(1,) * 4)
    groups = convolution(half(1, 640, 3, 3), normal(18, 320, 1, 1) / 16, group=2)
    for found in (windows, groups):
        assert {one.cluster for one in launches(planned(found.graph))} == {(1, 1, splits)}
        compare(found, h200)


@pytest.mark.parametrize("tile", ["w64x16", "w64x96", "w128x64", "32x32", "64x64"])
@pytest.mark.parametrize("filters", [64, 100])
def test_words_of_one_block(
    h200: CudaBackend, monkeypatch: pytest.MonkeyPatch, tile: str, filters: int
) -> None:
    """Lanes exchange sums, some at a time if a tile has many; 100 filters are no whole words."""
    force(monkeypatch, TILES[tile], 1)
    found = convolution(half(1, 64, 9, 9), half(filters, 64, 1, 1) / 8, adds=True)
    compare(found, h200)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("layout", ["run", "squares", "tapwise"])
@pytest.mark.parametrize("splits", [1, 5])
def test_groups_and_taps_of_the_copy_engine(
    layout: str, splits: int, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of 24 channels, alone or joined, whose weights a block keeps; steps that are split."""

    def expected(p: TmaProduct, staging: Staging, config: Config, target: Target) -> float:
        own = staging.layout.name.lower() == layout and config.splits == splits
        return (config.tile.bm - tma.keeps(p, config)) * 1e-3 if own else inf

    monkeypatch.setattr(tma, "_expected", expected)
    monkeypatch.setattr(tma, "_configs", lambda p, tile, *_: [Config(tile, splits)])
    monkeypatch.setattr(multistage, "time_of", lambda *_: inf)
    pads, strides = (1, 1, 1, 1), (2, 1) if layout == "tapwise" else (1, 1)
    weights = normal(96, 24, 3, 3) / 12
    how: dict[str, Any] = {"group": 4, "pads": pads, "strides": strides}
    found = convolution(half(2, 96, 7, 9), weights, adds=layout == "run", **how)
    (launch,) = launches(planned(found.graph))
    assert (launch.entry, launch.cluster) == ("mma_bulk", (1, splits, 1))
    compare(found, h200)


@pytest.mark.slow
@needs_compiler
def test_integers(h200: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that wrap around or are NaN as float32: they are sent as they are, and exact."""
    force(monkeypatch, TILES["64x64"], 3)
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (21, 700)).astype(np.int8)
    b = rng.integers(-128, 128, (700, 70)).astype(np.int8)
    b[:, ::3] = -1  # sums whose bits are those of a NaN
    found = sample("MatMulInteger", [a, b], (1,))
    (launch,) = [one for one in launches(planned(found.graph)) if one.file == "gemm/multistage.cu"]
    assert launch.cluster == (1, 1, 3)
    compare(found, h200)


@needs_compiler
@pytest.mark.parametrize("splits", [3, 5])
def test_results_that_are_pooled(
    splits: int, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block finishes all four results of a maximum, so that shares are not equal."""

    def expected(p: TmaProduct, staging: Staging, config: Config, target: Target) -> float:
        return config.tile.bm * config.tile.bn * 1e-6 if p.pooled else inf

    monkeypatch.setattr(tma, "_expected", expected)
    monkeypatch.setattr(tma, "_configs", lambda p, tile, *_: [Config(tile, splits)])
    found = convolution(half(1, 80, 12, 10), normal(32, 80, 3, 3) / 27, pads=(1,) * 4)
    (y,) = found.graph.outputs.values()
    pool = MaxPool(kernel_shape=(2, 2), strides=(2, 2))
    found.graph.set_outputs({"y": found.graph.insert(pool, [y]).output})
    infer(found.graph)
    (launch,) = launches(planned(found.graph))
    assert (launch.entry, launch.cluster) == ("mma_bulk", (1, splits, 1))
    compare(found, h200)


@pytest.mark.parametrize(
    ("channels", "size", "groups", "expected"),
    [
        (128, 28, 1, "mma w64x64 split 4 Relu"),  # ResNet-50: 13 tiles of two parts
        (256, 14, 1, "mma_bulk squares 64x64 deep split 4 Relu"),
        (336, 14, 14, "mma w64x32 Relu"),  # RegNetY: 112 blocks of 64x16 share multiprocessors
        (32, 56, 1, "mma w64x16 Relu"),
    ],
)
def test_windows_of_one_image(channels: int, size: int, groups: int, expected: str) -> None:
    """What was fastest within networks at batch 1."""
    image, w = half(1, channels, size, size), normal(channels, channels // groups, 3, 3)
    found = convolution(image, w, group=groups, pads=(1,) * 4)
    (launch,) = launches(planned(found.graph))
    assert launch.title == expected


def test_an_inbox_has_room_for_every_share() -> None:
    for tile in MULTISTAGE:
        for blocks in range(2, 9):
            share = (inbox(tile.bm, tile.bn, blocks) - 16) // 32 // blocks
            assert share % (tile.bn // 8) == 0
            assert share * blocks >= tile.bm * tile.bn // 8
            columns = (inbox(tile.bm, tile.bn, blocks, by_columns=True) - 16) // 32 // blocks
            apart, rest = divmod(columns, tile.bn // 8)
            assert (rest, apart % 2) == (0, 1)  # in different banks
            assert columns >= share
    for tile in TMA:  # pooled: four rows belong together
        for blocks in range(2, 9):
            config, rows = Config(tile, blocks), ceil_div(tile.bm // 4, blocks) * 4
            product: Any = SimpleNamespace(chunk=64, pooled=True, whole=True)
            staging: Any = SimpleNamespace(stage=lambda _: 0)
            room = tma.resources(product, config, staging).inbox
            assert room >= 16 + 4 * blocks * rows * tile.bn


def test_blocks_of_clusters_fit_in_shared_memory() -> None:
    """Tiles whose stages leave no room for an inbox are not split, or less."""
    (largest,) = [tile for tile in MULTISTAGE if (tile.bm, tile.bn) == (128, 256)]
    assert not multistage.fits(Config(largest, 2), Problem(256, 512, 4096), H200)
    assert multistage.fits(Config(largest, 2), Problem(256, 512, 256), H200)
    for m, n, k in ((256, 512, 4096), (64, 64, 8192), (512, 1024, 65536)):
        problem = Problem(m, n, k)
        assert multistage.fits(multistage.choose(problem, H200).config, problem, H200)
