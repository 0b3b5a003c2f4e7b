"""The pass to 16-bit floats: what follows, what stays, and how far the results move."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import (
    Add,
    Cast,
    Equal,
    Exp,
    Greater,
    Mul,
    Pow,
    Relu,
    Shrink,
    Sigmoid,
    Sub,
    Tanh,
    Unary,
    Where,
)
from tercet.runtime.ops.experts import MoE
from tercet.runtime.ops.gather import (
    Compress,
    Gather,
    GatherElements,
    GatherND,
    OneHot,
    ScatterElements,
    ScatterND,
)
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.packed import MatMulNBits
from tercet.runtime.ops.pool import GlobalAveragePool, MaxPool
from tercet.runtime.ops.recurrent import GRU, LSTM
from tercet.runtime.ops.reduce import ArgMax, ReduceMax, ReduceSum
from tercet.runtime.ops.resize import GridSample, Resize
from tercet.runtime.ops.shape import Flatten, Reshape, Unsqueeze
from tercet.runtime.options import Options
from tercet.runtime.passes import SYMBOLIC_PASSES, Rewrites, optimise
from tercet.runtime.passes.half.half_operators import FOLLOWERS

from .graphs import Build, apply, kinds, make, normal

BOTH, STATE = "bidirectional", TensorType(float32, (2, 1, 8))
PRECISIONS = pytest.mark.parametrize(
    ("precision", "dtype", "bound"), [("float16", float16, 2e-3), ("bfloat16", bfloat16, 2e-2)]
)


def halved(graph: Graph, precision: str = "float16", stop_at: int | None = None) -> Graph:
    copy = graph.clone()
    options = Options(precision=precision, stop_at=stop_at)  # type: ignore[arg-type]  # any text
    optimise(copy, SYMBOLIC_PASSES, options, evaluate, Rewrites())
    verify(copy)
    infer(copy)
    return copy


def run(graph: Graph, **feeds: Array) -> Array:
    """Run a graph node by node, each in the dtypes that it has."""
    known: dict[Value, Array] = {value: feeds[value.name] for value in graph.inputs}
    for node in graph.nodes:
        inputs = [None if v is None else known.get(v, v.data) for v in node.inputs]
        results = evaluate(node.op, inputs, len(node.outputs))
        assert results is not None, node
        known.update(zip(node.outputs, results, strict=True))
    return known[graph.outputs["y"]]


def dtypes_of(graph: Graph, kind: str) -> set[DType]:
    return {node.output.tensor.dtype for node in graph.nodes if node.kind == kind}


def network(g: Graph, x: Value) -> Value:
    y = apply(g, Relu(), apply(g, Conv(pads=(1,) * 4), x, normal(16, 3, 3, 3), normal(16)))
    z = apply(g, Conv(), y, normal(16, 16, 1, 1) / 4)
    y = apply(g, MaxPool(kernel_shape=(2, 2), strides=(2, 2)), apply(g, Add(), y, z))
    y = apply(g, Flatten(), apply(g, GlobalAveragePool(), y))
    return apply(g, Softmax(), apply(g, Gemm(), y, normal(16, 10) / 16))


@PRECISIONS
def test_a_network_is_half_from_its_first_layer_to_its_last(
    precision: str, dtype: DType, bound: float
) -> None:
    graph = make(network, (2, 3, 8, 8))
    after = halved(graph, precision)
    assert kinds(after)[0] == kinds(after)[-1] == "Cast"
    assert kinds(after).count("Cast") == 2
    assert {n.output.tensor.dtype for n in after.nodes[:-1]} == {dtype}
    assert {v.tensor.dtype for v in after.constants} == {dtype}
    assert after.outputs["y"].tensor == graph.outputs["y"].tensor
    x = normal(2, 3, 8, 8)
    want, got = run(graph, x=x), run(after, x=x)
    assert got.dtype == float32
    assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want)


def test_casts_are_next_to_nodes_that_compute() -> None:
    """A Transpose of patches and the Cast of its elements are one kernel with no view between."""

    def build(g: Graph, x: Value) -> Value:
        patches = apply(g, Transpose(perm=(0, 2, 1, 3)), x)
        rows = apply(g, Reshape(), patches, np.array([2, 3, 20]))
        return apply(g, MatMul(), rows, normal(20, 7))

    graph = make(build, (2, 5, 3, 4))
    after = halved(graph)
    assert kinds(after) == ["Transpose", "Cast", "Reshape", "MatMul", "Cast"]
    x = normal(2, 5, 3, 4)
    want, got = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@PRECISIONS
def test_what_onnx_lacks_in_a_format_stays(precision: str, dtype: DType, bound: float) -> None:
    """Shrink of bfloat16, among all elementwise operators of one operand that follow a layer."""
    kinds_of_all = sorted(
        (op for op in FOLLOWERS if issubclass(op, Unary)), key=lambda op: op.__name__
    )
    assert Shrink in kinds_of_all
    stayed: set[type[Op]] = set()
    for op in kinds_of_all:
        graph = make(
            lambda g, x, op=op: apply(g, op(), apply(g, MatMul(), x, normal(8, 8))), (2, 8)
        )
        if dtypes_of(halved(graph, precision), op.__name__) == {float32}:
            stayed.add(op)
    assert stayed == ({Shrink} if dtype == bfloat16 else set())


def test_float32_stays_as_it_is() -> None:
    assert "Cast" not in kinds(halved(make(network, (2, 3, 8, 8)), "float32"))


def recurrent(g: Graph, x: Value, op: Op, state: Value | None = None) -> Value:
    """A layer of five steps of one row, in both directions."""
    steps = apply(g, Reshape(), x, np.array([-1, 1, 4]))
    rows = (4 if isinstance(op, LSTM) else 3) * 8
    w, r, b = normal(2, rows, 4) / 2, normal(2, rows, 8) / 3, normal(2, 2 * rows)
    return apply(g, op, steps, w, r, b, None, state, outputs=2)


@PRECISIONS
@pytest.mark.parametrize("op", [GRU(direction=BOTH), LSTM(direction=BOTH)], ids=["gru", "lstm"])
def test_recurrent_layers_are_half(op: Op, precision: str, dtype: DType, bound: float) -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Transpose(perm=(0, 2, 1, 3)), recurrent(g, x, op))
        return apply(g, MatMul(), apply(g, Reshape(), y, np.array([0, 0, -1])), normal(16, 3))

    graph = make(build, (50, 4))
    after = halved(graph, precision)
    assert {n.output.tensor.dtype for n in after.nodes[1:-1] if n.kind != "Cast"} == {dtype}
    assert kinds(after).count("Cast") == 2
    x = normal(50, 4)
    want, got = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(got - want) <= 2 * bound * np.linalg.norm(want)


ROW = np.array([[1], [3], [0], [2]])
KEPT: dict[str, tuple[Build, str]] = {
    "its range is wider": (
        lambda g, x: apply(g, Exp(), apply(g, MatMul(), x, normal(4, 4))),
        "Exp",
    ),
    "its states are those of another run": (
        lambda g, x: recurrent(g, x, GRU(direction=BOTH), g.add_input("h", STATE)),
        "GRU",
    ),
    "its cells are unlimited": (
        lambda g, x: recurrent(
            g, x, LSTM(direction=BOTH, activations=("Sigmoid", "Relu", "Relu") * 2)
        ),
        "LSTM",
    ),
    "it is a sum": (
        lambda g, x: apply(g, ReduceSum(), apply(g, MatMul(), x, normal(4, 4))),
        "ReduceSum",
    ),
    "nothing half is near": (lambda g, x: apply(g, Relu(), apply(g, Add(), x, normal(4))), "Add"),
    "what it writes to is not half": (
        lambda g, x: apply(
            g, ScatterND(), apply(g, Exp(), x), ROW, apply(g, MatMul(), x, normal(4, 4))
        ),
        "ScatterND",
    ),
    "it multiplies what was there": (
        lambda g, x: apply(
            g, ScatterND(reduction="mul"), apply(g, MatMul(), x, normal(4, 4)), ROW, x
        ),
        "ScatterND",
    ),
    "many updates are added at a few places": (
        lambda g, x: apply(
            g,
            ScatterND(reduction="add"),
            np.zeros((1, 4), np.float32),
            np.zeros((4000, 1), np.int64),
            apply(g, Gather(), apply(g, MatMul(), x, normal(4, 4)), np.arange(4000) % 4),
        ),
        "ScatterND",
    ),
    "a constant overflows": (
        lambda g, x: apply(
            g, Mul(), apply(g, MatMul(), x, normal(4, 4)), np.array([-3e38], np.float32)
        ),
        "Mul",
    ),
    "a constant becomes zero": (
        lambda g, x: apply(
            g, Add(), apply(g, MatMul(), x, normal(4, 4)), np.full((), 1e-12, np.float32)
        ),
        "Add",
    ),
}


@pytest.mark.parametrize("why", KEPT)
def test_what_stays(why: str) -> None:
    build, kind = KEPT[why]
    after = halved(make(build, (4, 4)))
    assert dtypes_of(after, kind) == {np.dtype(np.float32)}


def test_what_moves_elements_by_indices_follows() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(4, 4))
        y = apply(g, GatherElements(axis=1), y, np.array([[2, 0, 1, 3]] * 4))
        y = apply(g, ScatterND(), y, np.array([[1], [2]]), normal(2, 4))
        y = apply(g, GatherND(), y, ROW)
        y = apply(g, ScatterElements(), y, np.array([[1, 2, 0, 3]]), normal(1, 4))
        return apply(g, MatMul(), y, normal(4, 4))

    after = halved(make(build, (4, 4)))
    assert kinds(after)[0] == kinds(after)[-1] == "Cast"
    assert "Cast" not in kinds(after)[1:-1]


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_what_edges_give_their_nodes_follows(reduction: str) -> None:
    ends = np.arange(12)[::-1, None] % 4

    def build(g: Graph, x: Value) -> Value:
        edges = apply(g, Gather(), apply(g, MatMul(), x, normal(4, 4)), np.arange(12) % 5 % 4)
        y = apply(g, ScatterND(reduction=reduction), np.zeros((4, 4), np.float32), ends, edges)
        return apply(g, MatMul(), y, normal(4, 4))

    graph = make(build, (4, 4))
    after = halved(graph)
    assert dtypes_of(after, "ScatterND") == {np.dtype(np.float16)}
    x = normal(4, 4)
    want, got = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def _rows_by_degree(g: Graph, x: Value, pole: float) -> Value:
    """Rows of a product times the root of how many edges each node has, 0 without any (GCN)."""
    ends = apply(g, ArgMax(axis=-1), x)  # [8, 1]
    zeros, ones = np.zeros(8, np.float32), np.ones(8, np.float32)
    count = apply(g, ScatterND(reduction="add"), zeros, ends, ones)
    root = apply(g, Pow(), count, np.array(-0.5, np.float32))
    poles = apply(g, Equal(), root if pole else count, np.array(pole, np.float32))
    root = apply(
        g, Unsqueeze(), apply(g, Where(), poles, np.array(0, np.float32), root), np.array([1])
    )
    return apply(g, Mul(), apply(g, MatMul(), x, normal(4, 8)), root)


@pytest.mark.parametrize("pole", [0.0, float("inf")])
def test_powers_of_counts_are_at_most_1(pole: float) -> None:
    graph = make(lambda g, x: apply(g, MatMul(), _rows_by_degree(g, x, pole), normal(8, 3)), (8, 4))
    after = halved(graph)
    assert dtypes_of(after, "MatMul") == {np.dtype(np.float16)}
    x = normal(8, 4)
    want, got = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def test_scales_of_resize_stay_float32() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Conv(), x, normal(4, 3, 1, 1))
        return apply(g, Resize(), y, None, np.array([1, 1, 2, 2], np.float32))

    after = halved(make(build, (1, 3, 4, 4)))
    (resize,) = [node for node in after.nodes if node.kind == "Resize"]
    assert resize.inputs[0] is not None
    assert resize.inputs[0].tensor.dtype == float16
    assert resize.inputs[2] is not None
    assert resize.inputs[2].tensor.dtype == float32


def test_positions_of_samples_stay_float32() -> None:
    """Those of an image warped by a flow, from the layer that computes it; the image is half."""

    def build(g: Graph, x: Value) -> Value:
        image = apply(g, Conv(), x, normal(4, 3, 1, 1))
        flow = apply(g, Conv(), apply(g, Relu(), image), normal(2, 4, 1, 1))
        flow = apply(g, Transpose(perm=(0, 2, 3, 1)), flow)
        pixels = np.stack(np.meshgrid(np.arange(90), np.arange(70)), -1).astype(np.float32)
        places = apply(g, Add(), flow, pixels)
        places = apply(g, Mul(), places, np.array([2 / 89, 2 / 69], np.float32))
        places = apply(g, Sub(), places, np.array(1, np.float32))
        return apply(g, GridSample(align_corners=1), image, places)

    graph = make(build, (1, 3, 70, 90))
    after = halved(graph)
    assert dtypes_of(after, "Conv") == {np.dtype(np.float16)}
    assert dtypes_of(after, "GridSample") == {np.dtype(np.float16)}
    for kind in ("Add", "Mul", "Sub"):
        assert dtypes_of(after, kind) == {np.dtype(np.float32)}
    x = normal(1, 3, 70, 90) * np.float32(0.1)
    want, got = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def test_positions_of_a_pool_stay_integers() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, 3, 4, 4)))
    y = apply(graph, Conv(), x, normal(4, 3, 1, 1))
    pool = graph.insert(MaxPool(kernel_shape=(2, 2)), [y], 2)
    graph.set_outputs({"y": pool.outputs[0], "places": pool.outputs[1]})
    infer(graph)
    after = halved(graph)
    assert after.outputs["places"].tensor.dtype == int64
    assert after.outputs["y"].tensor.dtype == float32


def test_every_rewrite_leaves_a_graph_that_runs() -> None:
    """Bisection stops after any of them."""
    graph = make(network, (2, 3, 8, 8))
    x = normal(2, 3, 8, 8)
    want = run(graph, x=x)
    for stop_at in range(1, 14):
        got = run(halved(graph, stop_at=stop_at), x=x)
        assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@PRECISIONS
@pytest.mark.parametrize("zeros", ["", "packed", "floats"])
def test_gated_layers_of_packed_weights(
    precision: str, dtype: DType, bound: float, zeros: str
) -> None:
    """Scales are rounded as weights are, and what combines the products stays in between."""
    draw = np.random.default_rng(3)

    def product(g: Graph, x: Value, k: int, n: int) -> Value:
        blocks, spread = k // 16, np.float32(k**-0.5 / 4)
        packed = draw.integers(0, 256, (n, blocks, 8)).astype(np.uint8)
        scales = (1 + np.abs(normal(n * blocks))) * spread
        points = {
            "": None,
            "packed": draw.integers(0x66, 0x99, (n, -(-blocks // 2))).astype(np.uint8),
            "floats": np.full(n * blocks, 7.5, np.float32),
        }
        op = MatMulNBits(K=k, N=n, block_size=16)
        return apply(g, op, x, packed, scales, points[zeros])

    def build(g: Graph, x: Value) -> Value:
        gate, up = product(g, x, 64, 96), product(g, x, 64, 96)
        gate = apply(g, Mul(), gate, apply(g, Sigmoid(), gate))
        return product(g, apply(g, Mul(), gate, up), 96, 32)

    graph = make(build, (2, 64))
    after = halved(graph, precision)
    assert dtypes_of(after, "com.microsoft::MatMulNBits") == {dtype}
    assert kinds(after).count("Cast") == 2
    x = normal(2, 64)
    exact, found = run(graph, x=x), run(after, x=x)
    assert np.linalg.norm(found - exact) <= bound * np.linalg.norm(exact)


def test_logits_that_choose_experts_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        router = apply(g, Exp(), g.constant(normal(5, 4)))
        weights = [g.constant(normal(4, *dims)) for dims in ((6, 8), (8, 6))]
        return apply(g, MoE(k=2), x, router, weights[0], None, weights[1])

    graph = halved(make(build, (5, 8)))
    (node,) = (node for node in graph.nodes if node.kind.endswith("MoE"))
    found = [value.tensor.dtype for value in node.inputs if value is not None]
    assert found == [float16, float32, float16, float16]


def test_a_search_for_the_greatest_element_reads_what_a_layer_stores() -> None:
    def build(g: Graph, x: Value) -> Value:
        scores = apply(g, MatMul(), x, normal(8, 8))
        best = apply(g, Cast(to=float32), apply(g, ArgMax(axis=-1), scores))
        return apply(g, Add(), best, scores)

    graph = halved(make(build, (4, 8)))
    (search,) = (node for node in graph.nodes if node.kind == "ArgMax")
    assert search.operands[0].tensor.dtype == float16
    assert search.operands[0].producer is not None
    assert search.operands[0].producer.kind == "MatMul"


def test_a_search_in_float32_reads_no_rounded_elements() -> None:
    """Rounding creates ties."""

    def build(g: Graph, x: Value) -> Value:
        sums = apply(g, ReduceSum(keepdims=0), apply(g, Tanh(), x), np.array([0]))
        best = apply(g, Cast(to=float32), apply(g, ArgMax(axis=-1), sums))
        return apply(g, Add(), best, apply(g, MatMul(), sums, normal(8, 8)))

    graph = halved(make(build, (3, 4, 8)))
    (search,) = (node for node in graph.nodes if node.kind == "ArgMax")
    assert search.operands[0].tensor.dtype == float32
    assert dtypes_of(graph, "MatMul") == {float16}


def test_what_only_float32_reads_is_widened_where_it_is_computed() -> None:
    """The field of a neural controlled differential equation: a layer's result as matrices."""

    def build(g: Graph, x: Value) -> Value:
        layer = apply(g, Tanh(), apply(g, MatMul(), x, normal(8, 32)))
        matrices = apply(g, Reshape(), layer, np.array([0, 8, 4]))
        steps = apply(g, Exp(), apply(g, Slice(), x, *np.array([[0], [4], [-1]])))
        return apply(g, MatMul(), matrices, apply(g, Unsqueeze(), steps, np.array([-1])))

    graph = halved(make(build, (2, 8)))
    found = kinds(graph)
    assert found[found.index("Tanh") + 1] == "Cast", found
    (view,) = (node for node in graph.nodes if node.kind == "Reshape")
    assert view.operands[0].tensor.dtype == float32


