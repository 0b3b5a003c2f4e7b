"""What the cuda backend would launch, as data; needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.algorithms.registry import RecipeContext, Setting, kernel
from tercet.backends.cuda.families import KERNELS, provide_all
from tercet.backends.cuda.gemm.problem import Problem
from tercet.backends.cuda.gemm.schedules import simt
from tercet.backends.cuda.gemm.tables.simt import SIMT
from tercet.backends.cuda.gemm.tile import Config
from tercet.backends.cuda.ops.norm import softmax
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.operands import Scratch, Tensor, broadcast_strides, merge, strides
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.dtypes import float32, int32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Relu, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import BatchNormalization, Softmax
from tercet.runtime.options import Options
from tercet.runtime.plan.format import Format
from tercet.tools.workshop.light_models import NAMES, light_file

from .dry import DryDevice, entries_of, launches, normal, planned, planned_model, single

provide_all()


def tensor(*dims: int, format: Format = Format.CONTIGUOUS, dtype: np.dtype = float32) -> Tensor:
    return Tensor(Value("t", TensorType(dtype, dims)), format)


# ── layout ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (Format.CONTIGUOUS, (60, 20, 5, 1)),
        (Format.CHANNELS_LAST, (60, 1, 15, 3)),
    ],
)
def test_strides(format: Format, expected: tuple[int, ...]) -> None:
    assert strides((2, 3, 4, 5), format) == expected


def test_a_broadcast_axis_has_stride_0() -> None:
    assert broadcast_strides((3, 1, 5), Format.CONTIGUOUS, (2, 3, 4, 5)) == (0, 5, 0, 1)


def test_axes_that_all_tensors_walk_alike_are_merged() -> None:
    x, y = strides((2, 3, 4, 5), Format.CONTIGUOUS), (0, 20, 5, 1)
    assert merge((2, 3, 4, 5), (x, y)) == ((2, 60), ((60, 1), (0, 1)))
    assert merge((1, 1), ((0, 0),)) == ((1,), ((1,),))


# ── single recipes ───────────────────────────────────────────────────────────────────────────────


class Unknown(Op):
    """An operator without kernels."""


ON_H200 = Setting(H200, Options())


def needs_a_stream(op: Op, y: Tensor, x: Tensor, *, stream: int) -> str:
    return ""


def lacks_the_others(op: Op, y: Tensor, x: Tensor) -> str:
    return ""


@pytest.mark.parametrize(
    ("make", "operator", "outputs", "reason"),
    [
        (needs_a_stream, Unknown, 1, "needs_a_stream: a recipe has no stream"),
        (lacks_the_others, Unknown, 2, "lacks_the_others: `more` is for kernels of several"),
        (lacks_the_others, Softmax, 1, "Softmax has two kernels"),
    ],
)
def test_what_is_registered_fits(
    make: Callable[..., str], operator: type[Op], outputs: int, reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        kernel(operator, outputs=outputs)(make)
    assert Unknown not in KERNELS


def test_a_recipe_gets_what_it_names() -> None:
    x, y = tensor(3, 1000), tensor(3, 1000)
    context = RecipeContext(Softmax(), y, (x,), ON_H200)
    assert KERNELS[Softmax].build(context) == softmax(Softmax(), y, x, setting=ON_H200)
    assert [KERNELS[op].epilogue for op in (Softmax, BatchNormalization, MatMul)] == [
        False,
        True,
        True,
    ]


def test_a_noted_launch_is_another_one_with_the_same_arguments() -> None:
    launch = softmax(Softmax(), tensor(4, 64), tensor(4, 64), setting=ON_H200)
    assert isinstance(launch, Launch)
    changes: dict[str, Any] = {"note": "of rows", "scratch": 64, "of_images": True}
    changed = launch.noted(**changes, backwards=True)
    assert changed == replace(launch, **changes, backwards=True)
    assert changed.args is launch.args
    assert (launch.note, launch.scratch, launch.backwards) == ("4 x 64", 0, False)


def test_softmax_is_plain_data() -> None:
    x, y = tensor(3, 1000), tensor(3, 1000)
    assert softmax(Softmax(), y, x, setting=ON_H200) == Launch(
        "norm/softmax_rows.cu",
        "softmax_rows",
        grid=(3, 1, 1),
        block=128,
        args={"x": x, "sums": None, "y": y, "count": 1000, "parts": {"count": 1, "chunk": 1000}},
        types=(("X", float32), ("R", float32), ("A", float32), ("I", int32)),
        constants=(
            *(("WARPS", 4), ("VECTOR", 4), ("BATCH", 2), ("SHARED", False)),
            ("LOGARITHM", False),
        ),
        early=True,
        note="3 x 1000",
    )


@pytest.mark.parametrize(
    ("format", "entry"),
    [(Format.CONTIGUOUS, "softmax_columns"), (Format.CHANNELS_LAST, "softmax_rows")],
)
def test_softmax_over_channels_follows_the_format(format: Format, entry: str) -> None:
    x, y = tensor(2, 16, 5, 5, format=format), tensor(2, 16, 5, 5, format=format)
    recipe = softmax(Softmax(axis=1), y, x, setting=ON_H200)
    assert isinstance(recipe, Launch)
    assert recipe.entry == entry


def test_a_recipe_declines_in_words() -> None:
    x = tensor(3, 4, dtype=int64)
    assert softmax(Softmax(), x, x, setting=ON_H200) == "dtype int64"


def test_declines_reach_the_user() -> None:
    with pytest.raises(UnsupportedError, match="cuda: dtype complex64"):
        planned(single("Where", [np.ones(4, bool), *[np.zeros(4, np.complex64)] * 2]))


def test_no_launch_for_nothing() -> None:
    (row,) = [r for r in planned(single("Relu", [normal(0, 3)])).rows if r.kind == "step"]
    assert row.kernel == "nothing"


# ── convolutions and products ────────────────────────────────────────────────────────────────────


def conv(*w: int, x: tuple[int, ...], **attributes: Any) -> Graph:
    return single("Conv", [normal(*x), normal(*w)], (1,), **attributes)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (conv(64, 64, 1, 1, x=(1, 64, 56, 56)), ["split_wgmma"]),
        (conv(64, 64, 3, 3, x=(1, 64, 56, 56), pads=(1,) * 4), ["swap_f16x3_boxes"]),
        (conv(128, 64, 3, 3, x=(1, 64, 56, 56), strides=(2, 2)), ["swap_f16x3_boxes"]),
        (conv(64, 64, 3, 3, x=(8, 64, 56, 56), pads=(1,) * 4), ["split_wgmma"]),
        (conv(960, 160, 1, 1, x=(1, 160, 7, 7)), ["swap_f16x3"]),
        (conv(64, 3, 7, 7, x=(1, 3, 224, 224), strides=(2, 2)), ["few_channels_wgmma"]),
        (conv(64, 6, 7, 7, x=(1, 6, 224, 224), strides=(2, 2)), ["pack_image", "split_wgmma"]),
        (conv(32, 1, 3, 3, x=(1, 32, 20, 20), group=32), ["depthwise_rows"]),
        (conv(8, 4, 3, 3, 3, x=(1, 4, 6, 6, 6)), ["pack_image", "split_wgmma"]),
        (conv(8, 1, 3, 3, 3, x=(1, 8, 6, 6, 6), group=8), ["depthwise_rows"]),
        (
            single("Conv", [normal(1, 8, 5, 5), normal(4, 8, 3, 3)]),
            ["rows_in_parts", "split_wgmma"],
        ),
        (single("Gemm", [normal(1, 256), normal(256, 10)], (1,)), ["gemv"]),
        (single("MatMul", [normal(100, 256), normal(256, 10)], (1,)), ["swap_f16x3"]),
        (single("MatMul", [normal(600, 256), normal(256, 10)], (1,)), ["split_wgmma"]),
        (single("MatMul", [normal(8, 64, 32), normal(8, 32, 64)]), ["gemm"]),
    ],
    ids=lambda value: value if isinstance(value, list) else None,
)
def test_ways(graph: Graph, expected: list[str]) -> None:
    assert entries_of(graph) == expected


def test_the_naive_convolution_can_be_asked_for() -> None:
    """One thread per output, beside the tuned kernel."""
    graph = conv(64, 64, 3, 3, x=(1, 64, 56, 56))
    (launch,) = launches(planned(graph, conv="naive"))
    assert (launch.entry, launch.grid, launch.block) == ("conv_naive", (54 * 54 // 2, 1, 1), 128)


def test_images_lie_channels_last_except_before_the_first_layer() -> None:
    graph = Graph()
    value = graph.add_input("x", TensorType(float32, (1, 3, 16, 16)))
    for i, (c, m) in enumerate([(3, 16), (16, 16)]):
        weights = graph.constant(normal(m, c, 3, 3), f"w{i}")
        value = graph.insert(Conv(), [value, weights], name=f"conv{i}").output
    graph.set_outputs({"y": value})
    infer(graph)
    rows = [row for row in planned(graph).rows if row.device.name != "cpu"]
    assert [row.kind for row in rows][:3] == ["copy", "step", "step"]
    assert [row.inputs[0].format for row in rows[1:3]] == [Format.CONTIGUOUS, Format.CHANNELS_LAST]
    assert rows[2].outputs[0].format is Format.CHANNELS_LAST


def test_split_sums_need_workspace_for_each_split() -> None:
    graph = conv(512, 512, 3, 3, x=(1, 512, 7, 7), pads=(1,) * 4)
    first, second = launches(planned(graph, conv="implicit_precomp_gemm"))
    splits = first.grid[2]
    assert splits > 1
    assert first.scratch == 4 * splits * 49 * 512
    assert first.args["c"] == second.args["partial"] == Scratch(0)


@pytest.mark.parametrize("target", [H200, A100])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (49, 512, 4608), (12544, 64, 147), (10**6, 64, 576), (196, 1, 9)]
)
def test_choice_of_tiles(m: int, n: int, k: int, target: Target) -> None:
    problem = Problem(m, n, k)
    config = simt.choose(problem, target).config
    assert 1 <= config.splits <= max(1, k // (3 * config.tile.bk))
    fitting = [tile for tile in SIMT if tile.bn < 2 * n or n < 16]
    alone = min(simt.expected(problem, Config(tile), target) for tile in fitting)
    split = [
        simt.expected(problem, Config(tile, splits), target)
        for tile in fitting
        for splits in range(2, min(k // (3 * tile.bk), simt.MAX_SPLITS) + 1)
        if tile.blocks(problem) * splits <= simt.BLOCKS_PER_PROCESSOR * target.processors
    ]
    assert simt.expected(problem, config, target) <= min([alone, *split])


def test_tiles_fit() -> None:
    for tile in SIMT:
        assert simt.threads(tile) % 32 == 0
        assert tile.resident * (simt.shared(tile) + 1024) <= 233472
        assert tile.resident * simt.threads(tile) <= 2048


# ── fusion ───────────────────────────────────────────────────────────────────────────────────────


def residual_block() -> Graph:
    """Return relu(conv(x) + conv(x)) as ResNets end their blocks."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, 16, 8, 8)))
    weights = [graph.constant(normal(16, 16, 1, 1), f"w{i}") for i in range(2)]
    a, b = (graph.insert(Conv(), [x, w], name="conv").output for w in weights)
    total = graph.insert(Add(), [a, b], name="add").output
    graph.set_outputs({"y": graph.insert(Relu(), [total], name="relu").output})
    infer(graph)
    return graph


