"""Heads that share an axis with samples are read and written in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, Rewrites, optimise
from tercet.runtime.passes.editing import shape_of

from .graphs import apply, assert_same, kinds, make, normal, optimised

N, HEADS, SIZE, SIDE = 3, 2, 4, 5
WIDTH, PIXELS = HEADS * SIZE, SIDE * SIDE


def attended(g: Graph, q: Value, k: Value, v: Value, bias: Value | None = None) -> Value:
    """Attention of batched products of three axes: q and v [b, t, d], k [b, d, t]."""
    scores = apply(g, Mul(), apply(g, MatMul(), q, k), np.array(0.5, np.float32))
    if bias is not None:
        scores = apply(g, Add(), scores, bias)
    return apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), v)


def of_image(g: Graph, x: Value, *, positions: bool) -> Value:
    """Attention of pixels (BoTNet), whose queries are also multiplied by positions."""
    channels = apply(g, Conv(), x, normal(3 * WIDTH, WIDTH, 1, 1))
    parts = g.insert(Split(axis=1, num_outputs=3), [channels], 3).outputs
    shape = np.array([N * HEADS, SIZE, PIXELS])
    transposed = [apply(g, Reshape(), part, shape) for part in parts]
    q, v = (apply(g, Transpose(perm=(0, 2, 1)), transposed[i]) for i in (0, 2))
    bias = apply(g, MatMul(), q, normal(SIZE, PIXELS)) if positions else None
    mixed = attended(g, q, transposed[1], v, bias)
    image = apply(g, Reshape(), apply(g, Transpose(perm=(0, 2, 1)), mixed), image_shape())
    return apply(g, Conv(), image, normal(WIDTH, WIDTH, 1, 1))


def image_shape() -> np.ndarray:
    return np.array([N, WIDTH, SIDE, SIDE])


def of_rows(g: Graph, x: Value) -> Value:
    """Attention of words (BART): heads are moved to the front, and merged with samples."""

    def heads(order: tuple[int, ...]) -> Value:
        rows = apply(g, MatMul(), x, normal(WIDTH, WIDTH))
        cut = apply(g, Reshape(), rows, np.array([N, PIXELS, HEADS, SIZE]))
        transposed = apply(g, Transpose(perm=(0, 2, 1, 3)), cut)
        merged = apply(g, Reshape(), transposed, np.array([N * HEADS, PIXELS, SIZE]))
        return merged if order == (0, 1, 2) else apply(g, Transpose(perm=order), merged)

    mixed = attended(g, heads((0, 1, 2)), heads((0, 2, 1)), heads((0, 1, 2)))
    cut = apply(g, Reshape(), mixed, np.array([N, HEADS, PIXELS, SIZE]))
    rows = apply(g, Transpose(perm=(0, 2, 1, 3)), cut)
    return apply(g, MatMul(), apply(g, Reshape(), rows, np.array([N, PIXELS, WIDTH])), eye())


def parts(g: Graph, x: Value, axis: int, count: int) -> list[Value]:
    return list(g.insert(Split(axis=axis, num_outputs=count), [x], count).outputs)


def of_columns(g: Graph, x: Value, *, is_residual: bool = False, learned: int = 0) -> Value:
    """Attention whose heads are parts of columns, joined as batches (Set Transformer)."""

    def heads(y: Value) -> Value:
        return g.insert(Concat(axis=0), parts(g, y, 2, HEADS)).output

    q, k, v = (heads(apply(g, MatMul(), x, normal(WIDTH, WIDTH))) for _ in range(3))
    if learned:
        q = g.constant(normal(HEADS * N, learned, SIZE), "queries")
    mixed = attended(g, q, apply(g, Transpose(perm=(0, 2, 1)), k), v)
    mixed = apply(g, Add(), q, mixed) if is_residual else mixed
    return g.insert(Concat(axis=2), parts(g, mixed, 0, HEADS)).output


def of_stacked_columns(g: Graph, x: Value) -> Value:
    """Attention whose heads are parts of columns, stacked in front of the batches (AutoInt)."""

    def heads() -> Value:
        columns = parts(g, apply(g, MatMul(), x, normal(WIDTH, WIDTH)), 2, HEADS)
        stacked = [apply(g, Unsqueeze(), part, np.array([0])) for part in columns]
        return g.insert(Concat(axis=0), stacked).output

    q, k, v = heads(), heads(), heads()
    mixed = attended(g, q, apply(g, Transpose(perm=(0, 1, 3, 2)), k), v)
    places = [apply(g, Gather(), mixed, np.array(i)) for i in range(HEADS)]
    return g.insert(Concat(axis=2), places).output


@pytest.mark.parametrize(
    "build",
    [
        of_columns,
        partial(of_columns, is_residual=True),
        partial(of_columns, learned=3),
        partial(of_columns, is_residual=True, learned=3),
        of_stacked_columns,
    ],
)
def test_heads_in_front_of_samples(build: Callable[[Graph, Value], Value]) -> None:
    graph = make(lambda g, x: apply(g, MatMul(), build(g, x), eye()), (N, PIXELS, WIDTH))
    after, log = optimised(graph)
    assert log.counts["split_batches"] == 1
    for transpose in (node for node in after.nodes if isinstance(node.op, Transpose)):
        value = transpose.operands[0]
        while value.producer is not None:
            value = value.producer.operands[0]
        assert value.is_constant
    (attention,) = (node.op for node in after.nodes if isinstance(node.op, Attention))
    assert attention.kv_num_heads == HEADS
    assert_same(graph, after)


def test_layers_of_split_batches_are_merged() -> None:
    """No view of the heads as batches is left, which would read the layers too."""
    for build in (of_rows, of_columns, of_stacked_columns):
        graph = make(lambda g, x, b=build: apply(g, MatMul(), b(g, x), eye()), (N, PIXELS, WIDTH))
        _, log = optimised(graph)
        assert log.counts["merge_products"] == 1


def test_windows_in_front_stay() -> None:
    """Rows of [1, t, c] in front of a single head are windows, no parts of columns."""

    def build(g: Graph, x: Value) -> Value:
        def windows() -> Value:
            rows = apply(g, MatMul(), x, normal(WIDTH, WIDTH))
            return apply(g, Reshape(), rows, np.array([5, 1, 5, WIDTH]))

        q, k, v = windows(), windows(), windows()
        return attended(g, q, apply(g, Transpose(perm=(0, 1, 3, 2)), k), v)

    graph = make(build, (1, PIXELS, WIDTH))
    after, log = optimised(graph)
    assert "fuse_attention" in log.counts
    assert "split_batches" not in log.counts
    assert_same(graph, after)


def eye() -> np.ndarray:
    return np.eye(WIDTH, dtype=np.float32)


@pytest.mark.parametrize("positions", [False, True])
def test_pixels(positions: bool) -> None:
    graph = make(lambda g, x: of_image(g, x, positions=positions), (N, WIDTH, SIDE, SIDE))
    after, log = optimised(graph)
    assert log.counts["split_batches"] == 1
    (attention,) = (node.op for node in after.nodes if isinstance(node.op, Attention))
    assert attention.q_num_heads == attention.kv_num_heads == HEADS
    transposes = [node.op.perm for node in after.nodes if isinstance(node.op, Transpose)]
    copies = [perm for perm in transposes if perm not in ((0, 2, 3, 1), (0, 3, 1, 2))]
    assert len(copies) == positions  # the queries for positions
    assert_same(graph, after)


@pytest.mark.parametrize("samples", [1, N])
def test_heads_of_which_parts_are_cut(samples: int) -> None:
    """Channels of a sound become heads before queries, keys and values are (guided diffusion)."""

    def build(g: Graph, x: Value) -> Value:
        channels = apply(g, Conv(), x, normal(3 * WIDTH, WIDTH, 1))
        heads = apply(g, Reshape(), channels, np.array([samples * HEADS, 3 * SIZE, PIXELS]))
        q, k, v = g.insert(Split(axis=1, num_outputs=3), [heads], 3).outputs
        q, v = (apply(g, Transpose(perm=(0, 2, 1)), each) for each in (q, v))
        mixed = apply(g, Transpose(perm=(0, 2, 1)), attended(g, q, k, v))
        sound = apply(g, Reshape(), mixed, np.array([samples, WIDTH, PIXELS]))
        return apply(g, Conv(), sound, normal(WIDTH, WIDTH, 1))

    graph = make(build, (samples, WIDTH, PIXELS))
    after, log = optimised(graph)
    assert log.counts["split_batches"] == 1
    (attention,) = (node.op for node in after.nodes if isinstance(node.op, Attention))
    assert attention.kv_num_heads == HEADS
    transposes = [node.op.perm for node in after.nodes if isinstance(node.op, Transpose)]
    assert all(perm == (0, 2, 1) for perm in transposes)  # between pixels and rows
    assert_same(graph, after)


@pytest.mark.parametrize("samples", [1, N])
@pytest.mark.parametrize("cut", ["Slice", "Gather", "Split"])
def test_heads_that_are_batches_before_parts_are_cut(cut: str, samples: int) -> None:
    """Queries, keys and values of one layer, whose heads and samples share an axis first (SAM)."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, MatMul(), x, normal(WIDTH, 3 * WIDTH))
        apart = apply(g, Reshape(), rows, np.array([samples, PIXELS, 3, HEADS, SIZE]))
        front = apply(g, Transpose(perm=(2, 0, 3, 1, 4)), apart)
        joined = apply(g, Reshape(), front, np.array([3, samples * HEADS, PIXELS, SIZE]))
        if cut == "Gather":
            q, k, v = (apply(g, Gather(), joined, np.array(i)) for i in range(3))
        else:
            bounds = [[np.array([n]) for n in (i, i + 1, 0)] for i in range(3)]
            slices = [apply(g, Slice(), joined, *each) for each in bounds if cut == "Slice"]
            cuts = slices or parts(g, joined, 0, 3)
            q, k, v = (apply(g, Squeeze(), each, np.array([0])) for each in cuts)
        keys = apply(g, Transpose(perm=(0, 2, 1)), k)
        mixed = attended(g, q, keys, v, apply(g, MatMul(), q, normal(SIZE, PIXELS)))
        apart = apply(g, Reshape(), mixed, np.array([samples, HEADS, SIDE, SIDE, SIZE]))
        pixels = apply(g, Transpose(perm=(0, 2, 3, 1, 4)), apart)
        pixels = apply(g, Reshape(), pixels, np.array([samples, SIDE, SIDE, WIDTH]))
        return apply(g, MatMul(), pixels, eye())

    graph = make(build, (samples, PIXELS, WIDTH))
    after, log = optimised(graph)
    assert log.counts["split_batches"] == 1
    (attention,) = (node for node in after.nodes if isinstance(node.op, Attention))
    assert isinstance(attention.op, Attention)
    assert attention.op.kv_num_heads == HEADS
    assert all(shape_of(value) == (samples, PIXELS, WIDTH) for value in attention.operands[:3])
    transposes = [node for node in after.nodes if isinstance(node.op, Transpose)]
    transposed = [shape_of(node.operands[0]) or () for node in transposes]
    moved = [shape[-2:] for shape in transposed if shape != (1, PIXELS, WIDTH)]
    assert moved == [(HEADS, SIZE)]  # the queries for positions
    assert_same(graph, after)


def test_words() -> None:
    graph = make(of_rows, (N, PIXELS, WIDTH))
    after, _ = optimised(graph)
    assert "Transpose" not in kinds(after)
    assert_same(graph, after)


def test_batches_that_are_samples_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        rows = [apply(g, MatMul(), x, normal(WIDTH, WIDTH)) for _ in range(3)]
        return attended(g, rows[0], apply(g, Transpose(perm=(0, 2, 1)), rows[1]), rows[2])

    graph = make(build, (N, PIXELS, WIDTH))
    after, log = optimised(graph)
    assert "split_batches" not in log.counts
    assert_same(graph, after)


def test_samples_that_are_counted_when_sizes_are_known() -> None:
    """Before, nothing says how many of the batches are heads."""
    graph = make(lambda g, x: of_image(g, x, positions=False), (N, WIDTH, SIDE, SIDE))
    after, _ = optimised(graph, skip=("split_batches",))
    bound, log = after.clone(), Rewrites()
    optimise(bound, STATIC_PASSES, Options(), evaluate, log)
    assert log.counts["split_batches"] == 1
    (attention,) = (node.op for node in bound.nodes if isinstance(node.op, Attention))
    assert attention.q_num_heads == HEADS
    assert_same(graph, bound)
