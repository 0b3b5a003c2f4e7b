"""What half precision must not do: make NaN, infinity or noise out of numbers that float32 has.

Every network here is one that loses its numbers in float16 if all of it is narrowed; the oracle is
float64, node by node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, float16, float32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, Dim, TensorType
from tercet.runtime.ops import elementwise as ew
from tercet.runtime.ops import reduce as red
from tercet.runtime.ops.conv import Col2Im, Conv
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Pad, Slice, Transpose
from tercet.runtime.ops.norm import LayerNormalization, Softmax
from tercet.runtime.ops.resize import Resize
from tercet.runtime.ops.shape import Reshape

from .graphs import Build, apply, make, normal
from .graphs import run as run_in
from .test_to_half import dtypes_of, halved, run


def full(number: float, *shape: int) -> Array:
    return np.full(shape, number, np.float32)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def eye(size: int) -> Array:
    return np.eye(size, dtype=np.float32)


def linear_attention(g: Graph, x: Value) -> Value:
    """Attend without a softmax, as EfficientViT does: sums over all tokens, and their quotient."""
    q, k, v = (apply(g, MatMul(), x, normal(8, 8)) for _ in range(3))
    q, k = (apply(g, ew.Relu(), each) for each in (q, k))
    v = apply(g, Pad(), v, ints(0, 0, 0, 0, 0, 1), full(1.0))
    sums = apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1)), k), v)
    y = apply(g, MatMul(), q, sums)
    parts = [apply(g, Slice(), y, ints(a), ints(b), ints(2)) for a, b in ((0, 8), (8, 9))]
    return apply(g, ew.Div(), parts[0], apply(g, ew.Add(), parts[1], full(1e-5)))


def spelled_norm(g: Graph, x: Value) -> Value:
    y = apply(g, MatMul(), x, eye(8))
    square = apply(g, red.ReduceMean(), apply(g, ew.Mul(), y, y), ints(-1))
    root = apply(g, ew.Sqrt(), apply(g, ew.Add(), square, full(1e-6)))
    return apply(g, MatMul(), apply(g, ew.Div(), y, root), normal(8, 4))


def unit_rows(g: Graph, x: Value) -> Value:
    """Normalise as PyTorch does; a row of zeros stays zero."""
    y = apply(g, MatMul(), x, np.pad(normal(8, 4), ((0, 0), (0, 4))))
    y = apply(g, Reshape(), y, ints(-1, 4))
    length = apply(g, red.ReduceL2(), y, ints(-1))
    return apply(g, ew.Div(), y, apply(g, ew.Clip(), length, full(1e-12)))


def spelled_variance(g: Graph, x: Value) -> Value:
    """E[x²] - E[x]², next to 0 where the mean is much greater than the deviation."""
    y = apply(g, ew.Add(), apply(g, MatMul(), x, eye(8)), full(50.0))
    mean = apply(g, red.ReduceMean(), y, ints(-1))
    of_squares = apply(g, red.ReduceMean(), apply(g, ew.Mul(), y, y), ints(-1))
    variance = apply(g, ew.Sub(), of_squares, apply(g, ew.Mul(), mean, mean))
    return apply(g, ew.Sqrt(), variance)


def log_of_softmax(g: Graph, x: Value) -> Value:
    return apply(g, ew.Log(), apply(g, Softmax(), apply(g, MatMul(), x, eye(8))))


def log_of_complement(g: Graph, x: Value) -> Value:
    y = apply(g, ew.Sigmoid(), apply(g, MatMul(), x, eye(8)))
    return apply(g, ew.Log(), apply(g, ew.Sub(), full(1.0), y))


def inverse_root(g: Graph, x: Value) -> Value:
    y = apply(g, MatMul(), x, np.pad(normal(8, 1), ((0, 0), (0, 7))))
    z = apply(g, Slice(), y, ints(1), ints(8), ints(1))
    sums = apply(g, red.ReduceSum(), apply(g, ew.Mul(), z, z), ints(-1))
    factor = apply(g, ew.Reciprocal(), apply(g, ew.Sqrt(), apply(g, ew.Add(), sums, full(1e-12))))
    return apply(g, ew.Mul(), z, factor)


def hidden_by_a_computed_mask(g: Graph, x: Value) -> Value:
    """Hide all keys: float32 gives their mean, for which -3.4e38 must stay a number."""
    scores = apply(g, MatMul(), x, normal(8, 8))
    limit = apply(g, ew.Less(), x, full(1e9))
    mask = apply(g, ew.Where(), limit, full(-3.4028235e38), full(0.0))
    return apply(g, Softmax(), apply(g, ew.Add(), scores, mask))


def exponentials(g: Graph, x: Value) -> Value:
    y = apply(g, ew.Exp(), apply(g, MatMul(), x, eye(8)))
    return apply(g, ew.Log(), apply(g, MatMul(), y, np.abs(normal(8, 8)) + 0.1))


def running_sum(g: Graph, x: Value) -> Value:
    y = apply(g, red.CumSum(), apply(g, MatMul(), x, eye(8)), np.array(0, np.int64))
    mean = apply(g, ew.Mul(), apply(g, MatMul(), y, eye(8)), full(1e-3))
    return apply(g, ew.Tanh(), mean)


def great_and_small(g: Graph, x: Value) -> Value:
    y = apply(g, ew.Relu(), apply(g, MatMul(), x, 3e4 * normal(8, 8)))
    return apply(g, MatMul(), apply(g, ew.Relu(), y), 1e-5 * normal(8, 8))


def small_and_great(g: Graph, x: Value) -> Value:
    y = apply(g, ew.Relu(), apply(g, MatMul(), x, 1e-6 * normal(8, 8)))
    return apply(g, MatMul(), apply(g, ew.Sigmoid(), apply(g, ew.Mul(), y, full(1e6))), eye(8))


def tiny_convolution(g: Graph, x: Value) -> Value:
    y = apply(g, Conv(), x, 1e-9 * normal(4, 8, 1))
    return apply(g, ew.Div(), y, full(1e-9))


def cubes(g: Graph, x: Value) -> Value:
    y = apply(g, MatMul(), x, eye(8))
    return apply(g, ew.Tanh(), apply(g, ew.Mul(), apply(g, ew.Mul(), y, y), full(1e-5)))


def near_one(g: Graph, x: Value) -> Value:
    y = apply(g, ew.Sigmoid(), apply(g, MatMul(), x, eye(8)))
    y = apply(g, ew.Clip(), y, full(1e-6), full(1 - 1e-6))
    return apply(g, ew.Log(), apply(g, ew.Div(), y, apply(g, ew.Sub(), full(1.0), y)))


def correlation(g: Graph, x: Value) -> Value:
    """A product of two activations that nothing normalises before it is used."""
    a, b = (apply(g, MatMul(), x, 8 * normal(8, 64)) for _ in range(2))
    y = apply(g, MatMul(), a, apply(g, Transpose(perm=(1, 0)), b))
    return apply(g, ew.Tanh(), apply(g, ew.Mul(), y, full(1e-5)))


def spectrum(g: Graph, x: Value) -> Value:
    """The power of a recording in whole numbers of 16 bits, by filters as long as its frames."""
    parts = [apply(g, Conv(strides=(8,)), x, normal(8, 1, 64)) for _ in range(2)]
    squares = [apply(g, ew.Pow(), part, full(2.0)) for part in parts]
    return apply(g, ew.Log(), apply(g, ew.Add(), apply(g, ew.Add(), *squares), full(1e-6)))


def batch_norm_of_rows(g: Graph, x: Value) -> Value:
    """Normalise as TensorFlow writes it: x · rsqrt(variance + ε)."""
    y = apply(g, MatMul(), x, eye(8))
    apart = apply(g, ew.Sub(), y, apply(g, red.ReduceMean(), y, ints(-1)))
    variance = apply(g, red.ReduceMean(), apply(g, ew.Mul(), apart, apart), ints(-1))
    root = apply(g, ew.Sqrt(), apply(g, ew.Add(), variance, full(1e-6)))
    scaled = apply(g, ew.Mul(), apart, apply(g, ew.Reciprocal(), root))
    return apply(g, MatMul(), scaled, normal(8, 8))


def growing(g: Graph, x: Value) -> Value:
    """Layers that were trained without any care for sizes; a normalization comes at the end."""
    y = x
    for _ in range(3):
        y = apply(g, ew.Relu(), apply(g, MatMul(), y, 30 * normal(8, 8)))
    return apply(g, LayerNormalization(), y, full(1, 8))


@dataclass(frozen=True)
class Case:
    """A network, the shape of its input, and how great that is."""

    build: Build
    shape: tuple[Dim, ...] = (6, 8)
    scale: float = 1.0
    bound: float = 1e-2


CASES = {
    "linear attention": Case(linear_attention, (1, 2048, 8), 4.0),
    "norm": Case(spelled_norm, scale=400.0),
    "rows of length 1": Case(unit_rows),
    "variance": Case(spelled_variance, scale=0.05, bound=0.5),
    "log of softmax": Case(log_of_softmax, scale=10.0),
    "log of 1 - p": Case(log_of_complement, scale=6.0),
    "inverse root": Case(inverse_root),
    "mask": Case(hidden_by_a_computed_mask, (8, 8)),
    "exponentials": Case(exponentials, scale=10.0),
    "running sum": Case(running_sum, (3000, 8), 30.0),
    "great weights": Case(great_and_small, scale=100.0),
    "small weights": Case(small_and_great),
    "tiny filters": Case(tiny_convolution, (2, 8, 5)),
    "squares": Case(cubes, scale=400.0),
    "odds": Case(near_one, scale=8.0),
    "spectrum": Case(spectrum, (1, 1, 256), 2e4),
    "growing": Case(growing, scale=10.0),
    "rows": Case(batch_norm_of_rows, scale=300.0),
    "correlation": Case(correlation, scale=10.0),
}


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_numbers_stay_numbers(name: str, precision: str) -> None:
    case = CASES[name]
    graph = make(case.build, case.shape)
    x = normal(*graph.inputs[0].tensor.dims) * np.float32(case.scale)
    exact = run_in(graph, x, np.float64)
    got = run(halved(graph, precision), x=x)
    assert np.isfinite(run(graph, x=x)).all()
    assert np.isfinite(got).all()
    bound = case.bound * (8 if precision == "bfloat16" else 1)
    assert np.linalg.norm(got - exact) <= bound * np.linalg.norm(exact)


@pytest.mark.parametrize("square", ["Mul", "Pow"])
@pytest.mark.parametrize("bounded", [True, False])
def test_squares_of_what_is_at_most_1_are_narrowed(bounded: bool, square: str) -> None:
    """Such as the sines of an activation of vocoders (Snake), and no others."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(8, 8))
        y = apply(g, ew.Sin(), y) if bounded else y
        y = apply(g, ew.Mul(), y, y) if square == "Mul" else apply(g, ew.Pow(), y, full(2.0))
        return apply(g, MatMul(), y, normal(8, 8))

    graph = make(build, (6, 8))
    assert dtypes_of(halved(graph), square) == {float16 if bounded else float32}


