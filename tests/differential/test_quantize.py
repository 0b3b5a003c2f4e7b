"""Quantization: per tensor, axis and block, to every type that the schema has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS, INTEGERS, TO_ONNX, float16, float32, int32

from .generate import Array, Dice, Shape, only, versions
from .oracles import Make, agree
from .sample import Sample, each


def parameters(dice: Dice, shape: Shape, opset: int) -> tuple[Shape, dict[str, Any]]:
    """Return the shape of the scales, and where they belong."""
    how = dice.choice(("tensor", "axis", "block")[: 1 + (opset >= 13) + (opset >= 21)])
    if how == "tensor":
        return (), {}
    axis = dice.axis(len(shape))
    attributes = {} if axis in (1, 1 - len(shape)) and dice.chance(0.5) else {"axis": axis}
    if how == "axis":
        return (shape[axis],), attributes
    block = dice.randint(1, max(1, shape[axis]))
    scales = list(shape)
    scales[axis] = -(-shape[axis] // block)
    return tuple(scales), attributes | {"block_size": block}


def scales_of(dice: Dice, dtype: Any, shape: Shape) -> Array:
    if dice.chance(0.5):
        return np.exp2(dice.array(np.int64, shape, -4, 2)).astype(dtype)
    return dice.array(dtype, shape, 0.02, 2)


def spread_out(parameter: Array, x: Array, attributes: dict[str, Any]) -> Array:
    """Return scales or zero points with one element per element of x."""
    if parameter.ndim == 0:
        return parameter
    axis = attributes.get("axis", 1) % x.ndim
    if attributes.get("block_size"):
        repeated = np.repeat(parameter, attributes["block_size"], axis)
        return np.take(repeated, np.arange(x.shape[axis]), axis)
    return parameter.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def quantize(op: str, dice: Dice) -> Sample:
    opset = min(dice.opset(op), 25)
    target = dice.dtype(op, opset, "T2" if opset < 23 else "T3")
    if opset not in versions(op):
        opset = 25
    shape = dice.shape(2, 4, empty=False)
    dtype = dice.dtype(op, opset, "T1", among=(float32, float16)) if opset >= 19 else float32
    x = dice.array(dtype, shape) * np.array(dice.some(1, 10, 100), dtype)
    per, attributes = parameters(dice, shape, opset)
    scale = scales_of(dice, dtype, per)
    whole = target in INTEGERS
    zero = dice.array(target, per) if whole else np.zeros(per, target)
    with_zero = dice.chance(0.7) or opset < 21
    if not with_zero and target != np.uint8:
        attributes["output_dtype"] = TO_ONNX[np.dtype(target)]
    if not whole and opset >= 19:
        attributes |= dice.given(saturate=(0, 1))
    attributes = attributes if whole or target.name.startswith("float8") else _plain(attributes)

    def want(x: Array, scale: Array, zero: Array | None = None) -> Array:
        ratio = (x / spread_out(scale, x, attributes)).astype(np.float32)
        limits = ml_dtypes.iinfo(target)
        moved = 0 if zero is None else spread_out(zero, x, attributes).astype(np.int64)
        return np.clip(np.rint(ratio) + moved, limits.min, limits.max).astype(target)

    stored = (1, 2) if dice.chance(0.7) else ()
    inputs = (x, scale, zero) if with_zero else (x, scale)
    return Sample(op, inputs, attributes, opset, stored, want=want if whole else None)


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != "saturate"}


def dequantize(op: str, dice: Dice) -> Sample:
    opset = min(dice.opset(op), 25)
    source = dice.dtype(op, opset, "T" if opset < 19 else "T1")
    shape = dice.shape(2, 4, empty=False)
    kind = dice.dtype(op, opset, "T2", among=tuple(FLOATS)) if opset >= 19 else float32
    x = dice.array(source, shape, *((-1000, 1000) if source == int32 else ()))
    per, attributes = parameters(dice, shape, opset)
    scale = scales_of(dice, kind, per)
    zero = None
    if source in INTEGERS and source != int32 and dice.chance(0.7):
        zero = dice.array(source, per)

    def want(x: Array, scale: Array, zero: Array | None = None) -> Array:
        wide = x.astype(np.float64)
        if zero is not None:
            wide = wide - spread_out(zero, x, attributes).astype(np.float64)
        return wide * spread_out(scale, x, attributes)

    stored = (1, 2) if dice.chance(0.7) else ()
    return Sample(op, (x, scale, zero), only(attributes), opset, stored, want=want,
                  bound=each(2))  # fmt: skip


def dynamic(op: str, dice: Dice) -> Sample:
    x = dice.array(float32, dice.shape(1, 3, empty=False)) * np.float32(dice.some(0.01, 1, 100))
    x = np.abs(x) if dice.chance(0.3) else x
    return Sample(op, (x,), {}, 11, outputs=3)


MAKERS: dict[str, Make] = {
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic,
    "QuantizeLinear": quantize,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
