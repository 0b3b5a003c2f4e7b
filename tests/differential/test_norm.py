"""Normalization, softmax and its relatives, dropout of inference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import bool_, float32

from .generate import Array, Dice
from .oracles import Make, agree
from .sample import Sample, smooth


def channels(dice: Dice, dtype: Any, count: int) -> Array:
    return dice.array(dtype, (count,))


def epsilon(dice: Dice) -> dict[str, Any]:
    return dice.given(epsilon=(1e-5, 1e-3, 0.1))


def attribute(attributes: dict[str, Any], name: str, default: float) -> float:
    """Return an attribute or its default, which are float32 in a file and in the schema."""
    return float(np.float32(attributes.get(name, default)))


def batch_norm(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 7)
    dtype = dice.floating(op, opset)
    linear, moments = dtype, dtype
    if opset >= 14:
        moments = dice.floating(op, opset, "T2" if opset >= 15 else "U")
    if opset >= 15:
        linear = dice.floating(op, opset, "T1")
    x = dice.array(dtype, dice.shape(2, 5, empty=False))
    spatial = 0 if opset < 9 and dice.chance(0.3) else 1
    shape = x.shape[1:2] if spatial else x.shape[1:]
    rest = [dice.array(linear, shape), dice.array(linear, shape)]
    rest += [dice.array(moments, shape), dice.array(moments, shape, 0.1, 2)]
    attributes = epsilon(dice) | ({} if spatial else {"spatial": 0})
    stored = (1, 2, 3, 4) if dice.chance(0.8) else ()

    def want(x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
        wide = [v.reshape(-1, *[1] * (x.ndim - 2)) if spatial else v
                for v in (scale, bias, mean, variance)]  # fmt: skip
        tiny = attribute(attributes, "epsilon", 1e-5)
        return wide[0] * (x - wide[2]) / np.sqrt(wide[3] + tiny) + wide[1]

    return Sample(op, (x, *rest), attributes, opset, stored, bound=smooth(4), want=want)


def instance_norm(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 6)
    dtype = dice.floating(op, opset)
    x = dice.array(dtype, dice.shape(3, 5, empty=False))
    rest = [channels(dice, dtype, x.shape[1]) for _ in range(2)]
    attributes = epsilon(dice)
    return Sample(op, (x, *rest), attributes, opset, (1, 2) if dice.chance(0.8) else (),
                  want=partial(grouped, x.shape[1], attributes),
                  bound=smooth(x[0, 0].size + 8))  # fmt: skip


def grouped(groups: int, attributes: dict[str, Any], x: Array, scale: Array, bias: Array) -> Array:
    """Normalize groups of channels; scale and bias have an element per channel."""
    parts = x.reshape(len(x), groups, -1)
    tiny = attribute(attributes, "epsilon", 1e-5)
    centred = parts - parts.mean(-1, keepdims=True)
    y = (centred / np.sqrt(parts.var(-1, keepdims=True) + tiny)).reshape(x.shape)
    by_channel = (-1, *[1] * (x.ndim - 2))
    return scale.reshape(by_channel) * y + bias.reshape(by_channel)


def group_norm(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    groups, each = dice.randint(1, 3), dice.randint(1, 3)
    batch, *image = dice.shape(2, 4, empty=False)
    x = dice.array(dtype, (batch, groups * each, *image))
    rest = [channels(dice, dtype, groups * each if opset >= 21 else groups) for _ in range(2)]
    attributes = {"num_groups": groups} | epsilon(dice)

    def want(x: Array, *rest: Array) -> Array:
        return grouped(groups, attributes, x, *(v if opset >= 21 else v.repeat(each) for v in rest))

    return Sample(op, (x, *rest), attributes, opset, bound=smooth(x[0].size + 8), want=want)


def layer_norm(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    x = dice.array(dtype, dice.shape(1, 4, empty=False))
    axis = dice.axis(x.ndim)
    attributes = epsilon(dice) | {"axis": axis}
    if dice.chance(0.3):
        attributes["stash_type"] = 1
    scale = dice.array(dtype, x.shape[axis:] if dice.chance(0.7) else x.shape[-1:])
    bias = (
        dice.array(dtype, scale.shape) if op == "LayerNormalization" and dice.chance(0.5) else None
    )
    inputs = (x, scale, bias) if op == "LayerNormalization" else (x, scale)
    outputs: Any = 1
    if op == "LayerNormalization" and dice.chance(0.3):
        outputs = (True, dice.chance(0.7), True)
    return Sample(op, inputs, attributes, opset, (1, 2) if dice.chance(0.6) else (),
                  outputs=outputs, bound=smooth(x[0].size))  # fmt: skip


def lp_norm(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = dice.array(dice.floating(op, opset), dice.shape(1, 4, empty=False))
    return Sample(op, (x,), dice.given(axis=(dice.axis(x.ndim),), p=(1, 2)), opset,
                  bound=smooth(max(x.shape)))  # fmt: skip


def mean_variance(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = dice.array(dice.floating(op, opset), dice.shape(4, 4, empty=False))
    attributes = dice.given(axes=lambda: dice.axes(4, 1))
    axes = tuple(attributes.get("axes", (0, 2, 3)))

    def want(x: Array) -> Array:
        return (x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)

    return Sample(op, (x,), attributes, opset, bound=smooth(x.size), want=want)


def lrn(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    x = dice.array(dice.floating(op, opset), dice.shape(3, 4, empty=False))
    attributes = {"size": dice.randint(1, 6)}
    attributes |= dice.given(alpha=(1e-4, 0.5), beta=(0.75, 1.5), bias=(1.0, 2.0))

    def want(x: Array) -> Array:
        size, count = attributes["size"], x.shape[1]
        total = np.zeros_like(x)
        for c in range(count):
            first, last = c - (size - 1) // 2, c + -(-(size - 1) // 2)
            total[:, c] = np.square(x[:, max(0, first) : last + 1]).sum(1)
        alpha, beta, bias = (attribute(attributes, name, default) for name, default in
                             (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))  # fmt: skip
        return x / (bias + alpha / size * total) ** beta

    return Sample(op, (x,), attributes, opset, bound=smooth(6), want=want)


def softmax(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    x = dice.array(dtype, dice.shape(1, 4))
    x = np.array(8, dtype) * x if dice.chance(0.3) else x
    axis = dice.axis(x.ndim) if opset >= 11 else dice.randrange(x.ndim)
    attributes = {"axis": axis}
    if axis == (-1 if opset >= 13 else 1) and dice.chance(0.5):
        attributes = {}

    def want(x: Array) -> Array:
        shape, along = x.shape, axis
        if opset < 13:
            first = axis % x.ndim
            x = x.reshape(int(np.prod(shape[:first])), int(np.prod(shape[first:])))
            along = 1
        if op == "Hardmax":
            count = x.shape[along]
            hits = np.moveaxis(np.eye(count)[x.argmax(along)], -1, along) if x.size else x
            return hits.reshape(shape)
        e = np.exp(x - x.max(along, keepdims=True, initial=-np.inf))
        y = e / e.sum(along, keepdims=True)
        if op == "LogSoftmax":
            y = x - x.max(along, keepdims=True, initial=-np.inf)
            y = y - np.log(e.sum(along, keepdims=True))
        return y.reshape(shape)

    return Sample(op, (x,), attributes, opset, bound=smooth(x.size), want=want)


def dropout(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 7)
    x = dice.edged(dice.floating(op, opset), dice.shape())
    if opset < 12:
        return Sample(op, (x,), dice.given(ratio=(0.1, 0.9)), opset)
    ratio = np.array(dice.some(0.0, 0.5, 0.9), float32)
    training = np.array(False) if dice.chance(0.5) else None
    if dice.chance(0.2):
        ratio, training = np.array(0, float32), np.array(True)
    inputs = (x, ratio, training) if dice.chance(0.7) or training else (x,)
    mask = np.ones(x.shape, bool_)
    return Sample(op, inputs, dice.given(seed=(0, 7)), opset, (1, 2), outputs=2,
                  want=lambda v, *_: (v, mask))  # fmt: skip


MAKERS: dict[str, Make] = {
    "BatchNormalization": batch_norm,
    "Dropout": dropout,
    "GroupNormalization": group_norm,
    "Hardmax": softmax,
    "InstanceNormalization": instance_norm,
    "LRN": lrn,
    "LayerNormalization": layer_norm,
    "LogSoftmax": softmax,
    "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mean_variance,
    "RMSNormalization": layer_norm,
    "Softmax": softmax,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
