"""Products that Hopper's copy engine feeds and empties: what is launched, and on the emulator."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import multistage, tma, tma_persistent, tma_staging
from tercet.backends.cuda.gemm.schedules.tma_persistent import FEW, MANY
from tercet.backends.cuda.gemm.schedules.tma_staging import SmemLayout
from tercet.backends.cuda.gemm.tables.f16 import TMA_PERSISTENT
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.operands import TensorMap
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Gelu, Mul, Relu, Where
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.ops.shape import Unsqueeze
from tercet.runtime.options import Options

from ..plan.nets import Net
from .cubins import all_compile, assert_arguments
from .dry import DryDevice, compiled_files, launches, normal, planned, single
from .dry import Net as GivenNet
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare, sample, sample_of

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"gemm/tma_persistent.cu"}

BY_TITLE = {f"{tile} of {tile.epilogues}": tile for tile in TMA_PERSISTENT}


def layer(
    m: int, n: int, k: int, end: str, dtype: DType = float16, *, run_time: bool = False
) -> Sample:
    """Return a linear layer with what follows: nothing, ``gelu``, ``residual``, ``wide``, ``cast``.

    The last one is a Cast to float32, and ``wide`` a residual and that.

    Its weights are a constant, or are given at run time.
    """
    x, z = normal(m, k, dtype=dtype), normal(m, n, dtype=dtype)
    graph = Graph(f"{m}x{n}x{k} {end}")
    feeds = {"x": x}
    value = graph.add_input("x", TensorType(dtype, x.shape))
    w = normal(k, n, dtype=dtype, scale=k**-0.5)
    if run_time:
        feeds["w"] = w
        weights = graph.add_input("w", TensorType(dtype, w.shape))
    else:
        weights = graph.constant(w)
    value = graph.insert(MatMul(), [value, weights]).output
    value = graph.insert(Add(), [value, graph.constant(normal(n).astype(dtype))]).output
    if end == "gelu":
        value = graph.insert(Gelu(), [value]).output
    if end in ("residual", "wide"):
        feeds["z"] = z
        value = graph.insert(
            Add(), [value, graph.add_input("z", TensorType(dtype, z.shape))]
        ).output
    if end in ("wide", "cast"):
        value = graph.insert(Cast(to=float32), [value]).output
    graph.set_outputs({"y": value})
    infer(graph)
    return Sample(graph, feeds)


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shape", "end", "expected"),
    [
        ((6304, 3072, 768), "gelu", "mma_linear 192x192 Add+Gelu"),
        ((6304, 768, 3072), "residual", "mma_linear 192x192 Add+Add"),
        ((4096, 768, 768), "residual", "mma_linear 128x192 Add+Add"),
        ((25088, 768, 192), "gelu", "mma_linear 192x192 Add+Gelu"),  # short sums do not hide it
        ((4096, 3072, 768), "gelu", "mma_linear 2x128x192 Add+Gelu"),
        ((25088, 192, 768), "residual", "mma_linear 192x192 Add+Add"),  # all are bound by memory
        ((4096, 2304, 768), "", "mma_linear 2x128x192 Add"),
        ((16, 768, 768), "residual", "mma "),
        ((20, 768, 768), "residual", "swap_ab w8x64/3, 16 bits Add+Add"),
        ((64, 3072, 768), "gelu", "swap_ab w32x64/3, 16 bits Add+Gelu"),
        ((6304, 770, 768), "residual", "mma "),
        ((8192, 4096, 768), "wide", "mma_linear 2x128x192 Add+Add+Cast"),
        ((20, 768, 768), "wide", "swap_ab w8x64/3, 16 bits Add+Add+Cast"),
        ((8192, 4099, 768), "cast", "mma_linear 2x128x192 Add+Cast"),
        ((8192, 4099, 768), "wide", "mma "),
        ((128, 2048, 5632), "residual", "swap_ab w128x64/2 split 3, 16 bits Add+Add"),
        ((197, 768, 3072), "residual", "swap_ab w104x64/2 split 4, 16 bits Add+Add"),
        ((128, 768, 3072), "residual", "swap_ab w64x64/3 split 4, 16 bits Add+Add"),
        ((384, 768, 3072), "residual", "swap_ab w128x64/2 split 3, 16 bits Add+Add"),
        ((600, 768, 3072), "residual", "mma_linear 64x64 deep Add+Add"),
        ((160, 1024, 4096), "residual", "swap_ab w80x64/2 split 3, 16 bits Add+Add"),
        ((197, 3072, 768), "gelu", "swap_ab w40x128/2, 16 bits Add+Gelu"),
        ((197, 768, 768), "residual", "swap_ab w24x64/3, 16 bits Add+Add"),
        ((128, 768, 768), "residual", "swap_ab w16x64/3, 16 bits Add+Add"),
        ((1600, 768, 3072), "residual", "mma_linear 64x192 Add+Add"),
        ((1024, 1280, 5120), "residual", "mma_linear 128x128 Add+Add"),  # seven columns of 192
        ((32, 8192, 2048), "", "swap_ab w32x64/2, 16 bits Add"),
        ((128, 3072, 768), "", "mma_linear 64x64 Add"),  # ten stages would hold nearly all of it
    ],
)
def test_layers_of_many_rows(shape: tuple[int, int, int], end: str, expected: str) -> None:
    (launch,) = launches(planned(layer(*shape, end).graph))
    assert launch.title.startswith(expected)


def test_groups_of_a_convolution_are_products_of_their_own() -> None:
    """Also where something is added behind it, which `gemm/tma_persistent.cu` is for."""
    graph = Graph()
    shapes = {"x": (32, 256, 56, 56), "z": (32, 512, 56, 56)}
    x, z = (graph.add_input(name, TensorType(float16, dims)) for name, dims in shapes.items())
    w = graph.constant(normal(512, 128, 1, 1).astype(float16))
    y = graph.insert(Conv(group=2), [x, w]).output
    graph.set_outputs({"y": graph.insert(Add(), [y, z]).output})
    infer(graph)
    (launch,) = launches(planned(graph))
    assert launch.entry == "mma_bulk"
    assert dict(launch.constants)["GROUPED"]


def test_the_operand_read_along_lies_like_the_result(cache: Path) -> None:
    (launch,) = launches(planned(layer(6304, 768, 3072, "residual").graph))
    a, b, c, z = (arg for arg in launch.args.values() if isinstance(arg, TensorMap))
    assert (a.dims, b.dims) == ((3072, 6304), (3072, 768))
    assert (
        (c.dims, c.strides, c.box) == (z.dims, z.strides, z.box) == ((768, 6304), (768,), (64, 64))
    )
    assert c.base != z.base
    assert_arguments([launch], H200, cache)


def test_a_right_operand_of_run_time_is_read_as_it_lies(cache: Path) -> None:
    (launch,) = launches(planned(layer(6304, 3072, 768, "", run_time=True).graph))
    b = launch.args["b"]
    assert isinstance(b, TensorMap)
    assert (b.dims, b.strides, b.box) == ((3072, 768), (3072,), (64, 64))
    assert not launch.early  # the kernel in front may write it
    assert_arguments([launch], H200, cache)


def test_rows_of_tiles_are_done_together_where_the_right_operand_leaves_the_cache() -> None:
    for side, patch in ((2048, 1), (4096, 16)):
        arrays = [np.broadcast_to(np.float16(1), (side, side))] * 2
        (launch,) = launches(planned(single("MatMul", arrays)))
        columns = dict(launch.constants)["BN"]
        found = [launch.args[name] for name in ("n", "tiles_m", "tiles_n", "patch")]
        assert found == [side, side // 128, -(-side // columns), patch]


@pytest.mark.parametrize("tile", TMA_PERSISTENT, ids=BY_TITLE)
def test_tiles_fit(tile: CtaTile) -> None:
    assert tma_persistent.resources(tile).fits(H200)
    threads = tile.groups * 128 + 128
    own = 65536 // threads // 8 * 8 * threads  # what a block starts with, and its groups share
    assert tile.groups * 128 * MANY[tile.groups] + 128 * FEW <= own
    assert tile.bn % 64 == 0
    assert max(tile.bm, tile.bn) <= 256  # rows of a box


def forced(tile: CtaTile, patch: pytest.MonkeyPatch) -> None:
    """Let every product be done with one tile."""
    patch.setattr(tma_persistent, "choose", lambda *_: TimedConfig(0.0, Config(tile)))


@pytest.mark.slow
def test_every_tile_compiles(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DryDevice()
    for tile in TMA_PERSISTENT:
        forced(tile, monkeypatch)
        planned(layer(64, 64, 64, "gelu").graph, device)
        planned(layer(64, 64, 64, "residual", run_time=True).graph, device)
        planned(layer(64, 64, 64, "wide").graph, device)
        if tile.ping_pong:
            planned(layer(64, 65, 64, "cast").graph, device)
    all_compile(list(device.compiler.sources), H200, cache, COMPILES, every=True)


# ── on the emulator ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("title", BY_TITLE)
def test_tiles(title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = BY_TITLE[title]
    forced(tile, monkeypatch)
    m, n = 2 * tile.bm + 5, 2 * tile.bn + 8
    compare(layer(m, n, 136, "residual"), hopper)
    compare(layer(9, 72, 8, "gelu", bfloat16), hopper)
    compare(layer(m, n, 136, "wide"), hopper, error=ERROR[float16])
    if tile.ping_pong:
        compare(layer(m, n, 136, "gelu"), hopper)  # sums begin with the bias
        compare(layer(m, n + 3, 136, "cast"), hopper, error=ERROR[float16])
    assert compiled_files(hopper) == {"gemm/tma_persistent.cu"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("title", BY_TITLE)
def test_tiles_in_patches_of_weights_of_run_time(
    title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two rows of tiles, and of the one that is left."""
    tile = BY_TITLE[title]
    forced(tile, monkeypatch)
    monkeypatch.setattr(tma_persistent, "patch_of", lambda *_: 2)
    m, n = 2 * tile.bm + 5, tile.bn + 72
    compare(layer(m, n, 136, "residual", bfloat16, run_time=True), hopper)
    assert compiled_files(hopper) == {"gemm/tma_persistent.cu"}


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_a_mask_lies_like_the_result(
    dtype: DType, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant of booleans, which is brought as numbers."""
    forced(BY_TITLE["64x64 of 2"], monkeypatch)

    def masked(net: GivenNet) -> Value:
        factors = net.input(70, 72, dtype=dtype), net.input(72, 80, dtype=dtype)
        y = net.apply(MatMul(), *factors)
        return net.apply(Where(), normal(70, 80) > 0, y, dtype.type(-1))

    compare(sample_of(masked), hopper)
    assert compiled_files(hopper) == {"gemm/tma_persistent.cu"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("end", ["residual", "wide"])
@pytest.mark.parametrize("title", ["64x64 of 2", "2x128x192 of 3", "192x192 of 3"])
def test_factors_of_samples(
    title: str, end: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample has as many rows as a group; the last tile is not full."""
    tile = BY_TITLE[title]
    forced(tile, monkeypatch)
    rows = tma_persistent.blocks(tile) * tma_persistent.ROWS
    x, given = normal(3, rows, 40).astype(float16), normal(3, 2 * 72).astype(float16)
    net = Net(*x.shape, dtype=float16)
    feeds = {"x": x, "given": given}
    parts = net.add(Relu(), net.graph.add_input("given", TensorType(float16, given.shape)))
    _, gate = net.add(Split(axis=-1, num_outputs=2), parts, outputs=2, name="split")
    gate = net.add(Unsqueeze(), gate, net.graph.constant(np.array([1]), ""))
    w, b = (normal(40, 72) / 6).astype(float16), normal(72).astype(float16)
    y = net.add(MatMul(), net.x, net.graph.constant(w, ""))
    y = net.add(Mul(), net.add(Add(), y, net.graph.constant(b, "")), gate)
    if end == "residual":
        feeds["z"] = normal(3, rows, 72).astype(float16)
        y = net.add(Add(), net.graph.add_input("z", TensorType(float16, feeds["z"].shape)), y)
    elif tile.ping_pong:
        y = net.add(Cast(to=float32), y)
    net.graph.set_outputs({"y": y})
    infer(net.graph)
    compare(Sample(net.graph, feeds), hopper, error=ERROR[float16])
    assert compiled_files(hopper) == {"gemm/tma_persistent.cu", "elementwise/elementwise.cu"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("layout", "kernel", "attributes"),
    [
        (SmemLayout.MATRIX, (1, 1), {}),
        (SmemLayout.RUN, (3, 3), {"pads": (1, 1, 1, 1)}),
        (SmemLayout.RUN, (3, 1), {"pads": (3, 3, 3, 2)}),  # some windows are all padding
        (SmemLayout.SQUARES, (3, 2), {"pads": (2, 1, 3, 0), "dilations": (2, 1)}),
        (SmemLayout.TAPWISE, (3, 3), {"pads": (1, 0, 2, 1), "strides": (2, 3)}),
    ],
)
def test_windows(
    layout: SmemLayout,
    kernel: tuple[int, int],
    attributes: dict[str, Any],
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each way to lay images out for `gemm/tma.cu`; tiles reach over rows and images."""
    staged = tma_staging.staged
    monkeypatch.setattr(
        tma,
        "staged",
        lambda p, tile, wanted: staged(p, tile, wanted) if wanted is layout else None,
    )
    monkeypatch.setattr(multistage, "time_of", lambda *_: inf)
    arrays = [normal(2, 40, 9, 7), normal(36, 40, *kernel) / 12, normal(36)]
    compare(sample("Conv", [a.astype(float16) for a in arrays], (1, 2), **attributes), hopper)
    assert "gemm/tma.cu" in compiled_files(hopper)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("title", ["64x128 split 2", "128x128 split 3", "256x64 split 2"])
def test_clusters_share_channels(
    title: str, pooled: bool, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that share a tile of `gemm/tma.cu` add up their sums, and pool them."""
    compiler: Any = hopper.device.compiler
    monkeypatch.setattr(compiler, "target", Target("sm_90a", 64, H200.shared))
    monkeypatch.setattr(multistage, "time_of", lambda *_: inf)
    monkeypatch.setattr(tma, "_expected", lambda p, staging, config, target: str(config) != title)
    net = Net(2, 136, 8, 12, dtype=float16)
    w, b = normal(72, 136, 3, 3) / 30, normal(72)
    weights = [net.graph.constant(a.astype(float16), "") for a in (w, b)]
    value = net.add(Relu(), net.add(Conv(pads=(1, 1, 1, 1)), net.x, *weights))
    if pooled:
        value = net.add(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), value)
    net.graph.set_outputs({"y": value})
    infer(net.graph)
    compare(Sample(net.graph, {"x": normal(2, 136, 8, 12).astype(float16)}), hopper)
    (source,) = (s for s in compiler.sources if s.file == "gemm/tma.cu")
    constants = dict(source.constants)
    assert (constants["SPLIT"], constants["POOL"]) == (int(title[-1]), pooled)


@pytest.mark.slow
@needs_compiler
def test_slices_of_images(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution by 1x1 reads channels of a wider image, and adds others of it."""
    forced(BY_TITLE["2x128x128 of 2"], monkeypatch)
    x = normal(1, 48, 9, 15).astype(float16)
    net = Net(*x.shape, dtype=float16)
    wide = net.add(Relu(), net.x)
    w, b = normal(48, 48, 1, 1) / 6, normal(48)
    weights = [net.graph.constant(a.astype(float16), "") for a in (w, b)]
    value = net.add(Relu(), net.add(Add(), net.add(Conv(), wide, *weights), wide))
    net.graph.set_outputs({"y": value})
    infer(net.graph)
    options = Options(skip=("fold_constants", "merge_branches"))
    compare(Sample(net.graph, {"x": x}), hopper, options=options)
    assert "gemm/tma_persistent.cu" in compiled_files(hopper)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("lengths", "mask", "attributes"),
    [
        ((70, 130), None, {}),
        ((65, 70), (2, 1, 1, 70), {"is_causal": 1}),
        ((40, 300), (1, 1, 40, 300), {"softcap": 2.0}),
    ],
)
def test_attention(
    lengths: tuple[int, int],
    mask: tuple[int, ...] | None,
    attributes: dict[str, Any],
    dtype: DType,
    hopper: CudaBackend,
) -> None:
    """Heads of 64 elements, side by side in rows; pairs of them share keys and values."""
    feeds = {"q": normal(2, lengths[0], 256), "k": normal(2, lengths[1], 128)}
    feeds["v"] = normal(3, lengths[1], 128)[1:]
    if mask is not None:
        feeds["mask"] = normal(*mask)
    feeds = {name: x.astype(dtype) for name, x in feeds.items()}
    graph = Graph()
    inputs = [graph.add_input(name, TensorType(dtype, x.shape)) for name, x in feeds.items()]
    op = Attention(q_num_heads=4, kv_num_heads=2, **attributes)
    graph.set_outputs({"y": graph.insert(op, inputs).output})
    infer(graph)
    compare(Sample(graph, feeds), hopper)
    assert compiled_files(hopper) == {"attention/attention_wgmma.cu"}
