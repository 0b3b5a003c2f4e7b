"""Equal branches of layers that a Concat joins are computed at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.elementwise import Add, Clip, Elu, Mul, Relu, Sigmoid, Tanh
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization, Softmax
from tercet.runtime.ops.shape import Unsqueeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

COUNT, ROWS, WIDTH = 4, 5, 6


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def gated(g: Graph, x: Value) -> Value:
    """A gated residual layer of one variable."""
    hidden = apply(
        g, Elu(), apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, WIDTH)), normal(WIDTH))
    )
    wide = apply(g, Add(), apply(g, MatMul(), hidden, normal(WIDTH, 2 * WIDTH)), normal(2 * WIDTH))
    first, gate = g.insert(Split(axis=-1, num_outputs=2), [wide], 2).outputs
    total = apply(g, Add(), x, apply(g, Mul(), first, apply(g, Sigmoid(), gate)))
    return apply(g, LayerNormalization(axis=-1), total, normal(WIDTH), normal(WIDTH))


def variables(g: Graph, x: Value) -> Value:
    """Layers of each column, all of which select among those of one variable (TFT)."""
    parts: list[Value] = []
    for i in range(COUNT):
        part = apply(g, Slice(), x, ints(i), ints(i + 1), ints(2))
        parts.append(apply(g, Add(), apply(g, MatMul(), part, normal(1, WIDTH)), normal(WIDTH)))
    flat = apply(g, Concat(axis=-1), *parts)
    weights = apply(g, Softmax(axis=-1), apply(g, MatMul(), flat, normal(COUNT * WIDTH, COUNT)))
    stack = apply(
        g, Concat(axis=-2), *(apply(g, Unsqueeze(), gated(g, p), ints(-2)) for p in parts)
    )
    return apply(g, Mul(), stack, apply(g, Unsqueeze(), weights, ints(-1)))


def experts(g: Graph, x: Value) -> Value:
    """Layers of the same rows."""
    rows = apply(g, Gather(axis=1), x, np.array(0))
    parts: list[Value] = []
    for _ in range(COUNT):
        hidden = apply(g, Relu(), apply(g, Gemm(), rows, normal(COUNT, WIDTH), normal(WIDTH)))
        last = apply(g, Gemm(transB=1), hidden, normal(3, WIDTH), normal(3))
        parts.append(apply(g, Unsqueeze(), last, ints(1)))
    return apply(g, Concat(axis=1), *parts)


def chunks(g: Graph, x: Value) -> Value:
    """Layers of the parts of a tensor."""
    parts = g.insert(Split(axis=-1, num_outputs=COUNT), [x], COUNT).outputs
    return apply(g, Concat(axis=-1), *(apply(g, MatMul(), part, normal(1, 2)) for part in parts))


BUILT = {"variables": (variables, 2), "experts": (experts, 1), "chunks": (chunks, 1)}


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("batch", [2, "batch"])
def test_branches(name: str, batch: Dim) -> None:
    build, stacks = BUILT[name]
    graph = make(build, (batch, ROWS, COUNT))
    after, log = optimised(graph)
    assert log.counts["stack_branches"] == stacks
    assert "Concat" not in kinds(after)
    assert kinds(after).count("MatMul") <= kinds(graph).count("MatMul") // COUNT + 2
    assert_same(graph, after, 2, ROWS, COUNT)


#: Widths of frequency bands, of which a few are equal: how many stacks they make, and what is left.
BANDS = {
    "two runs and one": ((2, 2, 2, 4, 4, 4, 4, 6), 2, 1),
    "apart": ((2, 2, 4, 2, 2), 0, 5),
    "one run": ((3, 2, 2, 2), 1, 1),
    "all": ((2, 2, 2), 1, 0),
}


@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("batch", [2, "batch"])
def test_branches_of_several_widths(name: str, batch: Dim) -> None:
    """Each band is normalized and has a layer, before and behind (BS-RoFormer)."""
    widths, stacks, left = BANDS[name]

    def build(g: Graph, x: Value) -> Value:
        count = len(widths)
        bands = g.insert(
            Split(axis=-1, num_outputs=count), [x, g.constant(np.array(widths))], count
        ).outputs
        parts: list[Value] = []
        for band, width in zip(bands, widths, strict=True):
            part = apply(g, RMSNormalization(axis=-1), band, normal(width))
            part = apply(g, Add(), apply(g, MatMul(), part, normal(width, WIDTH)), normal(WIDTH))
            parts.append(apply(g, Unsqueeze(), part, ints(-2)))
        stack = apply(g, Relu(), apply(g, Concat(axis=-2), *parts))
        rows = [apply(g, Gather(axis=-2), stack, np.array(i)) for i in range(count)]
        layers = [
            apply(g, MatMul(), row, normal(WIDTH, width))
            for row, width in zip(rows, widths, strict=True)
        ]
        return apply(g, Concat(axis=-1), *layers)

    graph = make(build, (batch, ROWS, sum(widths)))
    after, log = optimised(graph)
    assert log.counts.get("stack_branches", 0) == 2 * stacks
    assert kinds(after).count("MatMul") == 2 * (stacks + left)
    assert_same(graph, after, 2, ROWS, sum(widths))


@pytest.mark.parametrize("read", ["as an output", "twice", "twice, and computed of an output"])
def test_runs_whose_parts_others_read(read: str) -> None:
    parts: list[Value] = []

    def build(g: Graph, x: Value) -> Value:
        layers = [apply(g, MatMul(), apply(g, Relu(), x), normal(WIDTH, 3)) for _ in range(COUNT)]
        parts.extend(apply(g, Tanh(), layer) for layer in layers)
        front = [parts[0]] if read.startswith("twice") else []
        return apply(g, Concat(axis=-1), *front, x, *parts)

    graph = make(build, (2, ROWS, WIDTH))
    if read == "as an output":
        graph.set_outputs({**graph.outputs, "part": parts[0]})
    if read == "twice, and computed of an output":
        maker = parts[0].producer
        assert maker is not None
        graph.set_outputs({**graph.outputs, "part": maker.operands[0]})
    after, log = optimised(graph)
    assert log.counts["stack_branches"] == 1
    assert kinds(after).count("Tanh") == 1
    assert_same(graph, after)


def test_runs_that_share_a_branch() -> None:
    """The second one has no part of the first one's stack."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Relu(), x)
        parts = [apply(g, Tanh(), apply(g, MatMul(), rows, normal(WIDTH, 3))) for _ in range(6)]
        return apply(g, Concat(axis=-1), *parts[:3], x, *parts[3:], parts[0])

    graph = make(build, (2, ROWS, WIDTH))
    after, log = optimised(graph)
    assert log.counts["stack_branches"] >= 1
    assert_same(graph, after)


