"""What transformers become on the cuda backend, without a GPU: few kernels, and no copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.attention.flash import HEIGHTS
from tercet.backends.cuda.attention.flash_mma import SHAPES
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen.elementwise import MAX_REPEATED
from tercet.backends.cuda.recipe.operands import ceil_div
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Exp, Gelu, Mul, Relu, Sigmoid, Sub, Tanh
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.norm import LayerNormalization
from tercet.runtime.options import Options, Precision
from tercet.runtime.session.model import Model
from tercet.tools.workshop.bench_models import bench_model

from . import transformer_samples
from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned, planned_model, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare
from .transformer_samples import SHARED_KEYS, few_blocks

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {
    "attention/attention_long.cu",
    "attention/attention_merge.cu",
    "attention/attention_mma.cu",
    "attention/attention_wgmma.cu",
}


def attention(
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    size: tuple[int, int],
    dtype: DType = float16,
    mask: Any = None,
    **attributes: Any,
) -> Graph:
    """Return an Attention of (batch, heads, heads of the keys)."""
    batch, of_q, of_k = heads
    q = normal(batch, of_q, lengths[0], size[0]).astype(dtype)
    k = normal(batch, of_k, lengths[1], size[0]).astype(dtype)
    v = normal(batch, of_k, lengths[1], size[1]).astype(dtype)
    return single("Attention", [q, k, v] if mask is None else [q, k, v, mask], **attributes)


def graphs() -> Iterator[Graph]:
    """Everything that attention kernels tell apart at compile time."""
    seen = normal(1, 1, 1, 77) > 0
    for dtype in (float16, bfloat16, float32):
        for size in ((32, 32), (64, 64), (80, 96), (128, 128), (33, 20)):
            yield attention((2, 4, 2), (70, 77), size, dtype)
        yield attention((2, 4, 4), (70, 77), (64, 64), dtype, seen, softcap=2.0)
        yield attention((2, 4, 4), (77, 77), (64, 64), dtype, normal(77, 77), is_causal=1)
        yield attention((2, 4, 4), (77, 77), (64, 64), dtype, left_window_size=9)
        yield attention((32, 12, 12), (197, 197), (64, 64), dtype)
        yield attention((1, 12, 12), (197, 197), (64, 64), dtype)
        yield attention((5, 12, 12), (200, 300), (128, 72), dtype)
        yield attention((5, 12, 4), (130, 1030), (64, 64), dtype, normal(1, 1030), is_causal=1)
        yield attention((1, 32, 8), (1, 4096), (128, 128), dtype)
        yield attention((1, 16, 2), (16, 4096), (256, 256), dtype, normal(1, 4096))
    yield attention((1, 2, 2), (70, 77), (256, 256))


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("graph", "entry"),
    [
        (attention((1, 2, 2), (5, 19), (64, 64)), "attention_mma"),
        (attention((1, 2, 2), (5, 19), (64, 64), bfloat16), "attention_mma"),
        (attention((1, 2, 2), (5, 9), (64, 64)), "attention_short"),
        (attention((1, 2, 2), (5, 39), (64, 64), float32), "attention_tiles"),
        (attention((1, 2, 2), (5, 9), (64, 64), float64), "attention"),
        (attention((1, 2, 2), (17, 9), (129, 64), float32), "attention"),
        (attention((1, 2, 2), (5, 19), (320, 64)), "attention"),
        (attention((1, 2, 2), (5, 9), (64, 64), softmax_precision=float64), "attention"),
        (attention((1, 2, 2), (5, 9), (64, 64), outputs=4), "attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.nodes[0].op),
)
def test_ways(graph: Graph, entry: str) -> None:
    assert launches(planned(graph))[-1].entry == entry


@pytest.mark.parametrize(
    ("keys", "size", "lanes"), [(32, 3136, 32), (12, 300, 32), (500, 300, 1), (8, 16, 1)]
)
def test_threads_share_scores_of_long_heads(keys: int, size: int, lanes: int) -> None:
    launch = launches(planned(attention((1, 2, 2), (4, keys), (size, size), float64)))[-1]
    assert (launch.entry, dict(launch.constants)["LANES"]) == ("attention", lanes)


@pytest.mark.parametrize(
    ("shapes", "entries"),
    [
        (((500, 640), (640, 400)), ["mma_linear"]),
        (((50, 64), (64, 40)), ["mma"]),
        (((2, 3, 50, 64), (2, 3, 64, 40)), ["mma"]),
        (((50, 64), (3, 64, 40)), ["mma"]),
        (((50, 63), (63, 40)), ["mma"]),
        (((3, 1, 50, 64), (2, 64, 40)), ["mma"]),
        (((3, 1, 8, 64), (2, 64, 40)), ["mma"]),
    ],
    ids=str,
)
def test_products_of_two_tensors(shapes: tuple[Any, Any], entries: list[str]) -> None:
    a, b = (normal(*shape).astype(float16) for shape in shapes)
    found = launches(planned(single("MatMul", [a, b])))
    assert [launch.entry for launch in found] == entries
    assert found[-1].early == (entries[-1] == "mma")  # others read both before they wait


def test_a_transposed_operand_is_read_where_it_lies() -> None:
    a, b = normal(50, 64).astype(float16), normal(40, 64).astype(float16)
    (launch,) = launches(planned(single("Gemm", [a, b], transB=1)))
    assert launch.entry == "mma"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_few_rows_are_shared_by_more_blocks(target: Target) -> None:
    few, many = (
        launches(planned(graph, on(target)))[0]
        for graph in (
            attention((1, 12, 12), (197, 197), (64, 64)),
            attention((32, 12, 12), (197, 197), (64, 64)),
        )
    )
    if target.has_wgmma:
        assert few.entry == many.entry == "attention_wgmma"
        # Of 64 rows each, and of all rows of a head.
        assert (few.grid[0], many.grid[0]) == (4 * 12, 12 * 32)
    else:
        assert few.grid[0] == 7 * 12  # of 32 rows each, whose keys four groups of warps share
        assert (dict(few.constants)["WARPS_N"], dict(many.constants)["WARPS_N"]) == (4, 1)
    assert max(few.shared, many.shared) <= target.shared


@pytest.mark.parametrize(
    ("heads", "lengths", "entry"),
    [
        ((1, 12, 12), (9, 16), "attention_wgmma"),
        ((16, 12, 12), (32, 256), "attention_wgmma"),
        ((1, 12, 12), (32, 257), "attention_mma"),
        ((1, 12, 12), (8, 64), "attention_mma"),
    ],
    ids=str,
)
def test_few_queries_of_few_keys_are_a_small_block(
    heads: tuple[int, int, int], lengths: tuple[int, int], entry: str
) -> None:
    (launch,) = launches(planned(attention(heads, lengths, (64, 64)), on(H200)))
    assert launch.entry == entry


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("sizes", [(64, 64), (32, 32), (24, 56)], ids=str)
def test_idle_rows_of_small_blocks(
    sizes: tuple[int, int], causal: int, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler: Any = hopper.device.compiler
    monkeypatch.setattr(compiler, "target", H200)
    heads, lengths = (2, 3, 3), (21, 30)
    short = transformer_samples.attention(heads, lengths, sizes, float16, is_causal=causal)
    compare(short, hopper)
    assert [source.file for source in compiler.sources] == ["attention/attention_wgmma.cu"]


@pytest.mark.parametrize(
    ("heads", "length", "attributes", "rounds"),
    [
        ((32, 12, 12), 197, {}, 4),
        ((64, 12, 12), 197, {}, 1),  # two waves of blocks
        ((16, 12, 12), 197, {}, 2),
        ((8, 12, 12), 197, {}, 1),  # all blocks run at a time
        ((32, 16, 16), 197, {}, 1),  # many places would be idle
        ((32, 16, 16), 128, {"is_causal": 1}, 2),
        ((32, 16, 16), 128, {"left_window_size": 100}, 1),  # rows see other keys
        ((32, 12, 12), 256, {}, 1),  # fewer blocks would have room
    ],
    ids=str,
)
def test_blocks_process_more_rows_where_all_run_at_once(
    heads: tuple[int, int, int], length: int, attributes: dict[str, Any], rounds: int
) -> None:
    graph = attention(heads, (length, length), (64, 64), **attributes)
    (launch,) = launches(planned(graph, on(H200)))
    assert dict(launch.constants)["ROUNDS"] == rounds
    assert launch.grid[0] == heads[0] * heads[1] * ceil_div(ceil_div(length, 64), rounds)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "lengths", "mask", "attributes", "processors", "rounds"),
    [
        ((2, 3, 3), (197, 197), None, {}, 2, 4),
        ((2, 3, 3), (150, 160), None, {}, 4, 2),  # half of the blocks have one tile
        ((2, 6, 2), (330, 150), None, {}, 4, 6),
        ((2, 4, 4), (190, 100), (2, 1, 1, 77), {"softcap": 2.0}, 2, 3),
        ((2, 3, 3), (150, 160), None, {"is_causal": 1}, 2, 3),
    ],
    ids=str,
)
def test_blocks_of_several_tiles_of_rows(
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    mask: tuple[int, ...] | None,
    attributes: dict[str, Any],
    processors: int,
    rounds: int,
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU that is full of them, whose queries take turns in two places."""
    compiler: Any = hopper.device.compiler
    monkeypatch.setattr(compiler, "target", replace(H200, processors=processors))
    more = () if mask is None else (normal(*mask).astype(float16),)
    case = transformer_samples.attention(heads, lengths, (64, 64), float16, *more, **attributes)
    compare(case, hopper)
    (source,) = compiler.sources
    assert source.file == "attention/attention_wgmma.cu"
    assert dict(source.constants)["ROUNDS"] == rounds


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "mask", "attributes"), SHARED_KEYS, ids=str)
def test_warpgroups_share_the_keys_of_few_blocks(
    lengths: tuple[int, int],
    mask: tuple[int, ...] | None,
    attributes: dict[str, Any],
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler: Any = hopper.device.compiler
    monkeypatch.setattr(compiler, "target", H200)
    compare(few_blocks(lengths, mask, attributes), hopper)
    (source,) = compiler.sources
    assert source.file == "attention/attention_wgmma.cu"
    groups = 3 if 192 <= lengths[1] <= 256 else max(2, ceil_div(lengths[1], 208))
    assert dict(source.constants)["GROUPS"] == groups


def on(target: Target) -> DryDevice:
    return DryDevice(compiler=DryCompiler(target=target))


def test_rows_of_blocks() -> None:
    rows = [shape.rows for shape, minimum in SHAPES if minimum]  # the others are for few blocks
    assert rows == sorted(rows, reverse=True)
    times = [HEIGHTS[height] / height for height in sorted(HEIGHTS)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("size", [48, 80], ids="heads of {}".format)
def test_groups_of_warps_share_keys_where_blocks_are_few(size: int) -> None:
    """Whatever the number of keys is, from those of two groups on."""
    for keys in range(65, 400, 16):
        graph = attention((1, 3, 3), (keys, keys), (size, size))
        (launch,) = launches(planned(graph, on(A100)))
        assert dict(launch.constants)["WARPS_N"] > 1, keys


@pytest.mark.parametrize(
    ("count", "many", "few"),
    [
        *((64, 1, 1), (768, 1, 3), (1024, 1, 4), (2048, 2, 8), (8192, 8, 16), (16384, 16, 16)),
        (5, 1, 1),
    ],
)
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
def test_rows_are_normalized_in_registers(count: int, many: int, few: int, dtype: DType) -> None:
    """Those of few rows by more threads: no multiprocessor has a second one."""
    scale = normal(count).astype(dtype)
    for rows, (kind, scales), warps in (
        (500, ("LayerNormalization", 2), many),
        (500, ("RMSNormalization", 1), many),
        (7, ("LayerNormalization", 2), few),
        (7, ("RMSNormalization", 1), few),
    ):
        graph = single(kind, [normal(rows, count).astype(dtype), *[scale] * scales])
        (launch,) = launches(planned(graph))
        assert launch.entry == "normalize_rows"
        found = dict(launch.constants)
        assert found["WARPS"] == warps
        assert found["PER"] * found["VECTOR"] * 32 * warps >= count


@pytest.mark.parametrize(
    "graph",
    [
        single("LayerNormalization", [normal(2, 16400), normal(16400)]),
        single("LayerNormalization", [normal(7, 64), normal(64)], outputs=3),
        single("LayerNormalization", [normal(7, 64).astype(float64), normal(64).astype(float64)]),
    ],
    ids=["long rows", "statistics", "float64"],
)
def test_what_else_is_normalized(graph: Graph) -> None:
    assert launches(planned(graph))[0].file == "norm/standardize.cu"


# ── epilogues and chains ─────────────────────────────────────────────────────────────────────────


def chain(*steps: tuple[Op, Any], x: tuple[int, ...], weight: Any = None) -> Graph:
    """Return a chain of elementwise nodes, behind a product where there is a weight."""
    graph = Graph()
    value = graph.add_input("x", TensorType(float32, x))
    if weight is not None:
        value = graph.insert(MatMul(), [value, graph.constant(weight)]).output
    for number, (op, other) in enumerate(steps):
        operands: list[Value | None] = [value]
        if isinstance(other, tuple):
            operands.append(graph.add_input(f"z{number}", TensorType(float32, other)))
        elif other is not None:
            operands.append(graph.constant(other))
        value = graph.insert(op, operands).output
    graph.set_outputs({"y": value})
    infer(graph)
    return graph


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize(
    "steps",
    [
        [(Add(), normal(96)), (Gelu(), None)],
        [(Add(), normal(96)), (Gelu(approximate="tanh"), None)],
        [(Add(), normal(1, 1, 96)), (Relu(), None)],
        [(Add(), normal(96)), (Add(), (2, 50, 96))],
    ],
    ids=["Gelu", "tanh", "Relu", "residual"],
)
def test_a_linear_layer_of_tokens_is_one_product(steps: list[Any], precision: Precision) -> None:
    graph = chain(*steps, x=(2, 50, 64), weight=normal(64, 96))
    with Model(graph, [NumpyBackend()], Options(precision=precision), evaluate) as model:
        rows = [row for row in planned(model.graph).rows if row.kind == "step"]
    (product,) = (row for row in rows if row.nodes[0].kind == "MatMul")
    widened = precision == "float16"  # by a Cast, which is in the product as well
    assert len(product.nodes) == 1 + len(steps) + widened


def test_six_elementwise_nodes_are_one_kernel() -> None:
    """Whatever is broadcast with whatever; in the middle, too."""
    graph = chain(
        (Mul(), (4, 1, 7)),
        (Sigmoid(), None),
        (Add(), (5, 7)),
        (Exp(), None),
        (Sub(), normal(4, 5, 1)),
        (Tanh(), None),
        x=(4, 5, 7),
    )
    (launch,) = launches(planned(graph))
    assert launch.note == "Mul+Sigmoid+Add+Exp+Sub+Tanh"


def test_cheap_nodes_of_a_smaller_tensor_join_their_reader() -> None:
    """Others as well where they are computed again for few elements, or a few times."""
    graph = chain((Sub(), normal(1, 1, 1, 1)), (Mul(), (2, 3, 4, 5)), x=(2, 1, 1, 5))
    assert [launch.note for launch in launches(planned(graph))] == ["Sub+Mul"]
    graph = chain((Exp(), None), (Mul(), (2, 3, 4, 5)), x=(2, 1, 1, 5))
    assert [launch.note for launch in launches(planned(graph))] == ["Exp+Mul"]
    many = (2, MAX_REPEATED // 10, 2, 5)
    graph = chain((Exp(), None), (Mul(), many), x=(2, 1, 1, 5))
    assert [launch.note for launch in launches(planned(graph))] == ["Exp", "Mul"]
    graph = chain((Exp(), None), (Mul(), (MAX_REPEATED, 4)), x=(MAX_REPEATED, 1))
    assert [launch.note for launch in launches(planned(graph))] == ["Exp+Mul"]


# ── whole models ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize(("name", "depth"), [("bert_small", 4), ("vit_tiny", 12)])
def test_a_block_is_at_most_seven_kernels(name: str, depth: int, precision: Precision) -> None:
    """Two normalizations, four products and an attention; nothing is copied in between.

    Products normalize rows themselves where one alone is read, and where that is faster.
    """
    with tercet.load(bench_model(name)) as model:
        imported = model.imported
    with Model(imported, [NumpyBackend()], Options(precision=precision), evaluate) as model:
        layout = planned_model(model, DryDevice())
    steps = [[node.kind for node in row.nodes] for row in layout.rows if row.kind == "step"]
    # Attention that reads halves finds its parts itself.
    kinds = [next((kind for kind in step if kind != "Split"), "Split") for step in steps]
    nodes = [kind for step in steps for kind in step]
    nodes = nodes[nodes.index("LayerNormalization") :]  # which the patches' product may have
    assert nodes.count("MatMul") == 4 * depth
    assert nodes.count("Attention") == depth
    assert nodes.count("LayerNormalization") == 2 * depth + 1
    behind = set(kinds[kinds.index("Attention") :])
    assert behind <= {"MatMul", "Attention", "LayerNormalization", "Gather", "Gemm", "Cast"}


# ── on the host ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", transformer_samples.samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


def block(dtype: DType) -> Sample:
    """Return the first half of a transformer's block, whose heads lie in one product."""
    width, heads = 48, 3
    x = normal(2, 37, width).astype(dtype)
    graph = Graph("block")
    value = graph.add_input("x", TensorType(dtype, x.shape))

    def add(op: Op, *inputs: Any, outputs: int = 1) -> Any:
        given = [
            graph.constant((v / 4).astype(dtype)) if isinstance(v, np.ndarray) else v
            for v in inputs
        ]
        return graph.insert(op, given, outputs).outputs

    (normed,) = add(LayerNormalization(), value, normal(width), normal(width))
    (product,) = add(MatMul(), normed, normal(width, 3 * width))
    (product,) = add(Add(), normal(3 * width), product)
    parts = add(Split(axis=-1, num_outputs=3), product, outputs=3)
    (y,) = add(Attention(q_num_heads=heads, kv_num_heads=heads), *parts)
    (y,) = add(MatMul(), y, normal(width, width))
    (y,) = add(Add(), *add(Add(), y, normal(width)), value)
    (y,) = add(Gelu(), y)
    graph.set_outputs({"y": y})
    infer(graph)
    return Sample(graph, {"x": x})


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda dtype: dtype.name)
def test_a_block(dtype: DType, emulated: CudaBackend) -> None:
    found = block(dtype)
    compare(found, emulated)
    with Model(found.graph.clone(), [emulated], OPTIONS, evaluate) as model:
        rows = [row for row in model.prepare().rows if row.kind == "step"]
    kinds = [row.nodes[0].kind for row in rows]
    assert kinds == ["LayerNormalization", "MatMul", "Attention", "MatMul"]


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    device = on(target)
    for graph in graphs():
        for launch in launches(planned(graph, device)):
            assert launch.shared <= target.shared
    files = COMPILES if target == H200 else set[str]()
    all_compile(list(device.compiler.sources), target, cache, files)


def test_arguments_are_what_the_kernels_take(cache: Path) -> None:
    found = [launch for graph in graphs() for launch in launches(planned(graph))]
    kinds = ("mma", "tiles", "wgmma", "long", "merge")
    assert {launch.entry for launch in found} >= {f"attention_{kind}" for kind in kinds}
    assert_arguments(found, H200, cache)
