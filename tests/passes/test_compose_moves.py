"""Moves of rows are composed, and meet behind what takes rows in any order."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Gelu, Mul, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split, Transpose
from tercet.runtime.ops.norm import LayerNormalization, Softmax
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes.moves import compose_moves

from .graphs import apply, assert_same, kinds, make, normal, optimised, passed

#: Of an image with channels last: two windows of 3 rows high, two of 4 columns wide.
SHAPE = (2, 6, 8, 16)
HIGH, WIDE = 3, 4
WINDOWS = (2 * 2 * 2, HIGH * WIDE, 16)


def roll(g: Graph, x: Value, by: int, axis: int) -> Value:
    """As torch exports `roll`."""
    size = SHAPE[axis]
    cuts = ((size - by % size, size), (0, size - by % size))
    parts = [apply(g, Slice(), x, *(np.array([n]) for n in (*cut, axis))) for cut in cuts]
    return apply(g, Concat(axis=axis), *parts)


def cut(g: Graph, x: Value) -> Value:
    """Cut an image in windows."""
    x = apply(g, Reshape(), x, np.array([2, 2, HIGH, 2, WIDE, 16]))
    x = apply(g, Transpose(perm=(0, 1, 3, 2, 4, 5)), x)
    return apply(g, Reshape(), x, np.array(WINDOWS))


def join(g: Graph, x: Value) -> Value:
    """Put windows together again."""
    x = apply(g, Reshape(), x, np.array([2, 2, 2, HIGH, WIDE, 16]))
    x = apply(g, Transpose(perm=(0, 1, 3, 2, 4, 5)), x)
    return apply(g, Reshape(), x, np.array(SHAPE))


def norm(g: Graph, x: Value) -> Value:
    return apply(g, LayerNormalization(), x, normal(16), normal(16))


def layer(g: Graph, x: Value, inputs: int, outputs: int) -> Value:
    return apply(g, Add(), apply(g, MatMul(), x, normal(inputs, outputs)), normal(outputs))


def mix(g: Graph, x: Value) -> Value:
    """Mix the rows of each window, as its attention does: the order within it counts."""
    return apply(g, MatMul(), normal(HIGH * WIDE, HIGH * WIDE), x)


def block(g: Graph, x: Value, shift: int = 0) -> Value:
    """A block of Swin: windows, perhaps of a rolled image, and a layer of rows."""
    y = norm(g, x)
    if shift:
        y = roll(g, roll(g, y, -shift, 1), -shift, 2)
    y = join(g, layer(g, mix(g, cut(g, y)), 16, 16))
    if shift:
        y = roll(g, roll(g, y, shift, 1), shift, 2)
    x = apply(g, Add(), x, y)
    y = apply(g, Gelu(), layer(g, norm(g, x), 16, 32))
    return apply(g, Add(), x, layer(g, y, 32, 16))


def count(graph: Graph) -> int:
    """Number of nodes that copy."""
    return sum(isinstance(n.op, (Transpose, Slice, Split, Concat, Gather)) for n in graph.nodes)


def test_a_rolled_image_in_windows_is_one_gather() -> None:
    graph = make(lambda g, x: mix(g, cut(g, roll(g, roll(g, x, 2, 1), 1, 2))), SHAPE)
    after, _ = optimised(graph)
    assert [kind for kind in kinds(after) if kind != "Reshape"] == ["Gather", "MatMul"]
    assert_same(graph, after)


def test_blocks_of_windows_copy_once_each() -> None:
    """Each block begins with a move from where the block before left its rows."""

    def build(g: Graph, x: Value) -> Value:
        for shift in (0, 1, 0, 2):
            x = block(g, x, shift)
        return x

    graph = make(build, SHAPE)
    after, log = optimised(graph)
    assert count(graph) == 4 * 2 + 2 * 12
    assert count(after) == 5
    assert log.counts["compose_moves"] >= 4
    assert_same(graph, after)


def test_moves_stand_for_nodes_in_their_order() -> None:
    """Sets of nodes may have another order in each process, which reports would show."""
    graph = make(lambda g, x: block(g, block(g, x), 1), SHAPE)
    order = [node.name for node in graph.nodes]
    after, _ = optimised(graph)
    stood_for = [[order.index(name) for name in n.origin if name in order] for n in after.nodes]
    assert max(map(len, stood_for)) > 6
    assert all(places == sorted(places) for places in stood_for)


def test_a_residual_is_added_before_the_rows_go_back() -> None:
    graph = make(lambda g, x: block(g, x, 1), SHAPE)
    after, _ = optimised(graph)
    assert count(after) == 2
    steps = [kind for kind in kinds(after) if kind != "Reshape"]
    there, back = (i for i, kind in enumerate(steps) if kind == "Gather")
    assert steps[there + 1] == "LayerNormalization"
    assert steps[back - 2 : back] == ["Add", "Add"], "bias and residual of the product"
    assert_same(graph, after)


def test_a_move_and_its_inverse_are_nothing() -> None:
    graph = make(lambda g, x: apply(g, Relu(), roll(g, roll(g, x, 3, 1), -3, 1)), SHAPE)
    after, _ = optimised(graph)
    assert [kind for kind in kinds(after) if kind != "Reshape"] == ["Relu"]
    assert_same(graph, after)


@pytest.mark.parametrize("axis", [-1, 1])
def test_what_mixes_rows_ends_a_region(axis: int) -> None:
    """Softmax along rows may not be passed; here it may not stand in another order either."""

    def build(g: Graph, x: Value) -> Value:
        y = roll(g, roll(g, x, 1, 1), 1, 2)
        y = apply(g, Softmax(axis=axis), apply(g, Relu(), y))
        return roll(g, roll(g, y, -1, 1), -1, 2)

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert_same(graph, after)


def test_rows_that_others_read_stay_in_order() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Relu(), roll(g, roll(g, x, 1, 1), 1, 2))
        total = apply(g, ReduceSum(keepdims=1), y, np.array([1]))
        return apply(g, Mul(), roll(g, roll(g, y, 2, 1), 1, 2), total)

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert count(after) == 2
    assert_same(graph, after)


def test_constants_of_whole_images_end_a_region() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Add(), roll(g, roll(g, x, 1, 1), 1, 2), normal(*SHAPE[1:]))
        return roll(g, roll(g, y, -1, 1), -1, 2)

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert count(after) == 2
    assert_same(graph, after)


def test_rows_that_are_taken_twice_are_not_moved_back() -> None:
    """A Gather that repeats rows has no inverse; its region works on the repeated ones."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Gather(axis=1), x, np.array([0, 0, 3, 5, 2, 2]))
        y = apply(g, Relu(), apply(g, Transpose(perm=(0, 2, 1, 3)), y))
        return apply(
            g, Transpose(perm=(0, 2, 1, 3)), apply(g, Gather(axis=2), y, np.arange(6)[::-1].copy())
        )

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert_same(graph, after)


