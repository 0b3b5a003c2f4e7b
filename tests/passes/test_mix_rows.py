"""Products that mix the rows of an image."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Mul, Relu, Sigmoid
from tercet.runtime.ops.matmul import Einsum, MatMul
from tercet.runtime.ops.movement import Concat, Transpose
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

CHANNELS, NODES, STEPS = 8, 5, 3


def image(g: Graph, x: Value) -> Value:
    """The gated convolutions of Graph WaveNet."""
    gates = (
        apply(g, op, apply(g, Conv(), x, normal(CHANNELS, 2, 1, 2))) for op in (Relu(), Sigmoid())
    )
    return apply(g, Mul(), *gates)


def hops(g: Graph, x: Value) -> Value:
    y, adjacency = image(g, x), normal(NODES, NODES)
    one, two = y, y
    parts = [y]
    for _ in range(2):
        one = apply(g, Einsum(equation="ncvl,vw->ncwl"), one, adjacency)
        two = apply(g, MatMul(), adjacency, two)
        parts += [one, two]
    y = apply(g, Concat(axis=1), *parts)
    return apply(g, Conv(), y, normal(4, 5 * CHANNELS, 1, 1))


@pytest.mark.parametrize("batch", [1, 2, "batch"])
def test_rows_are_as_wide_as_columns_and_channels(batch: Dim) -> None:
    graph = make(hops, (batch, 2, NODES, STEPS + 1))
    after, log = optimised(graph)
    assert log.counts["mix_rows"] == 4
    products = [node for node in after.nodes if isinstance(node.op, MatMul)]
    assert len(products) == 4
    for node in products:
        assert node.output.tensor.shape is not None
        assert node.output.tensor.shape[-1] == STEPS * CHANNELS
    assert kinds(after).count("Transpose") <= 6  # none between two products
    sample = batch if isinstance(batch, int) else 2
    assert_same(graph, after, sample, 2, NODES, STEPS + 1, rel=5e-6)


def test_what_no_convolution_stores_stays() -> None:
    def build(g: Graph, x: Value) -> Value:
        return apply(g, MatMul(), normal(NODES, NODES), apply(g, Relu(), x))

    after, log = optimised(make(build, (2, CHANNELS, NODES, STEPS)))
    assert "mix_rows" not in log.counts
    assert kinds(after) == ["Relu", "MatMul"]


PARTS, FRAMES = 3, 4


def skeletons(g: Graph, x: Value, equation: str = "nkctv,kvw->nctw") -> Value:
    """ST-GCN: each part of the channels has neighbours of its own, along the columns."""
    y = apply(g, Conv(), x, normal(PARTS * CHANNELS, 2, 1, 1), normal(PARTS * CHANNELS))
    shape = np.array([0, PARTS, CHANNELS, FRAMES, NODES])
    y = apply(g, Reshape(), y, shape)
    y = apply(g, Einsum(equation=equation), y, normal(PARTS, NODES, NODES + 1))
    return apply(g, Conv(), apply(g, Relu(), y), normal(4, CHANNELS, 1, 1))


@pytest.mark.parametrize("batch", [1, 2, "batch"])
def test_parts_of_channels_are_terms_of_one_product(batch: Dim) -> None:
    graph = make(skeletons, (batch, 2, FRAMES, NODES))
    after, log = optimised(graph)
    assert log.counts["mix_rows"] == 1
    (product,) = [node for node in after.nodes if isinstance(node.op, MatMul)]
    assert product.operands[0].tensor.shape == (NODES + 1, NODES * PARTS)
    orders = [node.op.perm for node in after.nodes if isinstance(node.op, Transpose)]
    assert orders == [(0, 2, 3, 1), (0, 3, 1, 2)], "of images alone"
    sample = batch if isinstance(batch, int) else 2
    assert_same(graph, after, sample, 2, FRAMES, NODES, rel=5e-6)


def test_windows_in_front_of_a_layer_stay() -> None:
    """Transposes of other ranks, as in Swin."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Reshape(), x, np.array([2, 2, 2, 2, 3, CHANNELS]))
        y = apply(g, Transpose(perm=(0, 1, 3, 2, 4, 5)), y)
        y = apply(g, Reshape(), y, np.array([8, 6, CHANNELS]))
        return apply(g, MatMul(), y, normal(CHANNELS, 5))

    graph = make(build, (2, 4, 6, CHANNELS))
    after, log = optimised(graph)
    assert "mix_rows" not in log.counts
    assert_same(graph, after)
