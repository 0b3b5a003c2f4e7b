"""Normalizations and softmax of few, long rows: who computes one, and how exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS, Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Relu, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.norm import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned, single
from .emulator import needs_compiler
from .norm_samples import far, samples
from .samples import ERROR, OPTIONS, Sample, compare

COMPILES = {"norm/softmax_short.cu", "norm/softmax_serial.cu"}


def node(kind: str, shape: tuple[int, ...], dtype: DType = float32, **how: Any) -> Graph:
    """Return a normalization of a tensor of this shape, without elements."""
    own = (shape[-1:],) if kind in ("LayerNormalization", "RMSNormalization") else (shape[1:2],)
    shapes = (shape, *own * {"Softmax": 0, "RMSNormalization": 1}.get(kind, 2))
    graph = Graph(kind)
    inputs = [graph.add_input(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(shapes)]
    graph.set_outputs({"y": graph.insert(OPERATORS["", kind](**how), inputs).output})
    infer(graph)
    return graph


def recipe(graph: Graph, target: Target = H200) -> list[Launch]:
    return launches(planned(graph, DryDevice(compiler=DryCompiler(target=target))))


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rows", "dtype", "early"),
    [(64, float16, True), (65, float16, False), (65, float32, True)],
    ids=str,
)
def test_the_next_kernel_starts_early_after_few_rows(rows: int, dtype: DType, early: bool) -> None:
    (launch,) = recipe(node("LayerNormalization", (rows, 768), dtype))
    assert dict(launch.constants)["LAUNCHES"] is early


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize(
    ("graph", "entries"),
    [
        (node("LayerNormalization", (256, 16384)), ["normalize_rows"]),
        (node("LayerNormalization", (1024, 32768)), ["standardize"]),
        (node("LayerNormalization", (32, 131072)), ["moments", "standardize"]),
        (node("RMSNormalization", (1, 1 << 20), float16), ["moments", "standardize"]),
        (node("InstanceNormalization", (8, 64, 256, 256)), ["standardize"]),
        (node("InstanceNormalization", (1, 32, 512, 512)), ["moments", "standardize"]),
        (node("InstanceNormalization", (8, 4, 64, 64)), ["standardize"]),
        (node("GroupNormalization", (2, 320, 64, 64), num_groups=32), ["moments", "standardize"]),
        (node("Softmax", (1024, 50257)), ["softmax_rows"]),
        (node("Softmax", (32, 50257)), ["peaks", "softmax_rows"]),
        (node("Softmax", (1024, 196), float16), ["softmax_short"]),
        (node("Softmax", (1024, 16), float16), ["softmax_short"]),
        (node("Softmax", (1024, 9), float16), ["softmax_serial"]),
        (node("Softmax", (1024, 1025), float16), ["softmax_rows"]),
        (node("Softmax", (6272, 196, 4), float16, axis=1), ["softmax_short"]),
        (node("Softmax", (196, 196, 4), float16, axis=1), ["softmax_columns"]),
        (node("Softmax", (6272, 196, 16), float32, axis=1), ["softmax_columns"]),
        (node("Softmax", (6272, 196, 6), float16, axis=1), ["softmax_columns"]),
        (node("Softmax", (6272, 49, 16), float32, axis=1), ["softmax_short"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value.nodes[0].op),
)
def test_few_long_groups_are_shared(graph: Graph, entries: list[str], target: Target) -> None:
    found = recipe(graph, target)
    assert [launch.entry for launch in found] == entries
    if len(found) == 2:
        first, last = found
        assert first.grid == last.grid
        assert target.processors / 2 < first.grid[0] < 6 * target.processors
        assert last.scratch == {"moments": 12, "peaks": 8}[first.entry] * last.grid[0]


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda dtype: dtype.name)
def test_words_of_sixteen_bytes(dtype: DType) -> None:
    """Wherever neighbours lie together and have the same scale, or scales that lie together."""
    maximum = 16 // dtype.itemsize
    for graph, vector in (
        (node("LayerNormalization", (2, 1 << 17), dtype), maximum),
        (node("LayerNormalization", (2, (1 << 17) + 1), dtype), 1),
        (node("InstanceNormalization", (1, 3, 512, 512), dtype), maximum),
        (node("GroupNormalization", (1, 8, 512, 256), dtype, num_groups=2), maximum),
        (node("GroupNormalization", (1, 8, 511, 257), dtype, num_groups=2), 1),
    ):
        for launch in recipe(graph):
            constants = dict(launch.constants)
            assert constants["VECTOR"] == vector
            assert constants["VECTOR"] * constants["BATCH"] * dtype.itemsize <= 64


# ── on the host ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


def results(sample: Sample, *backends: Any) -> list[Array]:
    with Model(sample.graph.clone(), backends, OPTIONS, evaluate) as model:
        return [np.asarray(a) for a in model.run(sample.feeds).values()]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("count", [5000, 20011, 40000])
def test_a_mean_far_from_zero(count: int, emulated: CudaBackend) -> None:
    """Sums of squares would have no digit left of it."""
    sample = far(count)
    *_, got = results(sample, emulated)
    want = 1 / np.sqrt(sample.feeds["x0"].astype(float64).var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-5)


# ── what follows a normalization ──────────────────────────────────────────────────────────────────


def between_layers(groups: int, dtype: DType, *behind: str) -> Sample:
    """Return two convolutions with a normalization of groups, and what is behind it, in between."""
    graph = Graph("layers")
    shape = (2, 12, 5, 6)
    x = graph.add_input("x", TensorType(dtype, shape))

    def constant(*dims: int) -> Value:
        return graph.constant(normal(*dims).astype(dtype), f"c{len(graph.values)}")

    first = graph.insert(Conv(), [x, constant(12, 12, 1, 1)]).output
    given = [first, constant(12), constant(12)]
    op = GroupNormalization(num_groups=groups) if groups else InstanceNormalization()
    y = graph.insert(op, given).output
    for kind in behind:
        more = {"Add": [x], "Mul": [constant(12, 1, 1)]}.get(kind, [])
        y = graph.insert(OPERATORS["", kind](), [y, *more]).output
    last = graph.insert(Conv(), [y, constant(8, 12, 1, 1)]).output
    graph.set_outputs({"y": last})
    infer(graph)
    return Sample(graph, {"x": normal(*shape).astype(dtype)})


NORMS = [
    (3, float16, ("Swish",)),
    (6, float16, ("Mul", "Swish")),
    (12, float16, ("Relu",)),
    (0, float16, ("LeakyRelu",)),
    (0, float16, ("Mul", "Relu")),
    (3, float32, ("Swish",)),
    (0, float32, ("Mul", "Add", "Relu")),
]


@pytest.mark.parametrize(("groups", "dtype", "behind"), NORMS, ids=str)
def test_what_follows_is_in_the_kernel(groups: int, dtype: DType, behind: tuple[str, ...]) -> None:
    """In whatever order the layers around it have their elements."""
    layout = planned(between_layers(groups, dtype, *behind).graph)
    names = ("standardize", "channel_groups")
    (norm,) = (row for row in layout.rows if row.kernel.startswith(names))
    assert [node.kind for node in norm.nodes[1:]] == list(behind)
    at = layout.rows.index(norm)
    assert "reformat" not in {row.kind for row in layout.rows[at - 1 : at + 2]}


@pytest.mark.parametrize(
    ("count", "lanes"), [(32, 4), (96, 4), (160, 8), (192, 8), (384, 16), (768, 32)]
)
def test_short_rows_share_a_warp(count: int, lanes: int) -> None:
    """As few threads as possible are without elements."""
    (launch,) = recipe(node("LayerNormalization", (4096, count), float16))
    assert (launch.block, launch.grid[0]) == (128, 4096 * lanes // 128)


@pytest.mark.parametrize(
    ("rows", "count", "threads"), [(8192, 64, 128), (16384, 64, 256), (25088, 192, 128)]
)
def test_blocks_with_a_word_per_thread_have_more_threads(
    rows: int, count: int, threads: int
) -> None:
    """Where they are many: to start one takes as long as what it does."""
    (launch,) = recipe(node("LayerNormalization", (rows, count), float16))
    assert launch.block == threads


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("groups", "dtype", "behind"), NORMS, ids=str)
def test_what_follows_is_computed(
    groups: int, dtype: DType, behind: tuple[str, ...], emulated: CudaBackend
) -> None:
    compare(between_layers(groups, dtype, *behind), emulated)


def test_what_an_epilogue_cannot_read_is_one_chain() -> None:
    """Such as computed scales and shifts that samples share."""
    graph = Graph("scaled alike")
    x, factor, shift = (
        graph.add_input(name, TensorType(float16, dims))
        for name, dims in (("x", (2, 9, 16)), ("factor", (1, 9, 16)), ("shift", (1, 9, 16)))
    )
    one = graph.constant(np.ones(16, np.float16), "one")
    rows = graph.insert(LayerNormalization(), [x, one]).output
    scaled = graph.insert(Mul(), [rows, factor]).output
    graph.set_outputs({"y": graph.insert(Add(), [scaled, shift]).output})
    infer(graph)
    assert [launch.title for launch in recipe(graph)] == [
        "normalize_rows 18 x 16",
        "elementwise Mul+Add",
    ]


CAST = [
    *(("Softmax", (2, 700), -1), ("LogSoftmax", (150, 64), -1), ("Softmax", (150, 65), -1)),
    *(("Softmax", (2, 9, 40), 1), ("LogSoftmax", (1, 1 << 15), -1)),
]


def cast_softmax(kind: str, shape: tuple[int, ...], axis: int, to: DType) -> Sample:
    """Return weights that are stored in another type than scores."""
    scores = normal(*shape).astype(float32 if to == float16 else float16)
    graph = Graph(kind)
    x = graph.add_input("x", TensorType(scores.dtype, shape))
    weights = graph.insert(OPERATORS["", kind](axis=axis), [x]).output
    graph.set_outputs({"y": graph.insert(Cast(to=to), [weights]).output})
    infer(graph)
    return Sample(graph, {"x": scores})


@pytest.mark.parametrize("to", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("kind", "shape", "axis"), CAST, ids=str)
def test_a_softmax_stores_another_type(
    kind: str, shape: tuple[int, ...], axis: int, to: DType
) -> None:
    found = recipe(cast_softmax(kind, shape, axis, to).graph)
    assert not any(launch.file.startswith("elementwise/") for launch in found)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("to", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("kind", "shape", "axis"), CAST, ids=str)
def test_what_it_stores(
    kind: str, shape: tuple[int, ...], axis: int, to: DType, emulated: CudaBackend
) -> None:
    compare(cast_softmax(kind, shape, axis, to), emulated, error=ERROR[float16])


def halves(dtype: DType, width: int) -> Sample:
    """Return one half of each row, and the normalized other half, as gMLP gates rows."""
    graph = Graph("halves")
    x = graph.add_input("x", TensorType(dtype, (2, 5, 2 * width)))
    whole = graph.insert(Relu(), [x]).output
    one, other = graph.insert(Split(axis=2, num_outputs=2), [whole, None], 2).outputs
    scale, shift = (graph.constant(normal(width, n)[:, 0].astype(dtype), f"c{n}") for n in (2, 3))
    rows = graph.insert(LayerNormalization(), [other, scale, shift]).output
    graph.set_outputs({"gate": graph.insert(Sigmoid(), [one]).output, "rows": rows})
    infer(graph)
    return Sample(graph, {"x": normal(2, 5, 2 * width).astype(dtype)})


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
def test_parts_of_rows_are_read_where_they_are(dtype: DType, emulated: CudaBackend) -> None:
    sample = halves(dtype, 24)
    entries = [launch.entry for launch in recipe(sample.graph)]
    assert sorted(entries) == ["elementwise", "elementwise", "normalize_rows"]
    compare(sample, emulated)


def test_parts_that_begin_between_words_are_copied(emulated: CudaBackend) -> None:
    sample = halves(float16, 9)
    assert "copy_strided" in [launch.entry for launch in recipe(sample.graph)]
    compare(sample, emulated)


@needs_compiler
@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization])
@pytest.mark.parametrize("dims", [(5, 1), (1, 5), (5,), (5, 5), (1,), (5, 1, 1)], ids=str)
def test_parameters_of_rows_and_of_elements(
    kind: type[Op], dims: tuple[int, ...], emulated: CudaBackend
) -> None:
    """As many elements as a row has may be one for each row instead."""
    graph = Graph("rows")
    x = graph.add_input("x", TensorType(float32, (5, 5, 5) if len(dims) == 3 else (5, 5)))
    parameters = [graph.constant(normal(*dims), "scale")]
    if kind is LayerNormalization:
        parameters.append(graph.constant(normal(*dims), "shift"))
    graph.set_outputs({"y": graph.insert(kind(), [x, *parameters]).output})
    infer(graph)
    compare(Sample(graph, {"x": normal(*x.tensor.dims)}), emulated)


def test_a_constant_of_the_last_axis_is_not_one_of_a_row_of_two(emulated: CudaBackend) -> None:
    """An epilogue counts the elements of a row, which are more than the constant has."""
    graph = Graph("rows")
    x = graph.add_input("x", TensorType(float32, (3, 4, 8)))
    scale = graph.constant(normal(4, 8), "scale")
    rows = graph.insert(LayerNormalization(axis=1), [x, scale]).output
    factor = graph.constant(normal(8), "factor")
    graph.set_outputs({"y": graph.insert(Mul(), [rows, factor]).output})
    infer(graph)
    assert [launch.entry for launch in recipe(graph)] == ["normalize_rows", "elementwise"]
    compare(Sample(graph, {"x": normal(3, 4, 8)}), emulated)


@pytest.mark.parametrize(
    ("rows", "dtype", "target", "share"),
    [
        *((128, float32, H200, 0), (197, float32, H200, 1), (197, float16, H200, 0)),
        *((1500, float32, H200, 3), (1500, float16, H200, 3), (1500, float32, A100, 0)),
        (4096, float32, H200, 0),
    ],
)
def test_blocks_of_some_rows_are_spread_evenly(
    rows: int, dtype: DType, target: Target, share: int
) -> None:
    """Otherwise multiprocessors that the preceding kernel leaves idle get all of them."""
    operands = [normal(*dims).astype(dtype) for dims in ((rows, 512), (512,), (512,))]
    graph = single("LayerNormalization", operands, (1, 2))
    (launch,) = launches(planned(graph, DryDevice(compiler=DryCompiler(target))))
    found = (target.shared + 1024) // (launch.shared + 1024) if launch.shared else 0
    assert found == share
    assert found * target.processors >= launch.grid[0] or not found


def test_blocks_of_rows_in_halves_leave_room_for_a_product() -> None:
    """Which requests its weights beside them."""
    graph = Graph("layer")
    x = graph.add_input("x", TensorType(float32, (197, 512)))
    scale = graph.constant(normal(512), "scale")
    weights = graph.constant(normal(512, 512), "weights")
    rows = graph.insert(LayerNormalization(), [x, scale]).output
    graph.set_outputs({"y": graph.insert(MatMul(), [rows, weights]).output})
    infer(graph)
    norm = next(launch for launch in recipe(graph) if launch.entry == "normalize_rows")
    assert norm.args["halves"] is not None
    assert norm.shared == 0


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_short_rows_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target=target))
    for size in (9, 33, 64, 196):
        for dtype in (float16, float32):
            planned(node("Softmax", (1024, size), dtype), device)
    for to in (float16, float32):
        planned(cast_softmax("Softmax", (1024, 64), -1, to).graph, device)
    all_compile(device.compiler.sources, target, cache, COMPILES)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "target"), [(0, A100), (2, H200)], ids=["sm_80", "sm_90a"])
def test_kernels_compile(first: int, target: Target, cache: Path) -> None:
    """Every fourth, and others for the other target: all of them would take long."""
    device = DryDevice(compiler=DryCompiler(target=target))
    for sample in (*samples(), *(between_layers(groups, d, *kinds) for groups, d, kinds in NORMS)):
        planned(sample.graph, device)
    all_compile(list(device.compiler.sources)[first::4], target, cache)


def test_arguments_are_what_the_kernels_take(cache: Path) -> None:
    assert_arguments(recipe(node("LayerNormalization", (1, 1 << 20))), H200, cache)


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((8, 3137, 8), (16, 64)),
        ((8, 49, 49), (16, 8)),
        ((64, 512, 49), (16, 32)),
        ((64, 512, 4900), (128, 1)),
    ],
)
def test_threads_share_the_columns_of_a_softmax_that_has_few(
    shape: tuple[int, int, int], block: tuple[int, int]
) -> None:
    array = np.broadcast_to(np.float16(0), shape)
    (launch,) = launches(planned(single("Softmax", [array], axis=1)))
    constants = dict(launch.constants)
    assert (constants["COLUMNS"], constants["DOWN"]) == block
    assert launch.block == block[0] * block[1]
    assert launch.grid[0] == -(-shape[0] * shape[2] // block[0])
