"""Every light model: optimised, written as ONNX, and run by onnxruntime.

The optional ones are written in `test_shared_models.py`, which loads them.
"""

from __future__ import annotations

import numpy as np
import pytest

import tercet
from tercet.tools.workshop.light_models import NAMES as LIGHT
from tercet.tools.workshop.light_models import light_inputs

from .exported import OnnxRuntime, exported
from .slim import exact_logits, slim_model


@pytest.mark.parametrize("name", LIGHT)
def test_light_model(name: str) -> None:
    """The optimised file is no further from float64 than twice what rounding did before."""
    proto = slim_model(name)
    feeds = light_inputs(proto)
    with tercet.load(proto) as model:
        (found,) = OnnxRuntime(exported(model)).run(feeds).values()
    exact = exact_logits(name)
    (plain,) = OnnxRuntime(proto).run(feeds).values()
    rounding, distance = (np.linalg.norm(x - exact) for x in (plain, found))
    assert 0 < rounding < 1e-5 * np.linalg.norm(exact)
    assert distance <= 2 * rounding
