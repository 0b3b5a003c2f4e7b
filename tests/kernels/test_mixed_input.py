"""Products of some rows with packed weights: against float64, by every tile, and what is planned.

`packed_samples` has the operands; the emulator runs the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import packed
from tercet.backends.cuda.gemm.schedules import mixed_input
from tercet.backends.cuda.gemm.schedules.mixed_input import MixedInput
from tercet.backends.cuda.gemm.schedules.swap_ab import SwapAb
from tercet.backends.cuda.gemm.tables.mixed_input import MIXED_INPUT
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.packed import MatMulNBits

from .cubins import assert_fits, assert_plans_compile
from .dry import DryCompiler, DryDevice, launches, normal, planned
from .emulator import needs_compiler
from .packed_samples import nbits
from .samples import Sample, results_of

COMPILES = {"gemm/mixed_input.cu"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to `swap_ab.cu`."""
    monkeypatch.setattr(SwapAb, "choose", lambda *_: None)


TARGETS = pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
#: Largest error by the largest result.
BOUNDS: dict[DType, float] = {float16: 1e-3, bfloat16: 8e-3}


# ── float64 ──────────────────────────────────────────────────────────────────────────────────────


def weights_of(sample: Sample) -> Array:
    """Return the weights [n, k] of a product in float64, as the operator's text has them."""
    node = sample.graph.nodes[0]
    op, data = node.op, [None if v is None else v.data for v in node.inputs]
    assert isinstance(op, MatMulNBits)
    _, b, scales, zeros, *_ = (*data, None, None)
    assert b is not None
    assert scales is not None
    integers = _unpacked(b.reshape(op.N, -1), op.bits)
    if zeros is None:
        zeros = np.full((op.N, op.blocks), 2 ** (op.bits - 1))
    elif zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(op.N, -1), op.bits)[:, : op.blocks]
    wide, shape = np.float64, (op.N, op.blocks, 1)
    blocks = integers.reshape(op.N, op.blocks, -1) - zeros.astype(wide).reshape(shape)
    return (blocks * scales.astype(wide).reshape(shape)).reshape(op.N, -1)[:, : op.K]


def _unpacked(rows: Array, bits: int) -> Array:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (rows[..., None] >> shifts & np.uint8(2**bits - 1)).reshape(len(rows), -1).astype(int)


def assert_exact(sample: Sample, got: Array) -> None:
    """Compare with a product in float64, its bias and its epilogue; see `BOUNDS`."""
    node = sample.graph.nodes[0]
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    exact = sample.feeds["x0"].astype(np.float64) @ weights_of(sample).T
    if bias is not None and bias.data is not None:
        exact = exact + bias.data.astype(np.float64)
    if "z" in sample.feeds:
        exact = np.maximum(exact, 0) + sample.feeds["z"].astype(np.float64)
    found = got.astype(np.float64)
    assert found.shape == exact.shape
    assert np.abs(found - exact).max() <= BOUNDS[got.dtype] * np.abs(exact).max()


def with_epilogue(sample: Sample) -> Sample:
    """Return max(sample, 0) + z."""
    graph = sample.graph
    y = graph.nodes[0].output
    z = graph.add_input("z", y.tensor)
    relu = graph.insert(OPERATORS["", "Relu"](), [y], 1, name="relu")
    add = graph.insert(OPERATORS["", "Add"](), [relu.output, z], 1, name="add")
    graph.set_outputs({"y": add.output})
    infer(graph)
    more = normal(*y.tensor.dims).astype(y.tensor.dtype)
    return Sample(graph, {**sample.feeds, "z": more})


def title(sample: Sample) -> str:
    """Return what its first node is applied to."""
    return sample.graph.nodes[0].signature()