def test_what_is_narrowed_around_them() -> None:
    """The layers in front of linear attention stay half precision, its sums do not."""
    after = halved(make(linear_attention, (1, 2048, 8)))
    products = [n.output.tensor.dtype for n in after.nodes if n.kind == "MatMul"]
    assert products == [float16] * 3 + [float32] * 2


def test_layers_behind_a_spelled_normalization_are_narrowed() -> None:
    assert dtypes_of(halved(make(batch_norm_of_rows, (6, 8))), "MatMul") == {float16}


def test_a_first_layer_that_is_divided_by_its_own_length_is_narrowed() -> None:
    """Queries of an input whose rows get length 1 (nGPT), unlike the power of a recording."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(8, 8))
        return apply(g, ew.Div(), y, apply(g, red.ReduceL2(), y, ints(-1)))

    assert dtypes_of(halved(make(build, (6, 8))), "MatMul") == {float16}


def test_an_input_without_bound_does_not_hold_a_whole_network() -> None:
    """What is fitted to its data gives ordinary sizes again after a few layers."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, ew.Exp(), x)
        for _ in range(6):
            y = apply(g, ew.Relu(), apply(g, MatMul(), y, normal(8, 8) / np.float32(3)))
        return y

    after = halved(make(build, (6, 8)))
    found = [n.output.tensor.dtype for n in after.nodes if n.kind == "MatMul"]
    assert found[0] == float32
    assert found[3:] == [float16] * 3


