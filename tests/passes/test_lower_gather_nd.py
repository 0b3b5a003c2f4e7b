"""GatherND of adjacent rows, as exporters write x[i, j] with index arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.gather import GatherND

from .graphs import apply, assert_same, kinds, make, optimised

GRID = np.stack(np.meshgrid(np.arange(2), np.arange(5), indexing="ij"), -1)
CASES = {
    "all": (GRID, ["Relu", "Relu"]),
    "all, more axes": (GRID.reshape(2, 1, 1, 5, 2), ["Relu", "Reshape", "Relu"]),
    "one part": (np.array([[1]]), ["Relu", "Slice", "Relu"]),
    "from the end": (np.array([[-1]]), ["Relu", "Slice", "Relu"]),
    "across parts": (np.array([[0, 3], [0, 4], [1, 0]]), ["Relu", "Reshape", "Slice", "Relu"]),
    "turned": (GRID[::-1].copy(), ["Relu", "Reshape", "Gather", "Relu"]),
    "every second": (GRID[:, ::2].copy(), ["Relu", "Reshape", "Gather", "Relu"]),
    "twice": (np.array([[0], [0]]), ["Relu", "Gather", "Relu"]),
}


@pytest.mark.parametrize("name", CASES)
def test_gather_nd(name: str) -> None:
    indices, wanted = CASES[name]

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Relu(), apply(g, GatherND(), apply(g, Relu(), x), indices))

    graph = make(build, (2, 5, 3))
    after, _ = optimised(graph, skip=("compose_moves", "select_early"))
    assert kinds(after) == wanted
    assert_same(graph, after, rel=0)
