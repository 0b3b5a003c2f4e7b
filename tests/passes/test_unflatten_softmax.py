"""Softmax of files before opset 13: along the last axis where that is the same."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.norm import LogSoftmax, Softmax
from tercet.runtime.ops.shape import Flatten, Reshape, Shape

from .graphs import apply, assert_same, kinds, make, optimised


def network(shape: tuple[Dim, ...], axis: int, op: Softmax | LogSoftmax | None = None) -> Graph:
    """Return what the importer writes."""

    def build(graph: Graph, x: Value) -> Value:
        sizes = apply(graph, Shape(), x)
        flat = apply(graph, Flatten(axis=axis), x)
        return apply(graph, Reshape(), apply(graph, op or Softmax(), flat), sizes)

    return make(build, shape)


@pytest.mark.parametrize("op", [Softmax(), Softmax(axis=1), LogSoftmax()])
@pytest.mark.parametrize("shape", [(2, 3, 4), ("batch", 3, 4)])
@pytest.mark.parametrize("axis", [2, -1])
def test_along_the_last_axis(op: Softmax | LogSoftmax, shape: tuple[Dim, ...], axis: int) -> None:
    graph = network(shape, axis, op)
    after, log = optimised(graph)
    assert log.counts["unflatten_softmax"] == 1
    assert kinds(after) == [type(op).__name__]
    assert_same(graph, after, 2, 3, 4)


@pytest.mark.parametrize("axis", [0, 1])
def test_along_several_axes(axis: int) -> None:
    after, log = optimised(network((2, 3, 4), axis))
    assert "unflatten_softmax" not in log.counts
    assert "Flatten" in kinds(after)


def test_another_shape() -> None:
    def build(graph: Graph, x: Value) -> Value:
        flat = apply(graph, Flatten(axis=2), x)
        return apply(graph, Reshape(), apply(graph, Softmax(), flat), np.array([3, 2, 4]))

    _, log = optimised(make(build, (2, 3, 4)))
    assert "unflatten_softmax" not in log.counts


@pytest.mark.parametrize("wanted", [(6, 4), (1, 6, 1, 4), (3, 2, 4)])
def test_views_that_keep_the_last_axis(wanted: tuple[int, ...]) -> None:
    def build(graph: Graph, x: Value) -> Value:
        rows = apply(graph, Reshape(), x, np.array(wanted))
        return apply(graph, Reshape(), apply(graph, Softmax(), rows), np.array([2, 3, 4]))

    graph = make(build, (2, 3, 4))
    after, _ = optimised(graph)
    assert kinds(after) == ["Softmax"]
    assert_same(graph, after)