def test_parts_of_an_image_stay_slices() -> None:
    """A part may be read in place; an index would make a copy of it."""

    def build(g: Graph, x: Value) -> Value:
        parts = g.insert(Split(axis=0, num_outputs=2), [x], 2).outputs
        first = apply(g, Slice(), parts[0], np.array([1]), np.array([4]), np.array([1]))
        return apply(g, Relu(), first)

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert "Gather" not in kinds(after)
    assert_same(graph, after)


def test_short_rows_stay() -> None:
    """An index for each row would be larger than the rows."""

    def build(g: Graph, x: Value) -> Value:
        parts = [
            apply(g, Slice(), x, *(np.array([n]) for n in (a, b, 1))) for a, b in ((3, 6), (0, 3))
        ]
        return apply(g, Transpose(perm=(1, 0, 2)), apply(g, Concat(axis=1), *parts))

    graph = make(build, (4, 6, 2))
    after, _ = optimised(graph)
    assert "Gather" not in kinds(after)
    assert_same(graph, after)


def test_a_sum_of_a_value_and_itself_is_no_residual() -> None:
    graph = make(lambda g, x: apply(g, Add(), *[apply(g, Relu(), cut(g, x))] * 2), SHAPE)
    after, _ = optimised(graph)
    assert_same(graph, after)


def test_a_swap_of_axes_beside_what_it_swaps_is_no_residual() -> None:
    def build(g: Graph, x: Value) -> Value:
        return apply(g, Add(), apply(g, Transpose(perm=(0, 2, 1, 3)), x), x)

    graph = make(build, (2, 3, 3, 4))
    after, _ = optimised(graph)
    assert_same(graph, after)


@pytest.mark.parametrize("is_normalized", [False, True])
def test_blocks_that_read_one_another(is_normalized: bool) -> None:
    """What a block adds is moved by the next one at once."""

    def build(g: Graph, x: Value) -> Value:
        for shift in (1, 2, 1):
            y = norm(g, x) if is_normalized else x
            y = apply(g, Relu(), cut(g, roll(g, roll(g, y, -shift, 1), -shift, 2)))
            y = roll(g, roll(g, join(g, mix(g, y)), shift, 1), shift, 2)
            x = apply(g, Add(), x, y)
        return x

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert count(after) == 4
    assert_same(graph, after)


