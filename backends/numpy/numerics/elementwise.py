"""Elementwise operators: a table of functions.

A row maps an operator to a function of arrays with the keyword `out`. `out` may be one of the
inputs, so the function must write it last. Half floats are computed in float32 in formulas with
several operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import pi, sqrt
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import (
    FLOAT8S,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
)
from ....runtime.ir.op import Op
from ....runtime.ir.types import Array
from ....runtime.ops import elementwise as ops
from . import calls
from .convert import convert, is_stored
from .halves import in_dtype, store, widened
from .powers import power
from .special import erf, gelu

Function = Callable[..., object]
Row = Callable[[Any], Function]


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────


def divide(a: Array, b: Array, *, out: Array) -> None:
    """Divide; integers truncate toward zero, with x/0 = 0."""
    if a.dtype.kind not in "iu":
        np.true_divide(a, b, out=out)
        return
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":
        quotient += (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    np.copyto(out, quotient)


def _fold(function: Function) -> Function:
    """Return `function` of two arrays folded over any number."""

    def folded(*arrays: Array, out: Array) -> None:
        rest = [x for x in arrays if x is not out]
        mine = [x for x in arrays if x is out]
        first, *rest = (*mine, *rest)
        if not rest:
            np.copyto(out, first)
        for x in rest:
            function(first, x, out=out)
            first = out

    return folded


greatest, least = _fold(np.maximum), _fold(np.minimum)


def mean(*arrays: Array, out: Array) -> None:
    """Return the arithmetic mean of all arrays."""
    total = sum((widened(x) for x in arrays[1:]), widened(arrays[0]))
    np.true_divide(total, len(arrays), out=out)


def clip(x: Array, low: Array | None = None, high: Array | None = None, *, out: Array) -> None:
    """Clamp x to [low, high]; `high` wins if low > high."""
    if x.dtype.kind == "f":
        floor = -np.inf if low is None else low.reshape(())
        np.clip(x, floor, np.inf if high is None else high.reshape(()), out=out)
        return
    if low is not None:
        x = np.maximum(x, low.reshape(()), out=out)
    if high is not None:
        x = np.minimum(x, high.reshape(()), out=out)
    if x is not out:
        np.copyto(out, x)


def modulo(fmod: int) -> Function:
    """Return the remainder with the sign of the dividend (`fmod`) or of the divisor."""
    return np.fmod if fmod else np.mod


# ── comparison, logic and bits ───────────────────────────────────────────────────────────────────


def equal(a: Array, b: Array, *, out: Array) -> None:
    """Compare, including strings."""
    np.copyto(out, a == b)


def is_nan(x: Array, *, out: Array) -> None:
    """Return where x is NaN."""
    x = x.astype(float32) if x.dtype in FLOAT8S else x
    if out.flags.forc:
        np.isnan(x, out=out)
    else:  # numpy 2.4 stores wrong elements where `out` is not contiguous
        np.copyto(out, np.isnan(x))


def is_inf(op: ops.IsInf) -> Function:
    """Return where x is infinite with a requested sign."""

    def function(x: Array, *, out: Array) -> None:
        wide = x.astype(float32) if x.dtype in FLOAT8S else x
        infinite = np.isinf(wide)
        if not op.detect_negative:
            infinite &= wide > 0
        if not op.detect_positive:
            infinite &= wide < 0
        np.copyto(out, infinite)

    return function


def where(condition: Array, x: Array, y: Array, *, out: Array) -> None:
    """Return x where the condition holds, y elsewhere."""
    word = WORDS.get(out.dtype.itemsize)
    if word is None or out.dtype.hasobject or out.size < FEWEST:
        np.copyto(out, np.where(condition, x, y))
        return
    # Three passes over words, with vector instructions: numpy's own goes element by element.
    mask, bits = condition.astype(word), np.empty(out.shape, word)
    np.negative(mask, out=mask)
    np.bitwise_xor(x.view(word), y.view(word), out=bits)
    np.bitwise_and(bits, mask, out=bits)
    np.bitwise_xor(bits, y.view(word), out=out.view(word))


#: Minimum elements for which several calls are faster than a choice of numpy's.
FEWEST = 1 << 10
#: Integers that hold all bits of an element, by its size in bytes.
WORDS = {dtype.itemsize: dtype for dtype in (int8, int16, int32, int64)}


def shift(op: ops.BitShift) -> Function:
    """Return x shifted by y bits; shifts by at least the width give 0."""
    return np.left_shift if op.direction == "LEFT" else np.right_shift


# ── conversion ───────────────────────────────────────────────────────────────────────────────────


class Conversion:
    """Converts to the dtype of `out`.

    Args:
        op: its operator.
    """

    def __init__(self, op: ops.Cast | ops.CastLike) -> None:
        self._saturate, self._round_mode = bool(op.saturate), op.round_mode

    def __call__(self, x: Array, like: Array | None = None, *, out: Array) -> None:
        """Convert `x`."""
        if is_stored(x.dtype, out.dtype):
            store(out, x)
            return
        how = {"saturate": self._saturate, "round_mode": self._round_mode}
        np.copyto(out, convert(x, out.dtype, **how))


def bit_cast(x: Array, *, out: Array) -> None:
    """Reinterpret the bits of x as the dtype of `out`."""
    np.copyto(out, np.ascontiguousarray(x).reshape(x.shape).view(out.dtype))


# ── functions of one variable ────────────────────────────────────────────────────────────────────


def _half(formula: Callable[[Array], Array]) -> Function:
    """Return a unary formula as a function with `out`; half floats are computed in float32."""

    def function(x: Array, *, out: Array) -> None:
        store(out, formula(widened(x)))

    return function


def _wider(function: Function) -> Function:
    """Return a unary function that gets half floats as float32."""

    def wider(x: Array, *, out: Array) -> None:
        wide = widened(x)
        if wide is x:
            function(x, out=out)
        else:
            function(wide, out=wide)
            store(out, wide)

    return wider


def relu(x: Array, *, out: Array) -> None:
    """max(0, x)."""
    if x.dtype.kind == "f":
        np.clip(x, 0, np.inf, out=out)  # faster than a maximum with a scalar; -0 is preserved
    else:
        np.maximum(x, 0, out=out)


def leaky_relu(x: Array, alpha: Any, *, out: Array) -> None:
    """Return x for x >= 0, else alpha·x."""
    scaled = np.multiply(x, alpha)
    if np.ndim(alpha) == 0 and 0 < alpha <= 1:
        np.maximum(x, scaled, out=out)
    else:
        where(np.less(x, 0), in_dtype(scaled, x.dtype), x, out=out)


def prelu(x: Array, slope: Array, *, out: Array) -> None:
    """Return x for x >= 0, else slope·x, which is less for x > 0 if slopes are from 0 to 1."""
    scaled = np.multiply(x, slope)
    low, high = (f.reduce(slope, None, initial=1) for f in (np.minimum, np.maximum))
    if x.dtype.kind == "f" and low > 0 and high <= 1:
        np.maximum(x, scaled, out=out)
    else:
        where(np.less(x, 0), scaled, x, out=out)


def _sigmoid(x: Array) -> Array:
    t = np.negative(x, out=np.empty_like(x))
    np.exp(t, out=t)
    t += 1
    return np.reciprocal(t, out=t)


def sigmoid(x: Array, *, out: Array) -> None:
    """1 / (1 + e^-x)."""
    wide = widened(x)
    t = np.negative(wide, out=np.empty_like(wide))
    np.exp(t, out=t)
    t += 1
    np.reciprocal(t, out=out)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(op: ops.Gelu) -> Function:
    return _wider(_gelu_by_tanh if op.approximate == "tanh" else gelu)


def _gelu_by_tanh(x: Array, *, out: Array) -> None:
    """Compute x (1 + tanh(u)) / 2 = x / (1 + e^-2u) with u = sqrt(2/π) (x + 0.044715 x³)."""
    t = np.multiply(x, x, out=np.empty_like(x))
    t *= -2 * sqrt(2 / pi) * 0.044715
    t -= 2 * sqrt(2 / pi)
    t *= x
    np.exp(t, out=t)
    t += 1
    np.true_divide(x, t, out=out)


def swish(op: ops.Swish) -> Function:
    """Return x sigmoid(α x)."""

    def function(x: Array, *, out: Array) -> None:
        t = np.multiply(x, -op.alpha, out=np.empty_like(x))
        np.exp(t, out=t)
        t += 1
        np.true_divide(x, t, out=out)

    return _wider(function)


def hard_swish(x: Array, *, out: Array) -> None:
    """Compute x max(0, min(1, x/6 + 1/2))."""
    t = np.multiply(x, 1 / 6, out=np.empty_like(x))
    t += 0.5
    np.clip(t, 0, 1, out=t)
    np.multiply(x, t, out=out)


def hard_sigmoid(x: Array, alpha: float, beta: float, *, out: Array) -> None:
    """Compute max(0, min(1, alpha x + beta))."""
    np.multiply(x, alpha, out=out)
    np.add(out, beta, out=out)
    np.clip(out, 0, 1, out=out)


def sign(x: Array, *, out: Array) -> None:
    """Return -1, 0 or 1; NaN for NaN.

    numpy's takes ten times as long for floats. Times `_LARGE` squared, even the smallest positive
    number of the dtype is above 1.
    """
    large = _LARGE.get(x.dtype)
    if large is None:
        np.sign(x, out=out)
        return
    np.multiply(x, large, out=out)
    np.multiply(out, large, out=out)
    np.clip(out, -1, 1, out=out)
    np.add(out, 0, out=out)  # -0 becomes 0


_LARGE = {float32: np.array(1e30, float32), float64: np.array(1e200, float64)}


def thresholded_relu(x: Array, alpha: float, *, out: Array) -> None:
    """Return x for x > alpha, else 0."""
    where(np.greater(x, alpha), x, np.zeros((), x.dtype), out=out)


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(x, 0) + np.minimum(np.expm1(x / alpha) * alpha, 0)


def _elu(x: Array, alpha: float) -> Array:
    found = calls.clip(x, -np.inf, 0.0, out=np.empty_like(x))
    np.expm1(found, out=found)
    found *= alpha
    found += calls.clip(x, 0.0, np.inf)  # numpy's choice takes five times as long as all of this
    return found


def _shrink(x: Array, op: ops.Shrink) -> Array:
    above, below = x - op.bias, x + op.bias
    found = np.zeros_like(above)
    where(x > op.lambd, above, found, out=found)
    where(x < -op.lambd, below, found, out=found)
    return found


def swiglu(op: ops.SwiGLU) -> Function:
    """Return a·sigmoid(alpha·a)·b."""

    def function(a: Array, b: Array, *, out: Array) -> None:
        wide = widened(a)
        store(out, wide * _sigmoid(wide * op.alpha) * widened(b))

    return function


# ── the table ────────────────────────────────────────────────────────────────────────────────────


def _same(function: Function) -> Row:
    """Return the row of an operator without attributes."""
    return lambda op: function


ELEMENTWISE: dict[type[Op], Row] = {
    ops.Add: _same(np.add),
    ops.Sub: _same(np.subtract),
    ops.Mul: _same(np.multiply),
    ops.Div: _same(divide),
    ops.Mod: lambda op: modulo(op.fmod),
    ops.Pow: _same(power),
    ops.Max: _same(greatest),
    ops.Min: _same(least),
    ops.Sum: _same(_fold(np.add)),
    ops.Mean: _same(mean),
    ops.Neg: _same(np.negative),
    ops.Abs: _same(np.absolute),
    ops.Sign: _same(_wider(sign)),
    ops.Floor: _same(np.floor),
    ops.Ceil: _same(np.ceil),
    ops.Round: _same(np.rint),
    ops.Reciprocal: _same(np.reciprocal),
    ops.Sqrt: _same(np.sqrt),
    ops.Clip: _same(clip),
    ops.Equal: _same(equal),
    ops.Less: _same(np.less),
    ops.LessOrEqual: _same(np.less_equal),
    ops.Greater: _same(np.greater),
    ops.GreaterOrEqual: _same(np.greater_equal),
    ops.And: _same(np.logical_and),
    ops.Or: _same(np.logical_or),
    ops.Xor: _same(np.logical_xor),
    ops.Not: _same(np.logical_not),
    ops.BitwiseAnd: _same(np.bitwise_and),
    ops.BitwiseOr: _same(np.bitwise_or),
    ops.BitwiseXor: _same(np.bitwise_xor),
    ops.BitwiseNot: _same(np.invert),
    ops.BitShift: shift,
    ops.IsNaN: _same(is_nan),
    ops.IsInf: is_inf,
    ops.Where: _same(where),
    ops.Cast: Conversion,
    ops.CastLike: Conversion,
    ops.BitCast: _same(bit_cast),
    ops.Acos: _same(np.arccos),
    ops.Acosh: _same(np.arccosh),
    ops.Asin: _same(np.arcsin),
    ops.Asinh: _same(np.arcsinh),
    ops.Atan: _same(np.arctan),
    ops.Atanh: _same(np.arctanh),
    ops.Cos: _same(np.cos),
    ops.Cosh: _same(np.cosh),
    ops.Erf: _same(_half(erf)),
    ops.Exp: _same(np.exp),
    ops.Log: _same(np.log),
    ops.Sin: _same(np.sin),
    ops.Sinh: _same(np.sinh),
    ops.Tan: _same(np.tan),
    ops.Tanh: _same(np.tanh),
    ops.Celu: lambda op: _half(partial(_celu, alpha=op.alpha)),
    ops.Elu: lambda op: _half(partial(_elu, alpha=op.alpha)),
    ops.Gelu: _gelu,
    ops.HardSigmoid: lambda op: _wider(partial(hard_sigmoid, alpha=op.alpha, beta=op.beta)),
    ops.HardSwish: _same(_wider(hard_swish)),
    ops.LeakyRelu: lambda op: partial(leaky_relu, alpha=op.alpha),
    ops.Mish: _same(_half(lambda x: x * np.tanh(_softplus(x)))),
    ops.PRelu: _same(prelu),
    ops.Relu: _same(relu),
    ops.Selu: lambda op: _half(lambda x: op.gamma * _elu(x, op.alpha)),
    ops.Shrink: lambda op: _half(partial(_shrink, op=op)),
    ops.Sigmoid: _same(sigmoid),
    ops.Softplus: _same(_half(_softplus)),
    ops.Softsign: _same(_half(lambda x: x / (1 + np.abs(x)))),
    ops.SwiGLU: swiglu,
    ops.Swish: swish,
    ops.ThresholdedRelu: lambda op: _wider(partial(thresholded_relu, alpha=op.alpha)),
}


#: Cost of a row in simple calls, if more than one.
CALLS: dict[type[Op], int] = {
    ops.Erf: 6,
    ops.Exp: 2,
    ops.Gelu: 7,
    ops.HardSwish: 2,
    ops.Mish: 8,
    ops.Pow: 4,
    ops.Sigmoid: 4,
    ops.Softplus: 8,
    ops.Swish: 4,
    ops.Tanh: 2,
}
