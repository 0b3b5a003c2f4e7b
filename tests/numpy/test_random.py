"""Random operators: moments and frequencies, since no two generators draw the same numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from .nodes import Array, model_of, node, run

COUNT = 200_000
DTYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def drawn(op: str, x: Array | None = None, **attributes: Any) -> Array:
    feeds = {} if x is None else {"x": x}
    inputs = "" if x is None else "x"
    (found,) = run(model_of([node(op, inputs, "y", **attributes)], feeds, "y", 22), feeds)
    return found


def moments(x: Array) -> tuple[float, float]:
    wide = x.astype(np.float64)
    return wide.mean(), wide.std()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("like", [False, True])
def test_normal(dtype: int, like: bool) -> None:
    x = drawn_of("RandomNormal", like, dtype, mean=3.0, scale=0.5)
    mean, deviation = moments(x)
    assert mean == pytest.approx(3, abs=0.01)
    assert deviation == pytest.approx(0.5, abs=0.01)
    away = np.abs(x.astype(np.float64) - 3)
    inside = ((away < 0.5).mean() + (away <= 0.5).mean()) / 2  # many bfloat16 are just there
    assert inside == pytest.approx(0.6827, abs=0.01)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("like", [False, True])
def test_uniform(dtype: int, like: bool) -> None:
    x = drawn_of("RandomUniform", like, dtype, low=-1.0, high=3.0)
    mean, deviation = moments(x)
    assert mean == pytest.approx(1, abs=0.02)
    assert deviation == pytest.approx(4 / 12**0.5, abs=0.02)
    low, high = x.astype(np.float64).min(), x.astype(np.float64).max()
    assert -1 <= low < -0.95
    assert 2.95 < high <= 3


def drawn_of(op: str, like: bool, dtype: int, **attributes: Any) -> Array:
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    if like:
        x = drawn(f"{op}Like", np.zeros((COUNT,), kind), **attributes)
    else:
        x = drawn(op, dtype=dtype, shape=[COUNT], **attributes)
    assert x.dtype == kind
    assert x.shape == (COUNT,)
    return x


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_multinomial(dtype: int, kind: Any) -> None:
    """Classes come as often as the exponentials of the inputs say, row by row."""
    odds = np.array([[1, 2, 1], [3, 0, 1]])
    with np.errstate(divide="ignore"):
        x = (np.log(odds) + 5).astype(kind)
    found = drawn("Multinomial", x, sample_size=COUNT, dtype=dtype)
    assert found.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    assert found.shape == (2, COUNT)
    for row, weights in zip(found, odds, strict=True):
        frequencies = np.bincount(row, minlength=3) / COUNT
        np.testing.assert_allclose(frequencies, weights / weights.sum(), atol=0.01)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_bernoulli(kind: Any) -> None:
    probabilities = np.repeat([[0.0], [0.25], [1.0]], COUNT // 4, 1).astype(kind)
    found = drawn("Bernoulli", probabilities)
    assert found.dtype == probabilities.dtype
    np.testing.assert_allclose(found.astype(np.float64).mean(1), [0, 0.25, 1], atol=0.01)
    assert drawn("Bernoulli", probabilities, dtype=TensorProto.BOOL).dtype == bool


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("RandomNormal", {"shape": [100]}),
        ("RandomUniform", {"shape": [100]}),
        ("Multinomial", {"sample_size": 100}),
        ("Bernoulli", {}),
    ],
)
def test_seeds(op: str, attributes: dict[str, Any]) -> None:
    x = None if "shape" in attributes else np.full((1, 100), 0.5, np.float32)
    same = [drawn(op, x, seed=2.5, **attributes).tolist() for _ in range(2)]
    assert same[0] == same[1]
    assert drawn(op, x, seed=2.0, **attributes).tolist() != same[0]
    assert drawn(op, x, **attributes).tolist() != drawn(op, x, **attributes).tolist()


def test_dropout_keeps_the_mean() -> None:
    x = np.ones(COUNT, np.float32)
    feeds = {"x": x, "ratio": np.array(0.25, np.float32), "training": np.array(True)}
    made = node("Dropout", "x ratio training", "y mask")
    y, mask = run(model_of([made], feeds, "y mask"), feeds)
    assert y.mean() == pytest.approx(1, abs=0.01)
    assert mask.mean() == pytest.approx(0.75, abs=0.01)
    np.testing.assert_array_equal(y, np.where(mask, np.float32(1 / 0.75), 0))
