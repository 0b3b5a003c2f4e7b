"""Pooling: windows, ceil_mode, auto_pad, what padding counts; and its inverse."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS

from .generate import Array, Dice, ints
from .oracles import Make, agree
from .sample import Sample, each, smooth, summed


def window(op: str, dice: Dice, opset: int, axes: int) -> tuple[dict[str, Any], list[int]]:
    """Return the attributes of a pooling window, and the sizes of an image that it fits."""
    kernel = [dice.randint(1, 3) for _ in range(axes)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    strides, dilations = [1] * axes, [1] * axes
    if dice.chance(0.7):
        attributes["strides"] = strides = [dice.randint(1, 3) for _ in range(axes)]
    if dice.chance(0.3) and opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]:
        attributes["dilations"] = dilations = [dice.randint(1, 2) for _ in range(axes)]
    if dice.chance(0.4) and opset >= {"MaxPool": 10, "AveragePool": 10, "LpPool": 18}[op]:
        attributes["ceil_mode"] = dice.randint(0, 1)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    covers = all(e >= s for e, s in zip(extent, strides, strict=True))
    if covers and dice.chance(0.3):  # otherwise SAME would need less than no padding
        attributes["auto_pad"] = dice.some("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    elif dice.chance(0.6):
        attributes["pads"] = [dice.randint(0, k - 1) for k in (*kernel, *kernel)]
    if op == "AveragePool" and opset >= 7 and dice.chance(0.5):
        attributes["count_include_pad"] = dice.randint(0, 1)
    return attributes, [e + dice.randint(0, 5) for e in extent]


def pool(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 2 if op == "LpPool" else 1)
    axes = dice.some(1, 2, 2, 2, 3)
    attributes, image = window(op, dice, opset, axes)
    dtype = dice.dtype(op, opset)
    x = dice.array(dtype, (dice.size(), dice.size(empty=False), *image))
    if op == "LpPool":
        attributes |= dice.given(p=(1, 2, 3))
    want = partial(pooled, op, attributes)
    if op == "MaxPool":
        bound = each(0) if dtype in FLOATS else None
        if opset < 8 or dice.chance(0.5):
            return Sample(op, (x,), attributes, opset, bound=bound, want=want)
        x = dice.distinct(dtype, x.shape) if dtype in FLOATS else x
        attributes |= dice.given(storage_order=(0, 1))
        if "SAME" in attributes.get("auto_pad", ""):
            attributes.pop("dilations", None)  # which no other runtime gets right
        return Sample(op, (x,), attributes, opset, outputs=2, bound=bound)
    taps = int(np.prod(attributes["kernel_shape"]))
    bound = smooth(taps) if op == "LpPool" else summed(taps)
    return Sample(op, (x,), attributes, opset, bound=bound, want=want)


def pooled(op: str, attributes: dict[str, Any], x: Array) -> Array:
    """Return the result of a pool, window by window."""
    kernel = attributes["kernel_shape"]
    strides, dilations = (attributes.get(n, [1] * len(kernel)) for n in ("strides", "dilations"))
    auto = attributes.get("auto_pad", "NOTSET")
    pads = attributes.get("pads", [0] * 2 * len(kernel))
    include = bool(attributes.get("count_include_pad"))
    taps: list[list[tuple[list[int], int]]] = []  # by axis and position: elements, how many count
    for axis, (n, k, s, d) in enumerate(zip(x.shape[2:], kernel, strides, dilations, strict=True)):
        extent, before, after = (k - 1) * d + 1, pads[axis], pads[axis + len(kernel)]
        if auto.startswith("SAME"):
            total = max(0, (-(-n // s) - 1) * s + extent - n)
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
            after = total - before
        whole = n + before + after - extent
        count = whole // s + 1
        if attributes.get("ceil_mode") and whole % s and count * s < n + before:
            count += 1
        starts = [i * s - before for i in range(count)]
        places = [[start + t * d for t in range(k)] for start in starts]
        counted = [sum(-before <= i < n + after for i in each) if include else
                   sum(0 <= i < n for i in each) for each in places]  # fmt: skip
        inside = [[i for i in each if 0 <= i < n] for each in places]
        taps.append(list(zip(inside, counted, strict=True)))
    y = np.empty((*x.shape[:2], *map(len, taps)), x.dtype)
    for at in np.ndindex(*y.shape[2:]):
        places = [taps[axis][i] for axis, i in enumerate(at)]
        values = x[np.ix_(*map(range, x.shape[:2]), *(inside for inside, _ in places))]
        y[(..., *at)] = _folded(op, values, prod(count for _, count in places), attributes)
    return y


def _folded(op: str, values: Array, count: int, attributes: dict[str, Any]) -> Array:
    axes = tuple(range(2, values.ndim))
    if op == "MaxPool":
        return values.max(axes)
    if op == "AveragePool":
        return values.sum(axes) / count
    p = attributes.get("p", 2)
    return (np.abs(values) ** p).sum(axes) ** (1 / p)


def lp_norm(v: Array, p: int, axes: tuple[int, ...]) -> Array:
    return (np.abs(v) ** p).sum(axes, keepdims=True) ** (1 / p)


def whole(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 2 if op == "GlobalLpPool" else 1)
    x = dice.array(dice.dtype(op, opset), dice.shape(3, 5, empty=False))
    taps = int(np.prod(x.shape[2:]))
    axes = tuple(range(2, x.ndim))
    if op == "GlobalMaxPool":
        return Sample(op, (x,), {}, opset, bound=each(0), want=lambda v: v.max(axes, keepdims=True))
    if op == "GlobalAveragePool":
        return Sample(op, (x,), {}, opset, bound=summed(taps),
                      want=lambda v: v.mean(axes, keepdims=True))  # fmt: skip
    attributes = dice.given(p=(1, 2, 3))
    p = attributes.get("p", 2)
    want = partial(lp_norm, p=p, axes=axes)
    return Sample(op, (x,), attributes, opset, bound=smooth(taps), want=want)


def unpool(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset, "T1")
    axes = dice.some(1, 2, 2)
    kernel, strides = ([dice.randint(2, 3) for _ in range(axes)] for _ in range(2))
    image = [dice.randint(1, 3) for _ in range(axes)]
    x = dice.array(dtype, (dice.size(empty=False), dice.size(empty=False), *image))
    sizes = [(n - 1) * s + k for n, s, k in zip(image, strides, kernel, strict=True)]
    more = [dice.randint(0, 2) for _ in range(axes)]
    shape = [*x.shape[:2], *(n + m for n, m in zip(sizes, more, strict=True))]
    planes, area = x.shape[0] * x.shape[1], int(np.prod(sizes))
    count = int(np.prod(image))
    first = np.arange(planes)[:, None] * area
    where = np.stack([dice.numbers.permutation(area)[:count] for _ in range(planes)]) + first
    inputs: tuple[Array, ...] = (x, where.reshape(x.shape).astype(np.int64))
    if dice.chance(0.4):
        inputs = (*inputs, ints(shape))
    attributes = {"kernel_shape": kernel, "strides": strides}

    def want(x: Array, where: Array, shape: Array | None = None) -> Array:
        smallest = np.zeros((*x.shape[:2], *sizes), x.dtype)
        smallest.reshape(-1)[where.reshape(-1)] = x.reshape(-1)
        if shape is None:
            return smallest
        return np.pad(smallest, [(0, n - m) for n, m in zip(shape, smallest.shape, strict=True)])

    return Sample(op, inputs, attributes, opset, (2,), bound=each(0), want=want)


MAKERS: dict[str, Make] = {
    "AveragePool": pool,
    "GlobalAveragePool": whole,
    "GlobalLpPool": whole,
    "GlobalMaxPool": whole,
    "LpPool": pool,
    "MaxPool": pool,
    "MaxUnpool": unpool,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
