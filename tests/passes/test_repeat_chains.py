"""Sums of what is otherwise stored in 16 bits compute the elementwise nodes before it again."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Div, Exp
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Unsqueeze
from tercet.runtime.passes.half import repeat_chains

from .graphs import apply, kinds, make, normal, passed, run

SHAPE = (2, 6, 8)


def rounded(g: Graph, x: Value) -> Value:
    """Return a value rounded to float16, as a product reads it; its result is float32."""
    half = apply(g, Cast(to=float16), x)
    product = apply(g, MatMul(), half, normal(8, 8).astype(np.float16))
    return apply(g, Cast(to=float32), product)


def features(g: Graph, x: Value) -> Value:
    return apply(g, Add(), apply(g, Exp(), x), np.full(1, 1e-3, np.float32))


def attended(g: Graph, x: Value) -> Value:
    """Linear attention: sums of keys, and their products with queries, which divide the result."""
    q, k = features(g, x), features(g, apply(g, Softmax(), x))
    total = apply(g, ReduceSum(keepdims=0), k, np.array([1]))
    scale = apply(g, MatMul(), q, apply(g, Unsqueeze(), total, np.array([2])))
    rows = rounded(g, k)
    sums = apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1)), rows), rows)
    return apply(g, Div(), apply(g, MatMul(), rounded(g, q), sums), scale)


def test_sums_and_products_of_vectors() -> None:
    before = make(attended, SHAPE)
    after, said = passed(before, repeat_chains.run, "float16")
    assert len(said) == 2
    assert kinds(after).count("MatMul") == kinds(before).count("MatMul") - 1
    for node in after.nodes:
        readers = {reader.kind for reader in node.output.consumers}
        assert node.kind != "Add" or len(readers) == 1, readers
    x = normal(*SHAPE)
    want, got = run(before, x, np.float32), run(after, x, np.float32)
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


def from_layer(g: Graph, x: Value) -> Value:
    """A sum of what no elementwise node computes."""
    x = apply(g, Softmax(), x)
    return apply(g, Add(), rounded(g, x), apply(g, ReduceSum(), x, np.array([1])))


def from_many(g: Graph, x: Value) -> Value:
    """A sum of what depends on more than it has bytes."""
    y = apply(g, Add(), apply(g, Exp(), x), apply(g, Softmax(), x))
    return apply(g, Add(), rounded(g, y), apply(g, ReduceSum(), y, np.array([1])))


def read_as_well(g: Graph, x: Value) -> Value:
    """A sum of what is stored for another node anyway."""
    y = features(g, x)
    summed = apply(g, ReduceSum(), y, np.array([1]))
    return apply(g, Add(), rounded(g, y), apply(g, Softmax(), apply(g, Div(), y, summed)))


@pytest.mark.parametrize("build", [from_layer, from_many, read_as_well])
def test_what_is_not_computed_again(build) -> None:
    assert not passed(make(build, SHAPE), repeat_chains.run, "float16")[1]


def widened(g: Graph, x: Value, *, stored: bool = False) -> Value:
    """Products and a sum of what has 16 bits, as cosFormer's queries; or it is read as well."""
    y = rounded(g, x)
    sums = apply(g, MatMul(), apply(g, Transpose(perm=(0, 2, 1)), x), x)
    totals = apply(g, Unsqueeze(), apply(g, ReduceSum(keepdims=0), x, np.array([1])), np.array([2]))
    scale = apply(g, Exp(), apply(g, MatMul(), y, totals))
    z = apply(g, Div(), apply(g, MatMul(), y, sums), scale)
    z = apply(g, Add(), z, apply(g, ReduceSum(), y, np.array([1])))
    return apply(g, Add(), z, y) if stored else z


def test_each_product_widens_what_it_reads() -> None:
    before = make(widened, SHAPE)
    after, said = passed(before, repeat_chains.run, "float16")
    assert len(said) == 3
    assert kinds(after).count("MatMul") == kinds(before).count("MatMul") - 1
    assert all(len(node.output.consumers) == 1 for node in after.nodes if node.kind == "Cast")
    x = normal(*SHAPE)
    want, got = run(before, x, np.float32), run(after, x, np.float32)
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


def of_layers(g: Graph, x: Value) -> Value:
    """Layers in float32, whose kernels widen nothing."""
    y = rounded(g, x)
    return apply(g, Add(), *(apply(g, MatMul(), y, normal(8, 8)) for _ in range(2)))


@pytest.mark.parametrize("build", [partial(widened, stored=True), of_layers])
def test_one_cast_serves_others(build) -> None:
    assert not passed(make(build, SHAPE), repeat_chains.run, "float16")[1]


def test_a_product_with_what_has_no_known_size_widens_its_own() -> None:
    def build(g: Graph, x: Value) -> Value:
        y = rounded(g, x)
        reader = g.add_input("shaped", TensorType(float32, (None, None, None)))
        return apply(g, Add(), *(apply(g, MatMul(), y, other) for other in (reader, x)))

    before = make(build, (2, 8, 8))
    after, said = passed(before, repeat_chains.run, "float16")
    assert len(said) == 2
    assert all(len(node.output.consumers) == 1 for node in after.nodes if node.kind == "Cast")
