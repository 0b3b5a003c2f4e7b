"""Heads are columns of a product, however they are cut out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Clip, Div, Mul, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split, Tile, Transpose
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization, Softmax
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze
from tercet.runtime.passes.attention import join_heads

from .graphs import apply, assert_same, kinds, make, normal, optimised, passed

LENGTH, WIDTH, HEADS, SIZE = 5, 12, 3, 4
SHAPES = [(1, HEADS, LENGTH, size) for size in (2, 2, 4)]
BEHIND = Transpose(perm=(0, 2, 1, 3))
Cut = Callable[[Graph, Value], Sequence[Value]]


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def shaped(g: Graph, x: Value, *sizes: int) -> Value:
    return apply(g, Reshape(), x, ints(*sizes))


def split(g: Graph, x: Value, axis: int, *sizes: int) -> Sequence[Value]:
    op = Split(axis=axis, num_outputs=len(sizes))
    return g.insert(op, [x, g.constant(ints(*sizes))], len(sizes)).outputs


def within_heads(g: Graph, x: Value) -> Sequence[Value]:
    """LeViT, GPT-NeoX: q, k and v of a head lie together."""
    parts = split(g, shaped(g, x, 1, LENGTH, HEADS, -1), 3, 2, 2, 4)
    return [apply(g, BEHIND, part) for part in parts]


def transposed_first(g: Graph, x: Value) -> Sequence[Value]:
    heads = apply(g, BEHIND, shaped(g, x, 1, LENGTH, HEADS, -1))
    return split(g, heads, -1, 2, 2, 4)


def unbound(g: Graph, x: Value) -> Sequence[Value]:
    """Bloom: [b, t, h, 3, d], of which Gather takes the parts."""
    parts = shaped(g, x, 1, LENGTH, HEADS, 3, -1)
    found = [apply(g, Gather(axis=3), parts, ints(i).reshape(())) for i in range(3)]
    return [apply(g, BEHIND, part) for part in found]


def sliced(g: Graph, x: Value) -> Sequence[Value]:
    """[b, t, d, 3, h]: neighbours belong to different heads."""
    parts = apply(g, Transpose(perm=(3, 0, 4, 1, 2)), shaped(g, x, 1, LENGTH, -1, 3, HEADS))
    found: list[Value] = []
    for i in range(3):
        part = apply(g, Slice(), parts, ints(i), ints(i + 1), ints(0))
        found.append(apply(g, Squeeze(), part, ints(0)))
    return found


def in_front(g: Graph, x: Value) -> Sequence[Value]:
    """ViT: [b, t, 3, h, d]; the layer stays as it is."""
    parts = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), shaped(g, x, 1, LENGTH, 3, HEADS, -1))
    return [apply(g, Gather(axis=0), parts, ints(i).reshape(())) for i in range(3)]


CUTS: dict[str, tuple[Cut, int]] = {
    "within heads": (within_heads, 8 * HEADS),
    "transposed first": (transposed_first, 8 * HEADS),
    "unbound": (unbound, 3 * SIZE * HEADS),
    "sliced": (sliced, 3 * SIZE * HEADS),
    "in front": (in_front, 3 * SIZE * HEADS),
}


def attended(cut: Cut, width: int, tap: bool = False) -> Callable[[Graph, Value], Value]:
    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, width)), normal(width))
        y = apply(g, Attention(), *cut(g, rows))
        y = shaped(g, apply(g, BEHIND, y), 1, LENGTH, -1)
        if not tap:
            return y
        seen = apply(g, Relu(), apply(g, MatMul(), rows, normal(width, SIZE * HEADS)))
        return apply(g, Add(), y, seen)

    return build


@pytest.mark.parametrize("name", CUTS)
def test_one_product_whatever_the_order(name: str) -> None:
    graph = make(attended(*CUTS[name]), (1, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert kinds(after) == ["MatMul", "Add", "Split", "Attention"]
    assert log.counts["join_heads"] == 1
    assert_same(graph, after)


@pytest.mark.parametrize("name", CUTS)
def test_columns_that_others_read_stay_where_they_are(name: str) -> None:
    graph = make(attended(*CUTS[name], tap=True), (1, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert kinds(after).count("MatMul") == 2
    assert log.counts.get("join_heads", 0) == (name == "in front")
    assert_same(graph, after)


def test_axes_of_size_one() -> None:
    """One head and one row: an axis of either may come first."""

    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, MatMul(), x, normal(WIDTH, SIZE)) for _ in range(3)]
        heads = [apply(g, Unsqueeze(), part, ints(1)) for part in parts]
        y = apply(g, Attention(), *heads)
        return shaped(g, apply(g, BEHIND, y), 1, 1, SIZE)

    graph = make(build, (1, 1, WIDTH))
    after, _ = optimised(graph)
    assert_same(graph, after)


@pytest.mark.parametrize("lead", [(1, LENGTH), (LENGTH,), (1, 1, LENGTH)], ids=str)
def test_rows_may_be_counted_by_any_axes(lead: tuple[int, ...]) -> None:
    """VOLO keeps the rows of an image apart; a Gemm counts all rows by one axis."""

    def build(g: Graph, x: Value) -> Value:
        rows = shaped(g, x, *lead, WIDTH)
        y = apply(g, Attention(), *in_front(g, apply(g, MatMul(), rows, normal(WIDTH, 36))))
        return apply(g, MatMul(), shaped(g, apply(g, BEHIND, y), *lead, WIDTH), normal(WIDTH, 7))

    graph = make(build, (1, LENGTH, WIDTH))
    after, _ = optimised(graph)
    left = [kind for kind in kinds(after) if kind != "Reshape"]
    assert left == ["MatMul", "Split", "Attention", "MatMul"]
    assert_same(graph, after)


@pytest.mark.parametrize("norm", [RMSNormalization(), LayerNormalization(axis=3)])
@pytest.mark.parametrize("is_transposed_first", [False, True])
def test_heads_that_are_normalized(norm: Op, is_transposed_first: bool) -> None:
    """Queries and keys of Qwen3, of Gemma 3, of many vision transformers."""

    def build(g: Graph, x: Value) -> Value:
        found: list[Value] = []
        for i in range(3):
            y = shaped(g, apply(g, MatMul(), x, normal(WIDTH, 12)), 2, LENGTH, HEADS, SIZE)
            y = apply(g, BEHIND, y) if is_transposed_first else y
            y = apply(g, norm, y, normal(SIZE)) if i < 2 else y
            found.append(y if is_transposed_first else apply(g, BEHIND, y))
        y = apply(g, Attention(), *found)
        return shaped(g, apply(g, BEHIND, y), 2, LENGTH, WIDTH)

    graph = make(build, (2, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert "Transpose" not in kinds(after)
    assert log.counts["join_heads"] == 1
    assert kinds(after).count("MatMul") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.parametrize("is_transposed_first", [False, True])
def test_heads_of_length_one(is_transposed_first: bool, is_limited: bool) -> None:
    """Queries and keys of Swin v2, whose product is a cosine, and of nGPT."""

    def unit(g: Graph, y: Value) -> Value:
        length = apply(g, ReduceL2(), y, ints(-1))
        if is_limited:
            length = apply(g, Clip(), length, np.array(1e-12, np.float32))
        return apply(g, Div(), y, length)

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Add(), apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH)), normal(3 * WIDTH))
        y = shaped(g, y, 2, LENGTH, 3, HEADS, SIZE)
        if is_transposed_first:
            y = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), y)
        found: list[Value] = []
        for i in range(3):
            part = apply(g, Gather(axis=0 if is_transposed_first else 2), y, np.array(i))
            part = unit(g, part) if i < 2 else part
            found.append(part if is_transposed_first else apply(g, BEHIND, part))
        y = apply(g, Attention(scale=3.0), *found)
        return shaped(g, apply(g, BEHIND, y), 2, LENGTH, WIDTH)

    graph = make(build, (2, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert "Transpose" not in kinds(after)
    assert log.counts["join_heads"] == 1
    assert_same(graph, after)


def test_heads_that_come_from_no_rows() -> None:
    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, BEHIND, apply(g, Add(), x, normal(HEADS, 1))) for _ in range(3)]
        y = apply(g, BEHIND, apply(g, Attention(), *parts))
        return shaped(g, y, 2, LENGTH, HEADS * SIZE)

    graph = make(build, (2, LENGTH, HEADS, SIZE))
    after, _ = optimised(graph)
    assert "Transpose" not in kinds(after)
    assert_same(graph, after)


def on_pixels(
    order: str, back: str, taps: str = "", sides: tuple[int, ...] = (4, 5)
) -> Callable[[Graph, Value], Value]:
    """Attention between convolutions, as CoAtNet ("h3d"), Visformer ("3hd") and YOLO 11 spell it.

    Args:
        order: of the axes of the channels.
        back: what the product with the values is: "rows" or "columns" of weights.
        taps: where in the order of nodes a convolution reads the values, too, if one does:
            "before" their heads are cut, or "behind" the result.
        sides: of the image, of 20 pixels.
    """
    ones = (1,) * len(sides)

    def build(g: Graph, x: Value) -> Value:
        conv = apply(g, Conv(), x, normal(36, 6, *ones), normal(36))
        if order == "3hd":
            parts = split(g, shaped(g, conv, 2, 3, 3, 4, 20), 1, 1, 1, 1)
            q, k, v = (apply(g, Squeeze(), part, ints(1)) for part in parts)
        else:
            q, k, v = split(g, shaped(g, conv, 2, 3, 12, 20), 2, 4, 4, 4)
        transpose = Transpose(perm=(0, 1, 3, 2))
        tapped = [shaped(g, v, 2, 12, *sides)] if taps == "before" else []
        scores = apply(g, MatMul(), apply(g, transpose, q), k)
        weights = apply(g, Softmax(), apply(g, Mul(), scores, np.array(0.5, np.float32)))
        if back == "rows":
            y = apply(g, transpose, apply(g, MatMul(), weights, apply(g, transpose, v)))
        else:
            y = apply(g, MatMul(), v, apply(g, transpose, weights))
        y = shaped(g, y, 2, 12, *sides)
        if taps:
            image = tapped[0] if tapped else shaped(g, v, 2, 12, *sides)
            y = apply(g, Add(), y, apply(g, Conv(), image, normal(12, 12, *ones)))
        return apply(g, Conv(), y, normal(6, 12, *ones))

    return build


def test_what_is_joined_without_heads_stays() -> None:
    def build(g: Graph, x: Value) -> Value:
        return shaped(g, apply(g, Concat(axis=0), x, apply(g, Relu(), x)), 2, -1)

    graph = make(build, (6,))
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "Concat", "Reshape"]
    assert_same(graph, after)


@pytest.mark.parametrize("order", ["h3d", "3hd"])
@pytest.mark.parametrize("back", ["rows", "columns"])
@pytest.mark.parametrize("sides", [(4, 5), (20,)], ids=["image", "sound"])
def test_pixels_attend(order: str, back: str, sides: tuple[int, ...]) -> None:
    graph = make(on_pixels(order, back, sides=sides), (2, 6, *sides))
    after, _ = optimised(graph)
    left = [kind for kind in kinds(after) if kind != "Reshape"]
    assert left == ["Conv", "Transpose", "Split", "Attention", "Transpose", "Conv"]
    perms = [node.op.perm for node in after.nodes if isinstance(node.op, Transpose)]
    wanted = [(0, 2, 3, 1), (0, 3, 1, 2)] if sides[1:] else [(0, 2, 1)] * 2
    assert perms == wanted, "what moves nothing where channels lie last"
    assert_same(graph, after)


@pytest.mark.parametrize("order", ["h3d", "3hd"])
@pytest.mark.parametrize("back", ["rows", "columns"])
@pytest.mark.parametrize("sides", [(4, 5), (20,)], ids=["image", "sound"])
@pytest.mark.parametrize("taps", ["before", "behind"])
def test_pixels_whose_values_a_convolution_reads(
    order: str, back: str, sides: tuple[int, ...], taps: str
) -> None:
    """Channels of the image are permuted for the heads, which are parts of it for both."""
    graph = make(on_pixels(order, back, taps=taps, sides=sides), (2, 6, *sides))
    after, _ = optimised(graph)
    assert kinds(after).count("Attention") == 1
    perms = {node.op.perm for node in after.nodes if isinstance(node.op, Transpose)}
    assert perms <= {(0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1)}, "free where channels lie last"
    assert_same(graph, after)


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_of_a_batch_on_one_axis(batch: int) -> None:
    """BoTNet. With a batch of one, nothing tells the batch from other axes of size 1."""

    def build(g: Graph, x: Value) -> Value:
        conv = apply(g, Conv(), x, normal(36, 6, 1, 1))
        q, k, v = (shaped(g, part, batch * 3, 4, 20) for part in split(g, conv, 1, 12, 12, 12))
        transpose = Transpose(perm=(0, 2, 1))
        scores = apply(g, MatMul(), apply(g, transpose, q), k)
        weights = apply(g, Softmax(), apply(g, Mul(), scores, np.array(0.5, np.float32)))
        y = apply(g, transpose, apply(g, MatMul(), weights, apply(g, transpose, v)))
        return apply(g, Conv(), shaped(g, y, batch, 12, 4, 5), normal(6, 12, 1, 1))

    graph = make(build, (batch, 6, 4, 5))
    after, _ = optimised(graph)
    assert kinds(after).count("Attention") == 1
    perms = {node.op.perm for node in after.nodes if isinstance(node.op, Transpose)}
    assert perms == {(0, 2, 3, 1), (0, 3, 1, 2)}, "free where channels lie last"
    assert_same(graph, after)


def test_an_image_of_one_row_with_one_head() -> None:
    """The sizes of columns and of heads are those of rows."""

    def build(g: Graph, x: Value) -> Value:
        transpose = Transpose(perm=(0, 1, 3, 2))
        parts = (apply(g, Conv(), x, normal(8, 8, 1, 1)) for _ in "qkv")
        q, k, v = (shaped(g, part, 3, 1, 8, 3) for part in parts)
        scores = apply(g, MatMul(), apply(g, transpose, q), k)
        weights = apply(g, Softmax(), apply(g, Mul(), scores, np.array(0.5, np.float32)))
        y = apply(g, transpose, apply(g, MatMul(), weights, apply(g, transpose, v)))
        return shaped(g, y, 3, 8, 1, 3)

    graph = make(build, (3, 8, 1, 3))
    after, _ = optimised(graph)
    assert kinds(after).count("Attention") == 1
    assert_same(graph, after)


def test_one_product_whose_rows_and_columns_are_heads() -> None:
    """Rows are as many as columns: queries are parts of its rows, keys of it as of an image."""

    def build(g: Graph, x: Value) -> Value:
        layer = apply(g, MatMul(), x, normal(6, 6))
        q = apply(g, BEHIND, shaped(g, layer, 2, 6, 2, 3))
        k = apply(g, Transpose(perm=(0, 1, 3, 2)), shaped(g, layer, 2, 2, 3, 6))
        v = apply(g, BEHIND, shaped(g, x, 2, 6, 2, 3))
        y = apply(g, Attention(scale=1.0), q, k, v)
        return shaped(g, apply(g, BEHIND, y), 2, 6, 6)

    graph = make(build, (2, 6, 6))
    after, log = optimised(graph)
    assert log.counts["join_heads"] == 1
    assert_same(graph, after)


def test_one_operand_that_is_none_of_rows_is_transposed() -> None:
    """Values that all heads share in turn: the others, and the result, stay where they are."""

    def build(g: Graph, x: Value) -> Value:
        width = HEADS * SIZE
        q, k = (
            shaped(g, apply(g, MatMul(), x, normal(WIDTH, width)), 1, LENGTH, HEADS, SIZE)
            for _ in "qk"
        )
        v = apply(g, MatMul(), x, normal(WIDTH, SIZE))
        v = apply(g, Tile(), apply(g, Unsqueeze(), v, ints(1)), ints(1, HEADS, 1, 1))
        y = apply(g, Attention(), apply(g, BEHIND, q), apply(g, BEHIND, k), v)
        return shaped(g, apply(g, BEHIND, y), 1, LENGTH, width)

    graph = make(build, (1, LENGTH, WIDTH))
    after, log = optimised(graph)
    assert log.counts["join_heads"] == 1
    transposes = [node for node in after.nodes if isinstance(node.op, Transpose)]
    assert len(transposes) == 1
    (attention,) = (node for node in after.nodes if isinstance(node.op, Attention))
    assert attention.op == Attention(q_num_heads=HEADS, kv_num_heads=HEADS)
    assert_same(graph, after)


@pytest.mark.parametrize("count", [1, 2, "batch"])
@pytest.mark.parametrize("biased", [False, True])
def test_one_head_that_all_queries_share(count: int | str, biased: bool) -> None:
    """Multi-query attention (Falcon, Gemma), whose only head of keys has been a view of rows."""

    def layer(g: Graph, x: Value, width: int) -> Value:
        y = apply(g, MatMul(), x, normal(WIDTH, width))
        return apply(g, Add(), y, normal(width)) if biased else y

    def head(g: Graph, x: Value, number: int) -> Value:
        return apply(g, BEHIND, shaped(g, layer(g, x, number * SIZE), 0, LENGTH, number, SIZE))

    def build(g: Graph, x: Value) -> Value:
        q, k, v = (head(g, x, number) for number in (HEADS, 1, 1))
        y = shaped(g, apply(g, BEHIND, apply(g, Attention(), q, k, v)), 0, LENGTH, -1)
        return apply(g, MatMul(), y, normal(HEADS * SIZE, WIDTH))

    graph = make(build, (count, LENGTH, WIDTH))
    after, _ = optimised(graph)
    assert kinds(after).count("MatMul") == 2
    assert not {"Transpose", "Reshape"} & set(kinds(after))
    assert_same(graph, after, 2 if count == "batch" else int(count), LENGTH, WIDTH)


def test_views_that_change_nothing() -> None:
    """A Reshape to the shape that heads have, as one is left where others were rotated."""

    def cut(g: Graph, x: Value) -> Sequence[Value]:
        return [
            shaped(g, part, *sizes) for part, sizes in zip(within_heads(g, x), SHAPES, strict=True)
        ]

    graph = make(attended(cut, 8 * HEADS), (1, LENGTH, WIDTH))
    after, said = passed(graph, join_heads.run, "float32")
    assert len(said) == 1
    assert "Transpose" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("times", [2, 3])
def test_heads_that_are_repeated_are_columns_that_are(times: int) -> None:
    """DiffLlama's values: heads in two parts side by side, once for each part of the queries."""

    def build(g: Graph, x: Value) -> Value:
        width = times * HEADS * SIZE
        q, k = (apply(g, BEHIND, shaped(g, layer(g, x, width), 2, LENGTH, -1, SIZE)) for _ in "qk")
        v = apply(g, BEHIND, shaped(g, layer(g, x, 2 * HEADS * SIZE), 2, LENGTH, -1, SIZE))
        v = apply(g, Concat(axis=-1), *split(g, v, 1, HEADS, HEADS))
        v = apply(g, Tile(), v, ints(1, times, 1, 1))
        y = apply(g, BEHIND, apply(g, Attention(), q, k, v))
        return apply(g, MatMul(), shaped(g, y, 2, LENGTH, -1), normal(2 * width, WIDTH))

    def layer(g: Graph, x: Value, width: int) -> Value:
        return apply(g, MatMul(), x, normal(WIDTH, width))

    graph = make(build, (2, LENGTH, WIDTH))
    after, _ = optimised(graph)
    assert ("Tile" in kinds(after)) == (times > 2)
    assert ("Transpose" in kinds(after)) == (times > 2)
    assert_same(graph, after)