def test_what_is_computed_alike_is_no_branch() -> None:
    """Without `merge_duplicates`, each branch may have its own copy of a node."""

    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, Relu(), apply(g, Sigmoid(), x)) for _ in range(COUNT)]
        layers = (apply(g, MatMul(), part, normal(COUNT, 3)) for part in parts)
        return apply(g, Concat(axis=-1), *layers)

    graph = make(build, (2, ROWS, COUNT))
    after, log = optimised(graph, skip=("merge_duplicates",))
    assert log.counts["stack_branches"] == 1
    assert_same(graph, after)


def recurrent(g: Graph, x: Value) -> Value:
    """Each branch reads the one before."""
    parts = [x]
    for _ in range(COUNT):
        parts.append(apply(g, Relu(), apply(g, MatMul(), parts[-1], normal(COUNT, COUNT))))
    return apply(g, Concat(axis=-1), *parts[1:])


def woven(g: Graph, x: Value) -> Value:
    """Others read results of the first branches before the last ones are computed."""
    parts: list[Value] = []
    for _ in range(COUNT):
        scale = apply(g, Softmax(axis=-1), parts[-1]) if parts else x
        parts.append(apply(g, MatMul(), apply(g, Mul(), x, scale), normal(COUNT, COUNT)))
    return apply(g, Concat(axis=-1), *parts)


def behind(g: Graph, x: Value) -> Value:
    """The last branches read others through a node that these do not have."""
    parts = [apply(g, MatMul(), x, normal(COUNT, COUNT)) for _ in range(2)]
    last = [apply(g, MatMul(), apply(g, Relu(), p), normal(COUNT, COUNT)) for p in parts]
    return apply(g, Concat(axis=-1), *parts, *last)


def unlike(g: Graph, x: Value) -> Value:
    """An activation differs."""
    products = [apply(g, MatMul(), x, normal(COUNT, COUNT)) for _ in range(3)]
    kinds = (Relu(), Sigmoid(), Relu())
    return apply(g, Concat(axis=-1), *map(lambda op, value: apply(g, op, value), kinds, products))


def without_layers(g: Graph, x: Value) -> Value:
    parts = [apply(g, Slice(), x, ints(i), ints(i + 1), ints(2)) for i in range(COUNT)]
    return apply(g, Concat(axis=1), *(apply(g, Relu(), part) for part in parts))


def limited(g: Graph, x: Value) -> Value:
    """Limits have one element, and cannot differ within a tensor."""
    parts: list[Value] = []
    for i in range(COUNT):
        low, high = np.array(-i, np.float32), np.array(i + 1, np.float32)
        y = apply(g, Clip(), x, low, high)
        parts.append(apply(g, Clip(), apply(g, MatMul(), y, normal(COUNT, 3)), low, high))
    return apply(g, Concat(axis=-1), *parts)


def empty(g: Graph, x: Value) -> Value:
    """Rows of no elements, of which a view cannot tell how many there are."""
    parts: list[Value] = []
    for i in range(COUNT):
        row = apply(g, Slice(), apply(g, Relu(), x), ints(0), ints(0), ints(2))
        parts.append(apply(g, Elu(alpha=1.0 + i), apply(g, MatMul(), row, normal(0, 3))))
    return apply(g, Concat(axis=-1), *(apply(g, Relu(), part) for part in parts))


_OTHERS = (recurrent, woven, behind, unlike, without_layers, limited, empty)


@pytest.mark.parametrize("build", _OTHERS)
def test_others_stay(build: Callable[[Graph, Value], Value]) -> None:
    graph = make(build, (2, ROWS, COUNT))
    after, log = optimised(graph)
    assert "stack_branches" not in log.counts
    assert_same(graph, after)
