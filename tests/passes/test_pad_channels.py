"""Channels padded to whole words: results stay what they are in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Clip, Gelu, Mul, PRelu, Relu, Sigmoid
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Concat, Pad, Slice, Split
from tercet.runtime.ops.norm import BatchNormalization, InstanceNormalization, Softmax
from tercet.runtime.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.resize import Resize
from tercet.runtime.options import Precision
from tercet.runtime.passes.images import pad_channels

from .graphs import Build, apply, make, normal, passed, run

SHAPE = (2, 8, 6, 5)
WINDOW: dict[str, Any] = {"pads": (1, 1, 1, 1)}


def conv(graph: Graph, x: Value, filters: int, size: int = 1) -> Value:
    infer(graph)
    w = normal(filters, x.tensor.dims[1], size, size) / np.float32(size * x.tensor.dims[1] ** 0.5)
    return apply(graph, Conv(pads=(size // 2,) * 4), x, w, normal(filters))


def depthwise(graph: Graph, x: Value) -> Value:
    infer(graph)
    channels = x.tensor.dims[1]
    return apply(graph, Conv(group=channels, **WINDOW), x, normal(channels, 1, 3, 3))


def scales(graph: Graph, x: Value) -> Value:
    """Res2Net's block: parts are added to what becomes of the parts before them."""
    wide = conv(graph, x, 52)
    parts = graph.insert(Split(num_outputs=4, axis=1), [wide], 4).outputs
    found = [conv(graph, parts[0], 13, 3)]
    for part in parts[1:3]:
        found.append(conv(graph, apply(graph, Add(), found[-1], part), 13, 3))
    pooled = apply(graph, AveragePool(kernel_shape=(3, 3), **WINDOW), parts[3])
    whole = apply(graph, Concat(axis=1), *found, pooled)
    return conv(graph, apply(graph, Relu(), whole), 8)


def grown(graph: Graph, x: Value) -> Value:
    """ReXNet's block: the shortcut has fewer channels than the result."""
    first = conv(graph, x, 27)
    wide = conv(graph, depthwise(graph, conv(graph, first, 50)), 38)
    bounds = [(0, 27), (27, 38)]
    parts = [apply(graph, Slice(), wide, *(np.array([n]) for n in (*bound, 1))) for bound in bounds]
    whole = apply(graph, Concat(axis=1), apply(graph, Add(), parts[0], first), parts[1])
    return conv(graph, whole, 8)


def from_behind(graph: Graph, x: Value) -> Value:
    """A partial convolution of the last channels, counted from the end."""
    wide = conv(graph, x, 26)
    bounds = [(-6, 1 << 62), (0, -6)]
    last, rest = (
        apply(graph, Slice(), wide, *(np.array([n]) for n in (*bound, 1))) for bound in bounds
    )
    whole = apply(graph, Concat(axis=1), rest, conv(graph, last, 6, 3))
    return conv(graph, apply(graph, Add(), conv(graph, whole, 26), wide), 8)


def gated(graph: Graph, x: Value) -> Value:
    """Squeeze-and-excite, and all that has numbers for each channel."""
    y = conv(graph, x, 26)
    some = [normal(26), normal(26), normal(26), np.abs(normal(26)) + np.float32(0.1)]
    y = apply(graph, BatchNormalization(), y, *some)
    y = apply(graph, PRelu(), y, normal(26, 1, 1))
    y = apply(graph, Mul(), apply(graph, Add(), y, normal(1, 26, 1, 1)), normal(1, 1, 6, 5))
    y = apply(graph, InstanceNormalization(), y, normal(26), normal(26))
    y = apply(graph, Clip(), y, np.array(-1, np.float32), np.array(2, np.float32))
    mean = apply(graph, ReduceMean(), y, np.array([2, 3]))
    gate = apply(graph, Sigmoid(), conv(graph, apply(graph, Relu(), conv(graph, mean, 7)), 26))
    return conv(graph, apply(graph, Mul(), y, gate), 8)


def resized(graph: Graph, x: Value) -> Value:
    """What changes only heights and widths."""
    y = apply(graph, Gelu(), conv(graph, x, 30))
    y = apply(graph, MaxPool(kernel_shape=(2, 2)), y)
    y = apply(graph, Pad(), y, np.array([0, 0, 1, 0, 0, 0, 0, 2]))
    y = apply(graph, Resize(mode="linear"), y, None, None, np.array([2, 30, 8, 9]))
    y = apply(graph, Resize(axes=(2, 3)), y, None, None, np.array([5, 6]))
    y = apply(graph, ConvTranspose(strides=(2, 2)), y, normal(30, 15, 2, 2), normal(15))
    return conv(graph, apply(graph, GlobalAveragePool(), y), 8)


