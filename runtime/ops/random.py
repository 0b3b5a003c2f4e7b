"""Random operators; equal seeds give equal numbers on every backend.

`docs/rulings.md` defines the generators; without a seed, results differ from run to run.
"""

from __future__ import annotations

import numpy as np

from ..ir.dtypes import DType, float32, int32
from ..ir.op import Op, op, op_base
from ..ir.types import TensorType
from .shapes import checked, need_rank


def key_of(seed: float) -> int:
    """Return the key for a seed: the bits of the float32 that a file holds."""
    return int(np.float32(seed).view(np.uint32))


class Random(Op):
    """An operator whose result differs from run to run."""

    deterministic = False


@op
class Bernoulli(Random):
    """1 with the probability given by the input, else 0.

    Attributes:
        dtype: of the result; the input's if None.
    """

    dtype: DType | None = None
    seed: float | None = None

    def infer(self, input: TensorType) -> TensorType:
        return input.with_dtype(self.dtype or input.dtype)


@op
class Multinomial(Random):
    """`sample_size` classes [batch, sample_size], drawn by log-probabilities [batch, classes]."""

    dtype: DType = int32
    sample_size: int = 1
    seed: float | None = None

    def infer(self, input: TensorType) -> TensorType:
        need_rank(input, 2, "input")
        batch = None if input.shape is None else input.shape[0]
        return TensorType(self.dtype, checked([batch, self.sample_size]))


@op_base
class RandomShape(Random):
    """Random numbers with the attribute `shape`."""

    shape: tuple[int, ...]
    dtype: DType = float32
    seed: float | None = None

    def infer(self) -> TensorType:
        return TensorType(self.dtype, checked(self.shape))


@op_base
class RandomLike(Random):
    """Random numbers with the input's shape, and its dtype if `dtype` is None."""

    dtype: DType | None = None
    seed: float | None = None

    def infer(self, input: TensorType) -> TensorType:
        return input.with_dtype(self.dtype or input.dtype)


@op
class RandomNormal(RandomShape):
    """Normally distributed numbers."""

    mean: float = 0.0
    scale: float = 1.0


@op
class RandomNormalLike(RandomLike):
    """Normally distributed numbers with the input's shape."""

    mean: float = 0.0
    scale: float = 1.0


@op
class RandomUniform(RandomShape):
    """Uniformly distributed numbers in [low, high)."""

    high: float = 1.0
    low: float = 0.0


@op
class RandomUniformLike(RandomLike):
    """Uniformly distributed numbers in [low, high) with the input's shape."""

    high: float = 1.0
    low: float = 0.0