def test_a_one_hot_writes_16_bits_for_a_layer() -> None:
    def build(g: Graph, x: Value) -> Value:
        best = apply(g, ArgMax(axis=-1, keepdims=0), x)
        chosen = apply(g, OneHot(), best, np.array(8), np.array([0, 1], np.float32))
        return apply(g, MatMul(), chosen, normal(8, 4))

    graph = halved(make(build, (4, 8)))
    assert kinds(graph) == ["ArgMax", "OneHot", "MatMul", "Cast"]
    assert dtypes_of(graph, "OneHot") == {float16}


@pytest.mark.parametrize(("terms", "dtype"), [(32, float16), (1 << 12, float32)], ids=str)
def test_a_sum_of_bounded_shares_of_what_a_layer_computes(terms: int, dtype: DType) -> None:
    """Tokens that a switch dispatches: a mask multiplies them, and few are added."""

    def build(g: Graph, x: Value) -> Value:
        tokens = apply(g, MatMul(), x, normal(8, 8))
        gates = apply(g, Sigmoid(), apply(g, MatMul(), x, normal(8, 4)))
        return apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1)), gates), tokens)

    after = halved(make(build, (1, terms, 8)))
    sums = [node.output.tensor.dtype for node in after.nodes if node.kind == "MatMul"]
    assert sums == [float16, float16, dtype]


def test_a_product_whose_sizes_only_a_run_tells() -> None:
    def build(g: Graph, x: Value) -> Value:
        chosen = apply(
            g,
            Greater(),
            apply(g, ReduceMax(keepdims=0), x, np.array([1])),
            np.zeros((), np.float32),
        )
        rows = apply(g, Compress(axis=0), apply(g, Relu(), x), chosen)
        return apply(g, MatMul(), rows, apply(g, Transpose(perm=(1, 0)), rows))

    assert "MatMul" in kinds(halved(make(build, (4, 8))))