def test_residual_and_activation_join_a_convolution() -> None:
    rows = [row for row in planned(residual_block()).rows if row.kind == "step"]
    assert [row.title for row in rows] == ["conv.1", "conv + add + relu"]
    (launch,) = launches(planned(residual_block()))[1:]
    assert "return x < T(0) ? T(0) : x" in launch.source.text() or "Relu" in launch.note


def test_the_residual_gives_its_memory_to_the_result() -> None:
    rows = [row for row in planned(residual_block()).rows if row.kind == "step"]
    assert rows[1].outputs[0].alias is rows[0].outputs[0]


def test_elementwise_chains_are_one_kernel_that_reads_each_operand_once() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (4, 8)))
    y = graph.add_input("y", TensorType(float32, (8,)))
    gate = graph.insert(Sigmoid(), [x]).output
    swish = graph.insert(Mul(), [x, gate]).output
    graph.set_outputs({"z": graph.insert(Add(), [swish, y]).output})
    infer(graph)
    (launch,) = launches(planned(graph))
    assert launch.note == "Sigmoid+Mul+Add"
    read = [a.value.name for a in launch.args.values() if isinstance(a, Tensor)][1:]
    assert read == ["x", "y"]


@pytest.mark.parametrize("rows", [1 << 12, 4])
def test_a_value_that_others_read_is_a_result_of_its_chain(rows: int) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (rows, 8)))
    inner = graph.insert(Sigmoid(), [x], ["inner"]).output
    outer = graph.insert(Relu(), [inner]).output
    graph.set_outputs({"inner": inner, "outer": outer})
    infer(graph)
    assert [launch.note for launch in launches(planned(graph))] == ["Sigmoid+Relu, 2 results"]


