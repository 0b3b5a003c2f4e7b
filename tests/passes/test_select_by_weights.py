"""Convolutions of selected channels: their weights select them, the rest is selected once."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Concat, Split, Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.passes import SYMBOLIC_PASSES
from tercet.runtime.passes.driver import Pass
from tercet.runtime.passes.images import select_by_weights, unshuffle

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised, passed

SHAPE = (2, 12, 5, 4)
PASSES: tuple[Pass, ...] = tuple(
    each
    for each in SYMBOLIC_PASSES
    if each.name in ("unshuffle", "select_by_weights", "fold_constants", "remove_dead")
)


def conv(g: Graph, x: Value, channels: int, filters: int, size: int = 1, group: int = 1) -> Value:
    w = normal(filters, channels // group, size, size)
    return apply(g, Conv(group=group, pads=(size // 2,) * 4), x, w, normal(filters))


def shuffled(g: Graph, x: Value) -> Value:
    """ShuffleNet's shuffle of two groups, as exporters write it."""
    n, c, h, w = SHAPE
    cut = apply(g, Reshape(), x, np.array([n, 2, c // 2, h, w]))
    transposed = apply(g, Transpose(perm=(0, 2, 1, 3, 4)), cut)
    return apply(g, Reshape(), transposed, np.array(SHAPE))


def halves(g: Graph, x: Value) -> tuple[Value, Value]:
    first, last = g.insert(Split(axis=1, num_outputs=2), [x], 2).outputs
    return first, last


def unit(g: Graph, x: Value) -> Value:
    """A unit of ShuffleNetV2: half of the shuffled channels go past three layers."""
    kept, y = halves(g, shuffled(g, apply(g, Relu(), x)))
    y = conv(g, apply(g, Relu(), conv(g, y, 6, 6)), 6, 6, 3, group=6)
    return apply(g, Concat(axis=1), kept, conv(g, y, 6, 6))


def two_units(g: Graph, x: Value) -> Value:
    return conv(g, shuffled(g, unit(g, unit(g, x))), 12, 8)


def downsampled(g: Graph, x: Value) -> Value:
    """All shuffled channels are read by filters of one channel each, and by single pixels."""
    x = shuffled(g, apply(g, Relu(), x))
    beside = conv(g, conv(g, x, 12, 12, 3, group=12), 12, 8)
    return apply(g, Concat(axis=1), beside, conv(g, x, 12, 8))


def windows(g: Graph, x: Value) -> Value:
    """All channels in another order cost nothing, whatever the window."""
    return conv(g, shuffled(g, apply(g, Relu(), x)), 12, 8, 3)


def every_other(g: Graph, x: Value) -> Value:
    """Halves of shuffled channels that a Gather of one index picks, as some exporters write it."""
    n, c, h, w = SHAPE
    cut = apply(g, Reshape(), apply(g, Relu(), x), np.array([n, c // 2, 2, h, w]))
    swapped = apply(g, Transpose(perm=(2, 0, 1, 3, 4)), cut)
    kept, y = (apply(g, Gather(axis=0), swapped, np.array(i)) for i in range(2))
    return apply(g, Concat(axis=1), kept, conv(g, y, 6, 6))


def repeated(g: Graph, x: Value) -> Value:
    """A channel that is selected twice has the sum of two weights."""
    picked = apply(g, Gather(axis=1), x, np.array([3, -1, 3, 0, 5, 8]))
    return conv(g, picked, 6, 8)


@pytest.mark.parametrize(
    ("build", "gathers"),
    [(unit, 1), (two_units, 2), (downsampled, 0), (windows, 0), (every_other, 1), (repeated, 0)],
)
def test_results(build: Build, gathers: int) -> None:
    before = make(build, SHAPE)
    after, _ = optimised(before, PASSES)
    found = kinds(after)
    assert found.count("Gather") + found.count("Slice") == gathers
    assert not {"Split", "Transpose"} & set(found)
    assert_same(before, after)


def megvii(g: Graph, x: Value) -> Value:
    """A unit as in the code of ShuffleNetV2's authors, which joins samples and channels."""
    n, c, h, w = SHAPE
    pairs = apply(g, Reshape(), conv(g, x, 12, 12), np.array([n * c // 2, 2, h * w]))
    swapped = apply(g, Transpose(perm=(1, 0, 2)), pairs)
    halves = apply(g, Reshape(), swapped, np.array([2, n, c // 2, h, w]))
    kept, y = (apply(g, Gather(axis=0), halves, np.array(i)) for i in range(2))
    return conv(g, apply(g, Concat(axis=1), kept, conv(g, y, 6, 6)), 12, 8)


@pytest.mark.parametrize("build", [two_units, downsampled, megvii])
def test_all_passes(build: Build) -> None:
    before = make(build, SHAPE)
    after, log = optimised(before)
    assert log.counts["select_by_weights"]
    assert "Transpose" not in kinds(after)
    assert_same(before, after)


def few(g: Graph, x: Value) -> Value:
    """Five of twelve channels."""
    picked = apply(g, Gather(axis=1), x, np.array([3, 1, 7, 0, 5]))
    return conv(g, picked, 5, 8)


def wide(g: Graph, x: Value) -> Value:
    """A window of half of the channels would be twice the work."""
    return conv(g, halves(g, shuffled(g, x))[1], 6, 8, 3)


def depthwise(g: Graph, x: Value) -> Value:
    """Behind a layer of one filter per channel, a selection is a copy unless a layer reads it."""
    return apply(g, Relu(), conv(g, shuffled(g, x), 12, 12, 3, group=12))


def added(g: Graph, x: Value) -> Value:
    """What reads all selected channels as they are needs the copy."""
    picked = shuffled(g, x)
    return apply(g, Add(), conv(g, picked, 12, 12), picked)


@pytest.mark.parametrize("build", [few, wide, depthwise, added])
def test_stays(build: Build) -> None:
    before, _ = passed(make(build, SHAPE), unshuffle.run, "float32")
    _, said = passed(before, select_by_weights.run, "float32")
    assert not said