def samples() -> list[Sample]:
    """Return products of nine to 130 rows, of odd sizes, bits, blocks and kinds of zeros."""
    f16, bf16 = float16, bfloat16
    return [
        nbits(9, 64, 9, 4, 32, dtype=f16),
        nbits(13, 75, 33, 4, 16, zeros="packed", bias=True, dtype=bf16),
        nbits(16, 512, 64, 4, 128, zeros="packed", dtype=f16),
        nbits(17, 1030, 24, 2, 16, zeros="packed", dtype=f16),
        nbits(31, 333, 40, 8, 16, zeros="floats", bias=True, dtype=f16),
        nbits(33, 600, 70, 4, 64, dtype=bf16),
        nbits(47, 260, 17, 8, 64, zeros="packed", dtype=bf16),
        nbits(64, 300, 5, 2, 128, zeros="floats", dtype=bf16),
        nbits(130, 520, 41, 4, 256, zeros="floats", bias=True, dtype=f16),
        nbits(101, 129, 8, 8, 256, dtype=f16),
        nbits(40, 34, 130, 2, 32, bias=True, dtype=f16),
        nbits(35, 100, 30, 4, 16, zeros="packed", dtype=f16),
        with_epilogue(nbits(20, 96, 24, 4, 32, zeros="packed", dtype=f16)),
        with_epilogue(nbits(35, 77, 19, 8, 32, bias=True, dtype=bf16)),
    ]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=title)
