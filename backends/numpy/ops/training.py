"""Optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....runtime.ir.types import Array
from ....runtime.ops.training import Adagrad, Adam, Momentum
from ..engine.registry import kernel


def _each(inputs: tuple[Array, ...], kinds: int) -> Iterator[tuple[Array, ...]]:
    """Yield each tensor with its gradient and its states."""
    count = len(inputs) // kinds
    return zip(*(inputs[i * count : (i + 1) * count] for i in range(kinds)), strict=True)


def _listed(results: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return all new tensors, then all of each kind of state."""
    return tuple(a for kind in zip(*results, strict=True) for a in kind)


@kernel(Adagrad)
def adagrad(op: Adagrad, r: Array, t: Array, *inputs: Array) -> tuple[Array, ...]:
    """Scale each gradient by the root of the sum of its squares so far."""
    rate = r / (1 + t * op.decay_factor)
    results: list[tuple[Array, ...]] = []
    for x, g, h in _each(inputs, 3):
        gradient = op.norm_coefficient * x + g
        squares = h + np.square(gradient)
        new = x - rate * gradient / (np.sqrt(squares) + op.epsilon)
        results.append((new.astype(x.dtype), squares.astype(x.dtype)))
    return _listed(results)


@kernel(Adam)
def adam(op: Adam, r: Array, t: Array, *inputs: Array) -> tuple[Array, ...]:
    """Scale averages of gradients by the root of averages of their squares."""
    step = float(t.reshape(-1)[0])
    correction = np.sqrt(1 - op.beta**step) / (1 - op.alpha**step) if step else 1.0
    results: list[tuple[Array, ...]] = []
    for x, g, v, h in _each(inputs, 4):
        gradient = op.norm_coefficient * x + g
        average = op.alpha * v + (1 - op.alpha) * gradient
        squares = op.beta * h + (1 - op.beta) * np.square(gradient)
        new = x - r * correction * average / (np.sqrt(squares) + op.epsilon)
        new = (1 - op.norm_coefficient_post) * new
        results.append(tuple(a.astype(x.dtype) for a in (new, average, squares)))
    return _listed(results)


@kernel(Momentum)
def momentum(op: Momentum, r: Array, t: Array, *inputs: Array) -> tuple[Array, ...]:
    """Follow an average of gradients."""
    beta = op.beta if t.reshape(-1)[0] > 0 else 1.0
    results: list[tuple[Array, ...]] = []
    for x, g, v in _each(inputs, 3):
        gradient = op.norm_coefficient * x + g
        average = op.alpha * v + beta * gradient
        direction = gradient + op.alpha * average if op.mode == "nesterov" else average
        results.append(((x - r * direction).astype(x.dtype), average.astype(x.dtype)))
    return _listed(results)
