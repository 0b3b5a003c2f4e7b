"""Transposes move behind elementwise nodes until they meet their inverses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph, Node, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Clip, Gelu, Mul, PRelu, Relu, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, DepthToSpace, Pad, Transpose
from tercet.runtime.ops.norm import (
    BatchNormalization,
    LayerNormalization,
    RMSNormalization,
    Softmax,
)
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options
from tercet.runtime.passes.driver import Context
from tercet.runtime.passes.layouts import sink_transposes

from .graphs import apply, assert_same, kinds, make, normal, optimised

LAST = Transpose(perm=(0, 2, 3, 1))
FIRST = Transpose(perm=(0, 3, 1, 2))
LAST_OF_ROWS = Transpose(perm=(0, 2, 1))


def conv(graph: Graph, x: Value, inputs: int, outputs: int) -> Value:
    """A convolution of a channels-last tensor, as exporters of such frameworks write it."""
    first = apply(graph, FIRST, x)
    return apply(graph, LAST, apply(graph, Conv(), first, normal(outputs, inputs, 3, 3)))


def test_a_network_with_channels_last() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = conv(graph, x, 3, 4)
        y = apply(graph, Relu(), apply(graph, Mul(), y, normal(4)))
        y = conv(graph, y, 4, 5)
        one, six = (np.array(v, np.float32) for v in (0, 6))
        y = apply(graph, Clip(), apply(graph, PRelu(), y, normal(1, 1, 5)), one, six)
        return conv(graph, y, 5, 2)

    graph = make(build, (2, 12, 13, 3))
    after, log = optimised(graph)
    assert kinds(graph).count("Transpose") == 6
    assert kinds(after).count("Transpose") == 2, "at the input and at the output"
    assert kinds(after)[0] == kinds(after)[-1] == "Transpose"
    assert log.counts["sink_transposes"] == 2
    assert_same(graph, after)


def test_branches_that_meet() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = conv(graph, x, 3, 4)
        skip = apply(graph, Sigmoid(), y)
        y = apply(graph, Add(), apply(graph, Mul(), y, skip), apply(graph, Relu(), y))
        y = apply(graph, Concat(axis=-1), y, skip, normal(2, 6, 7, 1))
        return conv(graph, y, 9, 2)

    graph = make(build, (2, 8, 9, 3))
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") == 2
    assert [n.op.axis for n in after.nodes if isinstance(n.op, Concat)] == [1]
    assert_same(graph, after)


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_padding_of_an_image_with_channels_last(value: float) -> None:
    """Keras pads before a layer with strides, by other numbers on both sides."""

    def build(graph: Graph, x: Value) -> Value:
        y = conv(graph, x, 3, 4)
        pads = np.array([0, 0, 1, 0, 0, 2, 3, 0])
        return conv(graph, apply(graph, Pad(), y, pads, np.array(value, np.float32)), 4, 2)

    graph = make(build, (2, 8, 9, 3))
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") == 2
    assert ("Pad" in kinds(after)) is bool(value), "zeros are pads of the convolution"
    assert_same(graph, after)


def test_two_sources_become_one_transpose() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y, z = (apply(graph, Conv(), x, normal(4, 3, 1, 1)) for _ in range(2))
        return apply(graph, Add(), apply(graph, LAST, y), apply(graph, LAST, z))

    graph = make(build, (1, 3, 4, 5))
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") == 1
    assert_same(graph, after)


def test_nothing_is_moved_without_gain() -> None:
    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, Softmax(axis=-1), apply(graph, Relu(), apply(graph, LAST, x)))

    graph = make(build, (1, 3, 4, 5))
    after, log = optimised(graph)
    assert kinds(after) == ["Transpose", "Relu", "Softmax"]
    assert "sink_transposes" not in log.counts


def test_orders_that_are_their_own_inverse() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = x
        for _ in range(3):
            y = apply(graph, Relu(), apply(graph, Transpose(perm=(0, 2, 1)), y))
            y = apply(graph, Add(), y, normal(1, 1))
        return y

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") == 1
    assert_same(graph, after)


def test_values_that_others_want_keep_their_order() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Relu(), conv(graph, x, 3, 4))
        graph.set_outputs({"inside": y})
        return conv(graph, y, 4, 2)

    graph = Graph()
    x = graph.add_input("x", make(lambda g, v: v, (1, 8, 8, 3)).inputs[0].type)
    result = build(graph, x)
    graph.set_outputs({**graph.outputs, "y": result})
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") <= 4


def test_transposes_in_a_row() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Transpose(perm=(1, 2, 0)), apply(graph, Transpose(perm=(1, 2, 0)), x))
        return apply(graph, Relu(), y)

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert [n.op.perm for n in after.nodes if isinstance(n.op, Transpose)] == [(2, 0, 1)]
    assert_same(graph, after)


def block(graph: Graph, x: Value, channels: int) -> Value:
    """ConvNeXt's: a convolution, two layers of channels-last rows, a scale, a residual."""
    y = apply(graph, Conv(pads=(1, 1, 1, 1)), x, normal(channels, channels, 3, 3))
    y = apply(graph, MatMul(), apply(graph, LAST, y), normal(channels, 2 * channels))
    y = apply(graph, MatMul(), apply(graph, Relu(), y), normal(2 * channels, channels))
    y = apply(graph, FIRST, apply(graph, Add(), y, normal(channels)))
    scaled = apply(graph, Mul(), y, normal(channels, 1, 1))
    return apply(graph, Add(), x, scaled)


