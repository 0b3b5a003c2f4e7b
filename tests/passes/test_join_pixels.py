"""Pixels of several images are joined as rows, as convolutions store them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu, Sigmoid
from tercet.runtime.ops.movement import Concat, Transpose
from tercet.runtime.ops.shape import Flatten, Reshape
from tercet.runtime.passes.images import join_pixels

from .graphs import apply, assert_same, make, normal, passed

SHAPE = (2, 4, 6, 8)


def levels(g: Graph, x: Value, *, how: str = "") -> Value:
    """Two levels of a detector, of 6 · 8 and 3 · 4 pixels with 5 channels."""
    first = apply(g, Conv(), x, normal(5, 4, 1, 1))
    second = apply(g, Conv(strides=(2, 2)), x, normal(5, 4, 2, 2))
    images = [apply(g, Relu(), first), second]
    if how == "input":
        images[0] = g.inputs[0]
        images[1] = apply(g, Conv(strides=(2, 2)), x, normal(4, 4, 2, 2))
    if how == "flattened":  # to [2, 1, channels and pixels]
        rows = [apply(g, Reshape(), image, np.array([2, 1, -1])) for image in images]
    else:
        sizes = (48, 12)
        rows = [
            apply(g, Reshape(), image, np.array([2, -1, n]))
            for image, n in zip(images, sizes, strict=True)
        ]
    if how == "read again":
        return apply(g, Concat(axis=2), *rows, apply(g, Sigmoid(), rows[0]))
    return apply(g, Sigmoid(), apply(g, Concat(axis=-1), *rows))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_levels_of_a_detector(precision: Literal["float16", "bfloat16"]) -> None:
    graph = make(levels, SHAPE)
    after, said = passed(graph, join_pixels.run, precision)
    assert len(said) == 1
    perms = [node.op.perm for node in after.nodes if isinstance(node.op, Transpose)]
    assert perms == [(0, 2, 3, 1), (0, 2, 3, 1), (0, 2, 1)]
    assert [node.op.axis for node in after.nodes if isinstance(node.op, Concat)] == [1]
    assert_same(graph, after)


@pytest.mark.parametrize("how", ["input", "flattened", "read again"])
def test_what_is_joined_as_it_is(how: str) -> None:
    """Where something is in C order in any case, or stays so for others that read it."""
    graph = make(lambda g, x: levels(g, x, how=how), SHAPE)
    assert passed(graph, join_pixels.run, "float16")[1] == []


def test_images_of_float32_may_be_in_c_order() -> None:
    assert passed(make(levels, SHAPE), join_pixels.run, "float32")[1] == []


def test_vectors_are_no_images() -> None:
    def build(g: Graph, x: Value) -> Value:
        rows = [apply(g, Flatten(axis=3), apply(g, op, x)) for op in (Relu(), Sigmoid())]
        return apply(g, Concat(axis=1), *rows)

    assert passed(make(build, SHAPE), join_pixels.run, "float16")[1] == []
