"""Shuffles of channels become the choice of channels that they are."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes import STATIC_PASSES

from .graphs import apply, assert_same, kinds, make, optimised

N, C, H, W = SHAPE = (2, 12, 3, 5)


def reshaped(graph: Graph, x: Value, *dims: int) -> Value:
    return apply(graph, Reshape(), x, np.array(dims, np.int64))


def transposed(graph: Graph, x: Value, cut: tuple[int, ...], *perm: int) -> Value:
    return apply(graph, Transpose(perm=perm), reshaped(graph, x, *cut))


def shuffle(groups: int) -> Graph:
    """The shuffle of ShuffleNet."""

    def build(graph: Graph, x: Value) -> Value:
        cut = (N, groups, C // groups, H, W)
        return reshaped(graph, transposed(graph, x, cut, 0, 2, 1, 3, 4), *SHAPE)

    return make(build, SHAPE)


def half(which: int) -> Graph:
    """A half of the channels as ShuffleNet v2 takes it: every other one."""

    def build(graph: Graph, x: Value) -> Value:
        parts = transposed(graph, x, (N * C // 2, 2, H * W), 1, 0, 2)
        parts = reshaped(graph, parts, 2, -1, C // 2, H, W)
        return apply(graph, Gather(), parts, np.array(which))

    return make(build, SHAPE)


def unshuffled(graph: Graph) -> Graph:
    copy, _ = optimised(graph, STATIC_PASSES)
    return copy


@pytest.mark.parametrize("groups", [2, 3, 4, 6])
def test_a_shuffle_is_a_gather(groups: int) -> None:
    after = unshuffled(shuffle(groups))
    assert kinds(after) == ["Gather"]
    assert after.nodes[0].origin == tuple(node.name for node in shuffle(groups).nodes)
    assert_same(shuffle(groups), after, rel=0)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_half_of_it_is_a_slice(which: int) -> None:
    after = unshuffled(half(which))
    assert kinds(after) == ["Slice"]
    assert_same(half(which), after, rel=0)


def test_what_reads_the_shuffled_still_does() -> None:
    def build(graph: Graph, x: Value) -> Value:
        once = transposed(graph, x, (N, 3, 4, H, W), 0, 2, 1, 3, 4)
        graph.set_outputs({"raw": once})
        return apply(graph, Relu(), reshaped(graph, once, *SHAPE))

    graph = make(build, SHAPE)
    assert kinds(unshuffled(graph)) == ["Gather", "Relu"]


OTHERS = {
    "pixels move": ((N, C, H * W), (0, 2, 1), SHAPE),
    "images move": ((N, 3, 4, H, W), (1, 0, 2, 3, 4), SHAPE),
    "images and channels": ((2, N * C // 2, H, W), (1, 0, 2, 3), SHAPE),
    "nothing moves": ((N, C, 1, H, W), (0, 1, 2, 3, 4), SHAPE),
    "another shape": ((N, 3, 4, H, W), (0, 2, 1, 3, 4), (N, C, H * W)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_stays(name: str) -> None:
    cut, perm, back = OTHERS[name]
    graph = make(lambda graph, x: reshaped(graph, transposed(graph, x, cut, *perm), *back), SHAPE)
    assert not {"Gather", "Slice"} & set(kinds(unshuffled(graph)))
    assert_same(graph, unshuffled(graph), rel=0)
