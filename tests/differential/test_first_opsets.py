"""Operators as the first opsets had them, which no other runtime runs: against formulas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tercet.runtime.ir.dtypes import float32, float64

from .generate import Array, Dice
from .oracles import Make, agree
from .sample import Sample, each, smooth
from .test_pool import lp_norm, pooled
from .test_recurrent import layer as newest_layer
from .test_recurrent import run
from .test_resize import resized

BINARY: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "And": np.logical_and,
    "Div": np.true_divide,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
    "Mul": np.multiply,
    "Or": np.logical_or,
    "Pow": np.power,
    "Sub": np.subtract,
    "Xor": np.logical_xor,
}
FOLDS = {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}
DTYPES = {"And": bool, "Or": bool, "Xor": bool, "Equal": np.int32}


def aligned(op: str, dice: Dice) -> Sample:
    """`axis` says where the axes of the second operand begin; without it they are the last."""
    rank = dice.randint(1, 4)
    shape = tuple(dice.size(empty=False) for _ in range(rank))
    first = dice.randrange(rank)
    inner = shape[first : dice.randint(first + 1, rank)]
    last = first + len(inner) == rank
    attributes = {"broadcast": 1} | ({} if last and dice.chance(0.5) else {"axis": first})
    a, b = (dice.array(DTYPES.get(op, float64), s) for s in (shape, inner))
    a = np.abs(a) if op == "Pow" else a
    a, b = (x % 3 if op == "Equal" else x for x in (a, b))
    padded = inner + (1,) * (rank - first - len(inner))
    return Sample(op, (a, b), attributes, 6, want=lambda x, y: BINARY[op](x, y.reshape(padded)),
                  bound=each(4) if op in ("Add", "Sub", "Mul", "Div", "Pow") else None)  # fmt: skip


def fold(op: str, dice: Dice) -> Sample:
    shape = dice.shape()
    arrays = tuple(dice.array(float32, shape) for _ in range(dice.randint(1, 4)))
    attributes = {"consumed_inputs": [0] * len(arrays)} if dice.chance(0.5) else {}

    def want(*arrays: Array) -> Array:
        total = arrays[0]
        for x in arrays[1:]:
            total = FOLDS[op](total, x)
        return total

    return Sample(op, arrays, attributes, 1, want=want, bound=smooth(4))


def prelu(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape(2, 4, empty=False))
    slope = dice.array(float32, (dice.some(1, x.shape[1]),))

    def want(x: Array, slope: Array) -> Array:
        return np.where(x < 0, x * slope.reshape(-1, *[1] * (x.ndim - 2)), x)

    return Sample(op, (x, slope), {}, dice.some(1, 6), want=want, bound=each(1))


def cast(op: str, dice: Dice) -> Sample:
    names = {"FLOAT": np.float32, "INT32": np.int32, "DOUBLE": np.float64, "BOOL": np.bool_}
    name = dice.choice(list(names))
    x = np.round(dice.array(float32, dice.shape()))
    return Sample(op, (x,), {"to": name}, 1, want=lambda v: v.astype(names[name]))


def reshape(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape(1, 4, empty=False))
    target = dice.some([-1], [0, -1], [1, -1])
    shape = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    return Sample(op, (x,), {"shape": target}, 1, want=lambda v: v.reshape(shape))


def tile(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape(1, 3))
    times, axis = dice.randint(1, 3), dice.randrange(x.ndim)
    numbers = (np.array([float(n)], float32) for n in (times, axis))
    return Sample(op, (x, *numbers), {}, 1, (1, 2),
                  want=lambda v, *_: np.concatenate([v] * times, axis))  # fmt: skip


def concat(op: str, dice: Dice) -> Sample:
    shape = dice.shape(2, 4)
    arrays = tuple(dice.array(float32, shape) for _ in range(dice.randint(1, 3)))
    return Sample(op, arrays, {}, 1, want=lambda *x: np.concatenate(x, 1))


def split(op: str, dice: Dice) -> Sample:
    sizes = [dice.randint(1, 3) for _ in range(dice.randint(1, 3))]
    x = dice.array(float32, (2, sum(sizes), 3))
    ends = np.cumsum(sizes)[:-1]

    def want(v: Array, *_: Array) -> tuple[Array, ...]:
        return tuple(np.split(v, ends, 1))

    if dice.chance(0.5):
        return Sample(op, (x,), {"axis": 1, "split": sizes}, 1, outputs=len(sizes), want=want)
    inputs = (x, np.array(sizes, float32))
    return Sample(op, inputs, {"axis": 1}, 1, (1,), outputs=len(sizes), want=want)


def pad(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape(1, 4, empty=False))
    widths = [dice.randint(0, 2) for _ in range(2 * x.ndim)]
    pairs = list(zip(widths[: x.ndim], widths[x.ndim :], strict=True))
    value = float(dice.randint(-2, 2))
    return Sample(op, (x,), {"paddings": widths, "value": value}, 1,
                  want=lambda v: np.pad(v, pairs, constant_values=value))  # fmt: skip


def batch_norm(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape(2, 4, empty=False))
    scale, bias, mean = (dice.array(float32, x.shape[1:2]) for _ in range(3))
    variance = dice.array(float32, x.shape[1:2], 0.1, 2)
    opset = dice.some(1, 6)
    attributes: dict[str, Any] = {"is_test": 1, "epsilon": 0.01}
    attributes |= {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}

    def want(x: Array, *rest: Array) -> Array:
        scale, bias, mean, variance = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in rest)
        return scale * (x - mean) / np.sqrt(variance + float(np.float32(0.01))) + bias

    inputs = (x, scale, bias, mean, variance)
    return Sample(op, inputs, attributes, opset, (1, 2, 3, 4), want=want, bound=smooth(4))


def mean_variance(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape(2, 4, empty=False))
    flags = {"across_channels": int(dice.chance(0.5)), "normalize_variance": int(dice.chance(0.5))}
    attributes = {name: flag for name, flag in flags.items() if dice.chance(0.8)}
    shared = attributes.get("across_channels", 0)
    axes = tuple(axis for axis in range(x.ndim) if shared or axis != 1)

    def want(x: Array) -> Array:
        centred = x - x.mean(axes, keepdims=True)
        if not attributes.get("normalize_variance", 1):
            return centred
        return centred / (np.sqrt(np.square(centred).mean(axes, keepdims=True)) + 1e-9)

    return Sample(op, (x,), attributes, dice.some(1, 8), want=want, bound=smooth(x.size))


def fill(op: str, dice: Dice) -> Sample:
    """The shape is an attribute, an input's shape, or an input's elements; more axes follow."""
    shape = dice.shape(1, 3, empty=False)
    extra = dice.shape(0, 2, empty=False)
    whole = (*shape, *extra)
    data = dice.array(float32, whole)
    attributes: dict[str, Any] = {"value": 3.0, "dtype": int(dice.some(TensorProto.INT32, 1))}
    filled = np.full(whole, 3, np.int32 if attributes["dtype"] == TensorProto.INT32 else float32)
    if op == "GivenTensorFill":
        attributes, filled = {"values": data.ravel().tolist()}, data
    if dice.chance(0.3):
        return Sample(op, (), {**attributes, "shape": whole}, 1, want=lambda: filled)
    attributes |= {"extra_shape": extra} if extra else {}
    if dice.chance(0.5):
        sizes = np.array(shape, np.int64)
        return Sample(op, (sizes,), {**attributes, "input_as_shape": 1}, 1, want=lambda _: filled)
    return Sample(op, (np.zeros(shape, float32),), attributes, 1, want=lambda _: filled)


def dropout(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape())
    return Sample(op, (x,), {"is_test": 1, "ratio": 0.3}, dice.some(1, 6), want=lambda v: v)


def lp_pool(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, (1, 2, dice.randint(3, 6), dice.randint(3, 6)))
    p = dice.some(1, 2, 3)
    if op == "GlobalLpPool":
        want = partial(lp_norm, p=p, axes=(2, 3))
        return Sample(op, (x,), {"p": float(p)}, 1, want=want, bound=smooth(36))
    attributes = {"kernel_shape": [2, 3], "strides": [dice.randint(1, 2), 1]}
    return Sample(op, (x,), {**attributes, "p": float(p)}, 1, bound=smooth(6),
                  want=partial(pooled, op, {**attributes, "p": p}))  # fmt: skip


def upsample(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, (1, 2, dice.randint(1, 4), dice.randint(1, 4)))
    mode, factors = dice.some("nearest", "bilinear"), [dice.some(1.0, 1.5, 2.0) for _ in range(2)]
    scales = np.array([1, 1, *factors], float32)
    how = {"mode": mode.removeprefix("bi"), "nearest_mode": "floor",
           "coordinate_transformation_mode": "asymmetric"}  # fmt: skip
    attributes = {"mode": mode, "height_scale": factors[0], "width_scale": factors[1]}
    return Sample(op, (x,), attributes, 1, bound=smooth(8),
                  want=lambda v: resized(how, v, None, scales))  # fmt: skip


def top_k(op: str, dice: Dice) -> Sample:
    x = dice.distinct(float32, dice.shape(1, 3, empty=False))
    axis = dice.randrange(x.ndim)
    k = dice.randint(1, x.shape[axis])

    def want(x: Array) -> tuple[Array, Array]:
        places = np.take(np.argsort(-x, axis, kind="stable"), np.arange(k), axis)
        return np.take_along_axis(x, places, axis), places

    return Sample(op, (x,), {"axis": axis, "k": k}, 1, outputs=2, want=want)


def recurrent(op: str, dice: Dice) -> Sample:
    """A layer that is asked for its sequence of results."""
    sample = newest_layer(op, dice)
    while sample.attributes.get("layout"):
        sample = newest_layer(op, dice)
    later = ("layout", "linear_before_reset")
    attributes = {name: v for name, v in sample.attributes.items() if name not in later}
    count = len(sample.output_names)

    def want(*arrays: Array | None) -> Any:
        return tuple(run(op, attributes, (*arrays, *[None] * (8 - len(arrays)))))

    return Sample(op, sample.inputs, {**attributes, "output_sequence": 1}, 1, sample.constants,
                  outputs=count, bound=sample.bound, want=want)  # fmt: skip


FIRST: dict[str, Make] = {
    **dict.fromkeys(BINARY, aligned),
    **dict.fromkeys(FOLDS, fold),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    **dict.fromkeys(("ConstantFill", "GivenTensorFill"), fill),
    "BatchNormalization": batch_norm,
    "Cast": cast,
    "Concat": concat,
    "Dropout": dropout,
    "GlobalLpPool": lp_pool,
    "LpPool": lp_pool,
    "MeanVarianceNormalization": mean_variance,
    "PRelu": prelu,
    "Pad": pad,
    "Reshape": reshape,
    "Split": split,
    "Tile": tile,
    "TopK": top_k,
    "Upsample": upsample,
}


@pytest.mark.parametrize("op", FIRST)
def test_agrees(op: str) -> None:
    agree(op, FIRST[op])
