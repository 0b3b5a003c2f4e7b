"""What was joined along two axes, and is cut along the first, is joined part by part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Exp, Relu, Sigmoid, Tanh
from tercet.runtime.ops.movement import Concat, Slice, Split
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, optimised

BOXES, CLASSES, WIDTH = 4, 3, 5
SHAPE = (2, BOXES + CLASSES, 6, WIDTH)


def cut(g: Graph, x: Value, begin: int, end: int, axis: int = 1) -> Value:
    return apply(g, Slice(), x, *(np.array([n]) for n in (begin, end, axis)))


def joined(g: Graph, axis: int, parts: Sequence[Value]) -> Value:
    return g.insert(Concat(axis=axis), parts).output


def head(g: Graph, x: Value, *, views: str, cuts: str, other: bool = False) -> Value:
    """The head of a detector, which cuts boxes and classes of all pixels of its levels.

    Args:
        views: whether pixels are flattened before or behind the Concat of a level.
        cuts: which nodes cut: a Split, Slices, or Slices within the classes.
        other: whether a level has its classes in front.
    """
    levels: list[Value] = []
    for height in (6, 5, 4):
        image = cut(g, x, 0, height, 2)
        parts = [
            (apply(g, Tanh(), cut(g, image, 0, BOXES)), BOXES),
            (apply(g, Exp(), cut(g, image, BOXES, BOXES + CLASSES)), CLASSES),
        ]
        parts = parts[::-1] if other and height == 5 else parts
        flat = [np.array([2, size, height * WIDTH]) for _, size in parts]
        if views == "before":
            rows = [apply(g, Reshape(), v, to) for (v, _), to in zip(parts, flat, strict=True)]
            levels.append(joined(g, 1, rows))
        else:
            to = np.array([2, BOXES + CLASSES, height * WIDTH])
            levels.append(apply(g, Reshape(), joined(g, 1, [v for v, _ in parts]), to))
    whole = joined(g, -1, levels)
    if cuts == "Split":
        sizes = g.constant(np.array([BOXES, CLASSES]))
        boxes, classes = g.insert(Split(axis=1, num_outputs=2), [whole, sizes], 2).outputs
    else:
        end = BOXES + CLASSES - (cuts == "less")
        boxes, classes = cut(g, whole, 0, BOXES), cut(g, whole, BOXES, end)
    return joined(g, 1, [apply(g, Relu(), boxes), apply(g, Sigmoid(), classes)])


@pytest.mark.parametrize("views", ["before", "behind"])
@pytest.mark.parametrize("cuts", ["Split", "Slice"])
def test_levels_of_a_detector(views: str, cuts: str) -> None:
    graph = make(lambda g, x: head(g, x, views=views, cuts=cuts), SHAPE)
    after, log = optimised(graph)
    assert log.counts["cut_joined"] == 1
    joins = [node.op for node in after.nodes if isinstance(node.op, Concat)]
    assert sorted(op.axis for op in joins) == [-1, -1, 1], "boxes, classes, and both"
    assert_same(graph, after)


@pytest.mark.parametrize(("cuts", "other"), [("Split", True), ("less", False)])
def test_parts_that_were_not_joined_so(cuts: str, other: bool) -> None:
    graph = make(lambda g, x: head(g, x, views="before", cuts=cuts, other=other), SHAPE)
    after, log = optimised(graph)
    assert "cut_joined" not in log.counts
    assert_same(graph, after)


def test_what_something_else_reads() -> None:
    def build(g: Graph, x: Value) -> Value:
        rows = [joined(g, 1, [x, apply(g, op, x)]) for op in (Tanh(), Exp())]
        whole = joined(g, 0, rows)
        return joined(g, 1, [whole, apply(g, Relu(), cut(g, whole, 0, 3))])

    graph = make(build, (2, 3))
    after, log = optimised(graph)
    assert "cut_joined" not in log.counts
    assert kinds(after).count("Concat") == 4
    assert_same(graph, after)


def test_parts_without_places() -> None:
    def build(g: Graph, x: Value) -> Value:
        rows = [joined(g, 1, [apply(g, op, x), apply(g, Relu(), x)]) for op in (Tanh(), Exp())]
        sizes = g.constant(np.array([0, 3, 3]))
        parts = g.insert(Split(axis=1, num_outputs=3), [joined(g, 0, rows), sizes], 3).outputs
        return joined(g, 1, [apply(g, Sigmoid(), part) for part in parts])

    graph = make(build, (2, 3))
    after, log = optimised(graph)
    assert "cut_joined" not in log.counts
    assert_same(graph, after)