def test_against_float64(
    sample: Sample, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "time_unpacked", lambda *_: inf)  # small ones take as long unpacked
    (got,) = results_of(sample, [emulated])
    compiler: Any = emulated.device.compiler
    assert {source.file for source in compiler.sources} <= COMPILES | {"gemm/reduce_splits_f16.cu"}
    assert_exact(sample, got)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "sample", [s for s in samples() if s.feeds["x0"].shape[1] % 2 == 0], ids=title
)
def test_unpacked_against_float64(
    sample: Sample, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What more rows would take: weights that are unpacked into the workspace."""
    monkeypatch.setattr(MixedInput, "choose", lambda *_: None)
    (got,) = results_of(sample, [emulated])
    compiler: Any = emulated.device.compiler
    assert "gemm/unpack_weights.cu" in {source.file for source in compiler.sources}
    assert_exact(sample, got)


# ── every tile ───────────────────────────────────────────────────────────────────────────────────


def forced(tile: CtaTile, splits: int, patch: pytest.MonkeyPatch) -> None:
    """Have products done by a tile of the table; where it has no room, by the one chosen."""
    real = MixedInput.choose

    def choose(self: MixedInput, target: Target) -> TimedConfig | None:
        found = mixed_input.fitted(tile, self.weights, target)
        if found is not None:
            return TimedConfig(0.0, Config(found, splits))
        chosen = real(self, target)
        assert chosen is None or _form(chosen.config.tile) != _form(tile)
        return chosen

    patch.setattr(MixedInput, "choose", choose)


def _form(tile: CtaTile) -> tuple[int, ...]:
    return tile.bm, tile.bn, tile.slices


CASES = (
    (600, 70, 4, 32, "packed", float16),
    (1100, 129, 8, 16, "floats", bfloat16),
    (1300, 40, 2, 64, "", float16),
)
#: Every tile whole, in two blocks that leave partial sums, and in two of a cluster.
WAYS = [
    (tile, way, CASES[(i + j) % len(CASES)])
    for i, tile in enumerate(MIXED_INPUT)
    for j, way in enumerate(("whole", "partial sums", "cluster"))
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("tile", "way", "case"), WAYS, ids=str)
def test_every_tile(
    tile: CtaTile,
    way: str,
    case: tuple[Any, ...],
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of them one below the other, or one that is not full."""
    k, n, bits, block, zeros, dtype = case
    if way == "cluster":
        compiler: Any = emulated.device.compiler
        monkeypatch.setattr(compiler, "target", Target("sm_90", H200.processors, H200.shared))
    forced(tile, 1 if way == "whole" else 2, monkeypatch)
    rows = tile.bm + (3 if tile.bm < 64 else -3)
    sample = nbits(rows, k, n, bits, block, zeros=zeros, dtype=dtype)
    (got,) = results_of(sample, [emulated])
    assert_exact(sample, got)


#: Weights as models have them.
KINDS = (
    (4, 32, "", float16),
    (4, 32, "packed", float16),
    (2, 64, "packed", float16),
    (4, 16, "packed", bfloat16),
    (8, 32, "packed", bfloat16),
)


def tile_launches(target: Target, patch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Yield launches of every tile, each with some kinds of weights, or with one on older GPUs."""
    for i, tile in enumerate(MIXED_INPUT):
        kinds = (KINDS[i % 2], KINDS[2 + i % 3]) if target == H200 else (KINDS[i % len(KINDS)],)
        for bits, block, zeros, dtype in kinds:
            sample = nbits(tile.bm, 2048, 100, bits, block, zeros=zeros, dtype=dtype)
            patch.setattr(mixed_input, "MIXED_INPUT", (tile,))
            found = launches(planned(sample.graph, DryDevice(compiler=DryCompiler(target))))
            yield from (launch for launch in found if launch.file in COMPILES)


@pytest.mark.slow
@TARGETS
def test_nothing_spills(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "time_unpacked", lambda *_: inf)
    compiler, found = Compiler(target, cache), list(tile_launches(target, monkeypatch))
    assert len(found) >= (1.5 if target == H200 else 0.75) * len(MIXED_INPUT)
    assert_fits(found, compiler)


@TARGETS
def test_compiles(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "time_unpacked", lambda *_: inf)
    graphs = [each.graph for each in samples()]
    found = assert_plans_compile(graphs, target, cache, COMPILES)
    assert {launch.file for launch in found} <= COMPILES | {"gemm/reduce_splits_f16.cu"}


# ── what is planned ──────────────────────────────────────────────────────────────────────────────


def product(rows: int, k: int, n: int) -> Graph:
    """Return a product with weights of four bits."""
    return nbits(rows, k, n, 4, 32, dtype=float16).graph


#: Linear layers of llama-3.2-1b.
LAYERS = [(2048, 3072), (2048, 2048), (2048, 8192), (8192, 2048)]


@TARGETS
@pytest.mark.parametrize(("k", "n"), LAYERS)
@pytest.mark.parametrize("rows", [9, 16, 32, 64, 128])
def test_a_decoder_of_several_sequences(rows: int, k: int, n: int, target: Target) -> None:
    found = launches(planned(product(rows, k, n), DryDevice(compiler=DryCompiler(target))))
    first, *rest = found
    assert first.entry == "mixed_input"
    assert [launch.entry for launch in rest] in ([], ["mma_reduce"])
    assert first.shared <= target.shared
    if target.has_clusters:
        assert first.cluster == (1, first.grid[1], 1)
        assert not rest
    assert prod(first.grid) >= 0.45 * target.processors


@pytest.mark.parametrize(("k", "n"), [*LAYERS, (14336, 4096), (4096, 1024)])
@pytest.mark.parametrize("rows", [9, 32, 64])
def test_no_cluster_waits_for_another_to_end(rows: int, k: int, n: int) -> None:
    """An H200 starts 66 clusters of two blocks at a time, but only 30 of four."""
    (launch,) = launches(planned(product(rows, k, n)))
    tiles, splits, _ = launch.grid
    resident = dict(launch.constants)["RESIDENT"]
    at_once = {2: 66, 3: 44, 4: 30, 5: 22, 6: 22, 7: 14, 8: 14}
    assert splits == 1 or tiles <= at_once[splits] * resident


@pytest.mark.parametrize("rows", [1, 8])
def test_few_rows_are_left_to_gemv(rows: int) -> None:
    (launch,) = launches(planned(product(rows, 2048, 2048)))
    assert launch.entry == "gemv_packed"


@pytest.mark.parametrize(("k", "n"), LAYERS)
def test_many_rows_are_multiplied_by_unpacked_weights(k: int, n: int) -> None:
    first, *rest = launches(planned(product(1024, k, n)))
    assert first.entry == "unpack_weights"
    assert rest
