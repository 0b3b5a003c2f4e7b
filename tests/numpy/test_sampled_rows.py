"""Samples of many channels, all of a place at once: right, with the bits of few channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession

import tercet
from tercet.backends.numpy.numerics import interpolate

from .graphs import Array, model, node, random

PADDINGS = ("zeros", "border", "reflection")


def _grid(*shape: int, dtype: Any = np.float32) -> Array:
    """Return positions of which some are outside, and one is no number."""
    grid = 0.8 * random(*shape, dtype=dtype)
    grid[0, 0, 0] = np.nan
    return grid


def _channel_by_channel(
    monkeypatch: pytest.MonkeyPatch, op: str, *args: Array, **given: Any
) -> Array:
    with monkeypatch.context() as patched:
        patched.setattr(interpolate, "CHANNELS", 1 << 10)
        patched.delattr(interpolate, "_summed_by_row")
        return tercet.run_op(op, *args, **given)


@pytest.mark.parametrize("block", [64, 1 << 16])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_bits_of_grids(
    dtype: Any, mode: str, padding: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpolate, "BLOCK", block)
    operands = random(2, 9, 5, 7, dtype=dtype), _grid(2, 6, 5, 2, dtype=dtype)
    given: dict[str, Any] = {"mode": mode, "padding_mode": padding}
    wanted = _channel_by_channel(monkeypatch, "GridSample", *operands, **given)
    monkeypatch.delattr(interpolate, "_taken")  # for few channels
    found = tercet.run_op("GridSample", *operands, **given)
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_bits_of_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = random(1, 8, 3, 4, 5), _grid(1, 2, 3, 4, 3)
    wanted = _channel_by_channel(monkeypatch, "GridSample", *operands)
    monkeypatch.delattr(interpolate, "_taken")
    np.testing.assert_array_equal(tercet.run_op("GridSample", *operands), wanted, strict=True)


def test_bits_of_deformed_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = random(2, 16, 6, 5), random(3, 16, 3, 3), random(2, 36, 4, 3)
    given: dict[str, Any] = {"offset_group": 2}
    wanted = _channel_by_channel(monkeypatch, "DeformConv", *operands, **given)
    monkeypatch.delattr(interpolate, "_taken")
    found = tercet.run_op("DeformConv", *operands, **given)
    np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize("padding", PADDINGS)
def test_against_onnxruntime(padding: str) -> None:
    feeds = {"x": random(2, 24, 9, 8), "grid": 0.8 * random(2, 7, 6, 2)}
    proto = model([node("GridSample", ["x", "grid"], "y", padding_mode=padding)], feeds, {})
    (wanted,) = InferenceSession(proto.SerializeToString()).run(None, feeds)
    with tercet.load(proto) as loaded:
        found = loaded.run(feeds)["y"]
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=0, atol=2e-6)


def test_no_positions_of_no_elements() -> None:
    none = np.zeros((1, 1, 0), np.float32)
    axes = [interpolate.surrounded_by_zeros(none, 0)] * 2
    assert interpolate.sampled(np.zeros((1, 9, 0, 0), np.float32), axes).shape == (1, 9, 0)