def test_what_follows_a_product_is_computed_in_its_order() -> None:
    def build(graph: Graph, x: Value) -> Value:
        return block(graph, block(graph, x, 4), 4)

    graph = make(build, (2, 4, 6, 5))
    after, _ = optimised(graph)
    one = ["Conv", "Transpose", "MatMul", "Relu", "MatMul", "Add"]
    assert kinds(after) == [*one, "Transpose", "Add", "Transpose", *one, "Add", "Transpose"]
    assert_same(graph, after)


def test_a_transpose_of_rows_stays_in_front_of_a_sum_with_others() -> None:
    """Only images may lie in memory in either order: here the sum would cost a transpose."""

    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, MatMul(), x, normal(5, 7))
        transposed = apply(graph, Transpose(perm=(0, 2, 1)), y)
        return apply(graph, Add(), transposed, apply(graph, Sigmoid(), transposed))

    graph = make(build, (2, 3, 5))
    after, _ = optimised(graph)
    assert_same(graph, after)


def test_a_sum_of_two_transposed_products_is_transposed_once() -> None:
    def build(graph: Graph, x: Value) -> Value:
        transpose = Transpose(perm=(0, 2, 1))
        a, b = (apply(graph, transpose, apply(graph, MatMul(), x, normal(5, 7))) for _ in range(2))
        return apply(graph, Relu(), apply(graph, Add(), a, b))

    graph = make(build, (2, 3, 5))
    after, _ = optimised(graph)
    assert kinds(after) == ["MatMul", "MatMul", "Add", "Relu", "Transpose"]
    assert_same(graph, after)


def test_a_product_meets_what_has_other_axes_in_front() -> None:
    """Mamba 2 weighs the products of chunks before heads, and the weights are those of heads."""

    def build(graph: Graph, x: Value) -> Value:
        heads = apply(graph, Transpose(perm=(1, 0, 2, 3)), x)
        weights = apply(graph, Sigmoid(), apply(graph, MatMul(), heads, normal(5, 7)))
        transposed = apply(
            graph, Transpose(perm=(0, 2, 3, 1)), apply(graph, MatMul(), x, normal(5, 7))
        )
        weights = apply(graph, Transpose(perm=(1, 2, 3, 0)), weights)
        return apply(graph, Mul(), transposed, weights)

    graph = make(build, (2, 3, 4, 5))
    after, _ = optimised(graph)
    assert kinds(after)[-3:] == ["Transpose", "Mul", "Transpose"]
    assert_same(graph, after)


def test_rows_of_pixels_keep_the_image() -> None:
    """What a transformer between convolutions does: four axes, so that nothing has to move."""

    def build(graph: Graph, x: Value) -> Value:
        image = apply(graph, Conv(), x, normal(5, 3, 1, 1))
        rows = apply(graph, LAST_OF_ROWS, apply(graph, Reshape(), image, np.array([0, 5, -1])))
        rows = apply(graph, Softmax(axis=-1), apply(graph, MatMul(), rows, normal(5, 4)))
        back = apply(graph, LAST_OF_ROWS, rows)
        image = apply(graph, Reshape(), back, np.array([2, 4, 6, 7]))
        return apply(graph, Conv(), image, normal(2, 4, 1, 1))

    graph = make(build, (2, 3, 6, 7))
    after, _ = optimised(graph)
    transposes = [node.op for node in after.nodes if isinstance(node.op, Transpose)]
    assert transposes == [LAST, FIRST]
    assert kinds(after).count("Reshape") == 2
    assert_same(graph, after)


