"""Caches of float8, which onnxruntime's CPU does not have, beside its caches of float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tercet

from .samples import Sample, expected, feeds_of, model_of

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
HEADS, GROUPS, SIZE, ROOM = 4, 2, 8, 6


def step(length: int, kind: str) -> tuple[Sample, Sample]:
    """Return a step with caches of float8, and with those of the same numbers in float32."""
    rng = np.random.default_rng(length)
    batch = 2 if length == 1 else 1
    query = rng.standard_normal((batch, length, HEADS * SIZE)).astype(np.float32)
    shape = (1, GROUPS, 1, SIZE) if kind == "PER_CHANNEL" else (1,)
    scales = [rng.random(shape).astype(np.float32) / 50 + np.float32(0.002) for _ in "kv"]
    caches = [rng.standard_normal((batch, GROUPS, ROOM, SIZE)).astype(E4M3) for _ in "kv"]
    # Some elements are beyond the range of float8, 448 times their scale.
    new = [3 * rng.standard_normal((batch, length, GROUPS * SIZE)).astype(np.float32) for _ in "kv"]
    rows = {"q": query, "k": new[0], "v": new[1], "pk": caches[0], "pv": caches[1]}
    sizes = {"lens": np.array([ROOM - 1, 3][:batch], np.int32), "total": np.array(ROOM, np.int32)}
    angles: dict[str, Any] = dict.fromkeys(("cos", "sin", "ids", "bias", "sink"))
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    plain = Sample("GroupQueryAttention", rows | sizes, attributes, outputs=(True,) * 3)
    small = replace(
        plain,
        inputs={**plain.inputs, **angles, "ks": scales[0], "vs": scales[1]},
        attributes=attributes | {"k_quant_type": kind, "v_quant_type": kind},
    )
    wide: dict[str, Any] = {}
    for name, cache, scale, x in zip("kv", caches, scales, new, strict=True):
        wide[f"p{name}"] = cache.astype(np.float32) * scale
        heads = x.reshape(batch, length, GROUPS, SIZE).swapaxes(1, 2) / scale
        kept = np.clip(heads, -448, 448).astype(E4M3).astype(np.float32) * scale
        wide[name] = kept.swapaxes(1, 2).reshape(x.shape)
    return small, replace(plain, inputs={**plain.inputs, **wide})


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("length", [1, 2])
def test_a_step(length: int, kind: str, options: Any) -> None:
    small, wide = step(length, kind)
    (wanted,) = expected([wide])
    with tercet.load(model_of(small), **options) as model:
        y, *caches = model.run(feeds_of(small)).values()
    np.testing.assert_allclose(y, wanted[0], rtol=1e-5, atol=1e-6)
    for cache, scale, rows in zip(caches, ("ks", "vs"), wanted[1:], strict=True):
        assert cache.dtype == E4M3
        found = cache.astype(np.float32) * small.given[scale]
        for at, valid in enumerate(small.given["lens"] + 1):
            np.testing.assert_allclose(found[at, :, :valid], rows[at, :, :valid], rtol=1e-6)
