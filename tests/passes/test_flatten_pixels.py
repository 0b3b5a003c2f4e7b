"""Layers that read flattened images read them with channels last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.ops.shape import Flatten, Reshape
from tercet.runtime.passes.images import flatten_pixels

from .graphs import apply, assert_same, make, normal, optimised, passed

CHANNELS, HEIGHT, WIDTH = 6, 3, 4


def image(g: Graph, x: Value) -> Value:
    return apply(g, Relu(), apply(g, Conv(pads=(1, 1, 1, 1)), x, normal(CHANNELS, 2, 3, 3)))


def flattened(g: Graph, x: Value, *, across: bool) -> Value:
    """Layers of all pixels (AlexNet)."""
    rows = apply(g, Flatten(), image(g, x))
    weights = normal(7, CHANNELS * HEIGHT * WIDTH)
    if across:
        return apply(g, Gemm(transB=1), rows, weights, normal(7))
    return apply(g, MatMul(), rows, weights.T)


def pooled(g: Graph, x: Value) -> Value:
    small = apply(g, MaxPool(kernel_shape=(2, 2)), image(g, x))
    rows = apply(g, Reshape(), small, np.array([-1, CHANNELS * 2 * 3]))
    return apply(g, Gemm(), rows, normal(CHANNELS * 6, 7), normal(7))


def frames(g: Graph, x: Value) -> Value:
    """Layers of the channels and frequencies of each point in time (Conformer)."""
    transposed = apply(g, Transpose(perm=(0, 2, 1, 3)), image(g, x))
    rows = apply(g, Reshape(), transposed, np.array([0, 0, -1]))
    return apply(g, Add(), apply(g, MatMul(), rows, normal(CHANNELS * WIDTH, 7)), normal(7))


def swapped(g: Graph, x: Value) -> Value:
    """Pixels whose rows and columns are exchanged."""
    rows = apply(g, Flatten(), apply(g, Transpose(perm=(0, 1, 3, 2)), image(g, x)))
    return apply(g, MatMul(), rows, normal(CHANNELS * HEIGHT * WIDTH, 7))


BUILT: dict[str, Callable[[Graph, Value], Value]] = {
    "rows": lambda g, x: flattened(g, x, across=False),
    "across": lambda g, x: flattened(g, x, across=True),
    "pooled": pooled,
    "frames": frames,
    "swapped": swapped,
}


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("batch", [2, "batch"])
def test_weights_are_permuted(name: str, batch: int | str) -> None:
    graph = make(BUILT[name], (batch, 2, HEIGHT, WIDTH))
    after, said = passed(graph, flatten_pixels.run, "float16")
    assert len(said) == 1
    transposes = [node.op for node in after.nodes if isinstance(node.op, Transpose)]
    assert [transpose.perm for transpose in transposes] == [(0, 2, 3, 1)]
    assert_same(graph, after, 2, 2, HEIGHT, WIDTH)


def columns(g: Graph, x: Value) -> Value:
    """The rows and channels of each column are copied in any case."""
    transposed = apply(g, Transpose(perm=(0, 3, 1, 2)), image(g, x))
    rows = apply(g, Reshape(), transposed, np.array([0, 0, -1]))
    return apply(g, MatMul(), rows, normal(CHANNELS * HEIGHT, 7))


def given(g: Graph, x: Value) -> Value:
    """An input is stored as it is."""
    return apply(g, MatMul(), apply(g, Flatten(), x), normal(2 * HEIGHT * WIDTH, 7))


def read_twice(g: Graph, x: Value) -> Value:
    rows = apply(g, Flatten(), image(g, x))
    weights = normal(CHANNELS * HEIGHT * WIDTH, CHANNELS * HEIGHT * WIDTH)
    return apply(g, Add(), apply(g, MatMul(), rows, weights), rows)


@pytest.mark.parametrize("build", [columns, given, read_twice])
def test_others_stay(build: Callable[[Graph, Value], Value]) -> None:
    graph = make(build, (2, 2, HEIGHT, WIDTH))
    after, said = passed(graph, flatten_pixels.run, "float16")
    assert not said
    assert_same(graph, after)


@pytest.mark.parametrize("name", BUILT)
def test_float32_is_not_transposed_anew(name: str) -> None:
    graph = make(BUILT[name], (2, 2, HEIGHT, WIDTH))
    after, log = optimised(graph)
    assert ("flatten_pixels" in log.counts) == (name in ("frames", "swapped"))
    assert_same(graph, after)