def test_scalar_constants_are_written_into_the_code() -> None:
    (launch,) = launches(planned(single("Mul", [normal(5), np.float32(0.1)], (1,))))
    assert "float(0.10000000149011612)" in launch.code
    assert sum(isinstance(argument, Tensor) for argument in launch.args.values()) == 2


# ── whole models ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_light_models_run_natively(name: str) -> None:
    """No node falls back: laying out for the cuda backend alone raises otherwise."""
    with tercet.load(light_file(name)) as model:
        layout = planned_model(model, DryDevice())
        kernels = {launch.entry for launch in launches(layout)}
        assert kernels & {"gemm", "split_wgmma"}
        assert "conv_naive" not in kernels


def test_resnet50_has_one_row_per_convolution() -> None:
    with tercet.load(light_file("resnet50")) as model:
        rows = [row for row in planned_model(model, DryDevice()).rows if row.kind == "step"]
    of_filters = {
        *("few_channels_wgmma", "split_wgmma", "split_linear", "convolve_halves"),
        *("swap_f16x3", "swap_f16x3_windows", "back_to_back_f16x3"),
    }
    products = [row for row in rows if of_filters & set(row.kernel.split())]
    # Two of 53, which are added, are one.
    assert sum(isinstance(node.op, Conv) for row in products for node in row.nodes) == 52
    assert sum("back_to_back" in row.kernel for row in products) == 12  # with two of them
    assert len(rows) == 52 - 12 + 3  # AveragePool, Gemm, Softmax; the first one has the MaxPool


