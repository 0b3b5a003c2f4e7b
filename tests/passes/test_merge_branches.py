"""Layers that read the same tensor and are added become one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Relu, Sub, Where
from tercet.runtime.ops.matmul import Gemm

from .graphs import apply, assert_same, batchnorm, kinds, make, normal, optimised

SHAPE = (2, 6, 9, 8)


@dataclass(frozen=True)
class Branch:
    """A convolution of `SHAPE`.

    Attributes:
        kernel: its size.
        attributes: of the Conv.
        is_normalized: whether a batch-norm follows.
    """

    kernel: tuple[int, int] = (3, 3)
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    is_normalized: bool = True

    def __call__(self, g: Graph, x: Value) -> Value:
        weight = normal(6, 6 // self.attributes.get("group", 1), *self.kernel)
        y = apply(g, Conv(**self.attributes), x, weight, normal(6))
        return batchnorm(g, y, 6) if self.is_normalized else y


THREE = Branch(attributes={"pads": (1, 1, 1, 1)})
ONE = Branch((1, 1))
PAIRS: dict[str, tuple[Branch, Branch]] = {
    "1x1 in 3x3": (THREE, ONE),
    "3x3 and 3x3": (THREE, THREE),
    "groups": (
        Branch(attributes={"pads": (1, 1, 1, 1), "group": 3}),
        Branch((1, 1), {"group": 3}),
    ),
    "depthwise": (
        Branch((5, 5), {"pads": (2, 2, 2, 2), "group": 6}),
        Branch((3, 3), {"pads": (1, 1, 1, 1), "group": 6}),
    ),
    "strides": (
        Branch(attributes={"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        Branch((1, 1), {"strides": (2, 2)}),
    ),
    "1x1 in a dilated kernel": (
        Branch(attributes={"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
        ONE,
    ),
    "rows in 3x3": (THREE, Branch((1, 3), {"pads": (0, 1, 0, 1)})),
    "padding on one side": (
        Branch(attributes={"pads": (2, 2, 0, 0)}),
        Branch((1, 1), is_normalized=False),
    ),
    "VALID": (Branch((2, 2)), Branch((2, 2), {"auto_pad": "VALID"})),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_two_convolutions_become_one(name: str, is_swapped: bool) -> None:
    first, second = PAIRS[name][:: -1 if is_swapped else 1]
    graph = make(lambda g, x: apply(g, Add(), first(g, x), second(g, x)), SHAPE)
    after, _ = optimised(graph)
    assert kinds(after) == ["Conv"]
    assert_same(graph, after)


@pytest.mark.parametrize("group", [1, 2, 6])
def test_a_block_of_three_branches(group: int) -> None:
    """RepVGG's: 3x3, 1x1 and nothing, each with a batch-norm."""

    def build(g: Graph, x: Value) -> Value:
        three = Branch(attributes={"pads": (1, 1, 1, 1), "group": group})(g, x)
        one = Branch((1, 1), {"group": group})(g, x)
        inner = apply(g, Add(), batchnorm(g, x, 6), apply(g, Add(), one, three))
        return apply(g, Relu(), inner)

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert kinds(after) == ["Conv", "Relu"]
    assert_same(graph, after)


@pytest.mark.parametrize("trans", [0, 1])
def test_two_gemms_become_one(trans: int) -> None:
    def build(g: Graph, x: Value) -> Value:
        shape = (5, 4) if trans else (4, 5)
        parts = [apply(g, Gemm(transB=trans), x, normal(*shape), normal(5)) for _ in range(2)]
        return apply(g, Add(), *parts)

    graph = make(build, (3, 4))
    after, _ = optimised(graph)
    assert kinds(after) == ["Gemm"]
    assert_same(graph, after)


