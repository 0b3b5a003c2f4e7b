"""Random numbers; with a seed every run draws the same ones."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import float64
from ....runtime.ir.types import Array
from ....runtime.ops.random import (
    Bernoulli,
    Multinomial,
    RandomNormal,
    RandomNormalLike,
    RandomUniform,
    RandomUniformLike,
)
from ..engine.registry import kernel
from ..numerics.convert import convert


def _generator(seed: float | None) -> np.random.Generator:
    """Return a generator; the seed is the bits of a float32."""
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng(int(np.float32(seed).view(np.uint32)))


@kernel(RandomNormal)
def random_normal(op: RandomNormal) -> Array:
    """Draw from the normal distribution."""
    return convert(_generator(op.seed).normal(op.mean, op.scale, op.shape), op.dtype)


@kernel(RandomNormalLike)
def random_normal_like(op: RandomNormalLike, x: Array) -> Array:
    """Draw from the normal distribution."""
    return convert(_generator(op.seed).normal(op.mean, op.scale, x.shape), op.dtype or x.dtype)


@kernel(RandomUniform)
def random_uniform(op: RandomUniform) -> Array:
    """Draw from the uniform distribution."""
    return convert(_generator(op.seed).uniform(op.low, op.high, op.shape), op.dtype)


@kernel(RandomUniformLike)
def random_uniform_like(op: RandomUniformLike, x: Array) -> Array:
    """Draw from the uniform distribution."""
    return convert(_generator(op.seed).uniform(op.low, op.high, x.shape), op.dtype or x.dtype)


@kernel(Bernoulli)
def bernoulli(op: Bernoulli, x: Array) -> Array:
    """Draw 1 with the given probabilities."""
    drawn = _generator(op.seed).random(x.shape) < x.astype(float64)
    return convert(drawn, op.dtype or x.dtype)


@kernel(Multinomial)
def multinomial(op: Multinomial, x: Array) -> Array:
    """Draw classes; their probabilities are given as logarithms, up to a factor."""
    wide = x.astype(float64)
    cumulated = np.exp(wide - wide.max(1, keepdims=True)).cumsum(1)
    drawn = _generator(op.seed).random((len(x), op.sample_size)) * cumulated[:, -1:]
    found = np.empty(drawn.shape, op.dtype)
    for row, limits, numbers in zip(found, cumulated, drawn, strict=True):
        row[...] = np.searchsorted(limits, numbers, "right")
    return found
