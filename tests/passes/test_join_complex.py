"""Products of complex numbers and quaternions, written as products of their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from cProfile import Profile

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Clip, Mul, Neg, Relu, Sub, Tanh
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import Einsum, Gemm, MatMul
from tercet.runtime.ops.movement import Concat, Slice, Split
from tercet.runtime.ops.shape import Unsqueeze
from tercet.runtime.passes.stacks import join_complex

from .graphs import apply, assert_same, kinds, make, normal, optimised, passed

Layer = Callable[[Graph, Value], Value]


def places(g: Graph, x: Value, axis: int = -1) -> list[Value]:
    """Return the real and imaginary parts that an axis tells apart."""
    return [apply(g, Gather(axis=axis), x, np.array(i)) for i in range(2)]


def halves(g: Graph, x: Value, axis: int, number: int = 2) -> list[Value]:
    parts = g.insert(Split(axis=axis, num_outputs=number), [x], number).outputs
    infer(g)
    return list(parts)


def multiplied(g: Graph, parts: Sequence[Value], layers: Sequence[Layer]) -> list[Value]:
    """Return real and imaginary parts of a product; `layers` are those of the constant."""
    (a, b), (re, im) = parts, layers
    real = apply(g, Sub(), re(g, a), im(g, b))
    return [real, apply(g, Add(), re(g, b), im(g, a))]


def einsums(equation: str, *shape: int) -> list[Layer]:
    given = normal(*shape), normal(*shape)
    return [lambda g, x, w=w: apply(g, Einsum(equation=equation), x, w) for w in given]


def stacked(g: Graph, parts: Sequence[Value], axis: int = -1) -> Value:
    found = [apply(g, Unsqueeze(), part, np.array([axis])) for part in parts]
    return apply(g, Concat(axis=axis), *found)


def check(graph: Graph, *shape: int, products: int, gone: Sequence[str] = ()) -> None:
    after, _ = optimised(graph)
    found = kinds(after)
    counted = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum")
    assert sum(kind in counted for kind in found) == products
    assert not {*gone} & {*found}
    assert_same(graph, after, *shape)


@pytest.mark.parametrize("equation", ["bixy,ioxy->boxy", "bixy,io->boxy", "...xy,yo->...xo"])
def test_modes_of_a_spectrum(equation: str) -> None:
    """The layer of a Fourier neural operator."""
    sizes = {"i": 6, "o": 4, "x": 3, "y": 5}
    weights = [sizes[x] for x in equation.split(",")[1].split("-")[0]]

    def build(g: Graph, x: Value) -> Value:
        return stacked(g, multiplied(g, places(g, x), einsums(equation, *weights)))

    check(make(build, (2, 6, 3, 5, 2)), 2, 6, 3, 5, 2, products=1, gone=("Concat", "Sub", "Gather"))


@pytest.mark.parametrize("activation", [Relu, Tanh, None])
def test_two_layers_of_parts(activation: type[Relu | Tanh] | None) -> None:
    """Blocks of channels, with biases and an activation between (AFNO)."""

    def build(g: Graph, x: Value) -> Value:
        parts = places(g, x)
        for last in (False, True):
            parts = multiplied(g, parts, einsums("...bi,bio->...bo", 3, 4, 4))
            parts = [apply(g, Add(), part, normal(3, 4)) for part in parts]
            if activation is not None and not last:
                parts = [apply(g, activation(), part) for part in parts]
        return stacked(g, parts)

    check(make(build, (2, 5, 3, 4, 2)), 2, 5, 3, 4, 2, products=2, gone=("Sub", "Concat", "Split"))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_layers_of_two_tensors(rank: int, bias: bool) -> None:
    """A complex linear layer of parts that are computed apart; both are results."""

    def layer(width: int) -> Layer:
        weight, constant = normal(6, width), normal(width)
        if rank == 2 and bias:
            return lambda g, x: apply(g, Gemm(), x, weight, constant)
        if bias:
            return lambda g, x: apply(g, Add(), apply(g, MatMul(), x, weight), constant)
        return lambda g, x: apply(g, MatMul(), x, weight)

    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, Tanh(), x), apply(g, Mul(), x, normal(6))]
        return apply(g, Concat(axis=0), *multiplied(g, parts, [layer(5), layer(5)]))

    shape = (3, 6) if rank == 2 else (2, 3, 6)
    check(make(build, shape), *shape, products=1)


@pytest.mark.parametrize("kind", [Conv, ConvTranspose])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("apart", [False, True], ids=["parts", "apart"])
def test_complex_convolutions(kind: type[Conv | ConvTranspose], bias: bool, apart: bool) -> None:
    """Channels of both parts are those of one image (DCCRN)."""
    op = kind(pads=(1, 0, 1, 0), strides=(2, 1))

    def build(g: Graph, x: Value) -> Value:
        shape = (4, 3, 3, 2) if kind is Conv else (3, 4, 3, 2)
        given = [[normal(*shape), *([normal(4)] if bias else [])] for _ in range(2)]
        layers = [lambda g, x, each=each: apply(g, op, x, *each) for each in given]
        parts = halves(g, x, 1)
        parts = [apply(g, Tanh(), parts[0]), apply(g, Relu(), parts[1])] if apart else parts
        return apply(g, Concat(axis=1), *multiplied(g, parts, layers))

    check(make(build, (2, 6, 5, 4)), 2, 6, 5, 4, products=1, gone=() if apart else ("Concat",))


def test_quaternions() -> None:
    """16 products of four parts with four constants, with the signs of Hamilton's product."""
    signs = [(1, -1, -1, -1), (1, 1, -1, 1), (1, 1, 1, -1), (1, -1, 1, 1)]
    which = [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)]

    def build(g: Graph, x: Value) -> Value:
        parts, weights = halves(g, x, -1, 4), [normal(3, 2) for _ in range(4)]
        sums: list[Value] = []
        for of, sign in zip(which, signs, strict=True):
            found = [apply(g, MatMul(), p, weights[i]) for p, i in zip(parts, of, strict=True)]
            total = found[0]
            for each, by in zip(found[1:], sign[1:], strict=True):
                total = apply(g, Add() if by > 0 else Sub(), total, each)
            sums.append(total)
        return apply(g, Concat(axis=-1), *sums)

    check(make(build, (5, 2, 12)), 5, 2, 12, products=1, gone=("Split", "Slice", "Concat"))


