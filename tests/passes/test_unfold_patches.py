"""Convolutions of patches become products where rows of their results are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised


def network(
    *,
    shape: tuple[Dim, ...] = (2, 3, 8, 12),
    kernel: tuple[int, int] = (4, 3),
    bias: bool = True,
    group: int = 1,
    order: tuple[int, ...] = (0, 2, 1),
    between: bool = False,
    **attributes: Any,
) -> Graph:
    """Return a convolution whose result is brought into rows."""

    def build(graph: Graph, x: Value) -> Value:
        op = Conv(**{"strides": kernel, "group": group, **attributes})
        weights = normal(6, 3 // group, *kernel)
        y = apply(graph, op, x, weights, *([normal(6)] if bias else []))
        if between:
            y = apply(graph, Relu(), y)
        y = apply(graph, Reshape(), y, np.array([0, 6, -1]))
        return apply(graph, Transpose(perm=order), y)

    return make(build, shape)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 8, 12), ("batch", 3, 8, 12)])
def test_a_product_of_patches(shape: tuple[Dim, ...], bias: bool) -> None:
    graph = network(shape=shape, bias=bias)
    after, log = optimised(graph)
    assert log.counts["unfold_patches"] == 1
    wanted = ["Reshape", "Transpose", "Reshape", "MatMul", *(["Add"] if bias else [])]
    assert kinds(after) == wanted
    assert_same(graph, after, 2, 3, 8, 12)


@pytest.mark.parametrize("bias", [True, False])
def test_frames_of_a_video(bias: bool) -> None:
    """Rows of patches are those of the frames of several samples (TimeSformer, ViViT)."""

    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Reshape(), x, np.array([6, 3, 8, 12]))
        op, rest = Conv(strides=(4, 3)), [normal(6)] if bias else []
        y = apply(graph, op, y, normal(6, 3, 4, 3), *rest)
        y = apply(graph, Reshape(), y, np.array([2, 3, 6, 8]))
        return apply(graph, Transpose(perm=(0, 1, 3, 2)), y)

    graph = make(build, (2, 3, 3, 8, 12))
    after, log = optimised(graph)
    assert log.counts["unfold_patches"] == 1
    assert "Conv" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize(("shape", "kernel"), [((2, 3, 12), (4,)), ((2, 3, 4, 6, 9), (2, 3, 3))])
def test_patches_of_lines_and_volumes(shape: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    """A result of three axes needs no Reshape before its Transpose."""

    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Conv(strides=kernel), x, normal(6, 3, *kernel), normal(6))
        if len(kernel) > 1:
            y = apply(graph, Reshape(), y, np.array([0, 6, -1]))
        return apply(graph, Transpose(perm=(0, 2, 1)), y)

    graph = make(build, shape)
    after, log = optimised(graph)
    assert log.counts["unfold_patches"] == 1
    assert kinds(after) == ["Reshape", "Transpose", "Reshape", "MatMul", "Add"]
    assert_same(graph, after, *shape)


@pytest.mark.parametrize(
    "different",
    [
        {"strides": (3, 3)},
        {"pads": (0, 0, 4, 0)},
        {"dilations": (2, 1)},
        {"group": 3},
        {"shape": (2, 3, 9, 12)},
        {"shape": (2, 3, 8, "width")},
        {"kernel": (1, 1)},
        {"order": (1, 0, 2)},
        {"between": True},
    ],
    ids=str,
)
def test_what_stays(different: dict[str, Any]) -> None:
    after, log = optimised(network(**different))
    assert "unfold_patches" not in log.counts
    assert "Conv" in kinds(after)