@pytest.mark.parametrize("is_scaled", [False, True])
def test_blocks_whose_results_are_normalized(is_scaled: bool) -> None:
    """What is computed of each row before it is added (SwinV2) does not depend on their order."""

    def build(g: Graph, x: Value) -> Value:
        for shift in (1, 2, 1):
            y = mix(g, cut(g, roll(g, roll(g, x, -shift, 1), -shift, 2)))
            y = norm(g, roll(g, roll(g, join(g, layer(g, y, 16, 16)), shift, 1), shift, 2))
            x = apply(g, Add(), x, apply(g, Mul(), y, normal(16)) if is_scaled else y)
            x = apply(g, Add(), x, norm(g, apply(g, Gelu(), layer(g, x, 16, 16))))
        return x

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert count(after) == 4
    assert_same(graph, after)


def test_a_residual_beside_part_of_a_larger_tensor_stays() -> None:
    """There are more rows where the sum's other operand comes from than it has."""

    def build(g: Graph, x: Value) -> Value:
        there = mix(g, cut(g, roll(g, x, 1, 1)))
        both = apply(g, Relu(), apply(g, Concat(axis=1), x, apply(g, Gelu(), x)))
        part = apply(g, Slice(), both, *(np.array([n]) for n in (5, 11, 1)))
        transposed = roll(g, part, 1, 1)
        return apply(g, Mul(), join(g, there), apply(g, Add(), transposed, x))

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert_same(graph, after)


@pytest.mark.parametrize("unbound", [True, False])
def test_parts_that_follow_one_another_are_cut_out_of_one_move(unbound: bool) -> None:
    """Heads of queries, keys and values: one Transpose, and slices of it."""

    def build(g: Graph, x: Value) -> Value:
        heads = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), x)
        if unbound:
            parts = [apply(g, Gather(axis=0), heads, np.array(i)) for i in range(3)]
        else:
            ends = ((np.array([i]), np.array([i + 1]), np.array([0])) for i in range(3))
            parts = [apply(g, Slice(), heads, *bounds) for bounds in ends]
            parts = [apply(g, Reshape(), part, np.array([2, 4, 5, 8])) for part in parts]
        first, second, third = (apply(g, Softmax(axis=2), part) for part in parts)
        return apply(g, Add(), first, apply(g, Mul(), second, third))

    graph = make(build, (2, 5, 3, 4, 8))
    after, _ = optimised(graph)
    assert [kinds(after).count(kind) for kind in ("Transpose", "Slice", "Gather")] == [1, 3, 0]
    assert_same(graph, after)


def test_a_move_of_what_was_moved_reads_what_is_written_for_it() -> None:
    """Two rolls along the same axis, a view between them: the second one's source is replaced."""

    def build(g: Graph, x: Value) -> Value:
        once = roll(g, x, 2, 2)
        there = apply(g, Reshape(), once, np.array([2, 6, 1, 8, 16]))
        size = SHAPE[2]
        cuts = ((4, size), (0, 4))
        parts = [apply(g, Slice(), there, *(np.array([n]) for n in (*c, 3))) for c in cuts]
        there = apply(g, Reshape(), apply(g, Concat(axis=3), *parts), np.array(SHAPE))
        return apply(g, Add(), apply(g, Gelu(), there), apply(g, Relu(), once))

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert_same(graph, after)


@pytest.mark.parametrize("axis", [2, 3])
def test_one_place_of_an_axis_is_a_slice_of_rows(axis: int) -> None:
    """Whoever reads parts of rows reads them in place; single elements are not worth it."""

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Softmax(axis=-1), apply(g, Gather(axis=axis), x, np.array(-1)))

    graph = make(build, (2, 5, 3, 8))
    after, _ = optimised(graph)
    assert ("Slice" in kinds(after)) == (axis == 2)
    assert_same(graph, after)


@pytest.mark.parametrize(("begin", "end"), [(-5, 1), (1, 9), (-1, 9)])
def test_one_place_of_a_part_that_begins_or_ends_outside(begin: int, end: int) -> None:
    def build(g: Graph, x: Value) -> Value:
        bounds = (np.array([n]) for n in (begin, end, 1))
        return apply(g, Softmax(axis=-1), apply(g, Slice(), x, *bounds))

    graph = make(build, (3, 2, 8))
    after, log = optimised(graph)
    assert "compose_moves" in log.counts
    assert_same(graph, after)


