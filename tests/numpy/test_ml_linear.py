"""Linear models and what scales their features, prepared once for each plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.ops import ml, ml_linear

from .nodes import ML, Array, assert_same, by_onnxruntime, model_of, node

LINEAR = "LinearClassifier", "LinearRegressor"


def linear(kind: str, rows: int, scores: int, features: int = 7) -> tuple[Any, dict[str, Array]]:
    """Return a model of one node, and inputs."""
    rng = np.random.default_rng(rows)
    given: dict[str, Any] = {
        "coefficients": rng.standard_normal(features * scores).tolist(),
        "intercepts": rng.standard_normal(scores).tolist(),
    }
    if kind == "LinearClassifier":
        given["classlabels_ints"] = [*range(5, 5 + max(2, scores))]
        given["post_transform"] = "LOGISTIC" if scores == 1 else "SOFTMAX"
    else:
        given["targets"] = scores
    feeds = {"x": rng.standard_normal((rows, features)).astype(np.float32)}
    outputs = "y p" if kind == "LinearClassifier" else "y"
    return model_of([node(kind, "x", outputs, domain=ML, **given)], feeds, outputs), feeds


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("scores", [1, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_products_are_prepared_once(
    monkeypatch: pytest.MonkeyPatch, kind: str, rows: int, scores: int
) -> None:
    model, feeds = linear(kind, rows, scores)
    with tercet.load(model, backend="numpy") as loaded:
        loaded.run(feeds)
        monkeypatch.setattr(ml_linear, "recorded", None)
        monkeypatch.setattr(ml_linear, "multiply", None)
        other = {"x": feeds["x"][::-1] * np.float32(0.5)}
        got = [*loaded.run(other).values()]
    for mine, want in zip(got, by_onnxruntime(model, other), strict=True):
        assert_same(mine, want, 1e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_what_scales_is_prepared_once(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    given = {"offset": [0.5, -1.0, 2.0], "scale": [0.1, 3.0, 1e-3]}
    model = model_of([node("Scaler", "x", "y", domain=ML, **given)], {"x": x}, "y")
    with tercet.load(model, backend="numpy") as loaded:
        loaded.run({"x": x})
        monkeypatch.setattr(ml, "attribute", None)
        (y,) = loaded.run({"x": -x}).values()
    np.testing.assert_array_equal(y, by_onnxruntime(model, {"x": -x})[0])


@pytest.mark.parametrize("kind", LINEAR)
def test_a_row_alone_is_as_among_others(kind: str) -> None:
    model, feeds = linear(kind, 9, 3)
    with tercet.load(model, backend="numpy") as loaded:
        together = [*loaded.run(feeds).values()]
        for row in range(9):
            alone = loaded.run({"x": feeds["x"][row : row + 1]}).values()
            for one, all_of_them in zip(alone, together, strict=True):
                np.testing.assert_array_equal(one[0], all_of_them[row])


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_other_features(kind: str, dtype: Any) -> None:
    _, feeds = linear(kind, 3, 2)
    x = {"x": (feeds["x"] * 9).astype(dtype)}
    given: dict[str, Any] = {"coefficients": [0.5] * 7 + [-0.25] * 7, "intercepts": [1.0, 2.0]}
    given |= {"classlabels_ints": [0, 1]} if kind == "LinearClassifier" else {"targets": 2}
    outputs = "y p" if kind == "LinearClassifier" else "y"
    model = model_of([node(kind, "x", outputs, domain=ML, **given)], x, outputs)
    with tercet.load(model, backend="numpy") as loaded:
        got = [*loaded.run(x).values()][-1]
    sums = x["x"].astype(np.float64).sum(1)
    want = np.stack([0.5 * sums + 1, -0.25 * sums + 2], 1)
    np.testing.assert_allclose(got, want, 1e-5)
