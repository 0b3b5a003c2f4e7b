"""Where nodes move elements, against numpy; equal nodes are evaluated once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.movement import Concat, Slice, Transpose
from tercet.runtime.passes.moved_places import MovedPlaces


def node_of(op: Op, *inputs: Any) -> Node:
    graph = Graph("one")
    return graph.insert(op, [graph.constant(np.asarray(data)) for data in inputs])


def only(found: Sequence[Array] | None) -> Array:
    assert found is not None
    assert len(found) == 1
    return found[0]


def test_equal_nodes_are_evaluated_once() -> None:
    asked: list[str] = []

    def counted(op: Op, inputs: Sequence[Array | None], count: int) -> Sequence[Array] | None:
        asked.append(type(op).__name__)
        return evaluate(op, inputs, count)

    places, x = MovedPlaces(counted), np.zeros((2, 3))
    numbers = np.arange(6).reshape(2, 3)
    for _ in range(2):
        found = only(places.of(node_of(Transpose(), x), [(2, 3)]))
        np.testing.assert_array_equal(found, numbers.T)
        found = only(places.of(node_of(Slice(), x, [1], [3], [1]), [(2, 3)]))
        np.testing.assert_array_equal(found, numbers[:, 1:])
        found = only(places.of(node_of(Concat(axis=1), x, x), [(2, 3), (2, 1)]))
        np.testing.assert_array_equal(found, [[0, 1, 2, 6], [3, 4, 5, 7]])
    assert asked == ["Transpose", "Slice", "Concat"]
    found = only(places.of(node_of(Slice(), x, [0], [2], [1]), [(2, 3)]))
    np.testing.assert_array_equal(found, numbers[:, :2])
