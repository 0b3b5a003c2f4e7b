"""Convolutions of whole images become products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Clip, Gelu, HardSigmoid, Mul, Relu, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.norm import LayerNormalization
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options, Precision
from tercet.runtime.passes import STATIC_PASSES, Rewrites, optimise

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised
from .test_to_half import dtypes_of, halved


@pytest.mark.parametrize("batch", [1, 3, "batch"])
def test_squeeze_and_excite(batch: Dim) -> None:
    """Two layers of one pixel, whose gate scales the image: no view is left in between."""

    def build(g: Graph, x: Value) -> Value:
        mean = apply(g, ReduceMean(), x, np.array([2, 3]))
        y = apply(g, Relu(), apply(g, Conv(), mean, normal(4, 8, 1, 1), normal(4)))
        gate = apply(g, HardSigmoid(), apply(g, Conv(), y, normal(8, 4, 1, 1)))
        return apply(g, Mul(), x, gate)

    graph = make(build, (batch, 8, 5, 6))
    after, _ = optimised(graph)
    rows = ["Reshape", "Gemm", "Relu", "Gemm", "HardSigmoid", "Reshape"]
    assert kinds(after) == ["ReduceMean", *rows, "Mul"]
    if isinstance(batch, int):
        assert_same(graph, after)


@pytest.mark.parametrize(
    "image", [(1,), (7,), (3, 4), (2, 3, 2)], ids=lambda sizes: "x".join(map(str, sizes))
)
def test_windows_of_all_sizes(image: tuple[int, ...]) -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Conv(auto_pad="VALID"), x, normal(4, 5, *image), normal(4))
        limits = (np.array(limit, np.float32) for limit in (0, 6))
        return apply(g, Clip(), apply(g, Sigmoid(), y), *limits)

    graph = make(build, (2, 5, *image))
    after, _ = optimised(graph)
    assert kinds(after) == ["Reshape", "Gemm", "Sigmoid", "Clip", "Reshape"]
    assert after.outputs["y"].tensor.shape == (2, 4, *(1 for _ in image))
    assert_same(graph, after)


OTHERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "padded": ({"pads": (0, 0, 1, 1)}, (4, 5, 3, 3)),
    "padded by the size": ({"auto_pad": "SAME_UPPER"}, (4, 5, 3, 3)),
    "grouped": ({"group": 5}, (5, 1, 3, 3)),
    "smaller windows": ({}, (4, 5, 2, 3)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    attributes, weight = OTHERS[name]
    graph = make(lambda g, x: apply(g, Conv(**attributes), x, normal(*weight)), (2, 5, 3, 3))
    after, _ = optimised(graph)
    assert kinds(after) == ["Conv"]
    assert_same(graph, after)


def test_what_others_read_is_an_image_again() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Conv(), x, normal(5, 5, 1, 1))
        return apply(g, Mul(), apply(g, Sigmoid(), y), y)

    graph = make(build, (2, 5, 1, 1))
    after, _ = optimised(graph, skip=("fuse_activation",))
    assert kinds(after) == ["Reshape", "Gemm", "Reshape", "Sigmoid", "Mul"]
    assert_same(graph, after)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (2, 1), (1, 3)])
def test_pixels_by_computed_filters(batch: int, groups: int, biased: bool) -> None:
    """CondConv: filters are sums of those of experts, and each image of a batch is a group."""

    def build(g: Graph, x: Value) -> Value:
        mean = apply(g, ReduceMean(), x, np.array([0, 2, 3]))
        logits = apply(g, MatMul(), apply(g, Reshape(), mean, np.array([1, -1])), normal(12, 4))
        filters = apply(g, MatMul(), apply(g, Sigmoid(), logits), normal(4, 6 * 12 // groups))
        filters = apply(g, Reshape(), filters, np.array([6, 12 // groups, 1, 1]))
        bias = [apply(g, Reshape(), apply(g, MatMul(), logits, normal(4, 6)), np.array([6]))]
        return apply(g, Conv(group=groups), x, filters, *(bias if biased else []))

    graph = make(build, (batch, 12, 3, 5))
    after, log = optimised(graph)
    assert log.counts["lower_conv"] == 1
    assert "Conv" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("how", [{"strides": (2, 2)}, {"pads": (1, 1, 1, 1)}])
def test_computed_filters_that_stay(how: dict[str, Any]) -> None:
    def build(g: Graph, x: Value) -> Value:
        filters = apply(g, Reshape(), apply(g, Sigmoid(), x), np.array([15, 4, 1, 1]))
        return apply(g, Conv(**how), x, filters)

    graph = make(build, (1, 4, 3, 5))
    after, _ = optimised(graph)
    assert "Conv" in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("kind", [Sigmoid, Relu])
def test_mixed_filters_are_narrowed(kind: type[Sigmoid | Relu]) -> None:
    """Mixtures of constant filters by gates are as small as these; others may be of any size."""

    def build(g: Graph, x: Value) -> Value:
        mean = apply(g, Reshape(), apply(g, ReduceMean(), x, np.array([2, 3])), np.array([1, -1]))
        gates = apply(g, kind(), apply(g, MatMul(), mean, normal(12, 4)))
        filters = apply(g, MatMul(), gates, normal(4, 6 * 12))
        return apply(g, Conv(), x, apply(g, Reshape(), filters, np.array([6, 12, 1, 1])))

    after = halved(make(build, (1, 12, 3, 5)))
    assert (dtypes_of(after, "MatMul") == {float16}) == (kind is Sigmoid)


CASES = {
    "adjacent": ((1, 1, 3, 2), {"pads": (0, 0, 1, 0, 0, 0, 1, 1), "strides": (1, 1, 2, 1)}),
    "apart": ((1, 3, 1, 2), {"auto_pad": "SAME_UPPER"}),
    "last": ((2, 2, 1, 1), {"dilations": (1, 3, 1, 1)}),
    "grouped": ((1, 1, 1, 2), {"group": 2}),
    "five": ((1, 2, 1, 1, 2), {}),
    "pixels": ((1, 1, 1, 1), {}),
}


@pytest.mark.parametrize("batch", [2, "batch"])
@pytest.mark.parametrize("name", CASES)
def test_axes_with_windows_of_one_element_are_joined(name: str, batch: Dim) -> None:
    """As in JAX, whose convolutions have any number of axes."""
    kernel, attributes = CASES[name]
    groups = attributes.get("group", 1)

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Conv(**attributes), x, normal(4, 6 // groups, *kernel), normal(4))

    graph = make(build, (batch, 6, 3, 4, 5, 4, 2)[: len(kernel) + 2])
    after, log = optimised(graph)
    assert log.counts["lower_conv"] == 1
    (conv,) = (node for node in after.nodes if isinstance(node.op, Conv))
    assert len(conv.output.tensor.shape or ()) in (3, 4, 5)
    if isinstance(batch, int):
        assert_same(graph, after)


UNKNOWN = {
    "one of several": ((1, 1, "batch", 3, 5, 2), (1, 1, 3, 1), {"pads": (0, 0, 1, 0, 0, 0, 1, 0)}),
    "the only one": ((2, 1, 6, "batch", 5), (2, 1, 2), {}),
    "the last": ((1, 1, 4, 5, 3, "batch"), (2, 3, 1, 1), {"strides": (2, 1, 1, 1)}),
    "SAME": ((1, 1, 4, "batch", 5, 2), (2, 1, 3, 1), {"auto_pad": "SAME_LOWER"}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_one_of_the_joined_axes_has_an_unknown_size(name: str) -> None:
    """As where JAX adds up windows over all axes, that of the batch among them."""
    shape, kernel, attributes = UNKNOWN[name]

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Conv(**attributes), x, normal(3, shape[1], *kernel))

    graph = make(build, shape)
    after, log = optimised(graph)
    joined = len(shape) > 5
    assert log.counts.get("lower_conv", 0) == joined
    (conv,) = (node for node in after.nodes if isinstance(node.op, Conv))
    assert (len(conv.output.tensor.shape or ()) < len(shape)) == joined
    assert_same(graph, after, *(size if isinstance(size, int) else 7 for size in shape))


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((1, 1, "a", "b", 5, 4), (1, 1, 2, 2)),
        ((1, 1, "a", 3, 5, 4), (2, 1, 1, 2)),
        ((1, 1, "a", 3, 5, 4), (1, 2, 2, 2)),
    ],
)
def test_axes_of_unknown_sizes_stay(shape: tuple[Dim, ...], kernel: tuple[int, ...]) -> None:
    after, _ = optimised(make(lambda g, x: apply(g, Conv(), x, normal(4, 1, *kernel)), shape))
    assert kinds(after) == ["Conv"]


@pytest.mark.parametrize("kernel", [(2, 3, 2, 1), (2, 2, 2, 2)])
def test_windows_over_three_axes_and_others_stay(kernel: tuple[int, ...]) -> None:
    graph = make(lambda g, x: apply(g, Conv(), x, normal(4, 6, *kernel)), (2, 6, 3, 4, 5, 4))
    after, _ = optimised(graph)
    assert kinds(after) == ["Conv"]


SCALES: dict[str, tuple[Conv, tuple[int, ...], bool]] = {
    "one channel": (Conv(), (6, 1, 1, 1), True),
    "single channels": (Conv(group=4), (4, 1, 1, 1), True),
    "several filters of each": (Conv(group=4), (8, 1, 1, 1), False),
    "several channels": (Conv(), (6, 4, 1, 1), False),
    "windows": (Conv(pads=(0, 1, 0, 1)), (6, 1, 1, 3), False),
    "every other pixel": (Conv(strides=(2, 2)), (6, 1, 1, 1), False),
    "a frame": (Conv(pads=(1, 1, 1, 1)), (6, 1, 1, 1), False),
}


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", SCALES)
def test_products_of_single_numbers_are_no_convolution(name: str, precision: Precision) -> None:
    """Branches of a volume of one channel (UNETR); as layers they choose half precision."""
    conv, shape, lowered = SCALES[name]
    channels = shape[1] * conv.group

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Relu(), apply(g, conv, x, normal(*shape), normal(shape[0])))

    graph = make(build, (2, channels, 5, 6))
    after, _ = optimised(graph, precision=precision)
    optimise(after, STATIC_PASSES, Options(precision=precision), evaluate, Rewrites())
    found = [node for node in after.nodes if node.kind in ("Conv", "Mul")]
    assert [node.kind for node in found] == ["Mul" if lowered else "Conv"]
    assert found[0].output.tensor.dtype == precision
    assert_same(graph, after, rel=2e-6 if precision == "float32" else 2e-3)


def spatial_gate(g: Graph, x: Value, *, kernel: int = 1, bias: bool = True) -> Value:
    """Tokens that a convolution of places mixes, and that gate others (gMLP)."""
    rows = apply(g, Gelu(), apply(g, MatMul(), x, normal(6, 10)))
    first, second = g.insert(Split(axis=-1, num_outputs=2), [rows], 2).outputs
    normed = apply(g, LayerNormalization(), second, normal(5), normal(5))
    pads = (kernel // 2,) * 2
    mixed = apply(g, Conv(pads=pads), normed, normal(7, 7, kernel), *[normal(7)] * bias)
    return apply(g, MatMul(), apply(g, Mul(), first, mixed), normal(5, 6))


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_that_mixes_rows_is_a_product(bias: bool) -> None:
    graph = make(lambda g, x: spatial_gate(g, x, bias=bias), ("n", 7, 6))
    after, _ = optimised(graph)
    assert "Conv" not in kinds(after)
    assert kinds(after).count("MatMul") == 3
    assert_same(graph, after, 2, 7, 6)


def windows_of_rows(g: Graph, x: Value) -> Value:
    return spatial_gate(g, x, kernel=3)


def channels_of_a_line(g: Graph, x: Value) -> Value:
    """Which other convolutions make and read."""
    x = apply(g, Relu(), apply(g, Conv(pads=(1, 1)), x, normal(7, 7, 3)))
    x = apply(g, Relu(), apply(g, Conv(), x, normal(7, 7, 1)))
    return apply(g, Conv(pads=(1, 1)), x, normal(7, 7, 3))


@pytest.mark.parametrize("build", [windows_of_rows, channels_of_a_line])
def test_other_convolutions_of_lines_stay(build: Build) -> None:
    graph = make(build, (2, 7, 6))
    after, _ = optimised(graph)
    assert kinds(after).count("Conv") == kinds(graph).count("Conv")
    assert_same(graph, after)