def test_one_place_of_what_was_in_a_sequence() -> None:
    """The type of the Slice is older than that of its source, whose last axis was unknown."""
    text = """<ir_version: 8, opset_import: ["": 21]>
    g (float[2, 3, 64] x) => (float[2, 1, 64] y)
      <int64[1] first = {1}, int64[1] last = {2}, int64[1] axis = {-2}> {
      s = SequenceConstruct (x)
      z = ConcatFromSequence <axis = 2> (s)
      part = Slice (z, first, last, axis)
      y = Relu (part)
    }"""
    x = normal(2, 3, 64)
    with tercet.load(parse_model(text)) as model:
        np.testing.assert_array_equal(model.run({"x": x})["y"], np.maximum(x[:, 1:2], 0))


@pytest.mark.parametrize("is_nested", [True, False])
def test_neighbours_joined_to_rows_are_one_move(is_nested: bool) -> None:
    """Patch merging of torchvision's Swin: every second row and column, four times."""

    def cut(g: Graph, x: Value, begin: int, axis: int) -> Value:
        bounds = (np.array([n]) for n in (begin, 2**40, axis, 2))
        return apply(g, Slice(), x, *bounds)

    def build(g: Graph, x: Value) -> Value:
        lines = [cut(g, x, i, 1) for i in range(2)]
        if is_nested:
            parts = [cut(g, line, i, 2) for i in range(2) for line in lines]
        else:
            parts = [cut(g, cut(g, x, i, 1), j, 2) for j in range(2) for i in range(2)]
        return apply(g, Softmax(axis=-1), apply(g, Concat(axis=-1), *parts))

    graph = make(build, (2, 6, 4, 8))
    after, _ = optimised(graph)
    assert [kind for kind in kinds(after) if kind != "Reshape"] == ["Gather", "Softmax"]
    assert_same(graph, after)


def test_moves_of_what_was_moved_read_its_source() -> None:
    """The class token and the pixels of queries, by heads, are copied out of the whole product."""

    def part(g: Graph, x: Value, axis: int, first: int, last: int) -> Value:
        return apply(g, Slice(), x, *(np.array([n]) for n in (first, last, axis)))

    def build(g: Graph, x: Value) -> Value:
        queries = part(g, x, 2, 1, 2)
        queries = apply(g, Reshape(), queries, np.array([2, 5, 4, 8]))
        heads = [apply(g, Transpose(perm=(0, 2, 1, 3)), part(g, queries, 1, 1, 5))]
        heads.append(part(g, queries, 1, 0, 1))
        first, second = (apply(g, Softmax(axis=2), each) for each in heads)
        return apply(g, Add(), first, apply(g, Transpose(perm=(0, 2, 1, 3)), second))

    graph = make(build, (2, 5, 3, 4, 8))
    after, log = optimised(graph)
    assert any("moves read" in rewrite.text for rewrite in log)
    assert [kinds(after).count(kind) for kind in ("Slice", "Gather")] == [0, 2]
    assert_same(graph, after)


def test_rows_at_equal_distances_are_columns() -> None:
    """Keys and values of one head, next to one another, are read where they are."""

    def build(g: Graph, x: Value) -> Value:
        x = apply(g, Reshape(), x, np.array([2, 12, 3, 1, 16]))
        x = apply(g, Transpose(perm=(0, 1, 3, 2, 4)), x)
        x = apply(g, Slice(), x, *(np.array([n]) for n in (2, 3, 3)))
        x = apply(g, Reshape(), x, np.array([2, 12, 1, 16]))
        x = apply(g, Transpose(perm=(0, 2, 1, 3)), x)
        return apply(g, Relu(), x)

    graph = make(build, (2, 12, 48))
    after, _ = optimised(graph)
    moves = [node for node in after.nodes if not isinstance(node.op, (Reshape, Relu))]
    assert [type(node.op) for node in moves] == [Slice]
    assert moves[0].output.tensor.dims[-1] == 16 < moves[0].operands[0].tensor.dims[-1]
    assert_same(graph, after)


def test_rows_that_stay_in_order_are_not_moved() -> None:
    """What removed the reader of these has left them; composed, they are views."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Relu(), x)
        for perm in ((1, 0, 2, 3), (0, 2, 1, 3), (0, 2, 1, 3)):
            y = apply(g, Transpose(perm=perm), y)
        return apply(g, Gelu(), x)

    graph = make(build, (3, 1, 5, 16))
    after, said = passed(graph, compose_moves.run, "float32")
    assert said
    assert_same(graph, after)
