"""Operators of com.microsoft, held against onnxruntime's CPU, which defines them."""

import numpy as np
import pytest

from .draws_attention import DRAWS as ATTENTION
from .draws_packed import DRAWS as PACKED
from .draws_simple import DRAWS as SIMPLE
from .samples import Draw, check, unclaimed

DRAWS: dict[str, Draw] = {**SIMPLE, **ATTENTION, **PACKED}
SAMPLES = 32


@pytest.mark.parametrize("name", DRAWS)
def test_samples(name: str) -> None:
    """Half of them with symbolic dimensions, a third without passes."""
    for seed in range(SAMPLES):
        sample = DRAWS[name](np.random.default_rng(seed))
        options = {"stop_at": 0} if seed % 3 == 0 else {}
        check(sample, symbolic=seed % 2 == 0, **options)


@pytest.mark.parametrize("name", DRAWS)
def test_cuda_leaves_nothing(name: str) -> None:
    for seed in range(3):
        sample = DRAWS[name](np.random.default_rng(seed))
        assert not unclaimed(sample), sample
