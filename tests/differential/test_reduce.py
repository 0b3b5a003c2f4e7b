"""Reductions, positions of extremes, the greatest elements, running totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS, bfloat16, float16

from .generate import INT32, INT64, Array, Dice, ints
from .oracles import Make, agree
from .sample import Bound, Sample, each, smooth, summed

FORMULAS: dict[str, Callable[..., Any]] = {
    "ReduceL1": lambda x, **k: np.abs(x).sum(**k),
    "ReduceL2": lambda x, **k: np.sqrt(np.square(x).sum(**k)),
    "ReduceLogSum": lambda x, **k: np.log(x.sum(**k)),
    "ReduceLogSumExp": lambda x, **k: np.logaddexp.reduce(x, k["axis"], keepdims=k["keepdims"])
    if k["axis"] != () else x,
    "ReduceMax": lambda x, **k: x.max(**k, initial=lowest(x)),
    "ReduceMean": lambda x, **k: x.mean(**k),
    "ReduceMin": lambda x, **k: x.min(**k, initial=greatest(x)),
    "ReduceProd": lambda x, **k: x.prod(**k),
    "ReduceSum": lambda x, **k: x.sum(**k),
    "ReduceSumSquare": lambda x, **k: np.square(x).sum(**k),
}  # fmt: skip


def lowest(x: Array) -> Any:
    return -np.inf if x.dtype in FLOATS else 0 if x.dtype == bool else np.iinfo(x.dtype).min


def greatest(x: Array) -> Any:
    return np.inf if x.dtype in FLOATS else 1 if x.dtype == bool else np.iinfo(x.dtype).max


def reduce(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    x = dice.edged(dtype, dice.shape())
    if op not in ("ReduceMax", "ReduceMin", "ReduceSum") and dtype not in FLOATS:
        x = dice.array(dtype, x.shape, 0, 9)  # what overflows is not specified, nor the mean
        x = np.ones((), dtype) if op == "ReduceMean" and x.size == 0 else x  # of nothing
    if op in ("ReduceSum", "ReduceProd") and dtype not in FLOATS:
        maximum = 1 if op == "ReduceProd" else 2**57 if x.dtype.itemsize == 8 else 2**23
        x = dice.array(dtype, x.shape, 0, maximum)
    if op in ("ReduceLogSum", "ReduceProd") and dtype in FLOATS:
        x = np.abs(dice.array(dtype, x.shape)) + np.array(0.5, dtype)
    if op in ("ReduceSum", "ReduceL1", "ReduceMean", "ReduceSumSquare") and dtype in FLOATS:
        x = np.where(np.abs(x) < 100, x, np.array(dice.some(1, 1, np.inf), dtype)).astype(dtype)
    axes = dice.maybe(lambda: dice.axes(x.ndim, 1), 0.8)
    axes = axes if opset >= 11 or axes is None else [a % x.ndim for a in axes]
    attributes = dice.given(keepdims=(0, 1))
    with_input = opset >= (13 if op == "ReduceSum" else 18)
    noop = dice.given(noop_with_empty_axes=(0, 1)) if with_input else {}
    along = tuple(range(x.ndim)) if not axes else tuple(axes)
    along = () if not axes and noop.get("noop_with_empty_axes") else along
    keep = bool(attributes.get("keepdims", 1))

    def want(data: Array, *_: Any) -> Any:
        found = np.asarray(FORMULAS[op](data, axis=along, keepdims=keep))
        return found if dtype in FLOATS else np.trunc(found).astype(dtype)

    count = max(1, int(np.prod([x.shape[a] for a in along])))
    bound = bound_of(op, count, wide=dtype in (float16, bfloat16)) if dtype in FLOATS else None
    inputs: tuple[Array | None, ...] = (x,)
    if not with_input:
        attributes |= {"axes": axes} if axes else {}
    elif axes is not None or dice.chance(0.5):
        inputs = (x, ints(axes or []))
    return Sample(op, inputs, attributes | noop, opset, (1,), bound=bound, want=want)


def bound_of(op: str, count: int, wide: bool) -> Bound:
    if op in ("ReduceMax", "ReduceMin"):
        return each(0)
    if op in ("ReduceProd", "ReduceL1", "ReduceSumSquare", "ReduceL2"):
        return each(2 if wide else count + 2)
    return summed(0 if wide else count) if op in ("ReduceSum", "ReduceMean") else smooth(count)


def arg_reduce(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    x = dice.array(dtype, dice.shape(1, empty=False))
    if dice.chance(0.5):
        x = (np.round(x) if dtype in FLOATS else x % 3).astype(dtype)
    axis = dice.axis(x.ndim) if opset >= 11 else dice.randrange(x.ndim)
    last = dice.given(select_last_index=(0, 1)) if opset >= 12 else {}
    attributes = {"axis": axis} if axis or dice.chance(0.5) else {}
    return Sample(op, (x,), attributes | last | dice.given(keepdims=(0, 1)), opset)


def cumulate(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    x = dice.array(dtype, dice.shape(1))
    axis = dice.axis(x.ndim)
    flags = dice.given(exclusive=(0, 1), reverse=(0, 1))

    def want(data: Array, _: Array) -> Array:
        data = np.flip(data, axis) if flags.get("reverse") else data
        run = np.cumsum if op == "CumSum" else np.cumprod
        found = run(data, axis, data.dtype)
        if flags.get("exclusive"):
            found = np.roll(found, 1, axis)
            found[(slice(None),) * (axis % x.ndim) + (slice(1),)] = 0 if op == "CumSum" else 1
        return np.flip(found, axis) if flags.get("reverse") else found

    where = ints(axis, dice.some(INT32, INT64))
    length = x.shape[axis]
    bound = summed(length) if op == "CumSum" else each(length)
    return Sample(op, (x, where), flags, opset, (1,) if dice.chance(0.5) else (),
                  bound=bound if dtype in FLOATS else None, want=want)  # fmt: skip


def top_k(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    x = dice.array(dtype, dice.shape(1, empty=False))
    if dice.chance(0.5):
        x = (np.round(x) if dtype in FLOATS else x % 3).astype(dtype)
    axis = dice.axis(x.ndim) if opset >= 11 else dice.randrange(x.ndim)
    k = dice.randint(0 if dice.chance(0.1) and opset > 1 else 1, x.shape[axis])
    attributes = {"axis": axis}
    if opset == 1:
        return Sample(op, (x,), attributes | {"k": k}, opset, outputs=2)
    attributes |= dice.given(largest=(0, 1)) if opset >= 11 else {}
    return Sample(op, (x, ints([k])), attributes, opset, (1,), outputs=2)


MAKERS: dict[str, Make] = {
    **dict.fromkeys(FORMULAS, reduce),
    "ArgMax": arg_reduce,
    "ArgMin": arg_reduce,
    "CumProd": cumulate,
    "CumSum": cumulate,
    "TopK": top_k,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
