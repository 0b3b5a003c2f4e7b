"""Attention of few blocks is recorded with the plan; that of many records a block when it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends.numpy.ops import attention_rows

from .graphs import Array, model, node, random


def _exact(q: Array, k: Array, v: Array, mask: Array, softcap: float) -> Array:
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ v


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("kind", [np.float32, np.bool_])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("batch", [2, 70])
def test_masks(
    batch: int, dtype: Any, kind: Any, softcap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"q": 3, "k": 5, "v": 5}
    feeds = {name: random(batch, 2, n, 8, dtype=dtype) for name, n in sizes.items()}
    mask = random(3, 5) > 0 if kind is np.bool_ else random(3, 5, dtype=dtype)
    mask[1] = False if kind is np.bool_ else -np.inf  # a row that sees no key
    proto = model(
        [node("Attention", [*"qkv", "mask"], "y", softcap=softcap)], feeds | {"mask": mask}, {}
    )
    proto.opset_import[0].version = 23
    with tercet.load(proto) as loaded:
        loaded.run({**feeds, "q": 2 * feeds["q"], "mask": mask})
        if batch * 2 <= attention_rows.RECORDED:
            monkeypatch.delattr(attention_rows, "_add_mask")
        found = loaded.run({**feeds, "mask": mask})["y"]
    rtol = 2e-2 if dtype == np.float16 else 1e-5
    want = _exact(feeds["q"], feeds["k"], feeds["v"], mask, softcap)
    np.testing.assert_allclose(found, want, rtol, rtol)
