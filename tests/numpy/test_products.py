"""Products cut for several threads, with elementwise nodes behind: every element is met once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.engine import thread_pool
from tercet.backends.numpy.ops import matmul

from .graphs import Array, model, node, random

#: The result's shape, and the operands'. Each is large enough to be cut for eight threads.
PRODUCTS = {
    "columns of few rows": ((2, 3000), (2, 2000), (2000, 3000)),
    "rows": ((3000, 64), (3000, 300), (300, 64)),
    "stacks": ((16, 200, 100), (16, 200, 300), (16, 300, 100)),
    "rows of few stacks": ((2, 1500, 100), (2, 1500, 300), (2, 300, 100)),
    "columns of few stacks": ((2, 100, 1500), (2, 100, 300), (2, 300, 1500)),
    "rows of stacks of stacks": ((2, 3, 900, 100), (2, 3, 900, 300), (300, 100)),
    "columns of many stacks": ((1, 40, 7, 900), (1, 40, 7, 500), (500, 900)),
}


@cache
def operands(name: str) -> tuple[Array, Array, Array]:
    """Return the operands of a product, and the product in float64."""
    _, *dims = PRODUCTS[name]
    a, b = (random(*each) for each in dims)
    return a, b, a.astype(np.float64) @ b


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("channels", ["none", "columns", "rows", "all"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_cut_products(
    name: str, channels: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_pool, "size", lambda: workers)
    dims, *_ = PRODUCTS[name]
    a, b, product = operands(name)
    inputs = {"a": a, "b": b}
    addend = {
        "none": random(1),
        "columns": random(dims[-1]),
        "rows": random(dims[-2], 1),
        "all": random(*dims),
    }[channels]
    nodes = (
        node("MatMul", ["a", "b"], "p"),
        node("Add", ["p", "k"], "s"),
        node("Relu", ["s"], "y"),
    )
    with tercet.load(model(nodes, inputs, {"k": addend})) as fused:
        got = fused.run(inputs)["y"]
    want = np.maximum(product + addend, 0)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(
    ("addend", "rows"), [((1,), (280, 5)), ((9,), (280, 5)), ((7, 1), (40, 7, 5)), ((), (280, 5))]
)
def test_stacks_that_share_a_matrix_are_one_product(
    addend: tuple[int, ...], rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def recorded(a: Array, *others: Any, **options: Any) -> Any:
        seen.append(a.shape)
        return kept(a, *others, **options)

    kept = matmul.recorded
    monkeypatch.setattr(matmul, "recorded", recorded)
    inputs, b = {"a": random(40, 7, 5)}, random(5, 9)
    nodes = (node("MatMul", ["a", "b"], "p"), node("Add", ["p", "k"], "y"))
    constants = {"b": b, "k": random(*addend)}
    with tercet.load(model(nodes, inputs, constants)) as fused:
        got = fused.run(inputs)["y"]
    assert set(seen) == {rows}
    np.testing.assert_allclose(got, inputs["a"] @ b + constants["k"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [((5, 1), (1, 7)), ((3, 1, 1), (3, 1, 9)), ((2, 6, 1), (1, 4))])
def test_products_of_one_term(dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (random(*each) for each in dims)
    np.testing.assert_array_equal(tercet.run_op("MatMul", a, b), a * b)


@pytest.mark.parametrize("dims", [((2, 5, 0), (0, 3)), ((2, 0, 4), (4, 3)), ((2, 5, 4), (4, 0))])
def test_stacks_without_elements(dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (np.ones(each, np.float32) for each in dims)
    got = tercet.run_op("MatMul", a, b)
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(("groups", "kernel"), [(1, 1), (1, 3), (2, 1)])
def test_convolutions_without_channels(groups: int, kernel: int) -> None:
    x, w = np.ones((2, 0, 4, 5), np.float32), np.ones((6, 0, kernel, kernel), np.float32)
    nodes = (node("Conv", ["x", "w"], "y", group=groups, pads=[kernel // 2] * 4),)
    with tercet.load(model(nodes, {"x": x}, {"w": w}), stop_at=0) as loaded:
        got = loaded.run({"x": x})["y"]
    np.testing.assert_array_equal(got, np.zeros((2, 6, 4, 5), np.float32))
