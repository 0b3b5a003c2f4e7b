"""Zeros beside a tensor whose elements are moved next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Abs, Cast, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Precision
from tercet.runtime.passes.images import pad_moved

from .graphs import apply, assert_same, kinds, make, normal, passed, run

ROWS = 5
SHAPE = (2, ROWS, 2 * ROWS - 1)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def cut(g: Graph, x: Value, axis: int, begin: int, end: int) -> Value:
    return apply(g, Slice(), x, ints(begin), ints(end), ints(axis))


def shifted(g: Graph, x: Value) -> Value:
    """Give row i its columns from n - 1 - i on, as Transformer-XL does."""
    padded = apply(g, Concat(axis=-1), np.zeros((2, ROWS, 1), np.float32), x)
    tall = apply(g, Reshape(), padded, ints(2, 2 * ROWS, ROWS))
    wide = apply(g, Reshape(), cut(g, tall, 1, 1, 2**31), ints(*SHAPE))
    return cut(g, wide, 2, 0, ROWS)


def test_a_shift_reads_no_zeros() -> None:
    graph = make(shifted, SHAPE)
    after, said = passed(graph, pad_moved.run, "float32")
    assert said
    assert kinds(after) == ["Pad", "Reshape", "Slice", "Reshape", "Slice"]
    x = normal(*SHAPE)
    rows = [x[:, i, ROWS - 1 - i : 2 * ROWS - 1 - i] for i in range(ROWS)]
    np.testing.assert_array_equal(run(after, x, np.float32), np.stack(rows, 1))


def beside(*parts: tuple[int, ...] | None, axis: int = 2, fill: float = 0) -> Callable[..., Value]:
    """Return a layer of a tensor beside constants of these shapes; None is the tensor."""

    def build(g: Graph, x: Value) -> Value:
        values = [x if s is None else np.full(s, fill, np.float32) for s in parts]
        joined = apply(g, Concat(axis=axis), *values)
        return apply(g, Conv(), joined, normal(4, 3, 3), None)

    return build


@pytest.mark.parametrize(
    "parts",
    [((2, 3, 2), None), (None, (2, 3, 1)), ((2, 3, 1), (2, 3, 1), None, (2, 3, 4))],
    ids=["in front", "behind", "around"],
)
def test_zeros_in_front_of_a_layer(parts: tuple[tuple[int, ...] | None, ...]) -> None:
    graph = make(beside(*parts), (2, 3, 7))
    after, _ = passed(graph, pad_moved.run, "float32")
    assert kinds(after) == ["Pad", "Conv"]
    assert_same(graph, after)


def relative(g: Graph, x: Value, *, columns: int = 45, cut_first: bool = True) -> Value:
    """Scores of relative positions, of which each row has some."""
    y = apply(g, MatMul(), x, normal(2, 4, columns))
    return cut(g, apply(g, Abs(), y) if not cut_first else y, 2, 3, columns - 2)


@pytest.mark.parametrize(("precision", "columns"), [("float16", 48), ("float32", 48)])
def test_columns_of_products_are_whole_words(precision: Precision, columns: int) -> None:
    graph = make(relative, (2, 7, 4))
    after, said = passed(graph, pad_moved.run_products, precision)
    assert len(said) == 1
    assert after.nodes[0].output.tensor.dims == (2, 7, columns)
    assert kinds(after) == ["MatMul", "Slice", "Slice"]
    assert_same(graph, after)


@pytest.mark.parametrize(
    "options", [{"columns": 48}, {"columns": 21}, {"cut_first": False}], ids=str
)
def test_columns_of_other_products_stay(options: dict[str, Any]) -> None:
    graph = make(lambda g, x: relative(g, x, **options), (2, 7, 4))
    assert not passed(graph, pad_moved.run_products, "float16")[1]


def added(g: Graph, x: Value) -> Value:
    """Return rows of which the first is a token's."""
    return apply(g, Relu(), apply(g, Concat(axis=1), np.zeros((2, 1, 4), np.float32), x))


def sizes(g: Graph, x: Value) -> Value:
    """Return integers, as those of shapes and indices."""
    integers = apply(g, Cast(to=int64), x)
    joined = apply(g, Concat(axis=0), np.zeros(3, np.int64), integers)
    return apply(g, Reshape(), joined, ints(-1, 2))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (beside((2, 3, 2), None, fill=1), (2, 3, 7)),
        (beside((2, 3, 2), None, fill=-0.0), (2, 3, 7)),
        (beside((2, 3, 2), None, None), (2, 3, 7)),
        (added, (2, 5, 4)),
        (sizes, (5,)),
    ],
    ids=["ones", "negative zeros", "twice", "a token", "integers"],
)
def test_other_joins_stay(build: Callable[..., Value], shape: tuple[int, ...]) -> None:
    after, said = passed(make(build, shape), pad_moved.run, "float32")
    assert not said
    assert "Concat" in kinds(after)
