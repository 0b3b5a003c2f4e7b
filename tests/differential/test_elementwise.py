"""Operators that compute element by element, with broadcasting, in every dtype of the schema."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS, TO_ONNX, bfloat16, bits_of, bool_, float16

from .generate import Array, Dice, allowed, versions
from .oracles import Make, agree
from .sample import Bound, Sample, each, like_input, smooth

ARITHMETIC = ("Add", "Sub", "Mul", "Div")
COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
FOLDS = ("Max", "Min", "Sum", "Mean")
BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
#: Roundings of the functions; those without a number lose digits where they subtract.
UNARY: dict[str, int | None] = {
    **dict.fromkeys(("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu"), 0),
    **dict.fromkeys(("Acos", "Asin", "Atan", "Asinh", "Cosh", "Sinh", "Tanh"), 4),
    **dict.fromkeys(("Acosh", "Atanh", "Cos", "Erf", "Exp", "Log", "Sin", "Tan"), 4),
    **dict.fromkeys(("Reciprocal", "Sqrt", "Sigmoid", "Softsign"), 4),
    **dict.fromkeys(("Softplus", "HardSwish", "Mish"), None),
}
ACTIVATIONS: dict[str, dict[str, tuple[float, float]]] = {
    "Celu": {"alpha": (0.2, 3)},
    "Elu": {"alpha": (0.2, 3)},
    "Gelu": {},
    "HardSigmoid": {"alpha": (0.1, 1), "beta": (-1, 1)},
    "LeakyRelu": {"alpha": (-0.5, 1.5)},
    "Selu": {"alpha": (1, 2), "gamma": (1, 2)},
    "Shrink": {"lambd": (0, 1), "bias": (0, 1)},
    "Swish": {"alpha": (0.5, 2)},
    "ThresholdedRelu": {"alpha": (-1, 1)},
}


def exactness(dtype: object, roundings: float) -> Bound | None:
    return each(roundings) if dtype in FLOATS else None


def harmless(divisor: Array) -> Array:
    """Return integers without 0 and -1: x/0 is undefined, the least number over -1 overflows."""
    return np.where((divisor == 0) | (divisor + 1 == 0), divisor.dtype.type(3), divisor)


def arithmetic(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 7)
    dtype = dice.dtype(op, opset)
    a, b = (dice.edged(dtype, shape) for shape in dice.broadcast(2))
    if dtype not in FLOATS and op == "Div":
        b = harmless(b)
    return Sample(op, (a, b), opset=opset, bound=exactness(dtype, 1))


def comparison(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 7)
    dtype = dice.dtype(op, opset)
    a, b = (dice.edged(dtype, shape) for shape in dice.broadcast(2))
    if dice.chance(0.5):
        a, b = (np.where(np.isfinite(x), np.trunc(x), x) if x.dtype in FLOATS else x % 3
                if x.dtype != bool else x for x in (a, b))  # fmt: skip
        a, b = a.astype(dtype), b.astype(dtype)
    return Sample(op, (a, b), opset=opset)


def logic(op: str, dice: Dice) -> Sample:
    shapes = dice.broadcast(2)
    return Sample(op, tuple(dice.array(bool, shape) for shape in shapes), opset=7)


def negation(op: str, dice: Dice) -> Sample:
    return Sample(op, (dice.array(bool, dice.shape()),), opset=13)


def fold(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 8)
    dtype = dice.dtype(op, opset)
    arrays = [dice.edged(dtype, shape) for shape in dice.broadcast(dice.randint(1, 4))]
    if op == "Sum" or op == "Mean":
        arrays = [np.nan_to_num(x, nan=1, posinf=2, neginf=3).astype(dtype) for x in arrays]
    bound = exactness(dtype, 0 if op in ("Max", "Min") else 1)
    if bound is not None and op in ("Sum", "Mean"):
        bound = smooth(len(arrays))
    return Sample(op, tuple(arrays), opset=opset, bound=bound, want=FORMULAS.get(op))


def bits(op: str, dice: Dice) -> Sample:
    dtype = dice.dtype(op, 18)
    shapes = dice.broadcast(1 if op == "BitwiseNot" else 2)
    return Sample(op, tuple(dice.array(dtype, shape) for shape in shapes), opset=18)


def shift(op: str, dice: Dice) -> Sample:
    dtype = dice.dtype(op, 11)
    left, right = dice.broadcast(2)
    by = dice.array(dtype, right, 0, 8 * np.dtype(dtype).itemsize - 1)
    return Sample(op, (dice.array(dtype, left), by),
                  {"direction": dice.some("LEFT", "RIGHT")}, 11)  # fmt: skip


def unary(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, min(6, versions(op)[-1]))
    dtype = dice.dtype(op, opset)
    x = dice.edged(dtype, dice.shape())
    if op == "Acosh" and dice.chance(0.7):
        x = np.abs(x) + x.dtype.type(1)
    if op in ("Acos", "Asin", "Atanh"):
        x = np.where(np.abs(x) > 1, np.tanh(x), x).astype(dtype)
    if op in ("Sin", "Cos", "Tan"):
        x = np.where(np.abs(x) > 1e4, x.dtype.type(1), x)
    if op == "Erf" and dtype not in FLOATS:
        x = x % 3  # beyond, the error function is almost 1, and which integer that is, is chance
    roundings = UNARY[op]
    bound = smooth(4) if roundings is None else each(roundings)
    bound = bound if dtype in FLOATS else None
    return Sample(op, (x,), opset=opset, bound=bound, want=FORMULAS.get(op) if bound else None)


def activation(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, min(6, versions(op)[-1]))
    dtype = dice.dtype(op, opset)
    x = dice.edged(dtype, dice.shape())
    ranges = ACTIVATIONS[op].items()
    attributes = {k: float(np.float32(dice.uniform(*r))) for k, r in ranges if dice.chance(0.6)}
    if op == "Gelu":
        attributes = dice.given(approximate=("none", "tanh"))
    if op == "Shrink" and dtype not in FLOATS:
        x = dice.array(dtype, x.shape, 0 if x.dtype.kind == "u" else -100, 100)
    bound = each(2) if op in ("LeakyRelu", "ThresholdedRelu") else smooth(4)
    bound = like_input(2) if op == "Gelu" else bound  # 1 + erf leaves few digits where x < 0
    bound = bound if dtype in FLOATS else None
    want = partial(gelu, **attributes) if op == "Gelu" else None
    return Sample(op, (x,), attributes, opset, bound=bound, want=want)


def prelu(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 7)
    dtype = dice.dtype(op, opset)
    shape = dice.shape()
    x, slope = dice.edged(dtype, shape), dice.array(dtype, dice.narrowed(shape))
    return Sample(op, (x, slope), opset=opset, bound=exactness(dtype, 1))


def clip(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 6)
    dtype = dice.dtype(op, opset)
    x = dice.edged(dtype, dice.shape())
    if opset < 11:
        bounds = {name: dice.uniform(-1, 1) for name in ("min", "max") if dice.chance(0.6)}
        low, high = (float(np.float32(bounds.get(n, np.inf * s))) for n, s in
                     (("min", -1), ("max", 1)))  # fmt: skip
        want = partial(np.clip, a_min=low, a_max=high)
        return Sample(op, (x,), bounds, opset, bound=each(1), want=want)
    low, high = (dice.maybe(partial(dice.array, dtype), 0.7) for _ in range(2))
    constants = tuple(i for i in (1, 2) if dice.chance(0.5))
    return Sample(op, (x, low, high), opset=opset, constants=constants,
                  bound=exactness(dtype, 0))  # fmt: skip


def power(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 7)
    base = dice.dtype(op, opset)
    second = "T1" if opset >= 12 else "T"
    exponent = dice.dtype(op, opset, second) if opset >= 12 else base
    shapes = dice.broadcast(2)
    x = dice.edged(base, shapes[0]) if base in FLOATS else dice.array(base, shapes[0], -6, 6)
    if exponent in FLOATS:
        y = dice.array(exponent, shapes[1])
        y = np.abs(np.round(y)).astype(exponent) if base not in FLOATS else y
        y = dice.some(2.0, 3.0, 0.5, 0.0) + 0 * y if dice.chance(0.3) else y
    else:
        y = dice.array(exponent, shapes[1], 0, 5)
    y = np.asarray(y, exponent)
    return Sample(op, (x, y), opset=opset, bound=exactness(base, 4))


def modulo(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    a, b = (dice.array(dtype, shape) for shape in dice.broadcast(2))
    if dtype not in FLOATS:
        b = harmless(b)
    fmod = 1 if dtype in FLOATS else dice.some(0, 1)
    want = np.fmod if fmod else np.mod
    return Sample(op, (a, b), {"fmod": fmod}, opset, bound=exactness(dtype, 1), want=want)


def where(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset)
    shapes = dice.broadcast(3)
    x, y = dice.edged(dtype, shapes[1]), dice.edged(dtype, shapes[2])
    return Sample(op, (dice.array(bool, shapes[0]), x, y), opset=opset)


def question(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.dtype(op, opset, "T1", among=tuple(FLOATS))
    x = dice.edged(dtype, dice.shape())
    attributes = dice.given(detect_negative=(0, 1), detect_positive=(0, 1)) if op == "IsInf" else {}
    return Sample(op, (x,), attributes, opset)


def cast(op: str, dice: Dice) -> Sample:
    """Between all numbers, within what the target holds: beyond, the result is undefined."""
    opset = dice.opset(op, 6)
    usual = (*FLOATS, bool_, *(np.dtype(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64)))
    source = dice.dtype(op, opset, "T1", among=usual)
    target = dice.dtype(op, opset, "T2", among=usual)
    shape = dice.shape()
    if source in FLOATS and target not in FLOATS and target != bool_:
        x = dice.array(source, shape, 0 if np.dtype(target).kind == "u" else -100, 100)
    elif {source.kind, target.kind} <= set("iu") or bool_ in (source, target):
        x = dice.array(source, shape)
    else:
        x = dice.edged(source, shape)
    if source.kind in "iu" and target in (float16, bfloat16):
        x = dice.array(source, shape, 0, 120)
    if op == "Cast":
        return Sample(op, (x,), {"to": TO_ONNX[target]}, opset)
    return Sample(op, (x, dice.array(target, dice.shape())), opset=opset)


def bit_cast(op: str, dice: Dice) -> Sample:
    source = dice.dtype(op, 26, "T1")
    found = [
        d
        for d in allowed(op, 26, "T2")
        if d.itemsize == source.itemsize and bits_of(d) == bits_of(source)
    ]
    target = dice.choice([d for d in found if d != bool_] or [source])
    x = dice.array(source, dice.shape())
    return Sample(op, (x,), {"to": TO_ONNX[target]}, 26, want=lambda v: v.view(target))


def swiglu(op: str, dice: Dice) -> Sample:
    dtype = dice.dtype(op, 28)
    shape = dice.shape()
    attributes = dice.given(alpha=lambda: dice.uniform(0.5, 2))
    inputs = dice.array(dtype, shape), dice.array(dtype, shape)
    return Sample(op, inputs, attributes, 28, bound=smooth(4))


def gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + FORMULAS["Erf"](x / np.sqrt(2)))


FORMULAS: dict[str, Callable[..., Any]] = {
    "Erf": np.vectorize(math.erf, otypes=[float]),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Gelu": gelu,
    "Mean": lambda *x: functools.reduce(np.add, x) / len(x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


MAKERS: dict[str, Make] = {
    **{op: arithmetic for op in ARITHMETIC},
    **{op: comparison for op in COMPARISONS},
    **{op: logic for op in ("And", "Or", "Xor")},
    **{op: fold for op in FOLDS},
    **{op: bits for op in (*BITS, "BitwiseNot")},
    **{op: unary for op in UNARY},
    **{op: activation for op in ACTIVATIONS},
    **{op: question for op in ("IsNaN", "IsInf")},
    **{op: cast for op in ("Cast", "CastLike")},
    "Not": negation,
    "BitShift": shift,
    "PRelu": prelu,
    "Clip": clip,
    "Pow": power,
    "Mod": modulo,
    "Where": where,
    "BitCast": bit_cast,
    "SwiGLU": swiglu,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
