"""Concats of part of an image and of others, which layers read: part of those of all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Relu
from tercet.runtime.ops.movement import Concat, Slice, Split
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.options import Precision
from tercet.runtime.passes.images import join_whole

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised, passed

SHAPE = (2, 8, 5, 4)


def conv(g: Graph, x: Value, channels: int, filters: int, size: int = 1, group: int = 1) -> Value:
    w = normal(filters, channels // group, size, size)
    return apply(g, Conv(group=group, pads=(size // 2,) * 4), x, w, normal(filters))


def split(g: Graph, x: Value, *sizes: int) -> Sequence[Value]:
    return g.insert(
        Split(axis=1, num_outputs=len(sizes)), [x, g.constant(np.array(sizes))], len(sizes)
    ).outputs


def partial(g: Graph, x: Value) -> Value:
    """As in FasterNet: the first channels are computed anew."""
    x = conv(g, x, 8, 32)
    first, rest = split(g, x, 8, 24)
    y = apply(g, Concat(axis=1), conv(g, first, 8, 8, 3), rest)
    return apply(g, Add(), conv(g, apply(g, Relu(), conv(g, y, 32, 48)), 48, 32), x)


def inception(g: Graph, x: Value) -> Value:
    """As in InceptionNeXt: the first channels are kept, the others have windows of their own."""
    x = conv(g, x, 8, 32)
    kept, *parts = split(g, x, 8, 16, 8)
    made = [conv(g, part, n, n, 3, group=n) for part, n in zip(parts, (16, 8), strict=True)]
    return apply(g, Add(), conv(g, apply(g, Concat(axis=1), kept, *made), 32, 32), x)


def activated(g: Graph, x: Value) -> Value:
    """As in SHViT: with an activation, and two layers."""
    x = conv(g, x, 8, 32)
    first, rest = (
        apply(g, Slice(), x, *(np.array([n]) for n in (begin, begin + 16, 1))) for begin in (0, 16)
    )
    y = apply(g, Relu(), apply(g, Concat(axis=1), rest, conv(g, first, 16, 16, 3)))
    return apply(g, Add(), apply(g, Mul(), conv(g, y, 32, 32), conv(g, y, 32, 32)), x)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("build", [partial, inception, activated])
def test_results(build: Build, precision: Precision) -> None:
    before = make(build, SHAPE)
    after, said = passed(before, join_whole.run, precision)
    assert len(said) == 1
    (concat,) = (node for node in after.nodes if isinstance(node.op, Concat))
    images = [value for value in concat.operands if value.tensor.dims[1] == 32]
    assert len(images) == 1
    assert any(isinstance(node.op, Add) for node in images[0].consumers)
    (part,) = concat.output.consumers
    assert isinstance(part.op, Slice)
    assert part.output.tensor.dims[1] == 32
    assert_same(before, after)


def test_all_passes() -> None:
    before = make(partial, SHAPE)
    after, log = optimised(before)
    assert log.counts["join_whole"] == 1
    assert kinds(after).count("Concat") == 1
    assert_same(before, after)


def odd(g: Graph, x: Value) -> Value:
    """A part that does not begin at a word is copied in any case."""
    x = conv(g, x, 8, 32)
    first, rest = split(g, x, 6, 26)
    y = apply(g, Concat(axis=1), conv(g, first, 6, 6, 3), rest)
    return apply(g, Add(), conv(g, y, 32, 32), x)


def middle(g: Graph, x: Value) -> Value:
    """What is kept has computed channels on both sides."""
    x = conv(g, x, 8, 32)
    first, kept, last = split(g, x, 8, 16, 8)
    y = apply(g, Concat(axis=1), conv(g, first, 8, 8, 3), kept, conv(g, last, 8, 8, 3))
    return apply(g, Add(), conv(g, y, 32, 32), x)


def every_other(g: Graph, x: Value) -> Value:
    """Channels that are not next to one another are copied in any case (ShuffleNetV2)."""
    x = conv(g, x, 8, 32)
    kept, other = (
        apply(g, Slice(), x, *(np.array([n]) for n in (begin, 32, 1, 2))) for begin in (0, 1)
    )
    y = apply(g, Concat(axis=1), kept, conv(g, other, 16, 16, 3))
    return apply(g, Add(), conv(g, y, 32, 32), x)


def both_parts(g: Graph, x: Value) -> Value:
    """As in YOLO's C2f: all parts are joined again, next to one another."""
    parts = split(g, conv(g, x, 8, 32), 16, 16)
    return conv(g, apply(g, Concat(axis=1), *parts, conv(g, parts[1], 16, 16, 3)), 48, 32)


def read_in_order(g: Graph, x: Value) -> Value:
    """A mean of channels, beside a layer."""
    x = conv(g, x, 8, 32)
    first, rest = split(g, x, 8, 24)
    y = apply(g, Concat(axis=1), conv(g, first, 8, 8, 3), rest)
    return apply(g, Add(), conv(g, y, 32, 32), apply(g, Mul(), x, y))


def depthwise(g: Graph, x: Value) -> Value:
    """One filter for each channel keeps their order."""
    x = conv(g, x, 8, 32)
    first, rest = split(g, x, 8, 24)
    y = apply(g, Concat(axis=1), conv(g, first, 8, 8, 3), rest)
    return apply(g, Add(), conv(g, y, 32, 32, 3, group=32), x)


def reduced(g: Graph, x: Value) -> Value:
    """The image has a reader that may not take it from within another one."""
    x = conv(g, x, 8, 32)
    first, rest = split(g, x, 8, 24)
    y = conv(g, apply(g, Concat(axis=1), conv(g, first, 8, 8, 3), rest), 32, 32)
    return apply(g, Add(), y, apply(g, ReduceMean(keepdims=1), x, np.array([2, 3])))


@pytest.mark.parametrize(
    "build", [odd, middle, every_other, both_parts, read_in_order, depthwise, reduced]
)
def test_stays(build: Build) -> None:
    before = make(build, SHAPE)
    _, said = passed(before, join_whole.run, "float32")
    assert not said


@pytest.mark.parametrize("shape", [("batch", 8, 5, 4), (32, 8, 56, 56)])
def test_large_copies_stay(shape: tuple[Dim, ...]) -> None:
    """Also of an unknown number of samples."""
    _, said = passed(make(partial, shape), join_whole.run, "float16")
    assert not said


def test_result_of_the_graph() -> None:
    before = make(partial, SHAPE)
    (image,) = (v for node in before.nodes for v in node.inputs[:1] if isinstance(node.op, Split))
    assert image is not None
    before.set_outputs({**before.outputs, "x": image})
    _, said = passed(before, join_whole.run, "float16")
    assert not said


def test_one_place() -> None:
    """An image of which two Concats join parts is in one of them."""

    def build(g: Graph, x: Value) -> Value:
        x = conv(g, x, 8, 32)
        first, rest = split(g, x, 16, 16)
        joined = [
            apply(g, Concat(axis=1), conv(g, first, 16, 8, 3), each) for each in (rest, first)
        ]
        return apply(g, Add(), *(conv(g, each, 24, 32) for each in joined))

    before = make(build, SHAPE)
    after, said = passed(before, join_whole.run, "float16")
    assert len(said) == 1
    assert_same(before, after)
