"""Parts of a product that gate one another are separate products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Gelu, Mul, Sigmoid, Swish
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice, Split
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.packed import MatMulNBits
from tercet.runtime.passes.products import split_products

from ..randomness import restarting
from .graphs import apply, assert_same, kinds, make, normal, optimised, passed, results

Parts = tuple[Value, ...]
RNG = restarting(7)


def parts(g: Graph, x: Value, *, bias: bool = True, sizes: tuple[int, ...] = ()) -> Parts:
    y = apply(g, MatMul(), x, normal(4, 12))
    if bias:
        y = apply(g, Add(), y, normal(12))
    inputs = [y, g.constant(np.array(sizes))] if sizes else [y]
    return g.insert(Split(axis=-1, num_outputs=2), inputs, 2).outputs


@pytest.mark.parametrize("gate", [Swish(), Gelu(), Sigmoid()], ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("bias", [False, True])
def test_gated_layers(gate: Op, bias: bool) -> None:
    def build(g: Graph, x: Value) -> Value:
        first, second = parts(g, x, bias=bias)
        return apply(g, Mul(), apply(g, gate, first), second)

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert kinds(after).count("MatMul") == 2
    assert "Split" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("zeros", ["", "packed", "floats"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packed_weights(bits: int, zeros: str) -> None:
    """As of Phi-3's layers; rows of zero points are whole bytes."""

    def build(g: Graph, x: Value) -> Value:
        op, blocks = MatMulNBits(K=40, N=12, bits=bits, block_size=16), 3
        packed = RNG.integers(0, 256, (12, blocks, 2 * bits)).astype(np.uint8)
        points = {
            "": None,
            "packed": RNG.integers(0, 256, 12 * -(-blocks * bits // 8)).astype(np.uint8),
            "floats": np.abs(normal(12 * blocks)),
        }
        y = apply(g, op, x, packed, normal(12 * blocks), points[zeros])
        inputs = [apply(g, Add(), y, normal(12)), g.constant(np.array([5, 7]))]
        first, second = g.insert(Split(axis=-1, num_outputs=2), inputs, 2).outputs
        total = apply(g, MatMul(), apply(g, Swish(), first), normal(5, 7))
        return apply(g, Mul(), total, second)

    graph = make(build, (2, 3, 40))
    after, _ = optimised(graph)
    assert sum("MatMulNBits" in kind for kind in kinds(after)) == 2
    assert "Split" not in kinds(after)
    np.testing.assert_allclose(results(after)[0], results(graph)[0], 1e-5, 1e-5)


def test_parts_of_unequal_sizes() -> None:
    def build(g: Graph, x: Value) -> Value:
        first, second = parts(g, x, sizes=(5, 7))
        total = apply(g, MatMul(), apply(g, Swish(), first), normal(5, 7))
        return apply(g, Mul(), total, apply(g, Sigmoid(), second))

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert "Split" not in kinds(after)
    assert_same(graph, after)


def test_three_parts_are_columns_of_one_product() -> None:
    """As of a recurrence (HGRN): no kernel has three products, and chains read their columns."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(4, 12))
        a, b, c = g.insert(Split(axis=-1, num_outputs=3), [y], 3).outputs
        gated = apply(g, Mul(), apply(g, Swish(), a), apply(g, Sigmoid(), b))
        return apply(g, Add(), gated, apply(g, Gelu(), c))

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert kinds(after).count("MatMul") == 1
    assert_same(graph, after)


def softmax(g: Graph, first: Value, second: Value) -> Value:
    return apply(g, Mul(), apply(g, Softmax(axis=-1), first), second)


def half(g: Graph, first: Value, second: Value) -> Value:
    """Only one of the parts is read."""
    return apply(g, Swish(), first)


@pytest.mark.parametrize("build", [softmax, half])
def test_others_stay(build: Callable[[Graph, Value, Value], Value]) -> None:
    graph = make(lambda g, x: build(g, *parts(g, x)), (2, 3, 4))
    after, _ = optimised(graph)
    assert kinds(after).count("MatMul") == 1
    assert_same(graph, after)


def test_a_product_that_others_read_stays_whole() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), x, normal(4, 12))
        first, second = g.insert(Split(axis=-1, num_outputs=2), [y], 2).outputs
        gated = apply(g, Mul(), apply(g, Swish(), first), second)
        return apply(g, Add(), apply(g, MatMul(), gated, normal(6, 12)), y)

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert kinds(after).count("Split") == 1
    assert_same(graph, after)


def gated_pixels(g: Graph, x: Value, *, kernel: int = 1) -> Value:
    """Half of the channels of each pixel gate the other half (NAFNet)."""
    pads = (kernel // 2,) * 4
    channels = apply(g, Conv(pads=pads), x, normal(32, 8, kernel, kernel), normal(32))
    first, second = g.insert(Split(axis=1, num_outputs=2), [channels], 2).outputs
    return apply(g, Conv(), apply(g, Mul(), first, second), normal(8, 16, 1, 1))


def test_pixels_are_rows_for_halves() -> None:
    graph = make(gated_pixels, (2, 8, 5, 6))
    after, _ = passed(graph, split_products.run, "float16")
    assert [kinds(after).count(kind) for kind in ("MatMul", "Split", "Conv")] == [2, 0, 1]
    assert_same(graph, after)


@pytest.mark.parametrize("kernel", [1, 3])
def test_images_stay(kernel: int) -> None:
    """Float32 has no kernel of two products, and windows are no rows."""
    graph = make(lambda g, x: gated_pixels(g, x, kernel=kernel), (2, 8, 5, 6))
    precision = "float32" if kernel == 1 else "float16"
    _, said = passed(graph, split_products.run, precision)
    assert not said


def sliced(g: Graph, x: Value, axis: int, size: int) -> Parts:
    """Two halves as TorchScript writes them, by places."""
    places = [(0, size), (size, 2**63 - 1)]
    bounds = [[np.array([n]) for n in (*pair, axis, 1)] for pair in places]
    return tuple(apply(g, Slice(), x, *each) for each in bounds)


def test_parts_may_be_slices() -> None:
    def build(g: Graph, x: Value) -> Value:
        first, second = sliced(g, apply(g, MatMul(), x, normal(4, 12)), 2, 6)
        return apply(g, Mul(), apply(g, Sigmoid(), first), second)

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert kinds(after).count("MatMul") == 2
    assert not {"Slice", "Split"} & set(kinds(after))
    assert_same(graph, after)


def test_slices_of_pixels_are_rows_for_halves() -> None:
    def build(g: Graph, x: Value) -> Value:
        channels = apply(g, Conv(), x, normal(32, 8, 1, 1), normal(32))
        first, second = sliced(g, channels, 1, 16)
        return apply(g, Conv(), apply(g, Mul(), first, second), normal(8, 16, 1, 1))

    graph = make(build, (2, 8, 5, 6))
    after, _ = passed(graph, split_products.run, "float16")
    assert [kinds(after).count(kind) for kind in ("MatMul", "Split", "Conv")] == [2, 0, 1]
    assert_same(graph, after)


def test_channels_that_do_not_meet_stay() -> None:
    """For the next layer of a WaveNet, and for the sum of all."""

    def build(g: Graph, x: Value) -> Value:
        channels = apply(g, Conv(), x, normal(16, 8, 1), normal(16))
        first, second = g.insert(Split(axis=1, num_outputs=2), [channels], 2).outputs
        near = apply(g, Conv(), apply(g, Add(), x, first), normal(8, 8, 1))
        return apply(g, Conv(), apply(g, Add(), second, near), normal(8, 8, 1))

    _, said = passed(make(build, (2, 8, 30)), split_products.run, "float16")
    assert not said
