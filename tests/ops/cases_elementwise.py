"""Elementwise operators: every dtype that ONNX allows, broadcasting, edges.

Floats are held against the function in float64, integers against the mathematical integers, cut to
the dtype's bits where the operator wraps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from onnx import defs, helper

from .case import EPSILON, FLOAT32, FLOATS, INTEGERS, Array, Case, draw

Function = Callable[..., Any]
SHAPE = (3, 4, 5)


def allowed(op: str, position: int = 0) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes that ONNX allows for an input."""
    schema = defs.get_schema(op)
    parameter = schema.inputs[position]
    names = {text.removeprefix("tensor(").removesuffix(")") for text in parameter.types}
    return tuple(t for t in (*FLOATS, *INTEGERS) if onnx_name(t) in names)


def onnx_name(dtype: np.dtype[Any]) -> str:
    return {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


def in_float64(function: Function) -> Function:
    """Return what computes `function` of each element, in float64."""
    return lambda *arrays: function(*(np.asarray(x, np.float64) for x in arrays))


def each(function: Callable[[float], float]) -> Function:
    """Return a function of numbers as one of arrays."""
    return np.vectorize(function, otypes=[np.float64])


def wrapped(exact: Array, dtype: np.dtype[Any]) -> Array:
    """Return mathematical integers, cut to the bits of `dtype`."""
    mask = 2 ** (8 * dtype.itemsize) - 1
    bits = [int(v) & mask for v in exact.flat]
    unsigned = np.array(bits, np.dtype(f"uint{8 * dtype.itemsize}"))
    return unsigned.reshape(exact.shape).view(dtype)


def on_integers(function: Callable[..., int]) -> Function:
    """Return a function of integers as one of arrays, its results cut to their bits."""

    def want(*arrays: Array) -> Array:
        exact = np.vectorize(function, otypes=[object])(*(x.astype(object) for x in arrays))
        return wrapped(np.asarray(exact), arrays[0].dtype)

    return want


def truncating(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.logaddexp(x, 0)


def elu(x: Any, alpha: float = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(x))


def shrink(x: Any, lambd: float = 0.5, bias: float = 0.0) -> Any:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ERF = each(math.erf)

#: Function in float64, attributes and a map from standard normal numbers to the domain.
UNARY: list[tuple[str, Function, Mapping[str, Any], Function]] = [
    ("Abs", np.abs, {}, np.positive),
    ("Acos", np.arccos, {}, np.tanh),
    ("Acosh", np.arccosh, {}, lambda x: 1 + np.abs(x)),
    ("Asin", np.arcsin, {}, np.tanh),
    ("Asinh", np.arcsinh, {}, np.positive),
    ("Atan", np.arctan, {}, np.positive),
    ("Atanh", np.arctanh, {}, lambda x: np.tanh(x) * 0.9),
    ("Ceil", np.ceil, {}, lambda x: 3 * x),
    ("Celu", lambda x: np.maximum(x, 0) + np.minimum(np.expm1(x), 0), {}, np.positive),
    ("Celu", lambda x: np.maximum(x, 0) + np.minimum(2 * np.expm1(x / 2), 0), {"alpha": 2.0},
     np.positive),
    ("Cos", np.cos, {}, np.positive),
    ("Cosh", np.cosh, {}, np.positive),
    ("Elu", elu, {}, np.positive),
    ("Elu", partial(elu, alpha=0.5), {"alpha": 0.5}, np.positive),
    ("Erf", ERF, {}, lambda x: 2 * x),
    ("Exp", np.exp, {}, np.positive),
    ("Floor", np.floor, {}, lambda x: 3 * x),
    ("Gelu", lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))), {}, lambda x: 2 * x),
    ("Gelu", gelu_tanh, {"approximate": "tanh"}, lambda x: 2 * x),
    ("HardSigmoid", lambda x: np.clip(0.25 * x + 0.5, 0, 1), {"alpha": 0.25}, lambda x: 3 * x),
    ("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), {}, lambda x: 3 * x),
    ("LeakyRelu", lambda x: np.where(x < 0, 0.25 * x, x), {"alpha": 0.25}, np.positive),
    ("LeakyRelu", lambda x: np.where(x < 0, 2 * x, x), {"alpha": 2.0}, np.positive),
    ("LeakyRelu", lambda x: np.where(x < 0, -x, x), {"alpha": -1.0}, np.positive),
    ("Log", np.log, {}, lambda x: np.abs(x) + 0.1),
    ("Mish", lambda x: x * np.tanh(softplus(x)), {}, lambda x: 3 * x),
    ("Neg", np.negative, {}, np.positive),
    ("Reciprocal", np.reciprocal, {}, lambda x: np.abs(x) + 0.5),
    ("Relu", lambda x: np.maximum(x, 0), {}, np.positive),
    ("Round", np.rint, {}, lambda x: np.rint(6 * x) / 2),
    # Selu's defaults are what float32 makes of them.
    ("Selu", lambda x: 1.0507010221481323 * elu(x, 1.6732631921768188), {}, np.positive),
    ("Shrink", shrink, {}, np.positive),
    ("Shrink", partial(shrink, lambd=1.5, bias=1.5), {"lambd": 1.5, "bias": 1.5},
     lambda x: 2 * x),
    ("Sigmoid", sigmoid, {}, lambda x: 3 * x),
    ("Sign", np.sign, {}, np.rint),
    ("Sin", np.sin, {}, np.positive),
    ("Sinh", np.sinh, {}, np.positive),
    ("Softplus", softplus, {}, lambda x: 3 * x),
    ("Softsign", lambda x: x / (1 + np.abs(x)), {}, lambda x: 3 * x),
    ("Sqrt", np.sqrt, {}, np.abs),
    ("Swish", lambda x: x * sigmoid(x), {}, lambda x: 3 * x),
    ("Swish", lambda x: x * sigmoid(2 * x), {"alpha": 2.0}, lambda x: 3 * x),
    ("Tan", np.tan, {}, np.tanh),
    ("Tanh", np.tanh, {}, np.positive),
    ("ThresholdedRelu", lambda x: np.where(x > 0.5, x, 0), {"alpha": 0.5}, np.positive),
]  # fmt: skip

