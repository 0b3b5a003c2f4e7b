"""Reductions, positions of extremes, running totals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import defs

from .case import EPSILON, FLOAT32, FLOATS, INTEGERS, Array, Case, draw
from .cases_elementwise import allowed, wrapped

Function = Callable[..., Any]

REDUCTIONS: dict[str, Function] = {
    "ReduceL1": lambda x, **k: np.abs(x).sum(**k),
    "ReduceL2": lambda x, **k: np.sqrt(np.square(x).sum(**k)),
    "ReduceLogSum": lambda x, **k: np.log(x.sum(**k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.exp(x).sum(**k)),
    "ReduceMax": lambda x, **k: x.max(**k),
    "ReduceMean": lambda x, **k: x.mean(**k),
    "ReduceMin": lambda x, **k: x.min(**k),
    "ReduceProd": lambda x, **k: x.prod(**k),
    "ReduceSum": lambda x, **k: x.sum(**k),
    "ReduceSumSquare": lambda x, **k: np.square(x).sum(**k),
}

#: Sums of Python integers are exact; the result is cut to the dtype's bits.
WHOLE = ("ReduceL1", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")

AXES: list[tuple[int, ...] | None] = [None, (0,), (1,), (-1,), (0, 2), (0, 1, 2)]


def opset(op: str) -> int:
    return max(21, defs.get_schema(op).since_version)


def float_want(op: str, axes: tuple[int, ...] | None, keep: bool, x: Array, *_: Any) -> Array:
    return np.asarray(REDUCTIONS[op](x.astype(np.float64), axis=axes, keepdims=keep))


def whole_want(op: str, axes: tuple[int, ...] | None, keep: bool, x: Array, *_: Any) -> Array:
    exact = REDUCTIONS[op](x.astype(object), axis=axes, keepdims=keep)
    return wrapped(np.asarray(exact, object), x.dtype)


def reductions() -> Iterator[Case]:
    for op in REDUCTIONS:
        positive = op in ("ReduceLogSum", "ReduceProd")
        for axes in AXES:
            for keep in (True, False):
                x = draw(1, (3, 4, 5))
                x = np.abs(x) + np.float32(0.5) if positive else x
                given = None if axes is None else np.array(axes, np.int64)
                inputs = (x,) if given is None else (x, given)
                stored = () if given is None else (1,)
                want = partial(float_want, op, axes, keep)
                more = {"keepdims": int(keep)}
                yield Case(
                    op, inputs, more, want, stored, error=16, opset=opset(op), note=str(axes)
                )
        for dtype in allowed(op):
            if dtype in EPSILON and dtype != FLOAT32:
                x = np.abs(draw(1, (3, 7), np.float64)).astype(dtype)
                want = partial(float_want, op, (1,), True)
                axes_ = np.array([1], np.int64)
                yield Case(op, (x, axes_), {}, want, (1,), error=8, opset=opset(op))
            if dtype in INTEGERS and op in WHOLE:
                want = partial(whole_want, op, (1,), True)
                x, axes_ = draw(1, (3, 7), dtype), np.array([1], np.int64)
                yield Case(op, (x, axes_), {}, want, (1,), opset=opset(op))
        noop = {"noop_with_empty_axes": 1}
        if op in ("ReduceSum", "ReduceMax", "ReduceMean"):
            empty = np.zeros(0, np.int64)
            x = draw(2, (3, 4))
            yield Case(op, (x, empty), noop, lambda x, _: x, (1,), opset=opset(op), note="noop")


def extremes() -> Iterator[Case]:
    x = np.array([[2, 1, 2, 0], [3, 3, 3, 3], [-1, 5, 5, -1]], np.float32)
    for op in ("ArgMax", "ArgMin"):
        for axis in (0, 1, -1):
            for keep in (0, 1):
                for last in (0, 1):
                    more = {"axis": axis, "keepdims": keep, "select_last_index": last}
                    yield Case(op, (x,), more)
        for dtype in (*FLOATS[1:3], *(t for t in INTEGERS if t.name in ("int8", "int32", "uint8"))):
            data = x.astype(np.int8).astype(dtype)
            want = np.argmax if op == "ArgMax" else np.argmin
            yield Case(op, (data,), {"axis": 1, "keepdims": 0}, partial(position, want))


def position(find: Function, x: Array) -> Array:
    return find(x.astype(np.float64), axis=1)


def totals() -> Iterator[Case]:
    for axis in (0, 1, -1):
        for exclusive in (0, 1):
            for reverse in (0, 1):
                more = {"exclusive": exclusive, "reverse": reverse}
                for dtype in (FLOAT32, np.dtype(np.float64), np.dtype(np.int64)):
                    x = draw(1, (3, 4, 5), np.float64) * 8
                    inputs = (x.astype(dtype), np.array(axis, np.int64))
                    want = partial(total, axis, exclusive, reverse)
                    note = f"axis {axis}"
                    yield Case("CumSum", inputs, more, want, (1,), note=note)


def total(axis: int, exclusive: int, reverse: int, x: Array, _: Array) -> Array:
    data = np.flip(x, axis) if reverse else x
    sums = np.cumsum(data, axis)
    sums = sums - data if exclusive else sums
    return np.flip(sums, axis) if reverse else sums


CASES = [*reductions(), *extremes(), *totals()]
