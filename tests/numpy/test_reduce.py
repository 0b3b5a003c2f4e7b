"""Reductions along constant axes are recorded with the plan, and give the bits of a node alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.backend import NumpyBackend
from tercet.backends.numpy.ops import reduce
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.weights import WeightStore

from .graphs import Array, model, node

NAMES = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
AXES = [(0,), (1,), (-1,), (0, 2), (2, 1), (0, 1, 2), ()]
SHAPES = [(3, 17, 40), (1, 1, 1), (70, 2, 3), (2, 0, 3), (5, 130, 9), (50, 2, 2), (40, 2, 4)]


def _drawn(shape: tuple[int, ...], dtype: Any) -> Array:
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    if x.size > 50 and x.dtype.kind == "f":
        x.flat[[7, 23, 41]] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_as_alone(
    name: str, axes: tuple[int, ...], dtype: Any, keepdims: int
) -> None:
    for shape in SHAPES:
        x, along = _drawn(shape, dtype), np.array(axes, np.int64)
        proto = model(
            [node(name, ["x", "axes"], "y", keepdims=keepdims)], {"x": x}, {"axes": along}
        )
        with tercet.load(proto, stop_at=0) as loaded:
            found = loaded.run({"x": x})["y"]
            (only,) = loaded.graph.nodes
            (want,) = NumpyBackend().evaluate(only, [x, along], WeightStore(HOST))
        assert isinstance(want, np.ndarray)
        assert (found.dtype, found.shape) == (want.dtype, want.shape)
        assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize(("shape", "axis"), [((3, 5, 4), 1), ((30, 3, 4), 2), ((100, 2), -1)])
@pytest.mark.parametrize("name", NAMES)
def test_runs_call_numpy_alone(
    name: str, shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.nan_to_num(_drawn(shape, np.float32), posinf=2, neginf=-2)
    proto = model([node(name, ["x", "axes"], "y")], {"x": x}, {"axes": np.array([axis])})
    monkeypatch.setattr(reduce, "REDUCERS", {})
    with tercet.load(proto, stop_at=0) as loaded:
        for factor in (1, 2):
            (found,) = loaded.run({"x": factor * x}).values()
            want = getattr(np, name.removeprefix("Reduce").lower())(factor * x, axis, keepdims=True)
            np.testing.assert_allclose(found, want, rtol=1e-6)
