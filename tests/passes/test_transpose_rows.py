"""Attention on [position, sample, channel], as PyTorch's nn.MultiheadAttention is exported."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

SIZE, HEADS, ROWS = 8, 3, 5
WIDTH = SIZE * HEADS
TRANSPOSE = Transpose(perm=(1, 0, 2))


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def packed(g: Graph, x: Value) -> list[Value]:
    """q, k and v of a product that gives all of them and is cut along an axis in front."""
    y = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH)), normal(3 * WIDTH))
    y = apply(g, Unsqueeze(), apply(g, Reshape(), y, ints(ROWS, -1, 3, WIDTH)), ints(0))
    y = apply(g, Squeeze(), apply(g, Transpose(perm=(3, 1, 2, 0, 4)), y), ints(3))
    return [apply(g, Gather(axis=0), y, np.array(i)) for i in range(3)]


def sliced(g: Graph, x: Value) -> list[Value]:
    """Those whose columns are cut out."""
    y = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH)), normal(3 * WIDTH))
    ends = [(i * WIDTH, (i + 1) * WIDTH) for i in range(3)]
    return [apply(g, Slice(), y, ints(start), ints(end), ints(2)) for start, end in ends]


def separate(g: Graph, x: Value) -> list[Value]:
    """Those of separate layers."""
    products = [apply(g, MatMul(), x, normal(WIDTH, WIDTH)) for _ in range(3)]
    return [apply(g, Add(), y, normal(WIDTH)) for y in products]


SPELLINGS = {"packed": packed, "sliced": sliced, "separate": separate}


def attended(g: Graph, x: Value, spelling: str, batch: int) -> Value:
    """Return MultiheadAttention(x) of samples in front, of a sequence in front inside."""
    heads: list[Value] = []
    for part in SPELLINGS[spelling](g, apply(g, TRANSPOSE, x)):
        y = apply(g, Reshape(), part, ints(ROWS, batch * HEADS, SIZE))
        y = apply(g, TRANSPOSE, y)
        heads.append(apply(g, Reshape(), y, ints(batch, HEADS, ROWS, SIZE)))
    q, k, v = heads
    q = apply(g, Mul(), q, np.array(0.3, np.float32))
    scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
    y = apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), v)
    y = apply(g, Reshape(), apply(g, Transpose(perm=(2, 0, 1, 3)), y), ints(-1, WIDTH))
    y = apply(g, Gemm(transB=1), y, normal(WIDTH, WIDTH), normal(WIDTH))
    return apply(g, TRANSPOSE, apply(g, Reshape(), y, ints(ROWS, batch, WIDTH)))


def attention(spelling: str, batch: int) -> Graph:
    """Return x + MultiheadAttention(relu(x))."""

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Add(), x, attended(g, apply(g, Relu(), x), spelling, batch))

    return make(build, (batch, ROWS, WIDTH))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_transpose_is_left(spelling: str, batch: int) -> None:
    graph = attention(spelling, batch)
    after, log = optimised(graph)
    assert log.counts["transpose_rows"] == (4 if spelling == "separate" else 2)
    wanted = ["Relu", "MatMul", "Add", "Split", "Attention", "MatMul", "Add", "Add"]
    assert kinds(after) == wanted
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("transposed", [False, True])
def test_none_is_left_of_rows_along_one_of_several_axes(transposed: bool, spelling: str) -> None:
    """Such as those of a table's samples or of its features: the sum reads what a view brings."""
    dims = (2, ROWS, 4, WIDTH) if transposed else (2, 4, ROWS, WIDTH)

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Relu(), x)
        y = apply(g, Transpose(perm=(0, 2, 1, 3)), y) if transposed else y
        rows = apply(g, Reshape(), y, ints(8, ROWS, WIDTH))
        return apply(g, Add(), rows, attended(g, rows, spelling, 8))

    graph = make(build, dims)
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") == transposed
    assert_same(graph, after, rel=5e-6)


def test_layers_between_other_nodes_stay() -> None:
    """Nothing is gained where neither side of a layer moves elements anyway."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, MatMul(), apply(g, TRANSPOSE, apply(g, Relu(), x)), normal(WIDTH, 7))
        return apply(g, Relu(), y)

    graph = make(build, (2, ROWS, WIDTH))
    after, log = optimised(graph)
    assert "transpose_rows" not in log.counts
    assert_same(graph, after, rel=5e-6)


def test_rows_that_others_read_in_their_order_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, TRANSPOSE, apply(g, Relu(), x))
        y = apply(g, Reshape(), apply(g, MatMul(), rows, normal(WIDTH, WIDTH)), ints(-1, WIDTH))
        return apply(g, Add(), y, apply(g, Reshape(), rows, ints(-1, WIDTH)))

    graph = make(build, (2, ROWS, WIDTH))
    after, log = optimised(graph)
    assert "transpose_rows" not in log.counts
    assert_same(graph, after, rel=5e-6)