UNARY_ON_INTEGERS: dict[str, Callable[[int], int]] = {
    "Abs": abs,
    "Neg": lambda a: -a,
    "Relu": lambda a: max(a, 0),
    "Sign": lambda a: (a > 0) - (a < 0),
    "BitwiseNot": lambda a: ~a,
}

BINARY: dict[str, Function] = {
    "Add": np.add,
    "Div": np.divide,
    "Max": np.maximum,
    "Mean": lambda a, b: (a + b) / 2,
    "Min": np.minimum,
    "Mul": np.multiply,
    "PRelu": lambda a, b: np.where(a < 0, a * b, a),
    "Sub": np.subtract,
    "Sum": np.add,
}

BINARY_ON_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
    "Div": truncating,
    "Max": max,
    "Min": min,
    "Mod": lambda a, b: a % b,
    "Mul": lambda a, b: a * b,
    "Sub": lambda a, b: a - b,
}

COMPARISONS: dict[str, Function] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}

LOGIC: dict[str, Function] = {
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}

#: Shapes of two operands: equal, scalars, by channel, both stretched, empty, of other rank.
BROADCASTS = [
    ((3, 4), (3, 4)),
    ((3, 4), ()),
    ((), (3, 4)),
    ((), ()),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (1, 3, 1, 5)),
    ((2, 1, 4, 1), (3, 1, 5)),
    ((0, 3), (1, 3)),
    ((1,), (2, 3)),
    ((70000,), (70000,)),
    ((4, 300, 100), (300, 1)),
]


def newest(op: str) -> int:
    return max(21, defs.get_schema(op).since_version)


def unary_cases() -> Iterator[Case]:
    for op, function, attributes, into in UNARY:
        for dtype in allowed(op):
            if dtype not in EPSILON:
                continue
            x = np.asarray(into(draw(1, SHAPE, np.float64))).astype(dtype)
            want = in_float64(function)
            yield Case(op, (x,), attributes, want, error=4, opset=newest(op))
    for op, function in UNARY_ON_INTEGERS.items():
        for dtype in allowed(op):
            if dtype in INTEGERS:
                x = draw(1, SHAPE, dtype)
                yield Case(op, (x,), want=on_integers(function), opset=newest(op))


