"""Tapes have calls that numpy starts sooner than those that they were made with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy.engine import step
from tercet.backends.numpy.numerics.calls import direct, multiplying

X = np.array([[1.5, -2, 0], [np.nan, np.inf, 1e-40]], np.float32)


def _calls(out: np.ndarray[Any, Any]) -> dict[str, Callable[[], object]]:
    one, row = np.array([[3]], np.float32), np.array([3, 4, 5], np.float32)
    numbers = np.array([1, 2, 3], np.int8)
    return {
        "named": partial(np.subtract, X, row, out=out),
        "one element": partial(np.subtract, X, one[0], out=out),
        "one element first": partial(np.subtract, one, X, out),
        "one element, named": partial(np.maximum, X, one, out=out),
        "some elements": partial(np.add, X, one, out=out, where=X > 0),
        "one operand": partial(np.negative, X, out=out),
        "two numbers": partial(np.multiply, one, one[0], out=out),
        "another dtype": partial(np.multiply, numbers, one, out=out, dtype=np.float32),
        "product": partial(np.matmul, X, np.diag(row), out=out),
        "product of one column": partial(np.matmul, X[:, :1], one * row, out=out),
        "copy": partial(np.copyto, out, numbers),
        "copy to others": partial(np.copyto, out, 7.5, where=X > 0),
        "sum": partial(np.add.reduce, X[np.newaxis], 0, out=out),
        "not of numpy": partial(out.fill, 5),
    }


@pytest.mark.parametrize("name", _calls(X))
def test_results_are_the_same(name: str) -> None:
    want, found = np.full_like(X, 9), np.full_like(X, 9)
    with np.errstate(all="ignore"):
        _calls(want)[name]()
        call = direct(_calls(found)[name])
        for _ in range(2):
            call()
    assert found.tobytes() == want.tobytes()


def test_operands_are_read_and_written_in_place() -> None:
    x, one = np.array([1, 2, 3], np.float32), np.array([1], np.float32)
    calls = [direct(partial(np.add, x, one, out=x)), direct(partial(np.add, one, one, out=one))]
    for call in calls * 2:
        call()
    assert (x.tolist(), one.tolist()) == ([4, 5, 6], [4])


def test_single_elements_have_no_axes() -> None:
    """numpy then takes half as long for a few elements."""
    call = direct(partial(np.divide, X, np.ones((1, 1), np.float32), out=np.empty_like(X)))
    assert isinstance(call, partial)
    assert [np.ndim(operand) for operand in call.args] == [2, 0, 2]
    assert not call.keywords


def test_a_result_of_one_element_keeps_its_axes() -> None:
    out = np.empty((1, 1), np.float32)
    direct(partial(np.add, np.ones(1, np.float32), np.ones((1, 1), np.float32), out=out))()
    assert out.tolist() == [[2]]


def test_steps_start_their_calls_so() -> None:
    """A function that returns another call shows which one a step makes."""
    found: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "direct", lambda call: partial(found.append, call.func))
        run = step.HostRun([[[partial(np.add, X, X), partial(np.copyto, X, X)]]], ())
    run.play()
    assert found == [np.add, np.copyto]


def _factors(rows: int, terms: int, columns: int, dtype: Any) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(rows + 100 * columns)
    shapes = (rows, terms), (terms, columns), (rows, columns)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stack", [(), (1,), (1, 1)])
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize("columns", [1, 2, 7, 48])
def test_small_products_are_the_same(
    rows: int, columns: int, stack: tuple[int, ...], dtype: Any
) -> None:
    left, right, want = (x.reshape(stack + x.shape) for x in _factors(rows, 19, columns, dtype))
    turned = [x.swapaxes(-1, -2).copy().swapaxes(-1, -2) for x in (left, right)]
    for a, b in product((left, turned[0]), (right, turned[1])):
        np.matmul(a, b, out=want)
        found = np.empty_like(want)
        call = direct(partial(np.matmul, a, b, out=found))
        assert isinstance(call, partial)
        assert (call.func is np.matmul) == (rows == columns == 1)
        for _ in range(2):
            call()
            assert found.tobytes() == want.tobytes()
        found.fill(np.nan)
        multiplying(np.empty_like(a), b, found)(a)
        assert found.tobytes() == want.tobytes()


def test_other_products_stay_what_they_are() -> None:
    a, b, out = _factors(4, 6, 8, np.float32)
    large = _factors(80, 6, 80, np.float32)
    stack = [np.stack([x, x]) for x in (a, b, out)]
    whole = [x.astype(np.int32) for x in (a, b, out)]
    turned = [a, b, np.ascontiguousarray(out.T).T]
    square = [a, a.T, np.empty((4, 4), np.float32)]
    parts = [a[:, 1:], b[1:], out]
    for factors in (large, stack, whole, turned, square, parts, [a, b, out.astype(float)]):
        call = direct(partial(np.matmul, *factors[:2], out=factors[2]))
        assert isinstance(call, partial)
        assert call.func is np.matmul
        want = np.matmul(*factors[:2])
        call()
        assert np.array_equal(factors[2], want)
        factors[2].fill(0)
        multiplying(np.empty_like(factors[0]), *factors[1:])(factors[0])
        assert np.array_equal(factors[2], want)
