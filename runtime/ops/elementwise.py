"""Operators that compute each element of the result from one element of every input."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import (
    FLOATS,
    INTEGERS,
    DType,
    bits_of,
    bool_,
    float32,
    float64,
    int32,
    int64,
    name_of,
    string,
    uint32,
    uint64,
)
from ..ir.op import Op, op
from ..ir.types import Array, TensorType
from .elementwise_rules import (
    Binary,
    KnownUnary,
    Logical,
    Predicate,
    Unary,
    Variadic,
    add_symbol,
    divide,
    divide_symbol,
    equal_symbol,
    greater_or_equal_symbol,
    greater_symbol,
    keep,
    less_or_equal_symbol,
    less_symbol,
    max_symbol,
    min_symbol,
    multiply_symbol,
    subtract_symbol,
)
from .propagate import compute, unknown
from .shapes import broadcast, need_choice, same_dtype, same_shape

# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────


@op
class Add(Binary):
    """The sum, a + b."""

    function = np.add
    symbols = add_symbol


@op
class Sub(Binary):
    """The difference, a - b."""

    function = np.subtract
    symbols = subtract_symbol


@op
class Mul(Binary):
    """The product, a · b."""

    function = np.multiply
    symbols = multiply_symbol


@op
class Div(Binary):
    """The quotient, a / b; that of integers is truncated."""

    function = divide
    symbols = divide_symbol


@op
class Mod(Op):
    """Remainder of a / b: of the floor with the sign of b, or of the truncation (`fmod`)."""

    fmod: int = 0

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        result = TensorType(same_dtype(a, b), broadcast(a.shape, b.shape))
        return compute(result, self._remainder, a, b)

    def _remainder(self, a: Array, b: Array) -> Array | None:
        if a.dtype.kind in "iu" and not b.all():
            return None
        return np.fmod(a, b) if self.fmod else np.mod(a, b)


@op
class Pow(Op):
    """`x` to the power of `y`, in the dtype of `x`."""

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        return compute(TensorType(x.dtype, broadcast(x.shape, y.shape)), self._power, x, y)

    def _power(self, x: Array, y: Array) -> Array | None:
        exponents = y.astype(x.dtype)
        if (exponents != y).any():  # it is computed in a wider dtype
            return None
        if x.dtype.kind in "iu":
            if y.dtype.kind not in "iu" or (y < 0).any():
                return None
            return np.power(x, exponents)
        if x.dtype.itemsize < float32.itemsize:  # it is computed in float32
            return None
        return np.where(y == 0.5, np.sqrt(x), np.power(x, exponents))


@op
class Max(Variadic):
    """The largest of the inputs; NaN if one is."""

    function = np.maximum
    symbols = max_symbol


@op
class Min(Variadic):
    """The smallest of the inputs; NaN if one is."""

    function = np.minimum
    symbols = min_symbol


@op
class Sum(Variadic):
    """The sum of the inputs."""

    function = np.add
    symbols = add_symbol


@op
class Mean(Variadic):
    """The arithmetic mean of the inputs."""


@op
class Neg(KnownUnary):
    """The negative, -x."""

    function = np.negative


@op
class Abs(KnownUnary):
    """The absolute value."""

    function = np.absolute
    symbols = keep


@op
class Sign(KnownUnary):
    """1, 0 or -1: the sign."""

    function = np.sign


@op
class Floor(KnownUnary):
    """The largest integer not above x."""

    function = np.floor
    symbols = keep


@op
class Ceil(KnownUnary):
    """The smallest integer not below x."""

    function = np.ceil
    symbols = keep


@op
class Round(KnownUnary):
    """The nearest integer; ties to even."""

    function = np.rint
    symbols = keep


@op
class Reciprocal(KnownUnary):
    """1 / x."""

    function = np.reciprocal


@op
class Sqrt(KnownUnary):
    """The square root; NaN below 0."""

    function = np.sqrt


@op
class Clip(Op):
    """The input clamped to [min, max]; `max` wins if min > max."""

    def infer(
        self, input: TensorType, min: TensorType | None = None, max: TensorType | None = None
    ) -> TensorType:
        same_dtype(input, min, max)
        for limit, name in ((min, "min"), (max, "max")):
            if limit is not None and limit.shape not in (None, (), (1,), (None,)):
                raise ShapeError(f"{name} is {limit}; expected a scalar")
        total = input
        for limit, function in ((min, np.maximum), (max, np.minimum)):
            if limit is not None:
                total = compute(total.without_value(), function, total, limit)
        return total


# ── comparison, logic and bits ───────────────────────────────────────────────────────────────────


@op
class Equal(Binary):
    """Whether a = b."""

    gives = bool_
    function = np.equal
    symbols = equal_symbol


@op
class Less(Binary):
    """Whether a < b."""

    gives = bool_
    function = np.less
    symbols = less_symbol


@op
class LessOrEqual(Binary):
    """Whether a ≤ b."""

    gives = bool_
    function = np.less_equal
    symbols = less_or_equal_symbol


@op
class Greater(Binary):
    """Whether a > b."""

    gives = bool_
    function = np.greater
    symbols = greater_symbol


@op
class GreaterOrEqual(Binary):
    """Whether a ≥ b."""

    gives = bool_
    function = np.greater_equal
    symbols = greater_or_equal_symbol


@op
class And(Logical):
    """Whether both hold."""

    function = np.logical_and


@op
class Or(Logical):
    """Whether one or both hold."""

    function = np.logical_or


@op
class Xor(Logical):
    """Whether one holds and not both."""

    function = np.logical_xor


@op
class Not(KnownUnary):
    """Logical negation."""

    function = np.logical_not

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != bool_:
            raise ShapeError(f"x is {x}; expected bool")
        return super().infer(x)


@op
class BitwiseAnd(Binary):
    """Bits that are set in both."""


@op
class BitwiseOr(Binary):
    """Bits that are set in one or both."""


@op
class BitwiseXor(Binary):
    """Bits that are set in one and not both."""


@op
class BitwiseNot(Unary):
    """All bits inverted."""


@op
class BitShift(Op):
    """`x` · 2^y (`direction` LEFT) or x / 2^y (RIGHT), for unsigned integers."""

    direction: str

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        need_choice(self.direction, "direction", "LEFT", "RIGHT")
        return TensorType(same_dtype(x, y), broadcast(x.shape, y.shape))


@op
class IsNaN(Predicate):
    """Whether x is not a number."""

    function = np.isnan


@op
class IsInf(Predicate):
    """Whether x is infinite, of the requested signs."""

    detect_negative: int = 1
    detect_positive: int = 1


@op
class Where(Op):
    """`x` where the condition holds, `y` elsewhere."""

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        if condition.dtype != bool_:
            raise ShapeError(f"condition is {condition}; expected bool")
        shape = broadcast(condition.shape, x.shape, y.shape)
        result = TensorType(same_dtype(x, y), shape)
        if condition.value is None and (x.value is None or y.value is None):
            return result
        return compute(result, np.where, condition, x, y, symbols=_choose)


def _choose(condition: Any, x: Any, y: Any) -> Any:
    if condition is None:
        return x if x == y else None
    return x if condition else y


# ── conversion ───────────────────────────────────────────────────────────────────────────────────


#: Dtypes that represent sizes exactly.
_HOLD_SIZES = frozenset({int32, int64, uint32, uint64, float32, float64})


def _convert(x: TensorType, dtype: DType) -> TensorType:
    def cast(data: Array) -> Array | None:
        """Cast; floats outside the integer range have no defined result."""
        if data.dtype in FLOATS and dtype in INTEGERS:
            limits, whole = ml_dtypes.iinfo(dtype), np.trunc(data.astype(np.float64))
            if not (whole.clip(int(limits.min), int(limits.max)) == whole).all():
                return None
        return data.astype(dtype)

    symbols = keep if dtype in _HOLD_SIZES else unknown
    return compute(x.with_dtype(dtype), cast, x, symbols=symbols)


@op
class Cast(Op):
    """The input converted to dtype `to`; floats truncate to integers."""

    to: DType
    saturate: int = 1
    round_mode: str = "up"

    def infer(self, input: TensorType) -> TensorType:
        need_choice(self.round_mode, "round_mode", "up", "down", "nearest")
        return _convert(input, self.to)


@op
class CastLike(Op):
    """The input converted to the dtype of `target_type`; see `Cast`."""

    saturate: int = 1
    round_mode: str = "up"

    def infer(self, input: TensorType, target_type: TensorType) -> TensorType:
        need_choice(self.round_mode, "round_mode", "up", "down", "nearest")
        return _convert(input, target_type.dtype)


@op
class BitCast(Op):
    """The bits of the input read as dtype `to`, of the same width."""

    to: DType

    def infer(self, input: TensorType) -> TensorType:
        if string in (input.dtype, self.to) or bits_of(input.dtype) != bits_of(self.to):
            both = f"{name_of(input.dtype)} as {name_of(self.to)}"
            raise ShapeError(f"cannot read the bits of {both}; expected the same width")
        return input.with_dtype(self.to)


# ── functions of one variable ────────────────────────────────────────────────────────────────────


@op
class Acos(Unary):
    """The inverse cosine, in radians."""


@op
class Acosh(Unary):
    """The inverse hyperbolic cosine."""


@op
class Asin(Unary):
    """The inverse sine, in radians."""


@op
class Asinh(Unary):
    """The inverse hyperbolic sine."""


@op
class Atan(Unary):
    """The inverse tangent, in radians."""


@op
class Atanh(Unary):
    """The inverse hyperbolic tangent."""


@op
class Cos(Unary):
    """The cosine of radians."""


@op
class Cosh(Unary):
    """The hyperbolic cosine."""


@op
class Erf(Unary):
    """The error function."""


@op
class Exp(Unary):
    """The exponential, e^x."""


@op
class Log(Unary):
    """The natural logarithm."""


@op
class Sin(Unary):
    """The sine of radians."""


@op
class Sinh(Unary):
    """The hyperbolic sine."""


@op
class Tan(Unary):
    """The tangent of radians."""


@op
class Tanh(Unary):
    """The hyperbolic tangent."""


# ── activations ──────────────────────────────────────────────────────────────────────────────────


@op
class Celu(Unary):
    """max(0, x) + min(0, α (e^(x/α) - 1))."""

    alpha: float = 1.0


@op
class Elu(Unary):
    """`x` above 0, else α (e^x - 1)."""

    alpha: float = 1.0


@op
class Gelu(Unary):
    """x Φ(x): with the error function, or the approximation by `tanh`."""

    approximate: str = "none"

    def infer(self, x: TensorType) -> TensorType:
        need_choice(self.approximate, "approximate", "none", "tanh")
        return super().infer(x)


@op
class HardSigmoid(Unary):
    """max(0, min(1, α x + β))."""

    alpha: float = 0.2
    beta: float = 0.5


@op
class HardSwish(Unary):
    """x max(0, min(1, x/6 + 1/2))."""


@op
class LeakyRelu(Unary):
    """`x` for x >= 0, else α x."""

    alpha: float = 0.01


@op
class Mish(Unary):
    """x tanh(ln(1 + e^x))."""


@op
class PRelu(Op):
    """`x` for x >= 0, else slope · x; the slope is broadcast to x, not x to the slope."""

    def infer(self, x: TensorType, slope: TensorType) -> TensorType:
        same_dtype(x, slope)
        shape = x.shape
        if shape is not None and slope.shape is not None:
            shape = same_shape(shape, broadcast(shape, slope.shape), "x and its slope")
        return x.with_shape(shape)


@op
class Relu(Unary):
    """max(0, x)."""


@op
class Selu(Unary):
    """γ x above 0, else γ α (e^x - 1)."""

    alpha: float = 1.6732631921768188
    gamma: float = 1.0507010221481323


@op
class Shrink(Unary):
    """`x` + bias below -λ, x - bias above λ, else 0."""

    lambd: float = 0.5
    bias: float = 0.0


@op
class Sigmoid(Unary):
    """1 / (1 + e^-x)."""


@op
class Softplus(Unary):
    """ln(1 + e^x)."""


@op
class Softsign(Unary):
    """x / (1 + |x|)."""


@op
class SwiGLU(Op):
    """`a` sigmoid(α a) · b, without broadcasting."""

    alpha: float = 1.0

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        return TensorType(same_dtype(a, b), same_shape(a.shape, b.shape, "a and b"))


@op
class Swish(Unary):
    """x sigmoid(α x)."""

    alpha: float = 1.0


@op
class ThresholdedRelu(Unary):
    """`x` above α, else 0."""

    alpha: float = 1.0
