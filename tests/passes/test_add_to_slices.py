"""Assignments that add to a part of a tensor: sums with zeros around the addend."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.op import TensorAttribute
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.elementwise import Add, Mul, Reciprocal
from tercet.runtime.ops.gather import Gather, ScatterElements, ScatterND
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Expand, Pad, Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import ConstantOfShape, Reshape, Unsqueeze

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


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_part_is_read_after_it_was_changed(axis: int) -> None:
    """As `y = x[:, 1:].view(...)[:, 1:3]; y *= r` is exported (Funnel): x keeps nothing of it."""

    def build(g: Graph, x: Value) -> Value:
        outer = cut(g, x, 1, 1, 4)
        viewed = apply(g, Reshape(), outer, np.array([3, 4, 4]))
        changed = apply(g, Mul(), cut(g, viewed, axis, 1, 3), normal(1))
        written = assigned(g, viewed, changed, 3, axis, 1, 3)
        whole = assigned(g, x, apply(g, Reshape(), written, np.array([4, 3, 4])), 3, 1, 1, 4)
        again = apply(g, Reshape(), cut(g, whole, 1, 1, 4), np.array([3, 4, 4]))
        return cut(g, again, axis, 1, 3)

    graph = make(build, (4, 4, 4))
    after, log = optimised(graph)
    assert log.counts["add_to_slices"] == 2
    assert not {"ScatterND", "Transpose"} & {*kinds(after)}
    assert_same(graph, after)


def test_another_part_is_read_where_it_was() -> None:
    def build(g: Graph, x: Value) -> Value:
        changed = apply(g, Mul(), cut(g, x, 1, 1, 3), normal(1))
        return cut(g, assigned(g, x, changed, 3, 1, 1, 3), 1, 0, 2)

    graph = make(build, (4, 4, 4))
    after, log = optimised(graph)
    assert "add_to_slices" not in log.counts
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


def in_order(g: Graph, x: Value, *perm: int) -> Value:
    return apply(g, Transpose(perm=perm), x)


@pytest.mark.parametrize("filled", ["constant", "of a shape", "expanded"])
@pytest.mark.parametrize("value", [0.0, -2.5])
def test_parts_of_equal_elements(filled: str, value: float) -> None:
    """What is assigned to two axes of a new tensor is padded, without the Transposes around."""

    def build(g: Graph, x: Value) -> Value:
        if filled == "constant":
            data = g.constant(np.full((2, 3, 6, 7), value, np.float32))
        elif filled == "of a shape":
            data = apply(g, ConstantOfShape(value=TensorAttribute(number)), np.array((2, 3, 6, 7)))
        else:
            data = apply(g, Expand(), number, np.array((2, 3, 6, 7)))
        rows = assigned(g, cut(g, data, 2, 1, 5), apply(g, Mul(), x, x), 4, 3, 2, 6)
        return apply(g, Mul(), assigned(g, data, rows, 4, 2, 1, 5), factors)

    number, factors = np.array([value], np.float32), normal(6, 7)
    graph = make(build, (2, 3, 4, 4))
    after, log = optimised(graph)
    assert log.counts["add_to_slices"] == 2
    assert kinds(after) == ["Mul", "Pad", "Mul"]
    assert not {"ScatterND", "Transpose"} & {*kinds(after)}
    x, wanted = normal(2, 3, 4, 4), np.full((2, 3, 6, 7), number)
    wanted[:, :, 1:5, 2:6] = x * x
    assert np.allclose(run(after, x, np.float32), wanted * factors, rtol=1e-6, atol=0)


def test_one_place() -> None:
    """`x[:, :, 1:, 0] += a; x[:, :, 0, :] += a`, in a Transpose that is not undone: Graphormer."""

    def build(g: Graph, x: Value) -> Value:
        for axis, first in ((3, 1), (2, 0)):
            source = cut(g, x, 2, first, 5) if first else x
            shape = (2, 3, 5 - first, 5)
            own = apply(g, Gather(axis=axis), source, np.array(0))
            total = apply(g, Unsqueeze(), apply(g, Add(), own, normal(1, 3, 1)), np.array([axis]))
            index = np.zeros((*shape[:axis], 1, *shape[axis + 1 :]), np.int64)
            part = apply(g, ScatterElements(axis=axis), source, index, total)
            x = assigned(g, x, part, 4, 2, first, 5) if first else part
        return apply(g, Mul(), x, x)

    graph = make(build, (2, 3, 5, 5))
    after, log = optimised(graph)
    assert log.counts["add_to_slices"] == 3
    assert not {"ScatterND", "ScatterElements", "Slice"} & {*kinds(after)}
    assert_same(graph, after)


def test_what_is_assigned_may_be_of_unknown_rank() -> None:
    proto = parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[2, 4] x, int64[n] shape) => (y)
        <float[3, 4] zeros = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, int64[2, 1] i = {0, 1}> {
            shaped = Reshape (x, shape)
            y = ScatterND (zeros, i, shaped)
        }"""
    )
    feeds = {"x": normal(2, 4), "shape": np.array([2, 4])}
    with tercet.load(proto) as loaded:
        found = loaded.run(feeds)["y"]
    np.testing.assert_array_equal(found, np.pad(feeds["x"], ((0, 1), (0, 0))))
