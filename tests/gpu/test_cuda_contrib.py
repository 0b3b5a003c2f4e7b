"""Operators of com.microsoft on the GPU, against the numpy backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")
pytest.importorskip("onnxruntime")

import tercet

from ..contrib.samples import against, feeds_of, model_of
from ..contrib.test_contrib import DRAWS

pytestmark = pytest.mark.gpu
SAMPLES = 8


@pytest.mark.parametrize("name", DRAWS)
def test_samples(name: str) -> None:
    samples = [DRAWS[name](np.random.default_rng(seed)) for seed in range(SAMPLES)]
    with tercet.load(model_of(samples)) as model:
        flat = iter(model.run(feeds_of(samples)).values())
    wanted = [[np.asarray(next(flat)) for _ in each.results] for each in samples]
    options: dict[str, Any] = {"backend": "cuda", "fallback": "numpy"}
    against(samples, wanted, **options)
