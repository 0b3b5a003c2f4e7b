"""Depthwise convolutions of images whose samples are heads, beside a class token (MViT)."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Where
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Transpose
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization, Softmax
from tercet.runtime.ops.shape import Reshape, Squeeze

from .graphs import apply, assert_same, make, normal, optimised

HEADS, SIZE = 2, 8
WIDTH = HEADS * SIZE
PIXELS = 4, 4, 6
LENGTH = 1 + 4 * 4 * 6
TURNED = Transpose(perm=(0, 1, 3, 2))


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers)


def sliced(g: Graph, value: Value, axis: int, start: int, stop: int) -> Value:
    return apply(g, Slice(), value, integers(start), integers(stop), integers(axis))


def parts(g: Graph, x: Value) -> list[Value]:
    layer = apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH) / 4)
    split = apply(g, Reshape(), layer, integers(0, -1, 3, HEADS, SIZE))
    heads = apply(g, Transpose(perm=(0, 3, 2, 1, 4)), split)
    pieces = [sliced(g, heads, 2, i, i + 1) for i in range(3)]
    return [apply(g, Squeeze(), piece, integers(2)) for piece in pieces]


def pooled(g: Graph, heads: Value, stride: int, *bias: np.ndarray, norm=None) -> Value:
    token, image = sliced(g, heads, 2, 0, 1), sliced(g, heads, 2, 1, LENGTH)
    image = apply(g, Reshape(), apply(g, TURNED, image), integers(-1, SIZE, *PIXELS))
    op = Conv(group=SIZE, pads=(1,) * 6, strides=(1, stride, stride))
    image = apply(g, op, image, normal(SIZE, 1, 3, 3, 3), *bias)
    size = 4 * -(-4 // stride) * -(-6 // stride)
    image = apply(g, Reshape(), image, integers(-1, HEADS, SIZE, size))
    joined = apply(g, Concat(axis=2), token, apply(g, TURNED, image))
    norm = norm or LayerNormalization(axis=-1)
    return apply(g, norm, joined, normal(SIZE))


def attention(g: Graph, q: Value, k: Value, v: Value) -> Value:
    weights = apply(g, Softmax(), apply(g, MatMul(), q, apply(g, TURNED, k)))
    return apply(g, MatMul(), weights, v)


def merged(g: Graph, heads: Value) -> Value:
    rows = apply(g, Transpose(perm=(0, 2, 1, 3)), heads)
    return apply(g, MatMul(), apply(g, Reshape(), rows, integers(0, -1, WIDTH)), normal(WIDTH, 8))


@pytest.mark.parametrize("count", [1, 2, "batch"])
@pytest.mark.parametrize("norm", [LayerNormalization(axis=-1), RMSNormalization(axis=-1)])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_reads_rows_that_are_pooled(count: Dim, norm, biased: bool) -> None:
    bias = (normal(SIZE),) if biased else ()

    def build(g: Graph, x: Value) -> Value:
        q, k, v = parts(g, x)
        q, k, v = (pooled(g, each, s, *bias, norm=norm) for each, s in ((q, 1), (k, 2), (v, 2)))
        behind = np.arange(LENGTH)[:, None] > 0
        residual = apply(g, Where(), behind, q, np.zeros(1, np.float32))
        return merged(g, apply(g, Add(), attention(g, q, k, v), residual))

    graph = make(build, (count, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert log.counts["convolve_heads"] == 3
    images = [node for node in after.nodes if node.kind == "Conv"]
    assert [tuple(node.operands[0].tensor.shape or ())[1] for node in images] == [WIDTH] * 3
    (scores,) = (node for node in after.nodes if node.kind == "Attention")
    assert [value.tensor.rank for value in scores.operands[:3]] == [3, 3, 3]
    turns = [op for op in (node.op for node in after.nodes) if isinstance(op, Transpose)]
    assert all(op.perm in ((0, 4, 1, 2, 3), (0, 2, 3, 4, 1)) for op in turns)
    assert_same(graph, after, count if isinstance(count, int) else 2, LENGTH, WIDTH)


def test_rows_are_cut_where_heads_were() -> None:
    def build(g: Graph, x: Value) -> Value:
        heads = pooled(g, parts(g, x)[0], 1)
        return merged(g, sliced(g, heads, 2, 1, LENGTH))

    graph = make(build, (2, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert log.counts["convolve_heads"] == 1
    assert not any(n.op == Transpose(perm=(0, 2, 1, 3)) for n in after.nodes)
    assert_same(graph, after, 2, LENGTH, WIDTH)


OTHERS = {
    "not depthwise": (Conv(pads=(1,) * 6), (SIZE, SIZE, 3, 3, 3), SIZE),
    "more filters": (Conv(group=SIZE, pads=(1,) * 6), (2 * SIZE, 1, 3, 3, 3), 2 * SIZE),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_stay(name: str) -> None:
    conv, shape, filters = OTHERS[name]

    def build(g: Graph, x: Value) -> Value:
        image = sliced(g, parts(g, x)[0], 2, 1, LENGTH)
        image = apply(g, Reshape(), apply(g, TURNED, image), integers(-1, SIZE, *PIXELS))
        image = apply(g, conv, image, normal(*shape))
        image = apply(g, Reshape(), image, integers(-1, HEADS, filters, LENGTH - 1))
        return apply(g, TURNED, image)

    _, log = optimised(make(build, (2, LENGTH, WIDTH)))
    assert "convolve_heads" not in log.counts


@pytest.mark.parametrize("other", ["second reader", "from no rows"])
def test_what_is_added_to_heads_elsewhere_stays(other: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        q, k, v = parts(g, x)
        made = attention(g, q, k, v)
        if other == "from no rows":
            return merged(g, apply(g, Add(), made, apply(g, Softmax(), k)))
        total = apply(g, Add(), made, q)
        return apply(g, Add(), merged(g, total), apply(g, MatMul(), merged(g, made), normal(8, 8)))

    graph = make(build, (2, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert not any("adds to rows" in rewrite.text for rewrite in log)
    assert_same(graph, after, 2, LENGTH, WIDTH)
