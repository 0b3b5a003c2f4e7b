"""The verdict on support vector machines, whose kernel values are many and may cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .test_error_bounds import judged, model, numbers


@pytest.mark.parametrize("kind", ["SVMRegressor", "SVMClassifier"])
def test_kernel_values_that_cancel_are_rounded_one_by_one(kind: str) -> None:
    """Of four hundred values near one, with coefficients of either sign, a thousandth is left."""
    vectors, x = numbers(400, 3, seed=1, scale=0.1), numbers(5, 3, scale=0.1)
    coefficients = numbers(400, seed=2)
    coefficients -= coefficients.mean()
    attributes: dict[str, Any] = {
        "domain": "ai.onnx.ml",
        "kernel_type": "RBF",
        "kernel_params": [0.05, 0.0, 3.0],
        "support_vectors": vectors.ravel().tolist(),
        "coefficients": coefficients.tolist(),
        "rho": [0.0],
    }
    if kind == "SVMRegressor":
        nodes = [(kind, "x", "y", attributes | {"n_supports": 400})]
    else:
        pairs = {"vectors_per_class": [150, 250], "classlabels_ints": [0, 1]}
        nodes = [(kind, "x", "label y", attributes | pairs)]
    case = model(nodes, {"x": x}, {}, {"y": 1})
    apart = x[:, np.newaxis] - vectors
    values = np.exp(np.float32(-0.05) * np.square(apart).sum(2))
    one_by_one = np.add.accumulate(values * coefficients, axis=1)[:, -1]
    sums = values.astype(np.float64) @ coefficients
    wrong = np.abs(one_by_one - sums).argmax()
    assert abs(one_by_one[wrong] - sums[wrong]) > 3e-6 * abs(sums[wrong])

    def summed(y: np.ndarray) -> np.ndarray:
        sign = np.sign(y[:, -1] * sums)
        y[:, -1] = sign * one_by_one
        return y

    assert judged(case, summed).ok
    assert judged(case, lambda y: y * np.float32(1.01)).verdict == "MISMATCH"
