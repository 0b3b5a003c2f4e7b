"""Operators that pick elements by indices, and put them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS

from .generate import INT32, INT64, Array, Dice, Shape, ints
from .oracles import Make, agree
from .sample import Sample, smooth


def indices(dice: Dice, opset: int, size: int, shape: Shape) -> Array:
    """Return indices into an axis, from either end where the opset knows that."""
    minimum = -size if opset >= 11 else 0
    return dice.array(dice.some(INT32, INT64), shape, minimum, size - 1)


def gather(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = dice.edged(dice.dtype(op, opset), dice.shape(1, empty=False))
    axis = dice.axis(x.ndim) if opset >= 11 else dice.randrange(x.ndim)
    where = indices(dice, opset, x.shape[axis], dice.shape(0, 3))
    attributes = {} if axis == 0 and dice.chance(0.5) else {"axis": axis}
    return Sample(op, (x, where), attributes, opset, (1,) if dice.chance(0.4) else ())


def gather_elements(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    shape = dice.shape(1, empty=False)
    x = dice.edged(dice.dtype(op, opset), shape)
    axis = dice.axis(x.ndim)
    wanted = [dice.randint(0 if dice.chance(0.1) else 1, d) for d in shape]
    wanted[axis] = dice.size()
    kept = tuple(slice(None if a == axis % x.ndim else n) for a, n in enumerate(wanted))
    where = indices(dice, opset, shape[axis], tuple(wanted))

    def want(data: Array, where: Array) -> Array:
        return np.take_along_axis(data[kept], where, axis)

    return Sample(op, (x, where), {"axis": axis}, opset, want=want)


def gather_nd(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    shape = dice.shape(1, 5, empty=False)
    x = dice.edged(dice.dtype(op, opset), shape)
    batch = dice.randrange(len(shape)) if opset >= 12 and dice.chance(0.5) else 0
    depth = dice.randint(1, len(shape) - batch)
    outer = (*shape[:batch], *dice.shape(0 if batch else 1, 2))
    parts = [dice.array(INT64, outer, -d, d - 1) for d in shape[batch : batch + depth]]
    attributes = {"batch_dims": batch} if batch or (opset >= 12 and dice.chance(0.5)) else {}
    return Sample(op, (x, np.stack(parts, -1)), attributes, opset)


def reduction(op: str, dice: Dice, opset: int) -> dict[str, Any]:
    known = {16: ("none", "add", "mul"), 18: ("none", "add", "mul", "max", "min")}
    return {"reduction": dice.choice(known[opset])} if opset in known else {}


def scatter_dtype(op: str, dice: Dice, opset: int, how: dict[str, Any]) -> Any:
    if how.get("reduction", "none") == "none" and op != "Scatter":
        return dice.dtype(op, opset)
    usual = (*FLOATS, *(np.dtype(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64)))
    return dice.dtype(op, opset, among=usual)


def scatter_elements(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    shape = dice.shape(1, empty=False)
    how = reduction(op, dice, opset)
    dtype = scatter_dtype(op, dice, opset, how)
    axis = dice.axis(len(shape)) if opset >= 11 else dice.randrange(len(shape))
    sizes = [dice.randint(1, d) for d in shape]
    unique = how.get("reduction", "none") == "none"
    if not unique:
        sizes[axis] = dice.size(empty=False)
    where = indices(dice, opset, shape[axis], tuple(sizes))
    if unique:  # the order of two updates of one element is undefined
        order = np.moveaxis(np.arange(sizes[axis]).reshape(-1, *[1] * (len(shape) - 1)), 0, axis)
        rows = dice.numbers.permuted(np.broadcast_to(order, sizes), axis=axis)
        where = np.where((where < 0) & (rows > 0), rows - shape[axis], rows).astype(where.dtype)
    updates = dice.array(dtype, tuple(sizes))
    x = dice.array(dtype, shape)
    bound = smooth(sizes[axis]) if dtype in FLOATS and not unique else None
    return Sample(op, (x, where, updates), {"axis": axis, **how}, opset, bound=bound)


def scatter_nd(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    shape = dice.shape(1, empty=False)
    how = reduction(op, dice, opset)
    dtype = scatter_dtype(op, dice, opset, how)
    depth = dice.randint(0, len(shape))
    count = int(np.prod(shape[:depth]))
    unique = how.get("reduction", "none") == "none"
    outer = (dice.randint(0, count),) if unique or dice.chance(0.5) else dice.shape(1, 2)
    size = int(np.prod(outer))
    flat = (
        dice.numbers.permutation(count)[:size] if unique else dice.array(INT64, outer, 0, count - 1)
    )
    parts = np.unravel_index(flat.reshape(outer), shape[:depth]) if depth else ()
    parts = [p - d * (dice.chance(0.3) and opset >= 11) for p, d in zip(parts, shape, strict=False)]
    where = np.stack(parts, -1).astype(INT64) if depth else np.zeros((*outer, 0), INT64)
    updates = dice.array(dtype, (*outer, *shape[depth:]))
    x = dice.array(dtype, shape)
    bound = smooth(size) if dtype in FLOATS and not unique else None
    return Sample(op, (x, where, updates), how, opset, bound=bound)


def one_hot(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    shape = dice.shape(1, 3)
    depth = dice.randint(1, 5)
    kind = dice.dtype(op, opset, "T1", among=(INT32, INT64, np.dtype(np.float32)))
    where = dice.array(INT64, shape, -depth - 2, depth + 2).astype(kind)
    values = dice.array(dice.dtype(op, opset, "T3"), (2,))
    size = np.array(depth, INT64).reshape(dice.some((), (1,)))
    axis = (
        dice.randint(-len(shape) - 1, len(shape)) if opset >= 11 else dice.randint(-1, len(shape))
    )
    attributes = dice.given(axis=(axis,))

    def want(where: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(()))
        wanted = where.astype(INT64)
        wanted = np.where(wanted < 0, wanted + count, wanted) if opset >= 11 else wanted
        hits = np.moveaxis(wanted[..., None] == np.arange(count), -1, attributes.get("axis", -1))
        return np.where(hits, values[1], values[0])

    return Sample(op, (where, size, values), attributes, opset, (1,), want=want)


def compress(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = dice.edged(dice.dtype(op, opset), dice.shape(1, empty=False))
    if dice.chance(0.3):
        return Sample(op, (x, dice.array(bool, (dice.randint(0, x.size),))), {}, opset)
    axis = dice.axis(x.ndim) if opset >= 11 else dice.randrange(x.ndim)
    condition = dice.array(bool, (dice.randint(0, x.shape[axis]),))
    return Sample(op, (x, condition), {"axis": axis}, opset)


def non_zero(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = dice.array(dice.dtype(op, opset), dice.shape())
    keep = dice.array(bool, x.shape)
    return Sample(op, (np.where(keep, x, np.zeros((), x.dtype)),), {}, opset)


def unique(op: str, dice: Dice) -> Sample:
    x = dice.array(dice.dtype(op, 11), dice.shape(1, 3, empty=False), 0, 3)
    if x.dtype in FLOATS:
        x = np.round(x)
    attributes = dice.given(sorted=(0, 1), axis=lambda: dice.axis(x.ndim))
    outputs = (True, *(dice.chance(0.7) for _ in range(3)))

    def want(x: Array) -> Any:
        axis = attributes.get("axis")
        rows = x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)
        parts = rows.reshape(len(rows), -1)
        pairs = np.stack([parts.real, parts.imag], -1) if x.dtype.kind == "c" else parts
        keys = [tuple(key) for key in pairs.reshape(len(rows), -1).tolist()]
        chosen = list(dict.fromkeys(keys))
        chosen = sorted(chosen) if attributes.get("sorted", 1) else chosen
        first = [keys.index(key) for key in chosen]
        found = rows[first] if axis is None else np.moveaxis(rows[first], 0, axis)
        counts = [keys.count(key) for key in chosen]
        results = (found, ints(first), ints([chosen.index(key) for key in keys]), ints(counts))
        return tuple(y for y, wanted in zip(results, outputs, strict=True) if wanted)

    return Sample(op, (x,), attributes, 11, outputs=outputs, want=want)


def tensor_scatter(op: str, dice: Dice) -> Sample:
    batch, length, size = dice.size(False), dice.randint(2, 6), dice.size(False)
    outer = () if dice.chance(0.3) else (dice.size(False),)
    count = dice.randint(1, length)
    dtype = dice.dtype(op, 24)
    cache = dice.array(dtype, (batch, *outer, length, size))
    update = dice.array(dtype, (batch, *outer, count, size))
    mode = dice.some("linear", "circular")
    last = length - count if mode == "linear" else length - 1
    where = dice.array(INT64, (batch,), 0, last)
    inputs = (cache, update, where) if dice.chance(0.8) else (cache, update)
    return Sample(op, inputs, {"mode": mode, **dice.given(axis=(-2,))}, 24)


MAKERS: dict[str, Make] = {
    "Compress": compress,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "NonZero": non_zero,
    "OneHot": one_hot,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "Unique": unique,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
