"""Transposes and views of images that lie in memory as they are read: they need not run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.backends.numpy import NumpyBackend
from tercet.runtime.ir.dtypes import int64
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape

from .fakes import FakeBackend, FakeDevice
from .nets import Net

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def turned(net: Net, x: Value, perm: tuple[int, ...]) -> Value:
    value: Value = net.add(Transpose(perm=perm), x)
    return value


def rectified(net: Net, x: Value) -> Value:
    value: Value = net.add(Relu(), x)
    return value


def in_rows(net: Net, x: Value, *shape: int) -> Value:
    value: Value = net.add(Reshape(), x, net.graph.constant(np.array(shape, int64), ""))
    return value


def at_once(net: Net) -> Value:
    return turned(net, net.conv(turned(net, net.x, NCHW), 8), NHWC)


def before_what_takes_any_format(net: Net) -> Value:
    return net.conv(rectified(net, turned(net, net.x, NCHW)), 8)


def behind_what_takes_any_format(net: Net) -> Value:
    return turned(net, rectified(net, net.conv(turned(net, net.x, NCHW), 8)), NHWC)


def behind_a_sum(net: Net) -> Value:
    x = turned(net, net.x, NCHW)
    return turned(net, net.add(Add(), net.conv(x, 4), rectified(net, x)), NHWC)


def of_another_order(net: Net) -> Value:
    return net.conv(turned(net, net.x, (0, 3, 2, 1)), 8)


def of_joined_pixels(net: Net) -> Value:
    image = net.conv(turned(net, net.x, NCHW), 8)
    return turned(net, in_rows(net, image, 2, 8, 15), (0, 2, 1))


def of_other_channels(net: Net) -> Value:
    image = net.conv(turned(net, net.x, NCHW), 8)
    return turned(net, in_rows(net, image, 2, 4, 30), (0, 2, 1))


def behind_a_sum_of_both_formats(net: Net) -> Value:
    """Which format a sum has is open: its reader decides."""
    both = net.add(Add(), rectified(net, net.x), net.conv(net.x, 3))
    return turned(net, both, NHWC)


def for_the_result(net: Net) -> Value:
    return turned(net, net.x, NCHW)


#: The kinds of rows of the moves, and how many reformats and steps there are beside them.
CASES: list[tuple[Callable[[Net], Value], list[str], int]] = [
    (at_once, ["view", "view"], 0),
    (before_what_takes_any_format, ["view"], 1),
    (behind_what_takes_any_format, ["view", "view"], 0),
    (behind_a_sum, ["view", "view"], 0),
    (of_another_order, ["step"], 2),
    (of_joined_pixels, ["view", "view", "view"], 0),
    (of_other_channels, ["view", "view", "step"], 1),
    (behind_a_sum_of_both_formats, ["view"], 2),
    (for_the_result, ["step"], 0),
]


@pytest.mark.parametrize(("make", "kinds", "reformats"), CASES)
def test_moves_of_the_same_bytes_do_not_run(
    make: Callable[[Net], Value], kinds: list[str], reformats: int
) -> None:
    net, device = Net(2, 3, 5, 4), FakeDevice()
    outputs = {"y": make(net)}
    model = net.model(FakeBackend(device), **outputs)
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 4), np.float32)
    want = net.model(NumpyBackend(), **outputs).run({"x": x})["y"]
    np.testing.assert_allclose(model.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)
    moves = [r.kind for r in model.placement() if r.operators in ("Transpose", "Reshape")]
    assert moves == kinds
    assert sum(row.kind == "reformat" for row in model.placement()) == reformats
