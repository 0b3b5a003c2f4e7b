"""Masks and scales of attention in any order and any frame: one Attention, the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.attention import repeats_after
from tercet.runtime.ops.elementwise import Add, Div, Max, Mul, Neg, Sub, Where
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

#: Two samples of three windows, heads, length, size.
WINDOWS, HEADS, LENGTH, SIZE = 3, 4, 5, 8
SHAPE = (2 * WINDOWS, HEADS, LENGTH, SIZE)
Step = Callable[[Graph, Value, Value], Value]


def scalar(number: float) -> np.ndarray:
    return np.array(number, np.float32)


def framed(*shape: int) -> Step:
    """Add a mask of this shape to scores of five axes, and go back."""

    def step(g: Graph, scores: Value, x: Value) -> Value:
        sizes = np.array((-1, WINDOWS, HEADS, LENGTH, LENGTH))
        y = apply(g, Add(), apply(g, Reshape(), scores, sizes), normal(*shape))
        return apply(g, Reshape(), y, np.array((-1, HEADS, LENGTH, LENGTH)))

    return step


def computed(*over: int) -> Step:
    """Add a mask that is computed, its mean over some of five axes."""

    def step(g: Graph, scores: Value, x: Value) -> Value:
        sizes = np.array((-1, WINDOWS, HEADS, LENGTH, LENGTH))
        own = apply(g, Reshape(), apply(g, MatMul(), x, normal(SIZE, LENGTH)), sizes)
        mask = apply(g, ReduceMean(), own, np.array(over))
        y = apply(g, Add(), mask, apply(g, Reshape(), scores, sizes))
        return apply(g, Reshape(), y, np.array((-1, HEADS, LENGTH, LENGTH)))

    return step


def relative(g: Graph, scores: Value, x: Value) -> Value:
    """Add two masks in one frame, each the same along an axis where the other is not."""
    sizes = np.array((-1, WINDOWS, HEADS, LENGTH, LENGTH))
    own = apply(g, Reshape(), apply(g, MatMul(), x, normal(SIZE, LENGTH)), sizes)
    y = apply(g, Reshape(), scores, sizes)
    for axis in (0, 1):
        y = apply(g, Add(), y, apply(g, ReduceMean(), own, np.array([axis])))
    return apply(g, Reshape(), y, np.array((-1, HEADS, LENGTH, LENGTH)))


def plus(*shape: int) -> Step:
    return lambda g, scores, x: apply(g, Add(), scores, normal(*shape))


def minus(*shape: int) -> Step:
    return lambda g, scores, x: apply(g, Sub(), scores, normal(*shape))


def times(number: float) -> Step:
    return lambda g, scores, x: apply(g, Mul(), scores, scalar(number))


def hiding(fill: float) -> Step:
    shown = np.tril(np.ones((LENGTH, LENGTH), bool))
    return lambda g, scores, x: apply(g, Where(), shown, scores, scalar(fill))


def hiding_rows(g: Graph, scores: Value, x: Value) -> Value:
    """Hide all keys of two rows, whose weights become equal."""
    shown = np.arange(LENGTH)[:, None] < LENGTH - 2
    return apply(g, Where(), shown, scores, scalar(-3e38))


def floored(least: float) -> Step:
    """No score is below this (XGLM): sums of masks do not overflow."""
    return lambda g, scores, x: apply(g, Max(), scores, scalar(least))


def opposite(g: Graph, scores: Value, x: Value) -> Value:
    return apply(g, Neg(), apply(g, Div(), scores, scalar(-2)))


def network(*steps: Step) -> Graph:
    def build(g: Graph, x: Value) -> Value:
        keys = apply(g, Transpose(perm=(0, 1, 3, 2)), x)
        scores = apply(g, MatMul(), x, keys)
        for step in steps:
            scores = step(g, scores, x)
        return apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), x)

    return make(build, SHAPE)


T = LENGTH
FOUND: dict[str, tuple[Step, ...]] = {
    "by window": (framed(1, WINDOWS, 1, T, T),),
    "by sample": (framed(2, 1, 1, T, T),),
    "by sample, window and head": (framed(2, WINDOWS, HEADS, T, T),),
    "by head, of fewer axes": (framed(HEADS, T, T),),
    "of all alike": (framed(T, T),),
    "a bias, then one by window": (plus(1, HEADS, T, T), framed(1, WINDOWS, 1, T, T)),
    "computed by sample and window": (computed(2),),
    "computed by window": (computed(0, 2),),
    "computed, and a bias": (plus(T, T), computed(2)),
    "of rows, then by key": (plus(HEADS, T, 1), plus(1, T)),
    "by window, then of rows, scaled": (framed(1, WINDOWS, 1, T, T), plus(T, 1), times(0.5)),
    "of rows of windows, then hidden": (framed(WINDOWS, 1, T, 1), hiding(-np.inf)),
    "the scale behind the mask": (plus(T, T), times(0.25)),
    "two scales and two masks": (times(0.5), plus(HEADS, T, T), times(0.5), plus(T, T)),
    "a difference": (times(0.3), minus(T, T)),
    "signs": (opposite, plus(T, T)),
    "hidden, then shifted": (hiding(-np.inf), plus(T, T)),
    "shifted, then hidden": (plus(T, T), hiding(-3e38)),
    "hidden twice": (hiding(-np.inf), hiding(-np.inf)),
    "hidden, then scaled": (hiding(-np.inf), times(0.5)),
    "a bias, not below a floor": (plus(T, T), hiding(-3e38), floored(-3.4e38), times(0.5)),
    "a floor, then hidden": (floored(-3e38), hiding(-np.inf)),
}


@pytest.mark.parametrize("name", FOUND)
def test_attention_is_found(name: str) -> None:
    graph = network(*FOUND[name])
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert "Softmax" not in kinds(after)
    assert_same(graph, after)


OTHERS: dict[str, tuple[Step, ...]] = {
    "a score that a mask does not hide": (hiding(-1e4),),
    "a fill that a scale makes small": (hiding(-1e30), times(1e-20)),
    "a floor that scores reach": (floored(-1e4),),
    "hidden above a floor, which leaves means": (hiding(-np.inf), floored(-3e38)),
    "a floor that no addend is known to reach, hidden": (computed(2), floored(-3e38)),
    "hidden with another sign": (hiding(-np.inf), times(-1.0)),
    "of rows alone, which would hide keys": (plus(T, 1),),
    "rows that are hidden, and a bias": (hiding_rows, plus(T, T)),
    "of rows, below a floor": (plus(T, 1), plus(T, T), floored(-3e38)),
    "rows by another order": (
        lambda g, s, x: apply(g, Transpose(perm=(0, 1, 3, 2)), apply(g, Add(), s, normal(T, T))),
    ),
    "another grouping": (
        lambda g, s, x: apply(g, Reshape(), s, np.array((2 * WINDOWS, HEADS, 1, T * T))),
        lambda g, s, x: apply(g, Softmax(axis=-1), s),
        lambda g, s, x: apply(g, Reshape(), s, np.array((*SHAPE[:3], T))),
    ),
    "windows that share an axis with half of the heads": (
        lambda g, s, x: apply(g, Reshape(), s, np.array((12, 2, T, T))),
        lambda g, s, x: apply(g, Add(), s, normal(12, 1, T, T)),
        lambda g, s, x: apply(g, Reshape(), s, np.array((6, 4, T, T))),
    ),
}


#: What puts +inf beside scores gives NaN in both.
@pytest.mark.parametrize("name", [name for name in OTHERS if "sign" not in name])
def test_numbers_stay(name: str) -> None:
    """Whether it is found or not."""
    graph = network(*OTHERS[name])
    after, _ = optimised(graph)
    assert_same(graph, after)


@pytest.mark.parametrize(
    "name", [n for n in OTHERS if any(word in n for word in ("hid", "fill", "floor"))]
)
def test_what_is_none_stays(name: str) -> None:
    after, log = optimised(network(*OTHERS[name]))
    assert "fuse_attention" not in log.counts
    assert "Softmax" in kinds(after)


def test_masks_of_one_frame_are_added_before_they_are_repeated() -> None:
    graph = network(relative)
    after, _ = optimised(graph)
    assert kinds(after).count("Attention") == 1
    assert "Expand" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("mask", "samples"),
    [(np.zeros((6, 1, 2, 3)), 1), (np.arange(6)[:, None] % 3, 3), (np.arange(6)[:, None], 6)],
    ids=["the same", "three", "all"],
)
def test_after_how_many_samples_masks_repeat(mask: np.ndarray, samples: int) -> None:
    assert repeats_after(mask) == samples
    mask[4] = 7
    assert repeats_after(mask) == 6


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize(
    ("axes", "made"), [((1, WINDOWS, 1), "Tile"), ((2, WINDOWS, 1), "Add")], ids=str
)
def test_large_masks_that_repeat_are_added_once(
    axes: tuple[int, ...], made: str, times: int
) -> None:
    """So that kernels read those of one image. SwinV2 of transformers adds them twice."""
    graph = network(plus(1, HEADS, T, T), *[framed(*axes, T, T)] * times)
    after, _ = optimised(graph, fold_bytes=4 * 2 * WINDOWS * HEADS * T * T - 1)
    (node,) = (node for node in after.nodes if node.kind == "Attention")
    producer = node.operands[3].producer
    assert producer is not None
    assert producer.kind == made
    assert_same(graph, after)