@pytest.mark.parametrize(("count", "launched"), [(40, [128]), (784, [1024]), (1025, [256, 64])])
def test_a_thousand_rows_are_reduced_by_one_launch(count: int, launched: list[int]) -> None:
    """By a larger block: a thread has no more rows of its columns than one of several blocks."""
    axes = np.array([1])
    found = launches(planned(single("ReduceMean", [normal(2, count, 64), axes], (1,))))
    assert [launch.block for launch in found] == launched


def test_two_axes_are_resized_by_one_launch() -> None:
    """Words of channels or columns; axis by axis where results have many taps."""
    image, scales = normal(1, 24, 6, 8).astype(np.float16), np.array([1, 1, 2, 2], np.float32)
    graph = single("Resize", [image, None, scales], (2,))
    (launch,) = launches(planned(graph))
    assert launch.title == "resample_rows nearest 6 x 8 to 12 x 16"
    channels = np.array([1, 2, 2, 1], np.float32)
    (launch,) = launches(planned(single("Resize", [image, None, channels], (2,), mode="linear")))
    assert dict(launch.constants)["VECTOR"] == 8
    less = np.array([1, 1, 0.2, 0.2], np.float32)
    wide = single("Resize", [normal(1, 2, 40, 40), None, less], (2,), mode="linear", antialias=1)
    assert entries_of(wide) == ["resample", "resample"]


def test_what_prefers_shared_memory() -> None:
    """Kernels of images, which follow one another, but none of rows."""
    rows, image = normal(128, 256).astype(np.float16), normal(1, 32, 9, 9).astype(np.float16)
    filters = normal(64, 32, 3, 3).astype(np.float16)
    layer = single("Conv", [image, filters], (1,), kernel_shape=(3, 3))
    pooling = single("MaxPool", [image], kernel_shape=(3, 3))
    product = single("MatMul", [rows, normal(256, 256).astype(np.float16)], (1,))
    graphs = layer, pooling, product
    found = [{launch.prefers_shared for launch in launches(planned(each))} for each in graphs]
    assert found == [{True}, {True}, {False}]