def test_signals_stay_as_they_are() -> None:
    """Three axes are no image."""

    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, LAST_OF_ROWS, x)
        y = apply(graph, Softmax(axis=-1), y)
        return apply(graph, Reshape(), apply(graph, LAST_OF_ROWS, y), np.array([2, 1, 3, 7]))

    graph = make(build, (2, 3, 7))
    after, _ = optimised(graph)
    assert [node.op for node in after.nodes if isinstance(node.op, Transpose)] == [LAST_OF_ROWS] * 2
    assert_same(graph, after)


def test_images_of_heads() -> None:
    """MViT: the heads of a sample are separate images between convolutions."""

    def build(graph: Graph, x: Value) -> Value:
        image = apply(graph, Conv(), x, normal(5, 3, 1, 1))
        heads = apply(graph, Reshape(), image, np.array([2, 2, 5, 42]))
        rows = apply(graph, Transpose(perm=(0, 1, 3, 2)), heads)
        return apply(graph, Softmax(axis=-1), rows)

    graph = make(build, (4, 3, 6, 7))
    after, _ = optimised(graph)
    assert kinds(after) == ["Conv", "Transpose", "Reshape", "Softmax"]
    assert after.nodes[1].op == LAST
    assert_same(graph, after)


@pytest.mark.parametrize("alone", [True, False])
def test_an_activation_stands_behind_its_convolution(alone: bool) -> None:
    """The MLP of SegFormer and PVTv2: rows, a depthwise convolution of their image, rows again."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Conv(group=6, pads=(1, 1, 1, 1)), x, normal(6, 1, 3, 3), normal(6))
        rows = apply(g, Transpose(perm=(0, 2, 1)), apply(g, Reshape(), y, np.array([2, 6, -1])))
        active = apply(g, Gelu(), rows)
        y = active if alone else apply(g, Add(), active, rows)
        return apply(g, MatMul(), y, normal(6, 5))

    graph = make(build, (2, 6, 4, 5))
    after, _ = optimised(graph)
    order = kinds(after)
    assert (order.index("Gelu") == 1) == alone
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("norm", [LayerNormalization(), RMSNormalization()])
def test_an_activation_stands_behind_the_norm_of_an_image(
    norm: LayerNormalization | RMSNormalization,
) -> None:
    """Channels of pixels are normalized as rows, as in MobileNetV5 and in SAM's decoder."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, LAST, apply(g, Conv(), x, normal(8, 3, 3, 3)))
        image = apply(g, FIRST, apply(g, norm, rows, normal(8)))
        return apply(g, Conv(), apply(g, Gelu(), image), normal(4, 8, 1, 1))

    graph = make(build, (1, 3, 6, 5))
    after, _ = optimised(graph)
    order = kinds(after)
    assert order[order.index("Gelu") - 1] == type(norm).__name__
    assert_same(graph, after)


def test_an_activation_stands_behind_a_product_of_experts() -> None:
    """Products of stacks are written as Einsum, whose result is transposed."""

    def build(g: Graph, x: Value) -> Value:
        product = apply(g, Add(), apply(g, MatMul(), x, normal(3, 6, 8)), normal(8))
        rows = apply(g, Transpose(perm=(1, 0, 2)), product)
        return apply(g, Relu(), apply(g, Reshape(), rows, np.array([5, 24])))

    graph = make(build, (3, 5, 6))
    after, _ = optimised(graph)
    assert kinds(after) == ["MatMul", "Add", "Relu", "Transpose", "Reshape"]
    assert_same(graph, after)


def mixed(graph: Graph, x: Value, *, residual: bool) -> Value:
    """Token mixing of MLP-Mixer: two layers between transposes."""
    y = apply(graph, LAST_OF_ROWS, x)
    y = apply(graph, Add(), apply(graph, MatMul(), y, normal(5, 9)), normal(9))
    y = apply(graph, Gelu(), y)
    y = apply(graph, Add(), apply(graph, MatMul(), y, normal(9, 5)), normal(5))
    y = apply(graph, Mul(), y, normal(6, 1))
    return apply(graph, Add(), apply(graph, LAST_OF_ROWS, y), x) if residual else y


