"""Convolutions of heads along the sequence, beside an attention of these heads."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, make, normal, optimised

HEADS, SIZE, LENGTH = 3, 8, 10
WIDTH = HEADS * SIZE


def heads(g: Graph, rows: Value, *perm: int) -> Value:
    layer = apply(g, MatMul(), rows, normal(WIDTH, WIDTH) / 4)
    split = apply(g, Reshape(), layer, np.array([0, -1, HEADS, SIZE]))
    return apply(g, Transpose(perm=perm), split)


def joined(g: Graph, value: Value) -> Value:
    rows = apply(g, Transpose(perm=(0, 2, 1, 3)), value)
    return apply(g, MatMul(), apply(g, Reshape(), rows, np.array([0, -1, WIDTH])), normal(WIDTH, 8))


def attention(g: Graph, q: Value, k: Value, v: Value) -> Value:
    return apply(g, MatMul(), apply(g, Softmax(), apply(g, MatMul(), q, k)), v)


def network(conv: Conv, weights: np.ndarray, *bias: np.ndarray, alone: bool = False):
    def build(g: Graph, x: Value) -> Value:
        v = heads(g, x, 0, 2, 1, 3)
        convolved = apply(g, conv, v, weights, *bias)
        if alone:
            return joined(g, convolved)
        scores = attention(g, heads(g, x, 0, 2, 1, 3), heads(g, x, 0, 2, 3, 1), v)
        return joined(g, apply(g, Add(), scores, convolved))

    return build


CASES = {
    "centred": (Conv(group=HEADS, pads=(2, 0, 2, 0), kernel_shape=(5, 1)), 5),
    "causal": (Conv(group=HEADS, pads=(2, 0, 0, 0), kernel_shape=(3, 1)), 3),
    "dilated": (Conv(group=HEADS, pads=(4, 0, 4, 0), dilations=(2, 1)), 5),
}


@pytest.mark.parametrize("count", [2, "batch"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_heads_are_columns(name: str, alone: bool, biased: bool, count: Dim) -> None:
    conv, taps = CASES[name]
    bias = (normal(HEADS),) if biased else ()
    build = network(conv, normal(HEADS, 1, taps, 1), *bias, alone=alone)
    graph = make(build, (count, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert log.counts["convolve_heads"] == 1
    (node,) = (node for node in after.nodes if node.kind == "Conv")
    assert node.operands[0].tensor.rank == 3
    assert len([n for n in after.nodes if n.kind == "Transpose"]) <= 2
    assert_same(graph, after, 2, LENGTH, WIDTH)


ELSEWHERE = {
    "wide windows": (Conv(group=HEADS, pads=(1, 1, 1, 1)), (HEADS, 1, 3, 3)),
    "mixed heads": (Conv(pads=(1, 0, 1, 0)), (HEADS, HEADS, 3, 1)),
    "several filters": (Conv(group=HEADS, pads=(1, 0, 1, 0)), (2 * HEADS, 1, 3, 1)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_convolutions_stay(name: str) -> None:
    conv, shape = ELSEWHERE[name]

    def build(g: Graph, x: Value) -> Value:
        return apply(g, conv, heads(g, x, 0, 2, 1, 3), normal(*shape))

    _, log = optimised(make(build, (2, LENGTH, WIDTH)))
    assert "convolve_heads" not in log.counts
