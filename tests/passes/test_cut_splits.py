"""Splits are Slices, each with its own readers."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Cast, Exp, Mul, Relu
from tercet.runtime.ops.movement import Concat, Slice, Split
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.random import RandomNormal
from tercet.runtime.ops.search import NonZero
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes import STATIC_PASSES

from .graphs import apply, assert_same, kinds, make, normal, optimised

SHAPE = (2, 12, 3)


def net(joined: tuple[int, ...], axis: int = 1) -> Graph:
    """Return parts of 3, 4 and 5 channels; some are joined as they are, others by a Relu."""

    def build(graph: Graph, x: Value) -> Value:
        sizes = graph.constant(np.array([3, 4, 5]))
        parts = graph.insert(
            Split(axis=1, num_outputs=3), [apply(graph, Relu(), x), sizes], 3
        ).outputs
        infer(graph)
        found = [p if i in joined else apply(graph, Relu(), p) for i, p in enumerate(parts)]
        infer(graph)
        if axis == 1:
            return apply(graph, Concat(axis=-2), *reversed(found))
        return apply(graph, Concat(axis=2), parts[0], apply(graph, Relu(), parts[0]))

    return make(build, SHAPE)


def cut(graph: Graph) -> Graph:
    copy, _ = optimised(graph, STATIC_PASSES)
    return copy


@pytest.mark.parametrize("joined", [(), (0,), (1,), (0, 2)])
def test_parts_that_go_apart(joined: tuple[int, ...]) -> None:
    graph = net(joined)
    copy = cut(graph)
    assert (kinds(copy).count("Slice"), kinds(copy).count("Split")) == (3, 0)
    assert_same(graph, copy)


def test_parts_that_are_joined_again_stay_together() -> None:
    assert "Slice" not in kinds(cut(net((0, 1, 2))))


def test_one_part_of_several() -> None:
    graph = net((0,), axis=2)
    copy = cut(graph)
    assert (kinds(copy).count("Slice"), kinds(copy).count("Split")) == (1, 0)
    assert_same(graph, copy)


@pytest.mark.parametrize("apart", [False, True])
def test_parts_that_an_attention_reads(apart: bool) -> None:
    """They stay together, unless another node reads one of them."""

    def build(graph: Graph, x: Value) -> Value:
        parts = graph.insert(Split(axis=2, num_outputs=3), [apply(graph, Relu(), x)], 3).outputs
        infer(graph)
        y = apply(graph, Attention(q_num_heads=2, kv_num_heads=2), *parts)
        return apply(graph, Add(), y, parts[0]) if apart else y

    graph = make(build, (2, 5, 24))
    copy = cut(graph)
    assert ("Split" in kinds(copy)) is not apart
    assert_same(graph, copy)


def test_a_node_without_inputs() -> None:
    graph = make(lambda g, x: apply(g, Add(), x, apply(g, RandomNormal(shape=SHAPE))), SHAPE)
    assert kinds(cut(graph)) == ["RandomNormal", "Add"]


def test_a_part_that_is_read_twice() -> None:
    def build(graph: Graph, x: Value) -> Value:
        a, b = graph.insert(Split(axis=1, num_outputs=2), [x], 2).outputs
        infer(graph)
        return apply(graph, Concat(axis=1), apply(graph, Add(), a, b), b)

    graph = make(build, SHAPE)
    copy = cut(graph)
    assert kinds(copy) == ["Slice", "Slice", "Add", "Concat"]
    assert_same(graph, copy)


def steps(graph: Graph, x: Value) -> Value:
    """Running sums over the first of two axes, from a Split (torch.unbind)."""
    count = SHAPE[1]
    parts = graph.insert(Split(axis=1, num_outputs=count), [apply(graph, Relu(), x)], count).outputs
    infer(graph)
    sums = [parts[0]]
    for part in parts[1:]:
        sums.append(apply(graph, Add(), apply(graph, Relu(), sums[-1]), part))
    infer(graph)
    return apply(graph, Concat(axis=1), *sums)


def test_steps_of_a_loop() -> None:
    graph = make(steps, SHAPE)
    copy = cut(graph)
    assert (kinds(copy).count("Slice"), kinds(copy).count("Split")) == (SHAPE[1], 0)
    assert_same(graph, copy)


@pytest.mark.parametrize("pixels", [9, 1])
def test_weights_that_are_repeated(pixels: int) -> None:
    """Shares of two images per channel (SKNet)."""

    def build(graph: Graph, x: Value) -> Value:
        shares = apply(graph, Softmax(axis=1), x)
        parts = graph.insert(Split(axis=1, num_outputs=2), [shares], 2).outputs
        infer(graph)
        images = [normal(2, 6, pixels), normal(2, 6, pixels)]
        terms = [apply(graph, Mul(), a, b) for a, b in zip(images, parts, strict=True)]
        return apply(graph, Add(), *terms)

    graph = make(build, (2, 12, 1))
    copy = cut(graph)
    assert kinds(copy).count("Slice") == 2
    assert_same(graph, copy)


@pytest.mark.parametrize("view", [None, (2, 6, 1, 1), (1, 2, 6)], ids=str)
def test_parts_of_parts_are_cut_from_the_whole(view: tuple[int, ...] | None) -> None:
    """Scales and shifts that one layer computes for all blocks."""

    def build(graph: Graph, x: Value) -> Value:
        halves = graph.insert(Split(axis=1, num_outputs=2), [x], 2).outputs
        infer(graph)
        ends: list[Value] = []
        axis = 2 if view == (1, 2, 6) else 1
        for half in halves:
            whole = apply(graph, Reshape(), half, np.array(view)) if view else half
            parts = graph.insert(Split(axis=axis, num_outputs=2), [whole], 2).outputs
            infer(graph)
            ends += [
                apply(graph, kind(), part) for kind, part in zip((Relu, Exp), parts, strict=True)
            ]
        return apply(graph, Concat(axis=axis), *reversed(ends))

    graph = make(build, (2, 12))
    copy = cut(graph)
    assert kinds(copy).count("Slice") == 4
    assert_same(graph, copy)


def test_a_part_of_a_part_of_a_tensor_of_unknown_size() -> None:
    """How many elements are not 0 is not known before they are counted."""

    def build(graph: Graph, x: Value) -> Value:
        places = apply(graph, NonZero(), x)
        for first, end in ((1, 3), (1, 2)):
            bounds = (np.array([n]) for n in (first, end, 0))
            places = apply(graph, Slice(), places, *bounds)
        return apply(graph, Cast(to=float32), places)

    graph = make(build, (2, 5, 4))
    copy = cut(graph)
    assert kinds(copy) == ["NonZero", "Slice", "Cast"]
    assert_same(graph, copy)