def test_layers_between_transposes_of_rows_have_their_weights_on_the_left() -> None:
    graph = make(lambda graph, x: mixed(graph, x, residual=True), (2, 5, 6))
    after, _ = optimised(graph)
    assert "Transpose" not in kinds(after)
    products = [node for node in after.nodes if isinstance(node.op, MatMul)]
    assert [node.operands[0].is_constant for node in products] == [True, True]
    assert_same(graph, after)


def test_layers_of_pixels_stay() -> None:
    """Transposes of a convolution's result are free: channels are last there."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Relu(), apply(g, Conv(), x, normal(6, 4, 3)))
        y = apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1)), y), normal(6, 8))
        y = apply(g, Transpose(perm=(0, 2, 1)), apply(g, Relu(), y))
        return apply(g, Conv(), y, normal(5, 8, 3))

    graph = make(build, (2, 4, 9))
    after, _ = optimised(graph)
    (product,) = [node for node in after.nodes if node.kind == "MatMul"]
    assert product.operands[1].data is not None
    assert_same(graph, after)


def test_layers_behind_one_transpose_of_rows_stay() -> None:
    graph = make(lambda graph, x: mixed(graph, x, residual=False), (2, 5, 6))
    after, _ = optimised(graph)
    products = [node for node in after.nodes if isinstance(node.op, MatMul)]
    assert not any(node.operands[0].is_constant for node in products)


def test_a_product_with_the_transpose_of_another_stays() -> None:
    """A transform of blocks, rows first (the cosine transform of CSATv2)."""
    weights = normal(8, 8)

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, MatMul(), x, weights)
        return apply(g, MatMul(), apply(g, Transpose(perm=(0, 1, 3, 2)), rows), weights)

    graph = make(build, (2, 3, 8, 8))
    after, _ = optimised(graph)
    assert_same(graph, after)


def normed(graph: Graph, x: Value) -> Value:
    y = apply(graph, BatchNormalization(), x, *normal(3, 2), normal(2) ** 2)
    return apply(graph, Relu(), y)


def sloped(graph: Graph, x: Value) -> Value:
    return apply(graph, PRelu(), x, normal(2, 1, 1))


def sloped_alike(graph: Graph, x: Value) -> Value:
    return apply(graph, PRelu(), x, normal(1))


def limited(graph: Graph, x: Value) -> Value:
    return apply(graph, Clip(), x, *(np.array(v, np.float32) for v in (0, 6)))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("behind", [normed, sloped, sloped_alike, limited])
def test_what_follows_pixels_of_channels_follows_their_layer(
    behind: Callable[[Graph, Value], Value], mode: str
) -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Conv(), x, normal(8, 3, 3, 3), normal(8))
        return behind(graph, apply(graph, DepthToSpace(blocksize=2, mode=mode), y))

    graph = make(build, ("n", 3, 7, 6))
    after, _ = optimised(graph)
    assert kinds(after)[0] == "Conv"
    assert len(kinds(after)) == 3
    assert kinds(after)[-1] == "DepthToSpace"
    assert_same(graph, after, 2, 3, 7, 6)


def test_pixels_that_others_read_stay() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Conv(), x, normal(8, 3, 3, 3))
        y = apply(graph, DepthToSpace(blocksize=2), y)
        return apply(graph, Mul(), y, apply(graph, Sigmoid(), y))

    graph = make(build, (2, 3, 7, 6))
    after, _ = optimised(graph, skip=("fuse_activation",))
    assert kinds(after) == ["Conv", "DepthToSpace", "Sigmoid", "Mul"]


@pytest.mark.parametrize("each", [False, True])
def test_long_chains_are_not_walked_again_and_again(
    each: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations behind one Transpose, or each behind one more view."""
    asked, sole_consumer = [0], Graph.sole_consumer

    def counted(graph: Graph, value: Value) -> Node | None:
        asked[0] += 1
        return sole_consumer(graph, value)

    def steps(count: int) -> int:
        def build(graph: Graph, x: Value) -> Value:
            y = apply(graph, LAST, apply(graph, Conv(), x, normal(4, 4, 1, 1)))
            for i in range(count):
                if each and i:
                    y = apply(graph, Reshape(), y, np.array([4, 16] if i % 2 else [1, 4, 4, 4]))
                y = apply(graph, Sigmoid(), y)
            return y

        graph = make(build, (1, 4, 4, 4))
        with monkeypatch.context() as patch:
            asked[0] = 0
            patch.setattr(Graph, "sole_consumer", counted)
            said = list(sink_transposes.run(graph, Context(Options(), evaluate)))
        assert said
        return asked[0]

    assert steps(200) < 3 * steps(100)
