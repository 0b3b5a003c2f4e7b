"""Numbers between Fourier transforms, as orthonormal ones have them."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Div, Exp, Mul, Relu
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.ops.signal import DFT

from .graphs import apply, assert_same, kinds, make, optimised

SHAPE = (2, 4, 6, 2)


def axis(number: int) -> list[np.ndarray | None]:
    return [None, np.array(number, np.int64)]


def orthonormal(g: Graph, x: Value, op: Div | Mul, *, viewed: bool = False) -> Value:
    """Transform two axes of what a network has computed, each divided by the root of its length."""
    x = apply(g, Relu(), x)
    x = apply(g, Reshape(), x, np.array([2, 4, 2, 3, 2])) if viewed else x
    y = apply(g, DFT(), x, *axis(2))
    y = apply(g, op, y, np.array(0.6, np.float32))
    return apply(g, Exp(), apply(g, op, apply(g, DFT(), y, *axis(1)), np.full(1, 0.3, np.float32)))


@pytest.mark.parametrize("viewed", [False, True])
@pytest.mark.parametrize("op", [Mul(), Div()], ids=["Mul", "Div"])
def test_a_number_scales_what_is_transformed(op: Div | Mul, viewed: bool) -> None:
    graph = make(lambda g, x: orthonormal(g, x, op, viewed=viewed), SHAPE)
    after, log = optimised(graph)
    assert log.counts["fold_affine"] == 1
    (first, second) = (node for node in after.nodes if node.kind == "DFT")
    assert second.inputs[0] is first.output
    assert_same(graph, after, rel=1e-5)


def inverted(g: Graph, x: Value) -> Value:
    """A number that the spectrum divides."""
    y = apply(g, DFT(), apply(g, Relu(), x), *axis(2))
    return apply(g, DFT(), apply(g, Div(), np.array(0.6, np.float32), y), *axis(1))


def of_rows(g: Graph, x: Value) -> Value:
    """The spectrum of what no elementwise node computes, where the number would stay alone."""
    y = apply(g, DFT(), apply(g, Softmax(axis=2), x), *axis(2))
    return apply(g, DFT(), apply(g, Mul(), y, np.array(0.6, np.float32)), *axis(1))


@pytest.mark.parametrize("build", [inverted, of_rows])
def test_others_stay(build) -> None:
    after, log = optimised(make(build, SHAPE))
    assert "fold_affine" not in log.counts
    assert kinds(after).count("DFT") == 2
