"""Joined images with an odd number of channels, of which the smallest part gets more."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Neg, Relu, Tanh
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Transpose
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.passes import SYMBOLIC_PASSES
from tercet.runtime.passes.driver import Pass

from .graphs import apply, assert_same, make, normal, optimised

SHAPE = (2, 20, 5, 4)
PASSES: tuple[Pass, ...] = tuple(
    each for each in SYMBOLIC_PASSES if each.name in ("pad_joined", "fold_constants", "remove_dead")
)


def joined(g: Graph, x: Value, count: int, *, constant: bool = False, last: bool = False) -> Value:
    """The mean of channels, or constants, beside an image, in front of a convolution."""
    small = apply(g, ReduceMean(keepdims=1), x, np.array([1]))
    small = apply(g, Concat(axis=1), *[small] * count) if count > 1 else small
    small = normal(2, count, 5, 4) if constant else apply(g, Tanh(), small)
    parts = [small if isinstance(small, Value) else g.constant(small), apply(g, Relu(), x)]
    if last:
        parts = [apply(g, Transpose(perm=(0, 2, 3, 1)), part) for part in parts]
    both = apply(g, Concat(axis=-1 if last else 1), *parts)
    both = apply(g, Transpose(perm=(0, 3, 1, 2)), both) if last else both
    return apply(g, Conv(pads=(1,) * 4), both, normal(6, 20 + count, 3, 3), normal(6))


@pytest.mark.parametrize(("count", "wanted"), [(1, 24), (3, 24), (2, 22), (5, 32)])
def test_rows(count: int, wanted: int) -> None:
    """A product of rows reads them as a convolution reads pixels."""

    def build(g: Graph, x: Value) -> Value:
        small = apply(g, ReduceMean(keepdims=1), x, np.array([-1]))
        small = apply(g, Concat(axis=-1), *[small] * count) if count > 1 else small
        both = apply(g, Concat(axis=-1), apply(g, Relu(), x), apply(g, Tanh(), small))
        return apply(g, MatMul(), both, normal(20 + count, 6))

    before = make(build, (2, 5, 20))
    after, _ = optimised(before, PASSES)
    (product,) = (node for node in after.nodes if isinstance(node.op, MatMul))
    assert product.operands[1].tensor.dims[0] == wanted
    assert_same(before, after, 2, 5, 20)


def channels(graph: Graph) -> int:
    (conv,) = (node for node in graph.nodes if isinstance(node.op, Conv))
    return conv.operands[1].tensor.dims[1]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("count", "wanted"), [(1, 24), (3, 24), (2, 22), (4, 24), (5, 32)])
def test_results(count: int, wanted: int, constant: bool, last: bool) -> None:
    before = make(lambda g, x: joined(g, x, count, constant=constant, last=last), SHAPE)
    after, _ = optimised(before, PASSES)
    assert channels(after) == wanted
    assert_same(before, after, *SHAPE)


@pytest.mark.parametrize("last", [False, True])
def test_all_passes(last: bool) -> None:
    before = make(lambda g, x: joined(g, x, 1, last=last), SHAPE)
    after, _ = optimised(before)
    assert channels(after) == 24
    assert_same(before, after, *SHAPE)


def test_other_readers_see_what_was_joined() -> None:
    before = make(lambda g, x: joined(g, x, 1), SHAPE)
    (concat,) = (node for node in before.nodes if isinstance(node.op, Concat))
    before.set_outputs({**before.outputs, "z": concat.output})
    after, _ = optimised(before)
    assert channels(after) == 21


def features(g: Graph, x: Value, count: int, *, first: bool = False) -> Value:
    """Some means beside the numbers themselves."""
    small = apply(g, ReduceMean(keepdims=1), x, np.array([-1]))
    small = apply(g, Concat(axis=-1), *[small] * count) if count > 1 else small
    parts = apply(g, Tanh(), small), apply(g, Relu(), x)
    return apply(g, Concat(axis=-1), *parts[:: 1 if first else -1])


@pytest.mark.parametrize(("count", "wanted"), [(1, 24), (3, 24), (2, 22), (5, 32)])
def test_both_factors_of_a_product(count: int, wanted: int) -> None:
    def build(g: Graph, x: Value) -> Value:
        keys = apply(g, Transpose(perm=(0, 2, 1)), features(g, apply(g, Neg(), x), count))
        return apply(g, MatMul(), features(g, x, count), keys)

    before = make(build, (2, 5, 20))
    after, _ = optimised(before, PASSES)
    (product,) = (node for node in after.nodes if isinstance(node.op, MatMul))
    assert [value.tensor.dims for value in product.operands] == [(2, 5, wanted), (2, wanted, 5)]
    assert_same(before, after, 2, 5, 20)


@pytest.mark.parametrize("why", ["joined otherwise", "joined rows", "read elsewhere", "alone"])
def test_factors_that_stay(why: str) -> None:
    def build(g: Graph, x: Value) -> Value:
        queries = features(g, x, 1)
        keys = features(g, apply(g, Neg(), x), 1, first=why == "joined otherwise")
        if why == "alone":
            keys = apply(g, Tanh(), keys)
        columns = keys if why == "joined rows" else apply(g, Transpose(perm=(0, 2, 1)), keys)
        y = apply(g, MatMul(), queries, columns)
        return apply(g, MatMul(), y, keys) if why == "read elsewhere" else y

    shape = (2, 21, 20) if why == "joined rows" else (2, 5, 20)
    before = make(build, shape)
    after, log = optimised(before, PASSES)
    assert "pad_joined" not in log.counts
    assert_same(before, after, *shape)