def shuffled(graph: Graph, x: Value) -> Value:
    """A choice of channels from halves that are padded."""
    half = conv(graph, x, 13)
    y = apply(graph, Concat(axis=1), half, half)
    y = apply(graph, Gather(axis=1), y, np.arange(26).reshape(2, 13).T.reshape(-1))
    return conv(graph, y, 8)


def shuffled_from_behind(graph: Graph, x: Value) -> Value:
    """A choice that counts channels from the last one."""
    y = conv(graph, x, 30)
    y = apply(graph, Gather(axis=1), y, -1 - np.arange(30).reshape(2, 15).T.reshape(-1)[:24])
    return conv(graph, y, 8)


def attended(graph: Graph, x: Value) -> Value:
    """Queries of one channel, keys and values, as in MobileViTv2; the queries stay as they are."""
    wide = conv(graph, x, 25)
    sizes = graph.constant(np.array([1, 12, 12]))
    q, k, v = graph.insert(Split(axis=1, num_outputs=3), [wide, sizes], 3).outputs
    infer(graph)
    weights = apply(graph, Softmax(axis=1), q)
    gated = apply(graph, Mul(), apply(graph, Relu(), v), apply(graph, Mul(), k, weights))
    return conv(graph, gated, 8)


def focal(graph: Graph, x: Value) -> Value:
    """Gates of one channel each behind others, as in FocalNet."""
    wide = conv(graph, x, 83)
    parts = [
        apply(graph, Slice(), wide, *(np.array([n]) for n in (*bound, 1)))
        for bound in ((0, 80), (80, 83))
    ]
    infer(graph)
    for i in range(3):
        gate = apply(graph, Slice(), parts[1], *(np.array([n]) for n in (i, i + 1, 1)))
        parts[0] = apply(graph, Mul(), parts[0], apply(graph, Sigmoid(), gate))
    return conv(graph, parts[0], 8)


def weighed(graph: Graph, x: Value) -> Value:
    """Two images, each weighed by one channel of an image of two (GLPN's selective fusion)."""
    weights = apply(graph, Sigmoid(), conv(graph, x, 2))
    infer(graph)
    images = [
        apply(graph, Mul(), image, apply(graph, Slice(), weights, *(np.array([n]) for n in bound)))
        for image, bound in ((x, (0, 1, 1)), (conv(graph, x, 8), (1, 2, 1)))
    ]
    return conv(graph, apply(graph, Add(), *images), 8)


def read_by_a_layer(graph: Graph, x: Value) -> Value:
    """The image of two channels has another reader, which would multiply zeros."""
    weights = conv(graph, x, 2)
    infer(graph)
    part = apply(graph, Slice(), weights, *(np.array([n]) for n in (1, 2, 1)))
    return apply(graph, Add(), conv(graph, weights, 8), apply(graph, Mul(), x, part))


def padded(graph: Graph, precision: Precision = "float16") -> tuple[Graph, list[str]]:
    return passed(graph, pad_channels.run, precision)


@pytest.mark.parametrize(
    "build", [scales, grown, from_behind, gated, resized, shuffled, shuffled_from_behind]
)
def test_results_stay(build: Build) -> None:
    graph = make(build, SHAPE)
    copy, said = padded(graph)
    assert said
    images = [v.tensor.dims for n in copy.nodes for v in n.outputs if v.tensor.rank == 4]
    assert all(dims[1] % 8 == 0 for dims in images)
    x = normal(*SHAPE)
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("build", "count"), [(attended, 40), (focal, 104), (weighed, 16)])
def test_parts_that_stay_as_they_are(build: Build, count: int) -> None:
    graph = make(build, SHAPE)
    copy, said = padded(graph)
    assert len(said) == 1
    slices = [node for node in copy.nodes if isinstance(node.op, Slice)]
    assert max(node.operands[0].tensor.dims[1] for node in slices) == count
    starts = [node.operands[1].data for node in slices]
    assert all(start is not None and start[0] % 8 == 0 for start in starts)
    assert not any(isinstance(node.op, Split) for node in copy.nodes)
    x = normal(*SHAPE)
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_parts_begin_at_words() -> None:
    copy, _ = padded(make(scales, SHAPE))
    (split,) = (node for node in copy.nodes if isinstance(node.op, Split))
    assert [value.tensor.dims[1] for value in split.outputs] == [16] * 4


def few(graph: Graph, x: Value) -> Value:
    return conv(graph, apply(graph, Relu(), conv(graph, x, 9)), 8)


def in_fours(graph: Graph, x: Value) -> Value:
    return conv(graph, apply(graph, Relu(), conv(graph, x, 12)), 8)