def binary_cases() -> Iterator[Case]:
    for op, function in BINARY.items():
        for dtype in allowed(op):
            if dtype in EPSILON:
                x, y = draw(1, SHAPE, dtype), draw(2, SHAPE, dtype)
                yield Case(op, (x, y), want=in_float64(function), error=4)
    for op, function in BINARY_ON_INTEGERS.items():
        for dtype in allowed(op):
            if dtype in INTEGERS:
                x, y = draw(1, SHAPE, dtype), draw(2, SHAPE, dtype)
                y[y == 0] = 3
                yield Case(op, (x, y), want=on_integers(function), opset=newest(op))
    for op, function in COMPARISONS.items():
        for dtype in allowed(op):
            x, y = (draw(i, SHAPE, dtype) for i in (1, 2))
            y[0] = x[0]
            yield Case(op, (x, y), want=function)


def broadcast_cases() -> Iterator[Case]:
    for a, b in BROADCASTS:
        for op in ("Add", "Sub", "Less", "Pow"):
            x, y = np.abs(draw(1, a)), draw(2, b)
            want = {"Add": np.add, "Sub": np.subtract, "Less": np.less, "Pow": np.power}[op]
            exact = want if op == "Less" else in_float64(want)
            yield Case(op, (x, y), want=exact)
    arrays = tuple(draw(i, shape) for i, shape in enumerate([(3, 4), (4,), (2, 1, 1), ()]))
    for op, function in (("Sum", np.sum), ("Max", np.max), ("Min", np.min), ("Mean", np.mean)):
        yield Case(op, arrays, want=partial(of_all, function))
        yield Case(op, arrays[:1], want=np.positive)


def of_all(function: Function, *arrays: Array) -> Array:
    """Return what a reduction over broadcast arrays gives, in float64."""
    return function(np.array([x.astype(np.float64) for x in np.broadcast_arrays(*arrays)]), axis=0)


def logic_cases() -> Iterator[Case]:
    x, y = draw(1, SHAPE, bool), draw(2, SHAPE, bool)
    for op, function in LOGIC.items():
        yield Case(op, (x, y), want=function)
        yield Case(op, (x, y[0]), want=function)
    yield Case("Not", (x,), want=np.logical_not)
    yield Case("Equal", (x, y), want=np.equal)
    for dtype in (FLOAT32, np.dtype(np.int64), np.dtype(bool)):
        a, b = draw(3, SHAPE, dtype), draw(4, (4, 1), dtype)
        yield Case("Where", (x, a, b), want=np.where)
        yield Case("Where", (x[:, :1], b, a), want=np.where)
    special = np.array([1.0, np.nan, np.inf, -np.inf, -0.0])
    for dtype in FLOATS:
        data = special.astype(dtype)
        yield Case("IsNaN", (data,), want=np.isnan)
        yield Case("IsInf", (data,), want=np.isinf)
        yield Case("IsInf", (data,), {"detect_negative": 0}, want=in_float64(np.isposinf))
        yield Case("IsInf", (data,), {"detect_positive": 0}, want=in_float64(np.isneginf))


def power_cases() -> Iterator[Case]:
    base = np.abs(draw(1, SHAPE)) + np.float32(0.5)
    for dtype in FLOATS:
        for exponent in (0.5, 2.0, 1.0, 3.0, -1.0, 0.0):
            y = np.asarray(exponent, dtype)
            yield Case(
                "Pow", (base.astype(dtype), y), want=in_float64(np.power), note=str(exponent)
            )
    yield Case("Pow", (base, np.array([-2, 3, 0, 1, 2], np.int64)), want=in_float64(np.power))
    whole = np.array([-3, 2, 1, 5], np.int32)
    yield Case("Pow", (whole, np.array([2, 3, 0, 1], np.int64)), want=lambda x, y: x**y)
    exact = np.array([3**39, -(7**21), 0, 1])  # beside fractions
    some = (np.array([3, -7, 2, 1]), np.array([39, 21, -1, -2]))
    yield Case("Pow", some, want=lambda x, y: exact)
    for dtype in (np.int32, np.int64, np.float64):  # float32 has no odd numbers beyond 2^24
        odd = np.array([2**24 + 1, 2**24, 3], dtype)
        yield Case("Pow", (-np.ones(3, np.float32), odd), want=in_float64(np.power))
        yield Case("Pow", (-np.ones(3, np.float32), odd[:1]), want=in_float64(np.power))
    some = (np.array([-1, 0, 2, -3], np.int32), np.array([2**31 + 1, 2**32, 2**40, 3]))
    yield Case("Pow", some, want=lambda x, y: np.array([-1, 0, 0, -27]))  # int32 has -2**31, 0, 0
    for exponents in (np.array([-1, -2, -3, 0], np.int32), np.array(0.5, np.float32)):
        yield Case("Pow", (np.abs(whole), exponents), want=truncated_power)


