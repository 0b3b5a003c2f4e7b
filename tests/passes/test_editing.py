"""What passes write with a `Builder`, beside numpy's indexing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Neg
from tercet.runtime.ops.movement import Concat
from tercet.runtime.ops.shape import Identity
from tercet.runtime.passes.editing import Builder, unviewed

from .graphs import apply, make, normal, run

SHAPE = (3, 8, 2)


def written(write: Callable[[Builder, Value], Value]) -> Graph:
    """Return a graph of what is written in front of a node, which is its result."""

    def build(graph: Graph, x: Value) -> Value:
        end = apply(graph, Identity(), x)
        assert end.producer is not None
        value = write(Builder(graph, end.producer), x)
        graph.set_inputs(end.producer, [value])
        return end

    return make(build, SHAPE)


@pytest.mark.parametrize("bounds", [(0, 3), (2, 8), (1, 8, 3)])
def test_slices(bounds: tuple[int, ...]) -> None:
    graph, x = written(lambda add, x: add.slice(x, 1, *bounds)), normal(*SHAPE)
    np.testing.assert_array_equal(run(graph, x, np.float32), x[:, slice(*bounds)])


@pytest.mark.parametrize("sizes", [4, 3, [1, 5, 2]])
def test_parts(sizes: int | Sequence[int]) -> None:
    def backwards(add: Builder, x: Value) -> Value:
        return add(Concat(axis=1), *reversed(add.split(x, -2, sizes)))

    x = normal(*SHAPE)
    ends = [3, 6] if sizes == 3 else [2, 4, 6] if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    expected = np.concatenate(np.split(x, ends, 1)[::-1], 1)
    np.testing.assert_array_equal(run(written(backwards), x, np.float32), expected)


@pytest.mark.parametrize("sizes", [(6, 8), (-1, 8), ("n", 8), (None, 8)])
def test_a_shape_may_lack_one_size(sizes: tuple[int | str | None, ...]) -> None:
    graph, x = written(lambda add, x: add.shaped(x, sizes)), normal(*SHAPE)
    np.testing.assert_array_equal(run(graph, x, np.float32), x.reshape(6, 8))


def test_values_are_seen_through_views() -> None:
    graph = written(lambda add, x: add.shaped(add(Identity(), add(Neg(), x)), (-1,)))
    source = unviewed(graph.outputs["y"])
    assert source.producer is not None
    assert isinstance(source.producer.op, Neg)
