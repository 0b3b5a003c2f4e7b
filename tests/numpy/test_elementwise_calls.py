"""Calls on tapes are shorter than those of the functions in the table, and give the same bits."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.numerics.elementwise import ELEMENTWISE
from tercet.backends.numpy.numerics.elementwise_calls import elementwise_call
from tercet.runtime.ir.dtypes import bfloat16
from tercet.runtime.ops import elementwise as ops

from .graphs import model, node, random

VALUES = (-np.inf, -7.5, -1, -0.0, 0.0, 1e-30, 2, 7.5, np.inf, np.nan)
BOUNDS = [(), (-1,), (None, 2), (-1, 2), (2, -1), (0, 6)]
DTYPES = [np.dtype(np.float16), bfloat16, np.dtype(np.float32), np.dtype(np.float64)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_clip(dtype: np.dtype, bounds: tuple[float | None, ...]) -> None:
    x = np.array(VALUES * 7, dtype)
    limits = [None if bound is None else np.array(bound, dtype) for bound in bounds]
    found = np.empty_like(x)
    call = elementwise_call(ELEMENTWISE[ops.Clip](ops.Clip()), x, *limits, out=found)
    low, high = (*bounds, None, None)[:2]
    want = x.astype(np.float64)
    want = want if low is None else np.where(want < low, low, want)
    want = want if high is None else np.where(want > high, high, want)
    for _ in range(2):
        call()
        assert np.array_equal(found.astype(np.float64), want, equal_nan=True)


@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(np.int8)], ids=str)
@pytest.mark.parametrize("size", [10, 70, 7000])
def test_relu(dtype: np.dtype, size: int) -> None:
    values = np.resize(VALUES, size)
    x = (np.nan_to_num(values, posinf=9, neginf=-9) if dtype.kind == "i" else values).astype(dtype)
    wide = x.astype(np.float64)
    call = elementwise_call(ELEMENTWISE[ops.Relu](ops.Relu()), x, out=x)
    call()
    assert np.array_equal(x.astype(np.float64), np.where(wide < 0, 0, wide), equal_nan=True)


def test_every_operand_is_read_when_the_call_is_made() -> None:
    """Bounds may be computed during the run."""
    x, low, found = np.array([-3, 3], np.float32), np.zeros((), np.float32), np.zeros(2, np.float32)
    call = elementwise_call(ELEMENTWISE[ops.Clip](ops.Clip()), x, low, out=found)
    low[...], x[1] = -2, 4
    call()
    assert found.tolist() == [-2, 4]


@pytest.mark.parametrize("size", [10, 7000])
def test_halves_among_singles_are_read_when_the_call_is_made(size: int) -> None:
    x, halves = (np.resize(VALUES, size).astype(t) for t in (np.float32, np.float16))
    found = np.empty_like(x)
    call = elementwise_call(np.subtract, x, halves, out=found)
    halves[:] = halves[::-1].copy()
    call()
    with np.errstate(invalid="ignore"):
        want = (x.astype(np.float64) - halves).astype(np.float32)
    assert np.array_equal(found, want, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("step", [2, 4, 8, 16])
def test_columns_are_negated_in_place(dtype: str, step: int) -> None:
    x = np.arange(40 * step).reshape(40, step).astype(dtype)
    want = x * np.where(np.arange(step) == 1, -1, 1).astype(dtype)
    elementwise_call(ELEMENTWISE[ops.Neg](ops.Neg()), x[:, 1:2], out=x[:, 1:2])()
    assert np.array_equal(x, want)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("step", [2, 3, 4, 8])
@pytest.mark.parametrize("op", [ops.IsNaN(), ops.IsInf()], ids=str)
def test_columns_of_flags_are_stored(op: ops.IsNaN | ops.IsInf, step: int, dtype: str) -> None:
    x = np.tile(np.array([1, np.nan, -np.inf, -0.0, np.inf], dtype), 20)
    found = np.zeros((100, step), bool)
    elementwise_call(ELEMENTWISE[type(op)](op), x, out=found[:, 1])()
    assert not np.delete(found, 1, 1).any()
    assert found[:, 1].tolist() == [
        math.isnan(e) if op == ops.IsNaN() else math.isinf(e) for e in x
    ]


@pytest.mark.parametrize("name", [*map(str, DTYPES), "int8", "int64", "bool", "complex128", "O"])
@pytest.mark.parametrize("over", [None, 0, 1])
def test_where_keeps_bits(name: str, over: int | None) -> None:
    x = np.array([VALUES, VALUES[::-1]], np.float64)
    x = np.nan_to_num(x, posinf=9, neginf=-9) if name.startswith("int") else x
    dtype = bfloat16 if name == "bfloat16" else np.dtype(name)
    operands = [x.astype(dtype), x[:1, ::-1].astype(dtype)]
    condition = np.arange(10) % 3 == 1
    want = np.where(condition, *operands)
    operands[1] = np.broadcast_to(operands[1], x.shape).copy() if over else operands[1]
    out = np.empty(x.shape, dtype) if over is None else operands[over]
    elementwise_call(ELEMENTWISE[ops.Where](ops.Where()), condition, *operands, out=out)()
    assert out.tolist() == want.tolist() if name == "O" else out.tobytes() == want.tobytes()


@pytest.mark.parametrize("columns", [1, 2, 4, 5])
@pytest.mark.parametrize("rows", [3, 9000])
def test_rows_so_short_that_columns_are_faster(rows: int, columns: int) -> None:
    x, scale, shift = random(2, rows, columns), random(rows, 1), random(columns)
    nodes = [
        node("Mul", ["x", "scale"], "a"),
        *(node("Add", ["a", "shift"], "b"), node("Where", ["c", "b", "a"], "y")),
    ]
    feeds = {"x": x, "c": random(2, rows, columns) > 0}
    with tercet.load(model(nodes, feeds, {"scale": scale, "shift": shift}), stop_at=0) as loaded:
        found = loaded.run(feeds)["y"]
    assert np.array_equal(found, np.where(feeds["c"], x * scale + shift, x * scale))


@pytest.mark.parametrize("size", [10, 70_000])
def test_halves_are_rounded_once(size: int) -> None:
    """Blocks are computed in float32, which is what numpy does one by one."""
    x, y = (np.resize(random(997, dtype=np.float16), size) for _ in range(2))
    found = tercet.run_op("Mul", x, y)
    assert np.array_equal(found, (x.astype(np.float32) * y).astype(np.float16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (7, 1), (1, 30), (7, 30)], ids=str)
@pytest.mark.parametrize("is_first", [False, True])
def test_extremes_with_numbers(dtype: np.dtype, shape: tuple[int, ...], is_first: bool) -> None:
    x = np.resize(VALUES, (7, 30)).astype(dtype)
    for value in VALUES:
        bound = np.resize([value, 1], shape).astype(dtype)
        operands = (bound, x) if is_first else (x, bound)
        for op, function in ((ops.Max, np.maximum), (ops.Min, np.minimum)):
            found = np.empty_like(x)
            with np.errstate(invalid="ignore"):
                elementwise_call(ELEMENTWISE[op](op()), *operands, out=found)()
            want = function(*(a.astype(np.float64) for a in operands))
            assert np.array_equal(found.astype(np.float64), want, equal_nan=True)


@pytest.mark.parametrize("size", [10, 7000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("slopes", [(0.25,), (1.5,), (-0.5,), (0.0,), (1, 0.5, -2, 0, 3)], ids=str)
def test_slopes(slopes: tuple[float, ...], dtype: np.dtype, size: int) -> None:
    x, slope = np.resize(VALUES, (5, size)).astype(dtype), np.array(slopes, dtype)[:, np.newaxis]
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        want = np.where(wide < 0, wide * slope.astype(np.float64), wide)
    found = np.empty_like(x)
    functions = {ops.PRelu: ops.PRelu()}
    functions |= {ops.LeakyRelu: ops.LeakyRelu(alpha=slopes[0])} if len(slopes) == 1 else {}
    for kind, op in functions.items():
        operands = (x, slope) if kind is ops.PRelu else (x,)
        with np.errstate(invalid="ignore"):
            elementwise_call(ELEMENTWISE[kind](op), *operands, out=found)()
        tolerance = {2: 1e-2, 4: 1e-6, 8: 0}[dtype.itemsize]
        np.testing.assert_allclose(found.astype(np.float64), want, tolerance, 0)


@pytest.mark.parametrize("size", [10, 7000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exponentials_below_zero(dtype: np.dtype, size: int) -> None:
    x = np.resize(VALUES, size).astype(dtype)
    wide, tolerance = x.astype(np.float64), {2: 1e-2, 4: 1e-6, 8: 1e-15}[dtype.itemsize]
    found = np.empty_like(x)
    with np.errstate(all="ignore"):
        below = np.expm1(np.minimum(wide, 0))
        selu = ops.Selu()
        cases = ((ops.Elu(alpha=0.5), 0.5, 1.0), (selu, selu.alpha, selu.gamma))
        for op, alpha, gamma in cases:
            elementwise_call(ELEMENTWISE[type(op)](op), x, out=found)()
            want = gamma * np.where(wide > 0, wide, alpha * below)
            np.testing.assert_allclose(found.astype(np.float64), want, tolerance, 0)
        elementwise_call(ELEMENTWISE[ops.Shrink](ops.Shrink(lambd=1.5, bias=0.5)), x, out=found)()
    want = np.where(wide < -1.5, wide + 0.5, np.where(wide > 1.5, wide - 0.5, 0))
    np.testing.assert_allclose(found.astype(np.float64), want, tolerance, 0)


@pytest.mark.parametrize("to", [np.float32, np.int8, np.bool_, np.float16, bfloat16])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float64, np.float16, np.bool_])
def test_conversions_are_calls_of_numpy(dtype: type, to: type) -> None:
    x = np.arange(-3, 4).astype(dtype)
    found = np.empty(x.shape, to)
    call = elementwise_call(ELEMENTWISE[ops.Cast](ops.Cast(to=found.dtype)), x, out=found)
    call()
    assert found.tolist() == x.astype(to).tolist()
    has_halves = np.float16 in (dtype, to)
    assert isinstance(call, partial)
    assert (call.func is np.copyto) == (not has_halves)


def test_conversions_of_strings_are_those_of_a_node_alone() -> None:
    x, found = np.array(["1", "-2.5"], object), np.empty(2, np.float32)
    elementwise_call(ELEMENTWISE[ops.Cast](ops.Cast(to=found.dtype)), x, out=found)()
    assert found.tolist() == [1, -2.5]
