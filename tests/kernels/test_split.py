"""float32 on tensor cores, without a GPU: what is launched, that it compiles; and emulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import f32, f32_tiles
from tercet.backends.cuda.gemm.atoms import F16X3, TF32, TF32X3, Atom
from tercet.backends.cuda.gemm.f32 import Arithmetic
from tercet.backends.cuda.gemm.f32_tiles import choose, estimator, tiles_of
from tercet.backends.cuda.gemm.pack import cut, filters_of, in_parts
from tercet.backends.cuda.gemm.problem import Problem, RowKind
from tercet.backends.cuda.gemm.schedules import wgmma_rs
from tercet.backends.cuda.gemm.tile import MAX_CLUSTER, Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare, sample

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"gemm/multistage.cu", "gemm/pack_tf32x3.cu", "gemm/wgmma_rs.cu"}

TENSOR_CORES: dict[str, Any] = {"conv": "tensor_cores"}
#: Instructions, and a GPU that runs them.
MATHS = [(TF32X3, A100), (TF32X3, H200), (F16X3, H200)]
TILES = [(atom, target, tile) for atom, target in MATHS for tile in tiles_of(atom, target)]


def title(value: Any) -> str | None:
    if isinstance(value, Atom):
        return value.title
    return value.arch if isinstance(value, Target) else str(value)


def force(patch: pytest.MonkeyPatch, atom: Atom, config: Config) -> None:
    """Compute every product with these instructions and this tile."""
    patch.setattr(f32, "arithmetic_of", lambda *_: Arithmetic(atom))
    patch.setattr(f32, "choose", lambda *_: TimedConfig(0.0, config))


def conv(*w: int, x: tuple[int, ...], **attributes: Any) -> Graph:
    return single("Conv", [normal(*x), normal(*w), normal(w[0])], (1, 2), **attributes)


def device_for(target: Target) -> DryDevice:
    return DryDevice(compiler=DryCompiler(target))


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("graph", "target", "expected"),
    [
        (conv(256, 1024, 1, 1, x=(32, 1024, 14, 14)), H200, ["split_linear"]),
        (conv(254, 1024, 1, 1, x=(32, 1024, 14, 14)), H200, ["split_wgmma"]),
        (conv(64, 3, 7, 7, x=(8, 3, 224, 224)), H200, ["pack_image", "split_wgmma"]),
        (conv(256, 1024, 1, 1, x=(32, 1024, 14, 14)), A100, ["mma"]),
        (conv(32, 1, 3, 3, x=(32, 32, 56, 56), group=32), H200, ["depthwise"]),
        (single("Gemm", [normal(600, 512), normal(512, 512)], (1,)), H200, ["split_wgmma"]),
        (
            single("MatMul", [normal(2048, 1024), normal(1024, 1024)]),
            H200,
            ["split_pack", "split_wgmma"],
        ),
        (single("MatMul", [normal(20, 30), normal(30, 40)]), H200, ["gemm"]),
    ],
    ids=lambda value: value if isinstance(value, list) else getattr(value, "arch", None),
)
def test_ways(graph: Graph, target: Target, expected: list[str]) -> None:
    found = entries_of(graph, device_for(target))
    assert found == expected


def test_older_gpus_have_no_such_tensor_cores() -> None:
    turing = Target("sm_75", 68, 65536)
    graph = conv(256, 1024, 1, 1, x=(32, 1024, 14, 14))
    assert entries_of(graph, device_for(turing)) == ["gemm"]


def test_tf32_takes_one_product_instead_of_three() -> None:
    graph = conv(254, 1024, 1, 1, x=(32, 1024, 14, 14))
    for target, three in ((H200, "3xf16"), (A100, "3xtf32")):
        (whole,), (rounded,) = (
            launches(planned(graph, device_for(target), precision=precision))
            for precision in ("float32", "tf32")
        )
        assert dict(whole.constants)["PARTS"] == 2
        assert dict(rounded.constants)["PARTS"] == 1
        assert whole.note.startswith(three)
        assert rounded.note.startswith("tf32")


def test_few_tiles_share_their_sums_in_clusters_or_in_two_passes() -> None:
    graph = conv(512, 512, 3, 3, x=(1, 512, 7, 7), pads=(1,) * 4)
    (launch,) = launches(planned(graph, **TENSOR_CORES))
    assert prod(launch.cluster) > 1
    assert all(n % c == 0 for n, c in zip(launch.grid, launch.cluster, strict=True))
    assert launch.scratch == 0
    first, second = launches(planned(graph, device_for(A100), **TENSOR_CORES))
    assert (first.entry, second.entry) == ("mma", "gemm_reduce")
    assert first.cluster == (1, 1, 1)
    assert first.scratch == 4 * first.grid[2] * 49 * 512


def test_tiles_are_split_less_beside_other_branches() -> None:
    """The convolutions of a branch depend on each other, so nothing runs beside them."""
    splits = list[set[int]]()
    for branches in (1, 2):
        graph = Graph("branches")
        x = graph.add_input("x", TensorType(float32, (1, 512, 7, 7)))
        for branch in range(branches):
            value = x
            for depth in range(2):
                w = graph.constant(normal(512, 512, 1, 1), f"w{branch}{depth}")
                value = graph.insert(Conv(), [value, w], 1, name=f"conv{branch}{depth}").output
            graph.set_outputs({**graph.outputs, f"y{branch}": value})
        infer(graph)
        found = launches(planned(graph, **TENSOR_CORES))
        assert len(found) == 2 * branches
        assert {prod(launch.grid) <= H200.processors // 2 for launch in found} == {branches > 1}
        splits.append({prod(launch.cluster) for launch in found})
    assert max(splits[1]) < min(splits[0])


@pytest.mark.parametrize(("others", "share"), [(0, 1.0), (1, 0.5), (2, 0.4), (3, 0.4)])
def test_boxes_leave_multiprocessors_to_other_branches(others: int, share: float) -> None:
    """A convolution of ResNet-18 by 3x3 with strides, beside others by 1x1."""
    graph = Graph("branches")
    x = graph.add_input("x", TensorType(float32, (1, 128, 28, 28)))
    w = graph.constant(normal(256, 128, 3, 3), "w")
    y = graph.insert(Conv(pads=(1,) * 4, strides=(2, 2)), [x, w], 1, name="conv").output
    graph.set_outputs({"y": y})
    for other in range(others):
        w = graph.constant(normal(40 + 24 * other, 128, 1, 1), f"w{other}")
        y = graph.insert(Conv(strides=(2, 2)), [x, w], 1, name=f"conv{other}").output
        graph.set_outputs({**graph.outputs, f"y{other}": y})
    infer(graph)
    (found,) = (one for one in launches(planned(graph)) if one.entry == "swap_f16x3_boxes")
    shares = [part for part in (0.4, 0.5, 1.0) if prod(found.grid) <= part * H200.processors]
    assert shares[0] == share


def test_splits_beside_others_have_no_more_blocks_than_tiles_without() -> None:
    """A 3x3 convolution of GoogLeNet at batch 1: 104 blocks, as many as without splits."""
    problem = Problem(784, 128, 864, rows=RowKind.WINDOWS, concurrent=True)
    ways = f32_tiles.ways_of(problem, F16X3, H200)
    alone = f32_tiles.ways_of(replace(problem, concurrent=False), F16X3, H200)
    whole = next(way for way in ways if way.config.splits == 1)
    blocks = [way.tile.blocks(problem) * way.config.splits for way in ways if way.config.splits > 1]
    assert max(blocks) <= max(whole.tile.blocks(problem), H200.processors // 2)
    assert ways[0].config.splits > 1
    assert ways[0].tile.blocks(problem) * ways[0].config.splits > H200.processors // 2
    assert set(ways) < set(alone)


@pytest.mark.parametrize(("atom", "target"), MATHS, ids=title)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (9, 10, 70), (49, 512, 4608), (12544, 64, 196), (10**6, 64, 576), (196, 3, 9)],
)
def test_choice_of_tiles(m: int, n: int, k: int, atom: Atom, target: Target) -> None:
    problem = Problem(m, n, k)
    found, time = choose(problem, atom, target), estimator(problem, atom, target)
    assert found.tile.wgmma == target.has_wgmma
    assert found.config.splits <= 8
    alone = [time(Config(t)) for t in tiles_of(atom, target) if t.bm < 2 * m and t.bn < 2 * n]
    assert found.microseconds == time(found.config)
    assert not alone or found.microseconds <= min(alone)


@pytest.mark.parametrize(("atom", "target", "tile"), TILES, ids=title)
def test_tiles_fit(atom: Atom, target: Target, tile: CtaTile) -> None:
    block = f32_tiles.resources(tile, atom)
    assert block.shared <= target.room(tile.resident)
    for config in (Config(tile), Config(tile, 4)):
        assert Config.parse(str(config), tiles_of(atom, target)) == config
    if tile.wgmma:
        own, loader = block.registers
        assert 128 * (tile.groups * own + loader) * tile.resident <= 65536
        assert own % 8 == loader % 8 == 0


@pytest.mark.parametrize(("atom", "target", "tile"), TILES, ids=title)
def test_stages_leave_room_for_sums_of_clusters(atom: Atom, target: Target, tile: CtaTile) -> None:
    if not tile.wgmma:
        return
    of = partial(wgmma_rs.resources, words=atom.words)
    for splits in range(2, MAX_CLUSTER + 1):
        config = Config(tile, splits)
        alone = wgmma_rs.fitted(config, of, target.shared)
        assert of(alone).shared <= target.shared
        assert min(tile.stages, 3) <= alone.tile.stages <= tile.stages
        limit = target.room(tile.resident)
        beside = wgmma_rs.fitted(config, of, limit)
        assert of(beside).shared <= limit or beside == config == alone


def test_a_lean_block_is_apart_from_others_of_its_kernel_but_beside_those_of_another() -> None:
    (tile,) = (tile for tile in tiles_of(F16X3, H200) if tile.lean)
    own, loader = wgmma_rs.registers(tile)
    registers = 128 * (tile.groups * own + loader)
    assert 2 * registers > 65536 >= registers + 128 * 168
    graph = single("Gemm", [normal(128, 512), normal(512, 768), normal(768)], (1, 2))
    with pytest.MonkeyPatch.context() as patch:
        force(patch, F16X3, Config(tile, 4))
        (launch,) = launches(planned(graph, device_for(H200), algorithms={"Gemm": "tensor_cores"}))
    room = H200.shared + 1024
    assert launch.shared + H200.alone(0) + 2 * 1024 <= room


# ── numbers in two parts ─────────────────────────────────────────────────────────────────────────


def test_numbers_are_the_sums_of_their_parts() -> None:
    numbers = (normal(1000) * np.float32(10.0) ** normal(1000)).astype(np.float32)
    high, low = cut(numbers)
    for part in (high, low):
        assert not (part.view(np.uint32) & 0x1FFF).any()
    exact = high.astype(np.float64) + low
    assert np.abs(exact - numbers).max(initial=0, where=True) <= 2**-22 * np.abs(numbers).max()
    assert (np.abs(exact - numbers) <= 2.0**-22 * np.abs(numbers)).all()


def test_odd_numbers_stay_what_they_are() -> None:
    greatest = np.finfo(np.float32).max
    numbers = np.array([0, -0.0, np.inf, -np.inf, np.nan, greatest, -greatest, 1e-45], np.float32)
    high, low = cut(numbers)
    np.testing.assert_array_equal(high[:5], numbers[:5])
    np.testing.assert_array_equal(low[:5], np.zeros(5))
    assert np.isfinite(high[5:]).all()
    np.testing.assert_allclose(high[5:7].astype(np.float64) + low[5:7], numbers[5:7], rtol=2**-22)


def test_rows_lie_swizzled() -> None:
    rows = normal(2, 11, 70)
    packed = in_parts(rows, 2)
    assert packed.shape == (2, 3, 2, 16, 32)
    total = packed.astype(np.float64).sum(2)
    for row, term in ((0, 0), (3, 5), (10, 69), (7, 31), (5, 64)):
        step, chunk, place = term // 32, term % 32 // 4, term % 4
        at = (chunk ^ row % 8) * 4 + place
        assert abs(total[1, step, row, at] - rows[1, row, term]) <= 2**-22 * abs(rows[1, row, term])
    assert not packed[:, :, :, 11:].any()


def test_filters_are_rows() -> None:
    w = normal(6, 3, 2, 2)
    packed = in_parts(filters_of(w, 2, 4), 1)
    assert packed.shape == (2, 1, 1, 8, 32)
    row = packed[1, 0, 0, 2].reshape(8, 4)[np.arange(8) ^ 2].reshape(8, 4)
    np.testing.assert_allclose(row[:4, :3], w[5].reshape(3, 4).T, rtol=2**-11)
    assert not row[4:].any()
    assert not row[:, 3].any()


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


def graphs() -> list[Graph]:
    return [
        conv(64, 64, 3, 3, x=(1, 64, 28, 28), pads=(1,) * 4),
        conv(64, 3, 7, 7, x=(1, 3, 56, 56), strides=(2, 2), pads=(3,) * 4),
        conv(33, 36, 1, 1, x=(1, 36, 7, 7)),
        conv(12, 8, 3, 3, x=(1, 32, 20, 20), group=4),
    ]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_kernels_compile(target: Target, precision: str, cache: Path) -> None:
    device = device_for(target)
    for graph in graphs():
        planned(graph, device, precision=precision, **TENSOR_CORES)
    ways = {"MatMul": "tensor_cores", "Gemm": "tensor_cores"}
    planned(single("MatMul", [normal(4, 256, 512), normal(4, 512, 256)]), device, algorithms=ways)
    planned(single("Gemm", [normal(640, 333), normal(333, 512)], (1,)), device, algorithms=ways)
    other = "gemm/multistage.cu" if target == H200 else "gemm/wgmma_rs.cu"
    all_compile(list(device.compiler.sources), target, cache, COMPILES - {other})


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_arguments_are_what_the_kernels_take(target: Target, cache: Path) -> None:
    graph = conv(64, 64, 3, 3, x=(1, 64, 14, 14))
    matrices = single("MatMul", [normal(2048, 1024), normal(1024, 1024)])
    found = [
        *launches(planned(graph, device_for(target), **TENSOR_CORES)),
        *launches(planned(matrices, device_for(target))),
    ]
    assert_arguments(found, target, cache)


def with_tile(atom: Atom, config: Config, graph: Graph, target: Target) -> list[KernelSource]:
    """Return what a convolution compiles if it is done with one tile."""
    device = device_for(target)
    with pytest.MonkeyPatch.context() as patch:
        force(patch, atom, config)
        planned(graph, device, **TENSOR_CORES)
    return list(device.compiler.sources)


def tile_sources(atom: Atom, target: Target) -> Iterator[KernelSource]:
    """Every tile, split or not, for pixels and windows, though not all of them with each other."""
    for i, tile in enumerate(tiles_of(atom, target)):
        for j, graph in enumerate(graphs()[:3]):
            yield from with_tile(atom, Config(tile, 1 + (i + j) % 2), graph, target)


@pytest.mark.slow
@pytest.mark.parametrize(("atom", "target"), MATHS, ids=title)
def test_every_tile_compiles(atom: Atom, target: Target, cache: Path) -> None:
    all_compile(list(tile_sources(atom, target)), target, cache, every=True)


# ── on the emulator ──────────────────────────────────────────────────────────────────────────────


def odd(x: Any) -> Any:
    """Put an infinity and a NaN somewhere."""
    x.flat[5], x.flat[77] = np.inf, np.nan
    return x


def emulated_convolutions() -> list[Sample]:
    """What the tensor cores of Ampere do, which the emulator has."""
    x, w = normal(2, 8, 9, 7), normal(12, 8, 3, 3)
    return [
        sample("Conv", [x, w, normal(12)], (1, 2), pads=(1, 0, 2, 1), strides=(2, 1)),
        sample("Conv", [odd(x.copy()), np.sign(w) / 2], (1,)),
        sample("Conv", [x, normal(10, 4, 3, 2)], (1,), group=2, dilations=(2, 1)),
        sample("Conv", [normal(1, 3, 9, 10), normal(16, 3, 5, 5)], (1,), pads=(2,) * 4),
        sample("Conv", [normal(1, 160, 3, 3), normal(7, 160, 3, 3)], (1,), pads=(1,) * 4),
        sample("Conv", [normal(2, 40, 30), normal(24, 40, 1)], (1,)),
    ]


def emulated_products() -> list[Sample]:
    return [
        sample("Gemm", [normal(20, 50), normal(50, 11), normal(11)], (1, 2), alpha=0.5),
        sample("Gemm", [normal(9, 33), normal(24, 33)], (1,), transB=1),
        sample("MatMul", [normal(20, 70), odd(normal(70, 30))]),
        sample("MatMul", [normal(3, 9, 40), normal(3, 40, 21)]),
        sample("MatMul", [normal(2, 3, 9, 40), normal(2, 3, 40, 21)], (1,)),
    ]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("found", emulated_convolutions(), ids=str)
def test_emulated_convolutions(found: Sample, emulated: CudaBackend) -> None:
    compare(found, emulated, options=replace(OPTIONS, conv="tensor_cores"))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("atom", "name"), [(TF32, "w64x16"), (TF32X3, "w64x16"), (TF32X3, "w64x128")], ids=title
)
def test_hopper_emulated(
    atom: Atom, name: str, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that load and multiply in turn, several tiles a block; in blocks without clusters."""
    target = Target("sm_90a", 1, H200.shared)
    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", target)
    force(monkeypatch, atom, Config.parse(name, tiles_of(atom, target)))
    x, w = normal(2, 24, 10, 9), normal(20, 24, 3, 3)
    made = sample("Conv", [x, w, normal(20)], (1, 2), pads=(1, 1, 1, 1))
    options = replace(OPTIONS, conv="tensor_cores")
    compare(made, emulated, options=options, error=1e-3 if atom is TF32 else None)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("found", emulated_products(), ids=str)
def test_emulated_products(found: Sample, emulated: CudaBackend) -> None:
    ways = {"MatMul": "tensor_cores", "Gemm": "tensor_cores"}
    compare(found, emulated, options=replace(OPTIONS, algorithms=ways))