OTHERS: dict[str, tuple[Branch, Branch]] = {
    "a row and a column, which would cost more": (
        Branch((1, 3), {"pads": (0, 1, 0, 1)}),
        Branch((3, 1), {"pads": (1, 0, 1, 0)}),
    ),
    "other windows": (
        Branch(attributes={"pads": (1, 1, 1, 1)}),
        Branch(attributes={"pads": (0, 1, 2, 1)}),
    ),
    "other dilations": (
        Branch(attributes={"pads": (1, 1, 1, 1)}),
        Branch(attributes={"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    ),
    "other groups": (THREE, Branch((1, 1), {"group": 2})),
    "padding by the size": (THREE, Branch(attributes={"auto_pad": "SAME_UPPER"})),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    first, second = OTHERS[name]
    graph = make(lambda g, x: apply(g, Add(), first(g, x), second(g, x)), SHAPE)
    after, _ = optimised(graph)
    assert kinds(after) == ["Conv", "Conv", "Add"]
    assert_same(graph, after)


def test_a_branch_with_another_reader_stays() -> None:
    def build(g: Graph, x: Value) -> Value:
        three, one = THREE(g, x), ONE(g, x)
        return apply(g, Add(), apply(g, Add(), three, one), apply(g, Relu(), one))

    graph = make(build, SHAPE)
    after, log = optimised(graph)
    assert kinds(after).count("Conv") == 2
    assert any("reads" in refused.text for refused in log.refused)
    assert_same(graph, after)


def test_branches_of_two_tensors_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        return apply(g, Add(), THREE(g, x), ONE(g, apply(g, Relu(), x)))

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert kinds(after).count("Conv") == 2
    assert_same(graph, after)


def test_weights_that_their_type_cannot_hold_stay_apart() -> None:
    def build(g: Graph, x: Value) -> Value:
        weights = (np.full((6, 6, 1, 1), size, np.float32) for size in (2e38, 3e38))
        return apply(g, Add(), *(apply(g, Conv(), x, weight) for weight in weights))

    after, log = optimised(make(build, SHAPE))
    assert kinds(after) == ["Conv", "Conv", "Add"]
    assert any("beyond float32" in refused.text for refused in log.refused)


@pytest.mark.parametrize("kernel", [(3, 3), (1, 1)])
@pytest.mark.parametrize("group", [1, 6])
def test_a_layer_adds_its_input(kernel: tuple[int, int], group: int) -> None:
    """FastViT's mixer, x + scale * (conv(x) - norm(x)), and a norm of all of it (RepViT)."""

    def build(g: Graph, x: Value) -> Value:
        pads = tuple(side // 2 for side in kernel) * 2
        y = Branch(kernel, {"pads": pads, "group": group})(g, x)
        y = apply(g, Sub(), y, batchnorm(g, x, 6))
        y = apply(g, Add(), x, apply(g, Mul(), y, normal(6, 1, 1)))
        return batchnorm(g, apply(g, Sub(), x, y), 6)

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert kinds(after) == ["Conv"]
    assert_same(graph, after)


def test_other_inputs_are_added_as_they_are() -> None:
    """Of other channels, of other places, or of another tensor."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Add(), x, Branch((1, 1))(g, apply(g, Relu(), x)))
        z = apply(g, Add(), y, Branch(attributes={"pads": (2, 1, 0, 1)})(g, y))
        one = apply(g, Conv(), z, normal(1, 6, 1, 1))
        return apply(g, Add(), z, one)

    graph = make(build, SHAPE)
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "Conv", "Add", "Conv", "Conv", "Add"]
    assert_same(graph, after)


@pytest.mark.parametrize(("fill", "count"), [(-np.inf, 2), (-1e30, 1)])
def test_images_with_constant_infinities_keep_their_branches(fill: float, count: int) -> None:
    """-inf · 2 - inf · -1 is NaN, and -inf · (2 - 1) is not."""

    def build(g: Graph, x: Value) -> Value:
        mask = np.arange(8).reshape(1, 1, 1, 8) < 5
        image = apply(g, Where(), mask, x, np.full(1, fill, np.float32))
        weights = (np.eye(6, dtype=np.float32).reshape(6, 6, 1, 1) * size for size in (2, -1))
        return apply(g, Add(), *(apply(g, Conv(), image, weight) for weight in weights))

    after, log = optimised(make(build, SHAPE))
    assert kinds(after).count("Conv") == count
    assert any("infinities" in refused.text for refused in log.refused) is (count == 2)