def test_a_fourier_transform_by_matrices() -> None:
    """Each product's parts are the factors of the next one; of the last only one part is read."""
    cosines, sines = normal(4, 6), normal(4, 6)

    def both(equation: str) -> list[Layer]:
        return [
            lambda g, x, w=w: apply(g, Einsum(equation=equation), x, w) for w in (cosines, sines)
        ]

    def build(g: Graph, x: Value) -> Value:
        parts = [layer(g, x) for layer in both("bchw,mh->bcmw")]
        parts = [parts[0], apply(g, Neg(), parts[1])]
        parts = multiplied(g, parts, both("bcmw,nw->bcmn"))
        parts = multiplied(g, parts, einsums("bimn,iomn->bomn", 3, 2, 4, 4))
        parts = multiplied(g, parts, both("bcmn,mh->bchn"))
        return multiplied(g, parts, both("bchn,nw->bchw"))[0]

    check(make(build, (2, 3, 6, 6)), 2, 3, 6, 6, products=5, gone=("Sub", "Neg", "Gather"))


def test_gates_of_a_recurrent_cell_stay() -> None:
    """Each matrix is multiplied by one tensor: that of the inputs may be done for all steps."""

    def build(g: Graph, x: Value) -> Value:
        state = apply(g, Tanh(), x)
        gates = [
            apply(g, Add(), *(apply(g, MatMul(), each, normal(6, 6)) for each in (x, state)))
            for _ in range(2)
        ]
        return apply(g, Mul(), *gates)

    check(make(build, (3, 6)), 3, 6, products=4)


