"""Random numbers; with a seed, every run gives the same ones."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import DType, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.random import (
    Bernoulli,
    Multinomial,
    RandomNormal,
    RandomNormalLike,
    RandomUniform,
    RandomUniformLike,
    key_of,
)
from ..engine.registry import kernel
from ..numerics import philox
from ..numerics.convert import convert


def _uniform(seed: float | None, shape: tuple[int, ...]) -> Array:
    """Return uniform numbers in [0, 1); without a seed they differ from run to run."""
    return (
        np.random.default_rng().random(shape)
        if seed is None
        else philox.uniform(key_of(seed), shape)
    )


def _normal(seed: float | None, shape: tuple[int, ...]) -> Array:
    """Return standard normal numbers."""
    if seed is None:
        return np.random.default_rng().standard_normal(shape)
    return philox.normal(key_of(seed), shape)


def _scaled(numbers: Array, low: float, span: float, dtype: DType) -> Array:
    """Return low + numbers * span, computed via float32 for narrower types than float64."""
    found = low + numbers * span
    return found if dtype == float64 else convert(found.astype(float32), dtype)


@kernel(RandomNormal)
def random_normal(op: RandomNormal) -> Array:
    """Normal distribution."""
    return _scaled(_normal(op.seed, op.shape), op.mean, op.scale, op.dtype)


@kernel(RandomNormalLike)
def random_normal_like(op: RandomNormalLike, x: Array) -> Array:
    """Normal distribution."""
    return _scaled(_normal(op.seed, x.shape), op.mean, op.scale, op.dtype or x.dtype)


@kernel(RandomUniform)
def random_uniform(op: RandomUniform) -> Array:
    """Uniform distribution."""
    return _scaled(_uniform(op.seed, op.shape), op.low, op.high - op.low, op.dtype)


@kernel(RandomUniformLike)
def random_uniform_like(op: RandomUniformLike, x: Array) -> Array:
    """Uniform distribution."""
    return _scaled(_uniform(op.seed, x.shape), op.low, op.high - op.low, op.dtype or x.dtype)


@kernel(Bernoulli)
def bernoulli(op: Bernoulli, x: Array) -> Array:
    """Ones with the given probabilities."""
    drawn = _uniform(op.seed, x.shape) < x.astype(float64)
    return convert(drawn, op.dtype or x.dtype)


@kernel(Multinomial)
def multinomial(op: Multinomial, x: Array) -> Array:
    """Classes drawn by unnormalized log-probabilities."""
    wide = x.astype(float64)
    cumulated = np.exp(wide - wide.max(1, keepdims=True)).cumsum(1)
    drawn = _uniform(op.seed, (len(x), op.sample_size)) * cumulated[:, -1:]
    found = np.empty(drawn.shape, op.dtype)
    for row, limits, numbers in zip(found, cumulated, drawn, strict=True):
        row[...] = np.searchsorted(limits, numbers, "right")
    return found
