"""What pixels of an image share is convolved before it is repeated, and images before they grow."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu, Sigmoid
from tercet.runtime.ops.movement import Concat, Expand
from tercet.runtime.ops.norm import BatchNormalization
from tercet.runtime.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool
from tercet.runtime.ops.resize import Resize
from tercet.runtime.passes.images import convolve_early

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised, run


def expanded(g: Graph, x: Value, pixel: Value) -> Value:
    return apply(g, Expand(), pixel, np.array((1, 1, *(x.tensor.shape or ())[2:])))


def resized(g: Graph, x: Value, pixel: Value) -> Value:
    sizes = np.array((2, *(x.tensor.shape or ())[1:]))
    return apply(g, Resize(mode="linear"), pixel, None, None, sizes)


def pooled(
    g: Graph, x: Value, *, repeat: str = "expanded", filters: int = 6, kernel: int = 1
) -> Value:
    """Mean and maximum of an image beside its pixels, in front of a layer."""
    image = apply(g, Relu(), x)
    means, greatest = (apply(g, op, image) for op in (GlobalAveragePool(), GlobalMaxPool()))
    repeated = {"expanded": expanded, "resized": resized}[repeat]
    parts = [repeated(g, x, means), image, repeated(g, x, greatest)]
    rank = len(x.tensor.shape or ())
    y = apply(g, Concat(axis=1), *parts)
    window = (kernel,) * (rank - 2)
    op = Conv(pads=(kernel // 2,) * (2 * rank - 4))
    y = apply(g, op, y, normal(filters, 12, *window), normal(filters))
    norm = [normal(filters) for _ in range(3)]
    return apply(g, BatchNormalization(), y, *norm, np.abs(normal(filters)) + np.float32(0.5))


@pytest.mark.parametrize("repeat", ["expanded", "resized"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 3), (2, 4, 7)])
def test_pixels_are_convolved_once(repeat: str, shape: tuple[Dim, ...]) -> None:
    graph = make(lambda g, x: pooled(g, x, repeat=repeat), shape)
    after, log = optimised(graph)
    assert log.counts["convolve_early"] == 1
    assert not {"Expand", "Resize", "BatchNormalization"} & set(kinds(after))
    (concat,) = [node for node in after.nodes if isinstance(node.op, Concat)]
    assert len(concat.operands) == 2, "of single pixels"
    assert_same(graph, after)


@pytest.mark.parametrize(("filters", "kernel"), [(6, 3), (20, 1)])
def test_windows_and_many_filters_read_what_is_repeated(filters: int, kernel: int) -> None:
    """Pads differ from what is repeated, and sums of many filters cost more than channels."""
    graph = make(lambda g, x: pooled(g, x, filters=filters, kernel=kernel), (2, 4, 5, 3))
    after, log = optimised(graph)
    assert "convolve_early" not in log.counts
    assert_same(graph, after)


def grown(g: Graph, x: Value, *inputs: np.ndarray | None, mode: str = "linear") -> Value:
    """An image with four times as many pixels, of a Sigmoid of every other pixel of x."""
    small = apply(g, Sigmoid(), apply(g, AveragePool(kernel_shape=(2, 2), strides=(2, 2)), x))
    how = "align_corners" if mode == "linear" else "asymmetric"
    return apply(g, Resize(mode=mode, coordinate_transformation_mode=how), small, None, *inputs)


def by_scales(g: Graph, x: Value, mode: str = "linear") -> Value:
    return grown(g, x, np.array([1, 1, 2, 2], np.float32), mode=mode)


def by_sizes(g: Graph, x: Value) -> Value:
    return grown(g, x, None, np.array([2, 4, 6, 8]))


def head(g: Graph, x: Value, *, filters: int = 6) -> Value:
    """As in SegFormer: two are resized alike, and one has fewer channels than there are filters."""
    image = apply(g, Relu(), x)
    parts = [by_sizes(g, x), image, by_sizes(g, image), by_scales(g, image, "nearest")]
    joined = apply(g, Concat(axis=1), *parts)
    y = apply(g, Conv(), joined, normal(filters, 16, 1, 1), normal(filters))
    return apply(g, Relu(), y)


def alone(g: Graph, x: Value) -> Value:
    """What is resized is all that is convolved, as in DPT."""
    return apply(g, Conv(), by_scales(g, x), normal(4, 4, 1, 1), normal(4))


def beside_a_pixel(g: Graph, x: Value) -> Value:
    mean = expanded(g, x, apply(g, GlobalAveragePool(), apply(g, Relu(), x)))
    joined = apply(g, Concat(axis=1), by_scales(g, x), mean)
    return apply(g, Conv(), joined, normal(4, 8, 1, 1), normal(4))


@pytest.mark.parametrize("build", [head, alone, beside_a_pixel])
def test_images_are_convolved_before_they_grow(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolve_early, "_LARGE", 1)
    graph = make(build, (2, 4, 6, 8))
    after, log = optimised(graph)
    assert log.counts["convolve_early"] == 1
    pixels = [node.operands[0].tensor.dims[2:] for node in after.nodes if isinstance(node.op, Conv)]
    assert pixels.count((3, 4)) == 1
    x = normal(2, 4, 6, 8)
    expected, found = (run(each, x, np.float32) for each in (graph, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_small_images_and_many_filters_are_convolved_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "convolve_early" not in optimised(make(head, (2, 4, 6, 8)))[1].counts
    monkeypatch.setattr(convolve_early, "_LARGE", 1)
    many = make(lambda g, x: head(g, x, filters=9), (2, 4, 6, 8))
    assert "convolve_early" not in optimised(many)[1].counts


def rescaled(g: Graph, x: Value) -> Value:
    """Channels between which a Resize interpolates, though their number stays."""
    joined = apply(g, Concat(axis=1), grown(g, x, np.array([1, 1.2, 2, 2], np.float32)), x)
    return apply(g, Conv(), joined, normal(4, 8, 1, 1), normal(4))


def rescaled_pixel(g: Graph, x: Value) -> Value:
    mean = apply(g, GlobalAveragePool(), x)
    scales = np.array([1.4, 1, 6, 8], np.float32)
    joined = apply(g, Concat(axis=1), apply(g, Resize(mode="linear"), mean, None, scales), x)
    return apply(g, Conv(), joined, normal(4, 8, 1, 1), normal(4))


@pytest.mark.parametrize("build", [rescaled, rescaled_pixel])
def test_samples_and_channels_that_a_resize_mixes(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolve_early, "_LARGE", 1)
    _, log = optimised(make(build, (2, 4, 6, 8)))
    assert "convolve_early" not in log.counts
