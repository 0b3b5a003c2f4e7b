"""An average over one window of all pixels is one over the image."""

from __future__ import annotations

import pytest

from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.pool import AveragePool
from tercet.runtime.passes import STATIC_PASSES, SYMBOLIC_PASSES
from tercet.runtime.passes.driver import Pass

from .graphs import apply, assert_same, kinds, make, optimised

SHAPE = (2, 6, 5, 3)
WHOLE = AveragePool(kernel_shape=(5, 3))


@pytest.mark.parametrize(
    "pool",
    [
        WHOLE,
        AveragePool(kernel_shape=(5, 3), strides=(5, 3), count_include_pad=1),
        AveragePool(kernel_shape=(5, 3), pads=(0, 0, 0, 0), ceil_mode=1),
        AveragePool(kernel_shape=(5, 3), auto_pad="VALID"),
        AveragePool(kernel_shape=(7, 4), pads=(1, 0, 1, 1)),
        AveragePool(kernel_shape=(6, 4), strides=(2, 2), pads=(0, 0, 1, 1)),
    ],
    ids=["plain", "steps", "no pads", "valid", "pads", "pads behind"],
)
@pytest.mark.parametrize("shape", [SHAPE, ("batch", 6, 5, 3)], ids=str)
def test_windows_of_all_pixels(pool: AveragePool, shape: tuple[Dim, ...]) -> None:
    graph = make(lambda g, x: apply(g, pool, x), shape)
    after, log = optimised(graph)
    assert log.counts["pool_globally"] == 1
    assert kinds(after) == ["GlobalAveragePool"]
    assert_same(graph, after, *SHAPE)


@pytest.mark.parametrize("passes", [SYMBOLIC_PASSES, STATIC_PASSES], ids=["symbolic", "static"])
def test_volumes(passes: tuple[Pass, ...]) -> None:
    graph = make(lambda g, x: apply(g, AveragePool(kernel_shape=(4, 5, 3)), x), (2, 3, 4, 5, 3))
    after, _ = optimised(graph, passes)
    assert kinds(after) == ["GlobalAveragePool"]
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (AveragePool(kernel_shape=(5, 2)), SHAPE),
        (AveragePool(kernel_shape=(5, 3), pads=(1, 0, 0, 0), count_include_pad=1), SHAPE),
        (AveragePool(kernel_shape=(5, 3), pads=(2, 1, 2, 1), strides=(1, 1)), SHAPE),
        (AveragePool(kernel_shape=(5, 3), auto_pad="SAME_UPPER"), SHAPE),
        (AveragePool(kernel_shape=(3, 2), dilations=(2, 2)), SHAPE),
        (WHOLE, (2, 6, "height", 3)),
    ],
    ids=["columns", "counted", "pads", "around", "dilated", "unknown"],
)
def test_others_stay(pool: AveragePool, shape: tuple[Dim, ...]) -> None:
    graph = make(lambda g, x: apply(g, pool, x), shape)
    after, log = optimised(graph)
    assert "pool_globally" not in log.counts
    assert kinds(after) == ["AveragePool"]
    assert_same(graph, after, *SHAPE)
