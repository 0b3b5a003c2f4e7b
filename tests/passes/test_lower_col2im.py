"""Col2Im of blocks that do not overlap is a Transpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Col2Im
from tercet.runtime.ops.elementwise import Relu

from .graphs import apply, assert_same, kinds, make, optimised

#: Sizes of images and blocks, and attributes.
TILES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "squares": ((6, 8), (2, 2), {"strides": (2, 2)}),
    "flat": ((6, 8), (3, 1), {"strides": (3, 1)}),
    "volumes": ((4, 2, 6), (2, 2, 3), {"strides": (2, 2, 3)}),
}
OTHERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "overlapping": ((6, 8), (2, 2), {}),
    "padded": ((6, 8), (2, 2), {"strides": (2, 2), "pads": (0, 0, 2, 0)}),
    "dilated": ((5, 7), (2, 2), {"strides": (2, 2), "dilations": (2, 2)}),
    "beside gaps": ((7, 8), (2, 2), {"strides": (2, 2)}),
}


def blocks(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> Graph:
    image, block, how = case
    steps = how.get("strides", (1,) * len(block))
    pads = np.reshape(how.get("pads", (0,) * (2 * len(block))), (2, -1)).sum(0)
    reach = (np.array(block) - 1) * how.get("dilations", (1,) * len(block)) + 1
    counts = (np.array(image) + pads - reach) // steps + 1

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Col2Im(**how), x, np.array(image), np.array(block))
        return apply(g, Relu(), y)

    return make(build, (2, 3 * int(np.prod(block)), int(counts.prod())))


@pytest.mark.parametrize("name", TILES)
def test_blocks_side_by_side(name: str) -> None:
    graph = blocks(TILES[name])
    after, _ = optimised(graph)
    assert "Col2Im" not in kinds(after)
    assert_same(graph, after, rel=0)


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    graph = blocks(OTHERS[name])
    after, _ = optimised(graph)
    assert "Col2Im" in kinds(after)
    assert_same(graph, after)
