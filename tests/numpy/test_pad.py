"""Pads are recorded as copies of slices, and give what `np.pad` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession

import tercet
from tercet.backends.numpy.backend import NumpyBackend
from tercet.backends.numpy.ops import movement_pads
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.weights import WeightStore

from .graphs import Array, model, node

MODE: dict[str, Any] = {mode: mode for mode in ("constant", "edge", "reflect", "wrap")}
#: Shapes, and elements before and after.
PADS: list[tuple[tuple[int, ...], list[int]]] = [
    ((5,), [2, 3]),
    ((5,), [4, 4]),
    ((3,), [7, 5]),  # several times
    ((4, 5), [1, 0, 0, 2]),
    ((4, 5), [-1, 3, 2, -2]),
    ((2, 3, 4), [1, 2, 3, 1, 1, 2]),
    ((1, 3, 70, 80), [0, 0, 2, 1, 0, 0, 3, 0]),
    ((2, 3), [-1, 0, 0, -1]),
    ((), []),
]


def _pads(pads: list[int]) -> Array:
    return np.array(pads, np.int64)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.bool_])
@pytest.mark.parametrize("mode", MODE)
@pytest.mark.parametrize(("shape", "pads"), PADS, ids=str)
def test_as_numpy(shape: tuple[int, ...], pads: list[int], mode: str, dtype: Any) -> None:
    x = np.asarray(np.arange(np.prod(shape)).reshape(shape) % 90 - 1, dtype)
    proto = model([node("Pad", ["x", "pads"], "y", mode=mode)], {"x": x}, {"pads": _pads(pads)})
    with tercet.load(proto, stop_at=0) as loaded:
        (only,) = loaded.graph.nodes
        loaded.run({"x": x + x})
        found = loaded.run({"x": x})["y"]
        (want,) = NumpyBackend().evaluate(only, [x, _pads(pads)], WeightStore(HOST))
    assert isinstance(want, np.ndarray)
    assert (found.dtype, found.shape, found.tolist()) == (want.dtype, want.shape, want.tolist())


@pytest.mark.parametrize("value", [None, -2.5])
@pytest.mark.parametrize("size", [4, 200])
def test_a_value_that_is_computed(value: float | None, size: int) -> None:
    x = np.ones((2, size, size), np.float32)
    feeds = {"x": x} if value is None else {"x": x, "v": np.array(value, np.float32)}
    constants = {"pads": _pads([2, 1, 1, 2]), "axes": _pads([-1, 1])}
    names = ["x", "pads", "" if value is None else "v", "axes"]
    with tercet.load(model([node("Pad", names, "y")], feeds, constants)) as loaded:
        found = loaded.run(feeds)["y"]
    want = np.pad(x, [(0, 0), (1, 2), (2, 1)], constant_values=value or 0)
    assert np.array_equal(found, want)


@pytest.mark.parametrize("mode", MODE)
def test_runs_copy_alone(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    proto = model(
        [node("Pad", ["x", "pads"], "y", mode=mode)], {"x": x}, {"pads": _pads([1, 2, 2, 3])}
    )
    with tercet.load(proto) as loaded:
        first = loaded.run({"x": x})["y"]
        monkeypatch.delattr(movement_pads, "_widths")
        second = loaded.run({"x": 2 * x})["y"]
    assert np.array_equal(first, np.pad(x, [(1, 2), (2, 3)], MODE[mode]))
    assert np.array_equal(second, 2 * first)


@pytest.mark.parametrize("mode", MODE)
def test_what_is_cropped_first_may_leave_nothing_to_repeat(mode: str) -> None:
    x = np.ones((4, 5), np.float32)
    proto = model(
        [node("Pad", ["x", "pads"], "y", mode=mode)], {"x": x}, {"pads": _pads([0, -5, 1, 5])}
    )
    with tercet.load(proto) as loaded:
        if mode == "constant":
            assert not loaded.run({"x": x})["y"].any()
        else:
            with pytest.raises(tercet.TercetError, match="Pad"):
                loaded.run({"x": x})


@pytest.mark.parametrize("pads", [[5, -4], [-4, 5], [5, -3], [-3, 5], [4, -5]], ids=str)
def test_margins_may_be_cropped(pads: list[int]) -> None:
    """As onnxruntime does, which refuses the other modes, too."""
    x = np.arange(1, 4, dtype=np.float32)
    proto = model([node("Pad", ["x", "pads"], "y")], {"x": x, "pads": _pads(pads)}, {})
    (wanted,) = InferenceSession(proto.SerializeToString()).run(None, {"x": x, "pads": _pads(pads)})
    found = np.asarray(tercet.run_op("Pad", x, _pads(pads)))
    np.testing.assert_array_equal(found, np.asarray(wanted), strict=True)
