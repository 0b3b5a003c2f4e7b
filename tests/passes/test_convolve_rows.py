"""Layers of rows of pixels that are convolutions: of images that are cut, or around filters."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Gelu, Mul, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice, Split, Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Precision
from tercet.runtime.passes.images import convolve_rows, pad_channels
from tercet.runtime.passes.products import merge_linear

from .graphs import Build, apply, make, normal, passed, run

SHAPE = (2, 5, 6, 8)


def layer(graph: Graph, x: Value, columns: int, *, bias: bool = True) -> Value:
    y = apply(graph, MatMul(), x, normal(8, columns))
    y = apply(graph, Add(), normal(columns), y) if bias else y
    return apply(graph, Transpose(perm=(0, 3, 1, 2)), y)


def channels(graph: Graph, image: Value, begin: int, end: int) -> Value:
    return apply(graph, Slice(), image, *(np.array([n]) for n in (begin, end, 1)))


def focal(graph: Graph, x: Value) -> Value:
    """Queries, context and two gates of one channel each, as in FocalNet."""
    image = layer(graph, x, 66)
    q, context, gates = (channels(graph, image, *at) for at in ((0, 32), (32, 64), (64, 66)))
    for i in range(2):
        gate = channels(graph, gates, i, i + 1)
        context = apply(graph, Mul(), apply(graph, Relu(), context), gate)
    return apply(graph, Mul(), q, context)


def split(graph: Graph, x: Value) -> Value:
    """A Split, and no bias."""
    image = layer(graph, x, 42, bias=False)
    sizes = graph.constant(np.array([20, 20, 2]))
    a, b, _ = graph.insert(Split(axis=1, num_outputs=3), [image, sizes], 3).outputs
    return apply(graph, Mul(), a, b)


def whole_words(graph: Graph, x: Value) -> Value:
    """Parts that are read where they are as it is."""
    image = layer(graph, x, 64)
    return apply(graph, Mul(), channels(graph, image, 0, 32), channels(graph, image, 32, 64))


def read_whole(graph: Graph, x: Value) -> Value:
    """An image that has a reader of all of its channels."""
    image = layer(graph, x, 66)
    return apply(graph, Mul(), image, channels(graph, image, 65, 66))


def of_stacked(graph: Graph, x: Value) -> Value:
    """A matrix for each sample."""
    y = apply(graph, MatMul(), x, normal(2, 1, 8, 66))
    image = apply(graph, Transpose(perm=(0, 3, 1, 2)), y)
    return apply(graph, Mul(), channels(graph, image, 0, 65), channels(graph, image, 65, 66))


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("build", [focal, split])
def test_results_stay(build: Build, precision: Precision) -> None:
    graph = make(build, SHAPE)
    copy, said = passed(graph, convolve_rows.run, precision)
    assert len(said) == 1
    assert not any(isinstance(node.op, MatMul) for node in copy.nodes)
    x = normal(*SHAPE)
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_parts_begin_at_words_afterwards() -> None:
    copy, _ = passed(make(focal, SHAPE), convolve_rows.run, "float16")
    copy, said = passed(copy, pad_channels.run, "float16")
    assert len(said) == 1
    starts = [node.operands[1].data for node in copy.nodes if isinstance(node.op, Slice)]
    assert all(start is not None and start[0] % 8 == 0 for start in starts)


@pytest.mark.parametrize("build", [whole_words, read_whole, of_stacked])
def test_what_stays_as_it_is(build: Build) -> None:
    assert passed(make(build, SHAPE), convolve_rows.run, "float16")[1] == []


def filtered(graph: Graph, image: Value, *, group: int = 16) -> Value:
    """A convolution of 3x3 windows, by one filter for each channel if there are 16 groups."""
    conv = Conv(group=group, pads=(1, 1, 1, 1))
    return apply(graph, Gelu(), apply(graph, conv, image, normal(16, 16 // group, 3, 3)))


def rows_of(graph: Graph, image: Value) -> Value:
    return apply(graph, Transpose(perm=(0, 2, 3, 1)), image)


def feed_forward(graph: Graph, x: Value) -> Value:
    """A sum of rows and of layers around a depthwise convolution, as in PVTv2 and SegFormer."""
    rows = apply(graph, Reshape(), x, np.array([2, 30, 8]))
    y = apply(graph, Add(), apply(graph, MatMul(), rows, normal(8, 16)), normal(16))
    y = apply(graph, Reshape(), y, np.array([2, 5, 6, 16]))
    y = rows_of(graph, filtered(graph, apply(graph, Transpose(perm=(0, 3, 1, 2)), y)))
    y = apply(graph, Reshape(), y, np.array([2, 30, 16]))
    y = apply(graph, Add(), apply(graph, MatMul(), y, normal(16, 8)), normal(8))
    return apply(graph, Add(), rows, y)


def without_reshapes(graph: Graph, x: Value) -> Value:
    """The same of pixels by row and column, and no bias behind the depthwise convolution."""
    y = rows_of(graph, filtered(graph, layer(graph, x, 16)))
    return apply(graph, Add(), x, apply(graph, MatMul(), y, normal(16, 8)))


@pytest.mark.parametrize("build", [feed_forward, without_reshapes])
def test_layers_around_depthwise_convolutions(build: Build) -> None:
    graph = make(build, SHAPE)
    assert passed(graph, convolve_rows.run, "float32")[1] == []
    copy, said = passed(graph, convolve_rows.run, "float16")
    assert len(said) == 2
    assert not any(isinstance(node.op, MatMul) for node in copy.nodes)
    x = normal(*SHAPE)
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_files_of_16_bits() -> None:
    """They have no other precision of the plan."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float16, SHAPE))
    y = apply(graph, MatMul(), x, normal(8, 16).astype(float16))
    image = apply(graph, Transpose(perm=(0, 3, 1, 2)), y)
    conv = Conv(group=16, pads=(1, 1, 1, 1))
    graph.set_outputs({"y": apply(graph, conv, image, normal(16, 1, 3, 3).astype(float16))})
    infer(graph)
    assert len(passed(graph, convolve_rows.run, "float32")[1]) == 1