def normalized(graph: Graph, x: Value) -> Value:
    return conv(graph, apply(graph, Softmax(axis=1), conv(graph, x, 26)), 8)


def broadcast(graph: Graph, x: Value) -> Value:
    """One channel for all others is one channel."""
    mask = apply(graph, Sigmoid(), conv(graph, x, 1))
    return conv(graph, apply(graph, Mul(), conv(graph, x, 16), mask), 8)


def sliced_to_nothing(graph: Graph, x: Value) -> Value:
    wide = conv(graph, x, 83)
    nothing = apply(graph, Slice(), wide, *(np.array([n]) for n in (83, 90, 1)))
    some = apply(graph, Slice(), wide, *(np.array([n]) for n in (3, 83, 1)))
    return apply(graph, Concat(axis=1), nothing, conv(graph, some, 8))


def split_to_nothing(graph: Graph, x: Value) -> Value:
    wide = conv(graph, x, 52)
    first, second, nothing = graph.insert(
        Split(axis=1, num_outputs=3), [wide, ints(graph, 13, 39, 0)], 3
    ).outputs
    found = apply(graph, Concat(axis=1), conv(graph, first, 13, 3), conv(graph, second, 13, 3))
    return apply(graph, Concat(axis=1), nothing, conv(graph, found, 8))


def ints(graph: Graph, *numbers: int) -> Value:
    return graph.constant(np.array(numbers, np.int64))


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("build", [sliced_to_nothing, split_to_nothing])
def test_parts_without_channels(build: Build, precision: Precision) -> None:
    graph, x = make(build, SHAPE), normal(*SHAPE)
    copy, _ = padded(graph, precision)
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("build", [few, in_fours, normalized, broadcast, read_by_a_layer])
def test_what_stays_as_it_is(build: Build) -> None:
    assert padded(make(build, SHAPE))[1] == []


def test_images_whose_maxima_are_found_stay_as_they_are() -> None:
    """Their places count the elements of all channels."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, SHAPE))
    pool = graph.insert(MaxPool(kernel_shape=(3, 3), **WINDOW), [conv(graph, x, 50)], 2)
    graph.set_outputs({"y": conv(graph, pool.output, 8), "places": pool.outputs[1]})
    infer(graph)
    assert padded(graph)[1] == []
    graph.set_outputs({"y": graph.outputs["y"]})
    assert len(padded(graph)[1]) == 1


def test_narrow_images_of_many_pixels_stay_as_they_are() -> None:
    assert padded(make(weighed, (2, 8, 400, 400)))[1] == []


@pytest.mark.parametrize(("channels", "count"), [(3, 16), (8, 12)])
def test_filters_of_first_layers_are_whole_words(channels: int, count: int) -> None:
    """CSPNeXt's first layer, whose kernel computes eight filters at a time; others read fours."""

    def build(graph: Graph, x: Value) -> Value:
        return conv(graph, apply(graph, Relu(), conv(graph, x, 12, 3)), 8)

    graph = make(build, (2, channels, 6, 5))
    after, _ = padded(graph)
    first = next(node for node in after.nodes if isinstance(node.op, Conv))
    assert first.output.tensor.dims[1] == count
    x = normal(2, channels, 6, 5)
    expected, found = (run(each, x, np.float64) for each in (graph, after))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_parts_of_float32_begin_at_words_if_nothing_else_is_read() -> None:
    graph = make(focal, SHAPE)
    copy, said = padded(graph, "float32")
    assert len(said) == 1
    slices = [node for node in copy.nodes if isinstance(node.op, Slice)]
    assert max(node.operands[0].tensor.dims[1] for node in slices) == 92
    starts = [node.operands[1].data for node in slices]
    assert all(start is not None and start[0] % 4 == 0 for start in starts)
    x = normal(*SHAPE)
    x[0, 0, 0, 0] = np.inf
    expected, found = (run(each, x, np.float64) for each in (graph, copy))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_few_channels_of_float32_stay_as_they_are() -> None:
    """Where they would be many more, as each is computed."""

    def gates(graph: Graph, x: Value) -> Value:
        wide = conv(graph, x, 3)
        for i in range(3):
            gate = apply(graph, Slice(), wide, *(np.array([n]) for n in (i, i + 1, 1)))
            x = apply(graph, Mul(), x, apply(graph, Sigmoid(), gate))
        return conv(graph, x, 8)

    assert padded(make(gates, SHAPE), "float32")[1] == []


def test_results_of_the_graph_and_of_float32_stay_as_they_are() -> None:
    assert padded(make(scales, SHAPE), "float32")[1] == []
    assert padded(make(lambda graph, x: conv(graph, x, 26), SHAPE))[1] == []