def test_parts_that_are_broadcast_stay() -> None:
    """One part has a row that is added to each of the other one's."""
    v, w = normal(4, 3), normal(4, 3)
    layers: list[Layer] = [lambda g, x, w=w: apply(g, MatMul(), x, w) for w in (v, w)]

    def build(g: Graph, x: Value) -> Value:
        first = apply(g, Slice(), x, *(np.array([n]) for n in (0, 1, 0)))
        return stacked(g, multiplied(g, [first, apply(g, Tanh(), x)], layers))

    check(make(build, (5, 4)), products=4)


def test_products_of_unlike_widths_are_computed_apart() -> None:
    def build(g: Graph, x: Value) -> Value:
        a, b = halves(g, x, 0)
        sums = [
            apply(g, op, *(apply(g, MatMul(), part, normal(4, width)) for part in (a, b)))
            for op, width in ((Sub(), 3), (Add(), 5))
        ]
        return apply(g, Concat(axis=1), *sums)

    check(make(build, (4, 4)), products=2)


@pytest.mark.parametrize("limits", [(0.1, 0.2), (None, 0.2), (0.1, None)])
def test_parts_with_limits_of_their_own_stay(limits: Sequence[float | None]) -> None:
    """Nothing that was written before this was seen is left."""
    layers: list[Layer] = [
        lambda g, x, w=w: apply(g, MatMul(), x, w) for w in (normal(4, 3), normal(4, 3))
    ]

    def build(g: Graph, x: Value) -> Value:
        parts = [apply(g, Mul(), part, normal(4)) for part in halves(g, x, 1)]
        given = [None if low is None else np.array(low, np.float32) for low in limits]
        parts = [
            apply(g, Clip(), part, low, np.array(0.5, np.float32))
            for part, low in zip(parts, given, strict=True)
        ]
        real = apply(g, Sub(), layers[0](g, parts[0]), layers[1](g, parts[1]))
        imaginary = [apply(g, MatMul(), part, normal(4, 3)) for part in reversed(parts)]
        return apply(g, Concat(axis=1), real, apply(g, Add(), *imaginary))

    graph = make(build, (3, 8))
    after, said = passed(graph, join_complex.run, "float32")
    assert not said
    assert kinds(after) == kinds(graph)
    check(graph, products=4)


def test_a_sum_that_cannot_be_one_is_looked_at_once() -> None:
    """Twice as many products of few tensors take about twice as many calls."""

    def build(count: int) -> Graph:
        def added(g: Graph, x: Value) -> Value:
            parts = [apply(g, op, x) for op in (Tanh(), Relu())]
            products = [apply(g, MatMul(), parts[i % 2], normal(4, 3)) for i in range(count)]
            total = products[0]
            for each in products[1:]:
                total = apply(g, Add(), total, each)
            return total

        return make(added, (5, 4))

    few, many = (_calls(build(count)) for count in (40, 80))
    assert many < 2.3 * few


def _calls(graph: Graph) -> int:
    profile = Profile()
    profile.enable()
    assert not passed(graph, join_complex.run, "float32")[1]
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(("limit", "products"), [(8 * 5 * 4 * 2 - 1, 4), (8 * 5 * 4 * 2, 1)])
def test_weights_grow_within_a_limit(limit: int, products: int) -> None:
    """Two matrices of 8 by 5 float32 become four."""

    def build(g: Graph, x: Value) -> Value:
        shared = [g.constant(normal(8, 5)) for _ in range(2)]
        given: list[Layer] = [lambda g, x, w=w: apply(g, MatMul(), x, w) for w in shared]
        parts = [apply(g, op, x) for op in (Tanh(), Relu())]
        return apply(g, Concat(axis=0), *multiplied(g, parts, given))

    after, _ = optimised(make(build, (3, 8)), fold_bytes=limit)
    assert kinds(after).count("MatMul") == products


def test_parts_that_many_nodes_compute_alike() -> None:
    """No recursion is as deep as they are many."""

    def build(g: Graph, x: Value) -> Value:
        parts = halves(g, x, 1)
        for _ in range(1200):
            parts = [apply(g, Relu(), part) for part in parts]
        return stacked(g, multiplied(g, parts, einsums("bi,io->bo", 4, 3)))

    after, said = passed(make(build, (3, 8)), join_complex.run, "float32")
    assert len(said) == 1
    assert kinds(after).count("Relu") == 1200