def mixed(graph: Graph, x: Value, *, filters: int = 16) -> Value:
    """An image of rows that a convolution of single pixels mixes."""
    return apply(graph, Conv(), layer(graph, x, 16), normal(filters, 16, 1, 1), normal(filters))


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_layers_that_convolutions_mix(precision: Precision) -> None:
    graph = make(mixed, SHAPE)
    copy, said = passed(graph, convolve_rows.run, precision)
    copy, more = passed(copy, merge_linear.run, precision)
    assert (len(said), len(more), len(copy.nodes)) == (1, 1, 2)
    x = normal(*SHAPE)
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def in_groups(graph: Graph, x: Value) -> Value:
    """Filters of two channels each, which are no part of an inverted residual."""
    y = rows_of(graph, filtered(graph, layer(graph, x, 16), group=8))
    return apply(graph, MatMul(), y, normal(16, 8))


def other_pixels(graph: Graph, x: Value) -> Value:
    """Rows whose pixels are split between samples."""
    y = apply(graph, MatMul(), apply(graph, Reshape(), x, np.array([4, 15, 8])), normal(8, 16))
    y = apply(graph, Reshape(), y, np.array([2, 5, 6, 16]))
    return filtered(graph, apply(graph, Transpose(perm=(0, 3, 1, 2)), y))


def expands(graph: Graph, x: Value) -> Value:
    """A convolution whose filters would have more elements together with the layer's."""
    y = apply(graph, MatMul(), x, normal(8, 2))
    image = apply(graph, Transpose(perm=(0, 3, 1, 2)), y)
    return apply(graph, Conv(), image, normal(16, 2, 1, 1), normal(16))


def of_nothing(graph: Graph, x: Value) -> Value:
    """Rows without columns: a bias of each pixel."""
    rows = apply(graph, Reshape(), x, np.array([2, 30, 8]))
    none = apply(graph, Slice(), rows, np.array([8]), np.array([9]), np.array([2]))
    y = apply(graph, Add(), apply(graph, MatMul(), none, normal(0, 16)), normal(16))
    y = apply(graph, Reshape(), y, np.array([2, 5, 6, 16]))
    return filtered(graph, apply(graph, Transpose(perm=(0, 3, 1, 2)), y))


@pytest.mark.parametrize("build", [in_groups, other_pixels, expands, of_nothing])
def test_other_layers_stay_products(build: Build) -> None:
    assert passed(make(build, SHAPE), convolve_rows.run, "float16")[1] == []
