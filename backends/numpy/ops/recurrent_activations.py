"""Activations of recurrent layers, which work in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.recurrent import GRU, LSTM, RNN

#: Writes f(x) to `out`, which may be x.
Function = Callable[[Array, Array], object]

#: One half by dtype: numpy converts a Python number in each call.
HALF = {dtype: np.array(0.5, dtype) for dtype in (float32, float64)}


def sigmoid(x: Array, out: Array) -> None:
    """Compute tanh(x / 2) / 2 + 1/2."""
    half = HALF[out.dtype]
    np.multiply(x, half, out)
    np.tanh(out, out)
    np.multiply(out, half, out)
    np.add(out, half, out)


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


def _affine(x: Array, out: Array, alpha: float, beta: float) -> None:
    np.multiply(x, alpha, out)
    np.add(out, beta, out)


def _leaky_relu(x: Array, out: Array, alpha: float) -> None:
    np.copyto(out, np.where(x < 0, alpha * x, x))


def _thresholded_relu(x: Array, out: Array, alpha: float) -> None:
    np.copyto(out, np.where(x > alpha, x, 0))


def _scaled_tanh(x: Array, out: Array, alpha: float, beta: float) -> None:
    np.multiply(x, beta, out)
    np.tanh(out, out)
    np.multiply(out, alpha, out)


def _hard_sigmoid(x: Array, out: Array, alpha: float, beta: float) -> None:
    np.clip(x * alpha + beta, 0, 1, out)


def _elu(x: Array, out: Array, alpha: float) -> None:
    np.copyto(out, np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x))


def _softsign(x: Array, out: Array) -> None:
    np.divide(x, 1 + np.abs(x), out)


def _softplus(x: Array, out: Array) -> None:
    np.logaddexp(x, 0, out)


#: Function and default alpha and beta by name.
ACTIVATIONS: dict[str, tuple[Callable[..., object], tuple[float, ...]]] = {
    "Relu": (_relu, ()),
    "Tanh": (np.tanh, ()),
    "Sigmoid": (sigmoid, ()),
    "Affine": (_affine, (1.0, 0.0)),
    "LeakyRelu": (_leaky_relu, (0.01,)),
    "ThresholdedRelu": (_thresholded_relu, (1.0,)),
    "ScaledTanh": (_scaled_tanh, (1.0, 1.0)),
    "HardSigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "Elu": (_elu, (1.0,)),
    "Softsign": (_softsign, ()),
    "Softplus": (_softplus, ()),
}


@record
class Activation:
    """A named activation with its parameters and symmetric clipping bound."""

    name: str
    parameters: tuple[float, ...]
    clip: float | None

    @property
    def function(self) -> Function:
        """The function that computes it."""
        function, _ = ACTIVATIONS[self.name]
        parameters, clip = self.parameters, self.clip
        if clip is None and not parameters:
            return function

        def clipped(x: Array, out: Array) -> None:
            if clip is not None:
                x = np.clip(x, -clip, clip, out)
            function(x, out, *parameters)

        return clipped


def activations(
    op: LSTM | GRU | RNN, usual: tuple[str, ...], directions: int
) -> Iterator[tuple[Activation, ...]]:
    """Yield the activations of each direction; parameters are assigned in order.

    Only the third one, which LSTM applies to its cell, is not clipped: that is how onnxruntime
    reads "the input of activations".
    """
    names = op.activations or usual * directions
    alphas, betas = iter(op.activation_alpha or ()), iter(op.activation_beta or ())
    for first in range(0, len(usual) * directions, len(usual)):
        made: list[Activation] = []
        for name in names[first : first + len(usual)]:
            _, defaults = ACTIVATIONS[name]
            pairs = zip((alphas, betas), defaults, strict=False)
            given = tuple(next(values, value) for values, value in pairs)
            made.append(Activation(name, given, op.clip if len(made) < 2 else None))
        yield tuple(made)