def test_scores_and_their_means_are_narrowed() -> None:
    def build(g: Graph, x: Value) -> Value:
        q, k, v = (apply(g, MatMul(), x, normal(8, 8)) for _ in range(3))
        scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 2, 1)), k))
        scaled = apply(g, ew.Mul(), scores, normal(1, 5, 5))  # no Attention has that
        return apply(g, MatMul(), apply(g, Softmax(), scaled), v)

    assert dtypes_of(halved(make(build, (2, 5, 8))), "MatMul") == {float16}


def talking_heads(g: Graph, x: Value) -> Value:
    """Attend with heads that weights mix before the Softmax and behind it, as CaiT does."""

    def mixed(scores: Value) -> Value:
        last = apply(g, Transpose(perm=(0, 2, 3, 1)), scores)
        last = apply(g, ew.Add(), apply(g, MatMul(), last, normal(4, 4)), normal(4))
        return apply(g, Transpose(perm=(0, 3, 1, 2)), last)

    q, k, v = (apply(g, Conv(), x, normal(4, 4, 1, 1)) for _ in range(3))
    scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
    return apply(g, MatMul(), mixed(apply(g, Softmax(), mixed(scores))), v)


def test_products_with_means_are_narrowed() -> None:
    """Attention of keys to values first (CoaT): means of values, times queries."""

    def build(g: Graph, x: Value) -> Value:
        q, k, v = (apply(g, MatMul(), x, normal(8, 8)) for _ in range(3))
        keys = apply(g, Transpose(perm=(0, 2, 1)), apply(g, Softmax(axis=1), k))
        return apply(g, MatMul(), q, apply(g, MatMul(), keys, v))

    after = halved(make(build, (1, 2048, 8)))
    assert dtypes_of(after, "MatMul") == {float16}


