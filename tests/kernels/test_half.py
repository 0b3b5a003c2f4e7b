"""16-bit floats on the cuda backend, without a GPU: what is launched, and that it compiles."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends import open_backends
from tercet.backends.cuda.codegen.epilogue import no_epilogue
from tercet.backends.cuda.gemm.problem import GemmArguments, Image, Problem, RowKind
from tercet.backends.cuda.gemm.schedules import multistage, tma, tma_staging
from tercet.backends.cuda.gemm.schedules.multistage import choose, expected
from tercet.backends.cuda.gemm.schedules.tma_staging import SmemLayout
from tercet.backends.cuda.gemm.tables.f16 import MULTISTAGE, TMA
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.operands import Packed, Struct, Tensor, TensorMap
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import LRN
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.ops.window import Window
from tercet.runtime.options import Options
from tercet.runtime.plan import layout as planning
from tercet.runtime.plan.format import Format
from tercet.tools.workshop.light_models import light_file

from .cubins import all_compile, assert_arguments
from .dry import DryDevice, entries_of, launches, normal, planned, planned_model, single

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {
    "norm/lrn_vectorized.cu",
    "gemm/multistage.cu",
    "gemm/tma.cu",
    "gemm/reduce_splits_f16.cu",
    "gemm/pack_image.cu",
    "image/pool_vectorized.cu",
}


def half(*shape: int, dtype: DType = float16) -> Any:
    return normal(*shape).astype(dtype)


def conv(*w: int, x: tuple[int, ...], dtype: DType = float16, **attributes: Any) -> Graph:
    inputs = [half(*x, dtype=dtype), half(*w, dtype=dtype), half(w[0], dtype=dtype)]
    return single("Conv", inputs, (1, 2), **attributes)


def pooled(filters: int, channels: int, x: tuple[int, ...], dtype: DType = float16) -> Graph:
    """Return max-pooling by 2 x 2 of a 3 x 3 convolution with relu."""
    graph = Graph()
    w = graph.constant(half(filters, channels, 3, 3, dtype=dtype), "w")
    value = graph.insert(
        Conv(pads=(1,) * 4), [graph.add_input("x", TensorType(dtype, x)), w]
    ).output
    value = graph.insert(Relu(), [value]).output
    value = graph.insert(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), [value]).output
    graph.set_outputs({"y": value})
    infer(graph)
    return graph


def normalized(dtype: DType) -> Graph:
    """Return what AlexNet has behind its first layers: a channels-last image meets an LRN."""
    graph = Graph()
    w = graph.constant(half(64, 64, 3, 3, dtype=dtype), "w")
    image = graph.add_input("x", TensorType(dtype, (1, 64, 28, 28)))
    value = graph.insert(Conv(), [image, w]).output
    graph.set_outputs({"y": graph.insert(LRN(size=5), [value]).output})
    infer(graph)
    return graph


def graphs(dtype: DType = float16) -> list[Graph]:
    """Everything that has a separate kernel in 16 bits."""
    x = half(2, 16, 9, 11, dtype=dtype)
    return [
        conv(64, 64, 3, 3, x=(1, 64, 56, 56), pads=(1,) * 4, dtype=dtype),
        conv(512, 512, 3, 3, x=(1, 512, 7, 7), pads=(1,) * 4, dtype=dtype),
        conv(64, 6, 7, 7, x=(1, 6, 56, 56), strides=(2, 2), pads=(3,) * 4, dtype=dtype),
        conv(64, 3, 3, 3, x=(1, 3, 20, 20), dtype=dtype),
        conv(33, 20, 1, 1, x=(1, 20, 7, 7), dtype=dtype),
        conv(32, 1, 3, 3, x=(1, 32, 20, 20), group=32, dtype=dtype),
        conv(12, 6, 3, 3, x=(1, 24, 20, 20), group=4, dtype=dtype),
        conv(16, 1, 5, 5, x=(1, 8, 20, 20), group=8, strides=(2, 2), dtype=dtype),
        conv(24, 12, 3, 3, x=(1, 12, 20, 20), dtype=dtype),
        conv(64, 4, 3, 3, x=(4, 64, 20, 20), group=16, pads=(1, 1, 1, 1), dtype=dtype),
        single("MaxPool", [x], kernel_shape=(3, 3)),
        single("AveragePool", [x], kernel_shape=(3, 3), count_include_pad=1),
        single("GlobalAveragePool", [x]),
        single("LRN", [x], size=5),
        normalized(dtype),
        *(
            single("Gemm", [half(m, 256, dtype=dtype), half(256, 77, dtype=dtype)], (1,))
            for m in (1, 32)
        ),
        pooled(64, 64, x=(32, 64, 32, 32), dtype=dtype),
        pooled(64, 64, x=(1, 64, 31, 32), dtype=dtype),
        conv(512, 512, 3, 3, x=(32, 512, 14, 14), pads=(1,) * 4, dtype=dtype),
        conv(64, 3, 3, 3, x=(32, 3, 112, 112), pads=(1,) * 4, dtype=dtype),
        conv(256, 64, 1, 1, x=(32, 64, 56, 56), dtype=dtype),
    ]


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (conv(64, 64, 3, 3, x=(1, 64, 56, 56)), ["mma_bulk"]),
        (conv(64, 3, 7, 7, x=(1, 3, 56, 56), strides=(2, 2)), ["few_channels_wgmma"]),
        (conv(512, 512, 3, 3, x=(32, 512, 28, 28)), ["mma_bulk"]),
        (conv(64, 3, 3, 3, x=(32, 3, 224, 224), pads=(1,) * 4), ["few_channels_wgmma"]),
        (pooled(64, 64, x=(32, 64, 224, 224)), ["mma_stationary"]),
        (pooled(64, 64, x=(32, 64, 15, 16)), ["mma_bulk", "pool_words"]),
        (conv(32, 1, 3, 3, x=(1, 32, 20, 20), group=32), ["depthwise_rows"]),
        (conv(12, 1, 3, 3, x=(1, 12, 56, 56), group=12), ["depthwise_rows"]),
        (conv(57, 1, 3, 3, x=(1, 57, 28, 28), group=57), ["depthwise_pixels"]),
        (conv(1, 1, 7, 7, x=(1, 1, 64, 64)), ["depthwise_pixels"]),
        (conv(96, 1, 7, 7, x=(1, 48, 64, 64), group=48, strides=(2, 2)), ["mma"]),
        (conv(64, 10, 3, 3, x=(1, 10, 56, 56)), ["mma"]),
        (conv(64, 36, 1, 1, x=(1, 36, 56, 56)), ["mma"]),
        (conv(64, 6, 3, 3, x=(1, 6, 56, 56)), ["pack_image", "mma"]),
        (single("Conv", [half(1, 8, 5, 5), half(4, 8, 3, 3)]), ["pack_filters", "mma"]),
        (single("Gemm", [half(1, 256), half(256, 10)], (1,)), ["gemv"]),
        (single("Gemm", [half(32, 256), half(256, 10)], (1,)), ["mma"]),
    ],
    ids=lambda value: value if isinstance(value, list) else None,
)
def test_ways(graph: Graph, expected: list[str]) -> None:
    assert entries_of(graph) == expected


def test_deep_tiles_are_for_few_blocks() -> None:
    """More stages than there are steps, or blocks that share a multiprocessor, gain nothing."""

    def titles(graph: Graph) -> list[str]:
        return [launch.title for launch in launches(planned(graph))]

    def windows(images: int) -> Graph:
        return conv(256, 256, 3, 3, x=(images, 256, 14, 14), pads=(1,) * 4)

    def rows(count: int) -> Graph:
        return single("MatMul", [half(count, 768), np.zeros((768, 2304), np.float16)], (1,))

    assert titles(windows(1)) == ["mma_bulk squares 64x64 deep split 4"]
    assert titles(rows(128)) == ["mma_bulk matrix 64x64 deep"]
    assert not any(
        "deep" in title for graph in (windows(32), rows(4096)) for title in titles(graph)
    )
    config = choose(Problem(128, 768, 3072), H200).config
    assert config.splits > 1
    assert not config.tile.deep


def test_sums_are_split_in_clusters_or_in_two_passes() -> None:
    graph = conv(512, 512, 3, 3, x=(1, 512, 14, 14), pads=(1,) * 4, strides=(2, 2))
    (launch,) = launches(planned(graph))
    splits = launch.grid[2]
    assert splits > 1
    assert launch.cluster[2] == splits
    assert launch.scratch == 0
    first, second = launches(planned(graph, DryDevice(compiler=_compiler(A100))))
    assert (first.entry, second.entry) == ("mma", "mma_reduce")
    assert first.cluster == (1, 1, 1)
    assert first.scratch == 4 * first.grid[2] * 49 * 512


@pytest.mark.parametrize(("k", "n"), [(8192, 2048), (4096, 4096), (14336, 4096)])
@pytest.mark.parametrize("rows", [16, 32, 64])
def test_clusters_of_products_bound_by_memory_do_not_share_multiprocessors(
    rows: int, k: int, n: int
) -> None:
    """Of clusters of three or more, each multiprocessor would read for several blocks."""
    graph = single("MatMul", [half(rows, k), np.zeros((k, n), np.float16)], (1,))
    (launch,) = launches(planned(graph))
    fitting = (H200.shared + 1024) // (launch.shared + 1024)
    assert prod(launch.cluster) < 3 or fitting == 1


def _compiler(target: Target) -> Any:
    compiler = DryDevice().compiler
    compiler.target = target
    return compiler


@pytest.mark.parametrize("target", [H200, A100], ids=lambda target: target.arch)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (9, 10, 70), (49, 512, 4608), (12544, 64, 224), (10**6, 64, 576), (196, 3, 9)],
)
def test_choice_of_tiles(m: int, n: int, k: int, target: Target) -> None:
    problem = Problem(m, n, k)
    found = choose(problem, target)
    assert target.has_wgmma or not found.tile.wgmma
    assert found.config.splits <= 8
    alone = [
        expected(problem, Config(t), target)
        for t in MULTISTAGE
        if t.wgmma <= target.has_wgmma and t.bm < 2 * m and t.bn < 2 * n
    ]
    assert found.microseconds == expected(problem, found.config, target)
    assert not alone or found.microseconds <= min(alone)


@pytest.mark.parametrize(("n", "k"), [(512, 2048), (256, 1024), (512, 4608), (256, 2304)])
@pytest.mark.parametrize("m", [49, 196])
def test_blocks_of_split_convolutions_are_all_done_at_once(m: int, n: int, k: int) -> None:
    """ResNet-50 at batch 1; an H200 has 104 multiprocessors on which clusters gather."""
    problem = Problem(m, n, k, rows=RowKind.PIXELS)
    config = choose(problem, H200).config
    assert config.splits == 1 or config.tile.blocks(problem) * config.splits <= 104


@pytest.mark.parametrize(
    ("filters", "size", "tile"),
    [(256, 56, "squares 256x128"), (512, 28, "tapwise 128x256"), (512, 14, "tapwise 192x128")],
)
def test_tiles_of_large_convolutions(filters: int, size: int, tile: str) -> None:
    """VGG-16 at batch 32: squares of pixels serve all windows where few pixels are outside."""
    graph = conv(filters, filters, 3, 3, x=(32, filters, size, size), pads=(1, 1, 1, 1))
    found = [launch.note for launch in launches(planned(graph)) if launch.entry == "mma_bulk"]
    assert found == [tile]


def test_tiles_fit() -> None:
    for tile in MULTISTAGE:
        assert tile.bm % tile.warps[0] == tile.bn % tile.warps[1] == 0
        assert multistage.resources(tile, tile.stages).shared <= H200.room(1)
    for tile in TMA:
        assert tile.bn % 32 == 0
        product: Any = SimpleNamespace(chunk=32, pooled=None, whole=True)
        staging: Any = SimpleNamespace(stage=lambda chunk, rows=tile.bm: rows * 2 * chunk)
        assert tma.resources(product, Config(tile), staging).fits(H200)
        assert tma.resources(product, Config(tile, 2), staging).fits(H200)


@pytest.mark.parametrize("filters", [3, 8, 12])
def test_candidates_fit_with_buffers_of_odd_rows(filters: int) -> None:
    """A few filters that make an image: rows of results pass through shared memory."""
    shared = [each for size in (3, 5, 7) for each in shared_by_candidates(filters, size)]
    assert shared
    assert max(shared) <= H200.shared


def test_logits_of_odd_rows_keep_their_tile() -> None:
    """With the buffers one block per multiprocessor fits instead of two (GPT-2: 50257 columns)."""
    graph = Graph("logits")
    x = graph.add_input("x", TensorType(float16, (128, 768)))
    matrix = graph.constant(np.zeros((768, 50257), np.float16), "matrix")
    graph.set_outputs({"y": graph.insert(MatMul(), [x, matrix]).output})
    infer(graph)
    (launch,) = launches(planned(graph, precision="float16"))
    assert launch.title == "mma_bulk matrix 128x128"


def shared_by_candidates(filters: int, size: int) -> Iterator[int]:
    """Yield the shared memory of all forms of a convolution of 256 x 256 pixels."""
    side = 255 + size
    x = Tensor(value(1, 64, side, side), Format.CHANNELS_LAST)
    view = Window((size, size), (1, 1), (1, 1), (0, 0), (0, 0), (256, 256))
    image = Image(
        **{"data": x, "spatial": x.dims[2:], "strides": x.strides, "channels": 64, "view": view},
        **{"output": view.output, "vector": 8, "images": 1},
    )
    result = Tensor(value(1, filters, 256, 256), Format.CHANNELS_LAST)
    shape = (256 * 256, filters, image.terms)
    weights = Packed((), "none", np.asarray)
    gemm = GemmArguments(image, weights, result, shape, image.terms, filters, dtype=float16)
    product = tma_staging.TmaProduct(gemm)
    for timed, staging in tma.candidates(product, H200):
        yield tma.multiply(product, no_epilogue(float16), timed.config, staging, H200).shared


def half_resnet() -> planning.Layout:
    with tercet.load(light_file("resnet50")) as model:
        imported = model.imported
    options = Options(precision="float16")
    host = open_backends("numpy", options)
    model = tercet.runtime.session.model.Model(imported, host, options, evaluate)
    return planned_model(model, DryDevice())


def test_a_chain_of_convolutions_has_no_reformat_inside() -> None:
    layout = half_resnet()
    rows = [row for row in layout.rows if row.kind in ("step", "reformat")]
    assert [row for row in rows if row.kind == "reformat"] == []
    products = [row for row in rows if "mma" in row.kernel or "back_to_back" in row.kernel]
    assert sum(isinstance(node.op, Conv) for row in products for node in row.nodes) == 52
    results = [slot for row in products for slot in row.outputs]
    images = [slot for slot in results if slot.type.dims[2:] != (1, 1)]
    assert len(results) - len(images) == 1  # the mean of the last one
    assert all(slot.format is Format.CHANNELS_LAST for slot in images)


def test_rows_of_windows_may_overlap() -> None:
    graph = conv(64, 3, 3, 3, x=(32, 3, 224, 224), pads=(1,) * 4)
    _, launch = launches(planned(graph, conv="tensor_cores"))
    image = launch.args["a"]
    assert isinstance(image, TensorMap)
    assert image.dims == (16, 224, 224, 32)
    assert image.strides[0] == 8  # elements from one window to its neighbour: 16 bytes


@pytest.mark.parametrize("side", [1024, 4096])
def test_large_products_of_run_time_are_fed_by_the_copy_engine(side: int) -> None:
    """What is fetched before the kernel in front has ended must not come from it."""
    arrays = [np.broadcast_to(np.float16(1), (side, side))] * 2
    transposed = single("Gemm", arrays, transB=1)
    for graph in (single("MatMul", arrays), single("Gemm", arrays), transposed):
        (product,) = launches(planned(graph))
        assert product.entry == "mma_linear"
        assert not product.early
    (product,) = launches(planned(single("MatMul", arrays, (1,))))
    assert product.early


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


def test_many_small_products_are_computed_by_tensor_cores() -> None:
    """One per window and head of a batch: more than a grid has blocks along an axis for splits."""
    graph = Graph("stack")
    types = {n: TensorType(float16, (40000, 17, n)) for n in (17, 32)}
    a, b = (graph.add_input(f"x{n}", type_) for n, type_ in types.items())
    graph.set_outputs({"y": graph.insert(MatMul(), [a, b]).output})
    infer(graph)
    (launch,) = launches(planned(graph))
    assert (launch.file, launch.grid[2]) == ("gemm/multistage.cu", 40000)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=_compiler(target))
    for dtype, some in ((float16, slice(None)), (bfloat16, slice(0, None, 3))):
        for graph in graphs(dtype)[some]:
            planned(graph, device)
    other = "gemm/reduce_splits_f16.cu" if target == H200 else "gemm/tma.cu"
    all_compile(list(device.compiler.sources), target, cache, COMPILES - {other})


def test_arguments_are_what_the_kernels_take(cache: Path) -> None:
    found = [launch for graph in graphs() for launch in launches(planned(graph))]
    assert_arguments(found, H200, cache)


def with_tile(tile: CtaTile, graph: Graph, splits: int, target: Target) -> list[KernelSource]:
    """Return what a convolution compiles if it is done with one tile."""
    device = DryDevice(compiler=_compiler(target))
    with pytest.MonkeyPatch.context() as patch:
        found = TimedConfig(0.0, Config(tile, splits))
        patch.setattr(multistage, "choose", lambda *_, **__: found)
        patch.setattr(multistage, "time_of", lambda *_: 0.0)  # others should be slower
        planned(graph, device)
    return list(device.compiler.sources)


def tile_sources(target: Target) -> Iterator[KernelSource]:
    """Every tile, split or not, for pixels and windows, though not all of them with each other."""
    kinds = [
        conv(64, 64, 1, 1, x=(1, 64, 8, 8)),
        conv(64, 64, 3, 3, x=(1, 64, 8, 8)),
        conv(33, 3, 3, 3, x=(1, 3, 8, 8)),
    ]
    for i, tile in enumerate(MULTISTAGE):
        if tile.wgmma <= target.has_wgmma:
            for j, graph in enumerate(kinds):
                yield from with_tile(tile, graph, 1 + (i + j) % 2, target)


def bulk_sources() -> Iterator[KernelSource]:
    """Every tile that the copy engine feeds, in each of its layouts, and a pooled one."""
    for i, tile in enumerate(TMA):
        channels = (64, 32, 16)[i % 3]
        x = Tensor(value(32, channels, 32, 32), Format.CHANNELS_LAST)
        for layout in tma_staging.layouts(tile):
            whole = layout is SmemLayout.MATRIX
            view = Window(
                kernel=(1, 1) if whole else (3, 3),
                strides=(1, 1),
                dilations=(1, 1),
                pads_begin=(0, 0),
                pads_end=(0, 0),
                output=(30, 30),
            )
            image = Image(
                data=x,
                spatial=x.dims[2:],
                strides=x.strides,
                channels=channels,
                view=view,
                output=view.output,
                vector=8,
                images=32,
            )
            result = Tensor(value(32, 256, 30, 30), Format.CHANNELS_LAST)
            weights = Packed((), "none", np.asarray)
            shape = (32 * 900, 256, image.terms)
            gemm = GemmArguments(image, weights, result, shape, image.terms, 256, dtype=float16)
            pooled = layout is SmemLayout.SQUARES and i % 2 == 0
            product = tma_staging.TmaProduct(gemm, result if pooled else None)
            staging = tma_staging.staged(product, tile, layout)
            assert staging is not None
            for config in (Config(tile), Config(tile, 1 + i % 8)):
                made = tma.multiply(product, no_epilogue(float16), config, staging, H200)
                yield made.source


def value(*dims: int) -> Value:
    return Value("x", TensorType(float16, dims))


@pytest.mark.slow
def test_every_tile_of_the_copy_engine_compiles(cache: Path) -> None:
    all_compile(list(bulk_sources()), H200, cache, every=True)


def test_image_in_memory_is_what_the_copy_engine_reads() -> None:
    """A run of pixels is the image with its padding; a tap is that many of them further on."""
    graph = conv(512, 512, 3, 3, x=(16, 512, 14, 14), pads=(1,) * 4)
    (launch,) = launches(planned(graph))
    image, weights = launch.args["a"], launch.args["b"]
    assert isinstance(image, TensorMap)
    assert isinstance(weights, TensorMap)
    assert image.dims == (512, 14, 14, 16)
    assert image.strides == (512, 14 * 512, 14 * 14 * 512)
    assert image.corners == ((-1, -1), (0, 0))  # rows of 15: the last zero is the next one's first
    assert image.box == (64, 128 + 2 * 15 + 2)
    assert weights.dims == (512, 9, 512)
    windows = launch.args["w"]
    assert isinstance(windows, Struct)
    found = [windows[name] for name in ("taps", "columns", "tap_h", "tap_w")]
    assert found == [(9,), (3,), (15,), (1,)]


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_every_tile_compiles(target: Target, cache: Path) -> None:
    all_compile(list(tile_sources(target)), target, cache, every=True)


def test_convolutions_beside_others_take_half_of_the_multiprocessors() -> None:
    """More blocks of splits would have those of the others wait."""
    found = []
    for count in (1, 2):
        graph = Graph("beside")
        x = graph.add_input("x", TensorType(float16, (1, 192, 7, 7)))
        weights = normal(384, 192, 3, 3).astype(float16)
        values = [
            graph.insert(Conv(pads=(1,) * 4), [x, graph.constant(weights, f"w{i}")]).output
            for i in range(count)
        ]
        graph.set_outputs({f"y{i}": value for i, value in enumerate(values)})
        infer(graph)
        products = [each for each in launches(planned(graph)) if each.entry == "mma"]
        assert len(products) == count
        found.append(prod(products[0].grid))
    alone, beside = found
    assert beside <= H200.processors // 2 < alone <= H200.processors
