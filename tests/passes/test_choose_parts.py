"""Stacks of numbers that are computed of columns: one chain, which chooses by place."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Clip, Mul, Sub, Tanh
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split
from tercet.runtime.ops.shape import Squeeze, Unsqueeze
from tercet.runtime.passes import STATIC_PASSES

from .graphs import apply, assert_same, kinds, make, normal, optimised

HALF = np.array(0.5, np.float32)


def columns(g: Graph, x: Value, count: int, *, kept: bool) -> list[Value]:
    cuts = [apply(g, Slice(), x, *(np.array([n]) for n in (i, i + 1, -1))) for i in range(count)]
    return cuts if kept else [apply(g, Squeeze(), each, np.array([-1])) for each in cuts]


def stacked(g: Graph, *parts: Value, kept: bool, axis: int = -1) -> Value:
    if not kept:
        parts = tuple(apply(g, Unsqueeze(), each, np.array([axis])) for each in parts)
    return g.insert(Concat(axis=axis), parts).output


def corners(g: Graph, x: Value, *, kept: bool) -> Value:
    """The corners of boxes that are given by their centres and sizes, as DETR computes them."""
    a, b, w, h = columns(g, x, 4, kept=kept)
    u, v = (apply(g, Mul(), each, HALF) for each in (w, h))
    parts = [apply(g, op, each, half) for op in (Sub(), Add()) for each, half in ((a, u), (b, v))]
    return apply(g, Mul(), stacked(g, *parts, kept=kept), np.array(640, np.float32))


def test_no_boxes_stay() -> None:
    """Numbers that all of them would share have more elements than they."""
    graph = make(lambda g, x: corners(g, x, kept=True), (2, 0, 4))
    assert "choose_parts" not in optimised(graph, STATIC_PASSES)[1].counts


@pytest.mark.parametrize("kept", [False, True])
def test_corners_of_boxes(kept: bool) -> None:
    graph = make(lambda g, x: corners(g, x, kept=kept), (2, 30, 4))
    after, log = optimised(graph, STATIC_PASSES)
    assert log.counts["choose_parts"] == 1
    assert not {"Concat", "Squeeze", "Unsqueeze", "Reshape"} & {*kinds(after)}
    assert_same(graph, after)


def test_parts_that_are_moved_and_some_that_are_computed() -> None:
    """`[x, y, x * y, 1 - x]`."""

    def build(g: Graph, x: Value) -> Value:
        a, b = columns(g, x, 2, kept=False)
        one = g.constant(np.array(1, np.float32))
        parts = a, b, apply(g, Mul(), a, b), apply(g, Sub(), one, a)
        return apply(g, Tanh(), stacked(g, *parts, kept=False))

    graph = make(build, (6, 5, 2))
    after, log = optimised(graph, STATIC_PASSES)
    assert log.counts["choose_parts"] == 1
    assert_same(graph, after)


@pytest.mark.parametrize("shape", [(1, 3, 5, 2), (4, 3, 5, 2)])
def test_products_of_complex_numbers(shape: tuple[int, ...]) -> None:
    """A spectrum times that of a filter, which is the same for a batch (S4, Hyena)."""

    def build(g: Graph, x: Value) -> Value:
        (a, b), (c, d) = columns(g, x, 2, kept=True), (normal(3, 5, 1) for _ in range(2))
        ac, bd, ad, bc = (apply(g, Mul(), *pair) for pair in ((a, c), (b, d), (a, d), (b, c)))
        return stacked(g, apply(g, Sub(), ac, bd), apply(g, Add(), ad, bc), kept=True)

    graph = make(build, shape)
    after, log = optimised(graph, STATIC_PASSES)
    assert log.counts["choose_parts"] == 1
    assert "Concat" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("what", ["read elsewhere", "of layers", "another axis", "many"])
def test_what_stays(what: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        if what == "of layers":
            w = [apply(g, MatMul(), x, normal(4, 1)) for _ in range(4)]
            a, b, c, d = (apply(g, Squeeze(), each, np.array([-1])) for each in w)
        elif what == "another axis":
            a, b, c, d = g.insert(Split(axis=2, num_outputs=4), [x], 4).outputs
        else:
            a, b, c, d = columns(g, x, 4, kept=False)
        sums = [apply(g, Add(), apply(g, Tanh(), e), f) for e, f in ((a, b), (c, d))]
        if what == "another axis":
            return stacked(g, *sums, kept=False, axis=1)
        y = stacked(g, *sums, kept=False)
        if what == "read elsewhere":
            last = apply(g, Unsqueeze(), apply(g, Mul(), *sums), np.array([-1]))
            return apply(g, Mul(), y, last)
        return apply(g, Tanh(), y)

    shape = (2, 1 << 21 if what == "many" else 30, 4)
    _, log = optimised(make(build, shape), STATIC_PASSES)
    assert "choose_parts" not in log.counts


def test_parts_of_several_places_and_none_stay() -> None:
    """Although there are as many parts as places."""

    def build(g: Graph, x: Value) -> Value:
        cuts = [(0, 0), (0, 1), (1, 3)]
        parts = [apply(g, Slice(), x, *(np.array([n]) for n in (*cut, -1))) for cut in cuts]
        parts[1] = apply(g, Tanh(), apply(g, Mul(), parts[1], HALF))
        return stacked(g, *parts, kept=True)

    graph = make(build, (5, 3))
    assert_same(graph, optimised(graph, STATIC_PASSES)[0])


def test_limits_stay_scalars() -> None:
    """Although the elements of a single box are single, too."""

    def build(g: Graph, x: Value) -> Value:
        a, b = columns(g, x, 2, kept=True)
        limited = apply(g, Clip(), apply(g, Tanh(), a), np.array(-0.5, np.float32), HALF)
        return stacked(g, limited, apply(g, Tanh(), b), kept=True)

    graph = make(build, (1, 1, 2))
    after, log = optimised(graph, STATIC_PASSES)
    assert log.counts["choose_parts"] == 1
    assert_same(graph, after)
