"""Parts of a tensor are cut before a Transpose that only brings their axis to the front."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Squeeze
from tercet.runtime.passes.editing import shape_of

from .graphs import apply, assert_same, kinds, make, normal, optimised


def part(g: Graph, x: Value, place: int, *, cut: bool | str) -> Value:
    if not cut:
        return apply(g, Gather(axis=0), x, np.array(place))
    bounds: list[Array] = [np.array([n]) for n in (place, place + 1, 0)]
    if cut == "beside all columns":
        bounds = [np.array(n) for n in ([place - 3, -99], [place - 2 or 99, 99], [0, -1])]
    return apply(g, Slice(), x, *bounds)


CASES = {
    "slices of one head": ((2, 5, 3, 1, 8), True, 0),
    "slices beside whole axes": ((2, 5, 3, 1, 8), "beside all columns", 0),
    "one head": ((2, 5, 3, 1, 8), False, 0),
    "one sequence": ((1, 5, 3, 1, 8), True, 0),
    "two heads": ((2, 5, 3, 2, 8), True, 1),
    "parts of words": ((2, 5, 3, 1, 6), True, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_queries_keys_and_values(name: str) -> None:
    shape, cut, left = CASES[name]

    def build(g: Graph, x: Value) -> Value:
        transposed = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), x)
        q, k, v = (apply(g, Softmax(axis=-1), part(g, transposed, i, cut=cut)) for i in range(3))
        return apply(g, Add(), q, apply(g, Mul(), k, v))

    graph = make(build, shape)
    after, _ = optimised(graph)
    assert kinds(after).count("Transpose") == left
    assert_same(graph, after)


def test_a_reader_of_all_keeps_the_transpose() -> None:
    def build(g: Graph, x: Value) -> Value:
        transposed = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), x)
        return apply(
            g, Mul(), apply(g, Softmax(axis=1), transposed), part(g, transposed, 1, cut=True)
        )

    graph = make(build, (2, 5, 3, 1, 8))
    after, _ = optimised(graph)
    assert "Transpose" in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("cut", ["Slice", "Gather", "Split"])
def test_heads_that_only_products_read(cut: str) -> None:
    """Scores that constants weigh are no attention, and products read heads wherever they are."""

    def build(g: Graph, x: Value) -> Value:
        transposed = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), x)
        if cut == "Split":
            q, k, v = g.insert(Split(axis=0, num_outputs=3), [transposed], 3).outputs
        else:
            q, k, v = (part(g, transposed, i, cut=cut == "Slice") for i in range(3))
        if cut != "Gather":
            q, k, v = (apply(g, Squeeze(), each, np.array([0])) for each in (q, k, v))
        scores = apply(g, MatMul(), apply(g, Mul(), q, np.full(1, 0.3, np.float32)), k)
        return apply(g, MatMul(), apply(g, Softmax(), apply(g, Mul(), scores, normal(1, 8, 8))), v)

    graph = make(build, (2, 8, 3, 4, 8))
    after, log = optimised(graph)
    assert log.counts["compose_moves"]
    assert kinds(after).count("Slice") == 3
    assert all(len(shape_of(n.inputs[0]) or ()) == 4 for n in after.nodes if n.kind == "Transpose")
    assert_same(graph, after)


def test_parts_from_which_the_size_of_their_axis_follows() -> None:
    def build(g: Graph, x: Value) -> Value:
        transposed = apply(g, Transpose(perm=(1, 0, 2)), x)
        sizes = g.constant(np.array([1, 1]), "sizes")
        a, b = g.insert(Split(axis=0, num_outputs=2), [transposed, sizes], 2).outputs
        return apply(g, Concat(axis=0), b, a)

    graph = make(build, (3, "n", 8))
    after, log = optimised(graph)
    assert log.counts["compose_views"]
    assert_same(graph, after, 3, 2, 8)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_between_transposes(dtype: type) -> None:
    def build(g: Graph, x: Value) -> Value:
        turned = apply(g, Transpose(perm=(2, 0, 1)), x)
        rows = apply(g, Slice(), turned, *(np.array([n], dtype) for n in (1, 4, 1, 2)))
        return apply(g, Transpose(perm=(0, 2, 1)), rows)

    graph = make(build, (5, 3, 4))
    after, log = optimised(graph)
    assert log.counts["compose_views"]
    assert_same(graph, after)


def test_a_reader_may_leave_out_its_second_input() -> None:
    """A sum over all axes has none that a Squeeze could drop."""

    def build(g: Graph, x: Value) -> Value:
        transposed = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), x)
        q, k, v = (apply(g, ReduceSum(), part(g, transposed, i, cut=True), None) for i in range(3))
        return apply(g, Add(), q, apply(g, Mul(), k, v))

    graph = make(build, (2, 5, 3, 1, 8))
    after, _ = optimised(graph)
    assert_same(graph, after)