def folded(g: Graph, x: Value) -> Value:
    """Add up blocks of 2 x 2 pixels, of which there are 8."""
    blocks = apply(g, Reshape(), x, ints(1, 8, 8))
    return apply(g, Col2Im(), blocks, ints(3, 5), ints(2, 2))


def resized(g: Graph, x: Value, mode: str) -> Value:
    image = apply(g, Reshape(), x, ints(1, 1, 8, 8))
    sizes = g.constant(ints(1, 1, 12, 20))
    return g.insert(Resize(mode=mode), [image, None, None, sizes]).output


def test_products_with_enlarged_gates_are_narrowed() -> None:
    """A gate of fewer pixels is enlarged, and is less than 1 as before (GhostNet)."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, np.float32(40) * normal(8, 8))
        gate = resized(g, apply(g, ew.Sigmoid(), apply(g, MatMul(), x, normal(8, 8))), "nearest")
        return apply(
            g, Conv(), apply(g, ew.Mul(), resized(g, y, "nearest"), gate), normal(1, 1, 1, 1)
        )

    assert dtypes_of(halved(make(build, (8, 8))), "Conv") == {float16}


def test_overlapping_blocks_are_narrowed() -> None:
    """What each window attends to goes back to its pixels (VOLO)."""
    after = halved(make(lambda g, x: folded(g, apply(g, MatMul(), x, normal(8, 8))), (8, 8)))
    assert dtypes_of(after, "Col2Im") == {float16}


def test_heads_that_layers_mix_are_narrowed() -> None:
    graph = make(talking_heads, (2, 4, 6, 8))
    after = halved(graph)
    assert dtypes_of(after, "MatMul") == {float16}
    x = normal(2, 4, 6, 8)
    want = run_in(graph, x, np.float64)
    np.testing.assert_allclose(run(after, x=x), want, rtol=0, atol=5e-3 * np.abs(want).max())


def by_sizes(g: Graph, x: Value) -> Value:
    return apply(g, red.ReduceSum(), apply(g, ew.Abs(), x), ints(-1))


def by_length(g: Graph, x: Value) -> Value:
    return apply(g, ew.Clip(), apply(g, red.ReduceL2(), x, ints(-1)), np.array(1e-12, np.float32))


def by_sum(g: Graph, x: Value) -> Value:
    return apply(g, red.ReduceSum(), x, ints(-1))


def by_greatest(g: Graph, x: Value) -> Value:
    return apply(g, red.ReduceMax(), apply(g, ew.Abs(), x), ints(-1))


def by_sizes_of_columns(g: Graph, x: Value) -> Value:
    return apply(g, red.ReduceL1(), x, ints(1))


@pytest.mark.parametrize(
    ("divisor", "dtype"),
    [
        (by_sizes, float16),
        (by_length, float16),
        (by_greatest, float16),
        (by_sum, float32),
        (by_sizes_of_columns, float32),
    ],
)
def test_signed_weights_are_bounded(divisor: Build, dtype: DType) -> None:
    """Weights of retention have signs, and are divided by what bounds them (RetNet)."""

    def build(g: Graph, x: Value) -> Value:
        q, k, v = (apply(g, MatMul(), x, normal(8, 8)) for _ in range(3))
        scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 2, 1)), k))
        scores = apply(g, ew.Mul(), scores, normal(8, 8))
        at_least = apply(g, ew.Max(), divisor(g, scores), np.array(1, np.float32))
        return apply(g, MatMul(), apply(g, ew.Div(), scores, at_least), v)

    graph = make(build, (2, 8, 8))
    after = halved(graph)
    product = [node for node in after.nodes if node.kind == "MatMul"][-1]
    assert product.output.tensor.dtype == dtype
    x = normal(2, 8, 8)
    want = run_in(graph, x, np.float64)
    np.testing.assert_allclose(run(after, x=x), want, rtol=0, atol=5e-3 * np.abs(want).max())


@pytest.mark.parametrize(("along", "dtype"), [(-1, float16), (1, float32)])
def test_shares_of_a_sum_are_weights(along: int, dtype: DType) -> None:
    """Two kinds of attention are added and divided by their sum, as ConViT does."""

    def build(g: Graph, x: Value) -> Value:
        q, k, v = (apply(g, MatMul(), x, normal(8, 8)) for _ in range(3))
        scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 2, 1)), k))
        scores = apply(g, ew.Mul(), scores, normal(1, 8, 8))
        weights = apply(g, ew.Add(), apply(g, Softmax(), scores), np.abs(normal(1, 8, 8)))
        total = apply(g, red.ReduceSum(), weights, ints(along))
        shares = apply(g, ew.Div(), weights, total)
        return apply(g, ew.Tanh(), apply(g, MatMul(), shares, v))

    graph = make(build, (2, 8, 8))
    product = [node for node in halved(graph).nodes if node.kind == "MatMul"][-1]
    assert product.output.tensor.dtype == dtype


def test_products_in_front_of_a_classifier_are_not_scores() -> None:
    """A layer of other sizes mixes no heads: what it reads is a sum without a bound."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(8, 8))
        gram = apply(g, MatMul(), y, apply(g, Transpose(perm=(0, 2, 1)), y))
        rows = apply(g, Reshape(), gram, ints(0, -1))
        return apply(g, Softmax(), apply(g, MatMul(), rows, normal(25, 10)))

    after = halved(make(build, (2, 5, 8)))
    products = [n.output.tensor.dtype for n in after.nodes if n.kind == "MatMul"]
    assert products[1] == float32


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_positions_are_not_rounded(precision: str) -> None:
    """cos(position · frequency), as rotary embeddings have it: a product of matrices."""
    graph = Graph()
    positions = graph.add_input("x", TensorType(int64, (1, 1, 3001)))
    wide = apply(graph, ew.Cast(to=float32), positions)
    angles = apply(graph, MatMul(), np.array([[[1.0], [0.37]]], np.float32), wide)
    graph.set_outputs({"y": apply(graph, ew.Cos(), angles)})
    infer(graph)
    x = np.arange(3001).reshape(1, 1, -1)
    np.testing.assert_array_equal(run(halved(graph, precision), x=x), run(graph, x=x))


