"""Assignments that add to a part of a tensor: sums with zeros around the addend."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.elementwise import Add, Mul, Reciprocal
from tercet.runtime.ops.gather import ScatterND
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Pad, Slice, Transpose
from tercet.runtime.ops.norm import Softmax

from .graphs import apply, assert_same, kinds, make, normal, optimised, run


def cut(g: Graph, x: Value, axis: int, first: int, last: int) -> Value:
    bounds: list[Array] = [np.array([n]) for n in (first, last, axis)]
    return apply(g, Slice(), x, *bounds)


def assigned(g: Graph, x: Value, y: Value, rank: int, axis: int, first: int, last: int) -> Value:
    """Return x with places of an axis replaced, as torch.onnx writes it."""
    perm = (axis, *(0 if i == axis else i for i in range(1, rank))) if axis else ()
    rows = np.arange(first, last)[:, None]
    if not perm:
        return apply(g, ScatterND(), x, rows, y)
    data, updates = (apply(g, Transpose(perm=perm), each) for each in (x, y))
    return apply(g, Transpose(perm=perm), apply(g, ScatterND(), data, rows, updates))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("first", "last"), [(1, 4), (0, 3), (1, 3)])
def test_one_axis(axis: int, first: int, last: int) -> None:
    def build(g: Graph, x: Value) -> Value:
        part = cut(g, x, axis, first, last)
        added = apply(g, Add(), part, apply(g, Mul(), part, part))
        return assigned(g, x, added, 3, axis, first, last)

    graph = make(build, (4, 4, 4))
    after, log = optimised(graph)
    assert log.counts["add_to_slices"] == 1
    assert "ScatterND" not in kinds(after)
    assert_same(graph, after)


def test_relative_positions_behind_a_class_token() -> None:
    """Two axes, and each part is written back once more, as `attn[:, :, 1:, 1:] += r` is."""

    def build(g: Graph, x: Value) -> Value:
        q, k, v = (apply(g, Mul(), x, normal(5, 8)) for _ in range(3))
        scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
        for addend in (normal(1, 2, 4, 4), None):
            rows = cut(g, scores, 2, 1, 5)
            part = cut(g, rows, 3, 1, 5)
            if addend is not None:
                part = apply(g, Add(), part, addend)
            rows = assigned(g, rows, part, 4, 3, 1, 5)
            scores = assigned(g, scores, rows, 4, 2, 1, 5)
        return apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), v)

    graph = make(build, (1, 2, 5, 8))
    after, log = optimised(graph)
    assert log.counts["add_to_slices"] == 4
    assert "Attention" in kinds(after)
    assert not {"ScatterND", "Slice", "Softmax"} & {*kinds(after)}
    assert_same(graph, after)


@pytest.mark.parametrize("what", ["another part", "another tensor", "a product"])
def test_what_stays(what: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        source = apply(g, Mul(), x, normal(4, 4)) if what == "another tensor" else x
        part = cut(g, source, 1, 0 if what == "another part" else 1, 3)
        if what == "another part":
            part = cut(g, part, 1, 0, 2)
        kind = Mul() if what == "a product" else Add()
        return assigned(g, x, apply(g, kind, part, normal(4, 2, 4)), 3, 1, 1, 3)

    graph = make(build, (4, 4, 4))
    after, log = optimised(graph)
    assert "add_to_slices" not in log.counts
    assert "ScatterND" in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("moved", [False, True])
def test_a_part_in_its_place_is_chosen(axis: int, moved: bool) -> None:
    """As `x[:, 1:] += y[:, 1:]` is, where y may have an infinity elsewhere."""

    def build(g: Graph, x: Value) -> Value:
        part = cut(g, apply(g, Reciprocal(), x), axis, 1, 3)
        pads = np.zeros((2, 3), np.int64)
        pads[:, axis] = (2, 1) if moved else (1, 2)
        return apply(g, Add(), x, apply(g, Pad(), part, pads.reshape(-1)))

    graph = make(build, (5, 5, 5))
    after, _ = optimised(graph)
    assert (kinds(after) == ["Reciprocal", "Where", "Add"]) != moved
    x = np.ones((5, 5, 5), np.float32)
    x[0, 0, 0] = 0
    np.testing.assert_array_equal(run(after, x, np.float32), run(graph, x, np.float32))
