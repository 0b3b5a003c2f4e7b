"""Parts of a tensor that Slices take, all of them or some."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Relu, Tanh
from tercet.runtime.ops.movement import Slice
from tercet.runtime.passes.moves import split_slices

from .graphs import apply, assert_same, kinds, make, passed

SHAPE = (2, 12, 3)


def cut(*bounds: tuple[int, int], axis: int = 1) -> Graph:
    """Return a tensor of which Slices take parts, whose elements are added up."""

    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, Slice(), x, *(np.array([n]) for n in (*ends, axis))) for ends in bounds]
        total = apply(g, Relu(), parts[0])
        for part in parts[1:]:
            total = apply(g, Tanh(), apply(g, Add(), total, part))
        return total

    return make(build, SHAPE)


@pytest.mark.parametrize(
    "bounds",
    [
        ((0, 4), (4, 8), (8, 12)),
        ((8, 2**31), (0, 4), (-8, -4)),
        ((0, 4), (4, 8), (8, 12), (4, 8)),
    ],
    ids=["in order", "out of order", "one twice"],
)
def test_parts_that_are_all_of_a_tensor(bounds: tuple[tuple[int, int], ...]) -> None:
    graph = cut(*bounds)
    after, _ = passed(graph, split_slices.run, "float32")
    assert kinds(after).count("Split") == 1
    assert_same(graph, after)


@pytest.mark.parametrize(
    "bounds",
    [
        ((0, 4), (8, 12)),
        ((0, 4), (4, 8)),
        ((0, 4), (4, 8), (7, 11)),
        ((0, 4), (0, 4), (4, 8)),
        ((4, 8), (8, 12), (8, 12)),
        ((0, 1), (1, 2), (2, 12)),
    ],
    ids=["a gap", "not the end", "an overlap", "no third", "not the beginning", "places"],
)
def test_other_slices_stay(bounds: tuple[tuple[int, int], ...]) -> None:
    after, said = passed(cut(*bounds), split_slices.run, "float32")
    assert not said
    assert "Split" not in kinds(after)
