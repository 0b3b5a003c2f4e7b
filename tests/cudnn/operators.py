"""Elementwise operators with the numbers to try them on, and cuDNN's words computed by NumPy."""

from __future__ import annotations

from functools import partial
from math import erf, inf, nan
from typing import Any

import numpy as np

from tercet.runtime.ir.types import Array
from tercet.runtime.ops import elementwise as ops

from ..kernels.dry import normal

SPECIAL = np.array(
    [nan, inf, -inf, 0.0, -0.0, 1e-42, -1e-42, 1.0, -1.0, 0.5, 1.5, -2.5, 3e38, -3e38, 80.0, -80.0],
    np.float32,
)
X = np.concatenate([SPECIAL, normal(496) * 3]).reshape(16, 32)
#: Every pair of special numbers, and others.
PAIRS = {
    "x": np.concatenate([np.repeat(SPECIAL, 16), normal(256)]).reshape(16, 32),
    "y": np.concatenate([np.tile(SPECIAL, 16), normal(255, 1)[:, 0], [2.0]]).reshape(16, 32),
}

UNARY: tuple[ops.Op, ...] = (
    *(ops.Abs(), ops.Neg(), ops.Sign(), ops.Floor(), ops.Ceil(), ops.Reciprocal(), ops.Sqrt()),
    *(ops.Erf(), ops.Exp(), ops.Log(), ops.Tanh(), ops.Relu(), ops.Sigmoid(), ops.Softplus()),
    *(ops.Softsign(), ops.Swish(), ops.Swish(alpha=2.0), ops.Gelu(), ops.Gelu(approximate="tanh")),
    *(ops.Elu(), ops.Elu(alpha=0.5), ops.Celu(alpha=2.0), ops.Selu(), ops.Mish()),
    *(ops.HardSigmoid(), ops.HardSwish(), ops.LeakyRelu(alpha=0.1), ops.Shrink(bias=0.25)),
    *(ops.ThresholdedRelu(), ops.IsNaN(), ops.IsInf(detect_negative=0), ops.IsInf()),
)
BINARY: tuple[ops.Op, ...] = (
    *(ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Pow(), ops.Mod(fmod=1)),
    *(ops.Max(), ops.Min(), ops.PRelu(), ops.SwiGLU()),
    *(ops.Equal(), ops.Less(), ops.LessOrEqual(), ops.Greater(), ops.GreaterOrEqual()),
)


def _quotient(x: Array, y: Array) -> Array:
    """Divide as cuDNN does: by what is above 2**126, the result is 0."""
    with np.errstate(all="ignore"):
        return np.where(np.abs(y) > 2.0**126, np.where(np.isinf(y), x / y, x * 0), x / y)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _relu(x: Array, lower_clip: float = 0.0, upper_clip: float = inf) -> Array:
    limits = np.finfo(np.float32)
    return np.clip(x, max(lower_clip, float(limits.min)), upper_clip)


def _leaky(x: Array, negative_slope: float) -> Array:
    return np.where(x < 0, x * negative_slope, x)


def _swish(x: Array, swish_beta: float = 1.0) -> Array:
    return x * _sigmoid(swish_beta * x)


def _gelu_by_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_WORDS: Any = {
    **{name: getattr(np, name) for name in ("abs", "ceil", "exp", "floor", "log", "sqrt")},
    **{name: getattr(np, name) for name in ("tanh", "reciprocal")},
    **{"neg": np.negative, "identity": np.copy, "sigmoid": _sigmoid, "erf": np.vectorize(erf)},
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _quotient},
    **{"max": np.fmax, "min": np.fmin, "pow": np.power, "mod": np.fmod},
    **{"cmp_eq": np.equal, "cmp_neq": np.not_equal, "cmp_lt": np.less, "cmp_le": np.less_equal},
    **{"cmp_gt": np.greater, "cmp_ge": np.greater_equal},
    "binary_select": lambda x, y, mask: np.where(mask != 0, x, y),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "softplus": lambda x: np.maximum(x, 0) + np.log(1 + np.exp(-np.abs(x))),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "gelu_approx_tanh": _gelu_by_tanh,
    "relu": _relu,
    "leaky_relu": _leaky,
    "swish": _swish,
}


class Words:
    """Computes the words of a cuDNN graph at once, with what cuDNN does at the ends of the range.

    `max` and `min` leave NaN out, `div` gives 0 for large divisors, `relu` has no limit below the
    least float32.
    """

    def __getattr__(self, name: str) -> Any:
        return partial(self._compute, _WORDS[name])

    def tensor_scalar(self, value: float, kind: object) -> Array:
        return np.array(value, np.float32)

    def _compute(self, word: Any, *given: Any, **attributes: Any) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(word(*given, **attributes)).astype(np.float32)