def truncated_power(x: Array, y: Array) -> Array:
    return np.trunc(x.astype(np.float64) ** y.astype(np.float64))


def clip_cases() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        x = draw(1, SHAPE, dtype)
        low, high = np.sort(draw(2, (2,), dtype).astype(np.float64)).astype(dtype)
        bounds = [np.asarray(v, dtype) for v in (low, high)]
        yield Case("Clip", (x, *bounds), want=np.clip, constants=(1, 2))
        yield Case("Clip", (x, bounds[0]), want=np.maximum)
        yield Case("Clip", (x, None, bounds[1]), want=lambda x, _, high: np.minimum(x, high))
        yield Case("Clip", (x,), want=lambda x: x)
        crossed = (x, bounds[1], bounds[0])
        yield Case("Clip", crossed, want=lambda x, _, high: np.full_like(x, high), note="crossed")
        for limits in ((np.nan, high), (low, np.nan)) if dtype in FLOATS else ():
            given = (x, *(np.asarray(limit, dtype) for limit in limits))
            yield Case("Clip", given, want=lambda x, *_: np.full_like(x, np.nan), note="no number")


def shift_cases() -> Iterator[Case]:
    for dtype in INTEGERS[4:]:
        x = draw(1, SHAPE, dtype)
        y = np.asarray(draw(2, SHAPE, np.uint8) % (8 * dtype.itemsize + 3), dtype)
        bits = 8 * dtype.itemsize
        left = on_integers(lambda a, b, bits=bits: (a << b) if b < bits else 0)
        right = on_integers(lambda a, b: a >> b)
        yield Case("BitShift", (x, y), {"direction": "LEFT"}, want=left)
        yield Case("BitShift", (x, y), {"direction": "RIGHT"}, want=right)


def modulo_cases() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        x, y = draw(1, SHAPE, dtype), draw(2, SHAPE, dtype)
        y[y == 0] = 3
        yield Case(
            "Mod", (x, y), {"fmod": 1}, want=np.fmod if dtype in INTEGERS else in_float64(np.fmod)
        )


def cast(x: Array, to: Any, **attributes: Any) -> Case:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    want = attributes.pop("want", lambda x: x.astype(to))
    note = np.dtype(to).name
    return Case("Cast", (x,), {"to": number, **attributes}, want=want, error=1, opset=24, note=note)


def cast_cases() -> Iterator[Case]:
    dtypes = (*FLOATS, *INTEGERS, np.dtype(bool))
    small = np.array([0, 1, 2, 100, 3, 7], np.float64)
    for source in dtypes:
        for target in dtypes:
            yield cast(small.astype(source), target)
    fractions = np.array([-2.7, -0.5, 0.0, 0.5, 2.7, 126.9], np.float32)
    yield cast(fractions, np.int8, want=lambda x: np.trunc(x).astype(np.int8))
    yield cast(np.array([200, -200, 70000], np.int32), np.int8)
    yield cast(np.array([-1, 65536 + 5], np.int64), np.uint16)
    yield cast(np.array([0.0, -0.0, 0.1, np.nan], np.float32), np.bool_)
    yield cast(np.array([1e30, -1e30, 65504], np.float32), np.float16, want=overflowing)
    wide = np.array([0.1, 1000, -1000, np.inf, -np.inf, np.nan, 448], np.float32)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"):
        kind = np.dtype(getattr(ml_dtypes, name))
        maximum = float(ml_dtypes.finfo(kind).max)
        limited = partial(saturated, maximum=maximum, kind=kind)
        yield cast(wide, kind, want=limited)
        yield cast(wide, kind, saturate=0, want=lambda x, kind=kind: x.astype(kind))


def overflowing(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def saturated(x: Array, maximum: float, kind: Any) -> Array:
    return np.clip(x, -maximum, maximum).astype(kind)


CASES = [
    *unary_cases(),
    *binary_cases(),
    *broadcast_cases(),
    *logic_cases(),
    *power_cases(),
    *clip_cases(),
    *shift_cases(),
    *modulo_cases(),
    *cast_cases(),
]
