"""Attention to as many keys as its input says, in rooms for more, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.ops import attention_rows
from tercet.runtime.ir.types import Array

from .graphs import model, node

ROOM, SIZE = 70, 16


def exact(
    q: Array, k: Array, v: Array, mask: Array, lengths: list[int], window: tuple[bool, int]
) -> Array:
    """Return attention in float64, sample by sample, with no keys but those that there are."""
    causal, left = window
    rows, repeats = q.shape[2], q.shape[1] // k.shape[1]
    found = np.zeros(q.shape)
    for n, length in enumerate(lengths):
        for head in range(q.shape[1]):
            keys, values = (x[n, head // repeats, :length].astype(float) for x in (k, v))
            scores = q[n, head].astype(float) @ keys.T / SIZE**0.5 + mask[:, :length]
            behind = np.arange(rows)[:, None] + length - rows - np.arange(length)
            hidden = np.full(behind.shape, causal) & (behind < 0)
            hidden |= np.full(behind.shape, left >= 0) & (behind > left)
            weights = np.where(hidden, 0, np.exp(scores))
            total = weights.sum(1, keepdims=True)
            found[n, head] = weights @ values / np.where(total == 0, 1, total)
    return found


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)], ids=str)
@pytest.mark.parametrize("window", [(False, -1), (True, -1), (True, 5), (False, 20)], ids=str)
def test_nothing_behind_the_keys_counts(
    rows: int, heads: tuple[int, int], window: tuple[bool, int]
) -> None:
    random = np.random.default_rng(0)
    lengths = [3, 64, 33, 70]
    shapes = (heads[0], rows), *[(heads[1], ROOM)] * 2
    q, k, v = (random.normal(size=(4, *s, SIZE)).astype(np.float32) for s in shapes)
    for n, length in enumerate(lengths):
        k[n, :, length:] = v[n, :, length:] = np.nan
    mask = random.normal(size=(rows, ROOM)).astype(np.float32)
    bounds: dict[str, Any] = {"is_causal": int(window[0]), "left_window_size": window[1]}
    counts = np.array(lengths)
    found = tercet.run_op("Attention", q, k, v, mask, None, None, counts, **bounds)
    wanted = exact(q, k, v, mask, lengths, window)
    assert np.abs(found - wanted).max() < 2e-6


def test_no_keys_give_zeros() -> None:
    q, k = np.ones((1, 2, 1, SIZE), np.float32), np.full((1, 2, ROOM, SIZE), np.nan, np.float32)
    found = tercet.run_op("Attention", q, k, k, None, None, None, np.array([0]))
    assert not found.any()


@pytest.mark.parametrize("window", [(False, -1), (True, 5)], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_calls_are_kept_while_the_keys_are_as_many(
    rows: int, window: tuple[bool, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    feeds = {
        name: random.normal(size=(1, heads, count, SIZE)).astype(np.float32)
        for name, heads, count in (("q", 4, rows), ("k", 2, ROOM), ("v", 2, ROOM))
    }
    counted = {"count": np.array([0])}
    bounds: dict[str, Any] = {"is_causal": int(window[0]), "left_window_size": window[1]}
    attention = node("Attention", [*"qkv", "", "", "", "count"], "y", **bounds)
    made: list[int] = []
    make = attention_rows._among_first

    def noted(*of_block: Any) -> Any:
        made.append(of_block[-1])
        return make(*of_block)

    monkeypatch.setattr(attention_rows, "_among_first", noted)
    proto = model([attention], feeds | counted, {})
    proto.opset_import[0].version = 24
    mask = np.zeros((rows, ROOM))
    with tercet.load(proto) as loaded:
        for length in (3, 64, 64, 33, 70, 70, 5):
            feeds["q"] = -feeds["q"]
            found = loaded.run(feeds | {"count": np.array([length])})["y"]
            wanted = exact(feeds["q"], feeds["k"], feeds["v"], mask, [length], window)
            assert np.abs(found - wanted).max() < 2e-6
    assert made == [3, 64, 33, 70, 5]
