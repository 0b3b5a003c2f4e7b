"""Numbers between Fourier transforms, as orthonormal ones have them."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Div, Exp, Mul, Relu, Sub
from tercet.runtime.ops.movement import Concat, Slice
from tercet.runtime.ops.norm import LayerNormalization, Softmax
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze
from tercet.runtime.ops.signal import DFT
from tercet.runtime.passes.norms import fold_affine

from .graphs import apply, assert_same, kinds, make, normal, optimised, passed

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


@pytest.mark.parametrize("op", [Mul(), Div()], ids=["Mul", "Div"])
def test_a_norm_and_a_filter_take_over_numbers_around_transforms(op: Div | Mul) -> None:
    """Orthonormal transforms of two axes, weights of their coefficients, and back (GFNet)."""
    shape = (2, 4, 6, 3)

    def parts(g: Graph, x: Value) -> list[Value]:
        ends = [(np.array([i]), np.array([i + 1]), np.array([4])) for i in range(2)]
        return [apply(g, Slice(), x, *each) for each in ends]

    def build(g: Graph, x: Value) -> Value:
        number = np.array(0.5, np.float32)
        y = apply(g, LayerNormalization(), x, normal(3), normal(3))
        y = apply(g, op, apply(g, Unsqueeze(), y, np.array([4])), number)
        y = apply(g, DFT(), apply(g, op, apply(g, DFT(), y, *axis(2)), number), *axis(1))
        real, imaginary = parts(g, y)
        a, b = normal(4, 6, 3, 1), normal(4, 6, 3, 1)
        terms = [apply(g, Mul(), *each) for each in ((real, a), (imaginary, b))]
        more = [apply(g, Mul(), *each) for each in ((real, b), (imaginary, a))]
        y = apply(g, Concat(axis=4), apply(g, Sub(), *terms), apply(g, Add(), *more))
        for place in (1, 2):
            y = apply(g, op, apply(g, DFT(inverse=1), y, *axis(place)), number)
        real, _ = parts(g, y)
        return apply(g, LayerNormalization(), apply(g, Squeeze(), real, np.array([4])), normal(3))

    graph = make(build, shape)
    after, log = optimised(graph)
    assert log.counts["fold_affine"] > 0
    transforms = [node for node in after.nodes if node.kind == "DFT"]
    beside = [reader.kind for node in transforms for reader in node.output.consumers]
    beside += [node.kind for node in after.nodes if node.output is transforms[0].inputs[0]]
    assert set(beside) == {"DFT", "Slice", "Unsqueeze"}
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


@pytest.mark.parametrize(("scale", "stays"), [(10.0, False), (100.0, True)])
def test_scales_of_a_norm_stay_within_float16(scale: float, stays: bool) -> None:
    def build(g: Graph, x: Value) -> Value:
        given = np.full(3, scale, np.float32), np.zeros(3, np.float32)
        y = apply(g, LayerNormalization(), x, *given)
        y = apply(g, DFT(), apply(g, Unsqueeze(), y, np.array([4])), *axis(2))
        y = apply(g, Mul(), y, np.array(900, np.float32))
        return apply(g, DFT(), y, *axis(1))

    graph = make(build, (2, 4, 6, 3))
    after, log = optimised(graph, precision="float16")
    assert ("fold_affine" not in log.counts) is stays
    assert "fold_affine" in optimised(graph)[1].counts
    assert not [node for node in after.nodes if not any(map(after.is_read, node.outputs))]


def test_any_number_of_transforms_in_a_row() -> None:
    """No recursion is as deep as they are many."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Relu(), x)
        for i in range(1200):
            y = apply(g, DFT(inverse=i % 2), y, *axis(2))
        y = apply(g, Mul(), y, np.array(0.6, np.float32))
        return apply(g, DFT(), y, *axis(1))

    after, said = passed(make(build, SHAPE), fold_affine.run, "float32")
    assert len(said) == 1
    assert [node.kind for node in after.nodes][:2] == ["Relu", "Mul"]
