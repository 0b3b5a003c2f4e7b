"""Layers of rows of pixels whose transposed results are cut: convolutions with padded channels."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice, Split, Transpose
from tercet.runtime.options import Precision
from tercet.runtime.passes import convolve_rows, pad_channels

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