def test_pictures_in_bytes_are_narrowed() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(np.dtype(np.uint8), (1, 3, 4, 4)))
    wide = apply(graph, ew.Cast(to=float32), x)
    graph.set_outputs({"y": apply(graph, Conv(), wide, normal(4, 3, 1, 1))})
    infer(graph)
    assert dtypes_of(halved(graph), "Conv") == {float16}


@pytest.mark.parametrize(("least", "kept"), [(1.0, False), (1e-3, True), (-1.0, True)])
def test_squares_beside_a_bias_are_no_divisor_near_zero(least: float, *, kept: bool) -> None:
    """Divisive normalization (GDN): x / sqrt(bias + weights x²), where nothing is negative."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Conv(), x, normal(8, 3, 1, 1))
        squares = apply(g, ew.Pow(), y, np.array(2, np.float32))
        sums = apply(g, Conv(), squares, np.abs(normal(8, 8, 1, 1)), full(least, 8))
        y = apply(g, ew.Mul(), y, apply(g, ew.Reciprocal(), apply(g, ew.Sqrt(), sums)))
        return apply(g, Conv(), y, normal(4, 8, 1, 1))

    after = halved(make(build, (1, 3, 4, 4)))
    sums = [node for node in after.nodes if isinstance(node.op, Conv)][1]
    assert (sums.output.tensor.dtype == float32) == kept


def test_a_small_bias_does_not_hold_its_layer() -> None:
    def build(g: Graph, x: Value) -> Value:
        return apply(g, Gemm(), x, normal(8, 4), full(1e-8, 4))

    assert dtypes_of(halved(make(build, (2, 8))), "Gemm") == {float16}


def test_a_small_bias_of_its_own_node_does_not_hold_its_layer() -> None:
    """What MLP-Mixer begins its training with, and LeViT's batch norms leave."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, ew.Add(), apply(g, MatMul(), x, normal(8, 4)), normal(4) * np.float32(1e-8))
        return apply(g, ew.Gelu(), y)

    narrow = halved(make(build, (2, 8)))
    for kind in ("MatMul", "Add", "Gelu"):
        assert dtypes_of(narrow, kind) == {float16}, kind


def test_what_is_added_to_more_may_vanish() -> None:
    """A residual branch with a layer scale of 1e-6, as ConvNeXt begins its training."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Gemm(), x, normal(8, 8))
        return apply(g, ew.Add(), y, apply(g, Gemm(), y, normal(8, 8) * np.float32(1e-8)))

    narrow = halved(make(build, (2, 8)))
    assert dtypes_of(narrow, "Gemm") == dtypes_of(narrow, "Add") == {float16}
