"""Samples of hyper-connections, of Engram, and of boxes, matrices and distances."""

from typing import Any

import numpy as np

from .draws_simple import Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]


def _outer(rng: Rng) -> list[int]:
    return [int(rng.integers(1, 4)) for _ in range(rng.integers(1, 3))]


def pre_mix(rng: Rng) -> Sample:
    outer, c, h = _outer(rng), int(rng.integers(1, 5)), int(rng.integers(2, 9))
    is_flat = rng.random() < 0.5
    forms = [(c,), (c, 1), (c, h), *([(c * h,)] if is_flat else [])]
    shape = forms[int(rng.integers(len(forms)))]
    inputs: Inputs = {
        "streams": floats(rng, *outer, *((c * h,) if is_flat else (c, h))),
        "pre_mix": floats(rng, *outer, *shape),
    }
    attributes: dict[str, Any] = {"num_branches": c} if is_flat else {}
    if rng.random() < 0.5:
        attributes["reduction_scale"] = 0.5
    return Sample("HyperConnectionPreMix", inputs, attributes)


def post_mix(rng: Rng) -> Sample:
    outer, c, h = _outer(rng), int(rng.integers(1, 5)), int(rng.integers(2, 9))
    is_flat = rng.random() < 0.5
    shape = [(c,), (c, 1), (c, h)][int(rng.integers(3))]
    inputs: Inputs = {
        "streams": floats(rng, *outer, *((c * h,) if is_flat else (c, h))),
        "block_output": floats(rng, *outer, h),
        "post_mix": floats(rng, *outer, *shape),
        "stream_mix": perhaps(rng, floats(rng, *outer, c, c)),
    }
    attributes = {"num_branches": c} if is_flat else {}
    return Sample("HyperConnectionPostMix", inputs, attributes)


def engram_gate(rng: Rng) -> Sample:
    batch, length, c, h = (int(rng.integers(1, 5)) for _ in range(4))
    h *= 4
    dtype = str(rng.choice(["float32", "float16"]))
    normed = bool(rng.integers(2))
    inputs: Inputs = {
        "key": floats(rng, batch, length, c, h, dtype=dtype),
        "query": floats(rng, batch, length, c, h, dtype=dtype),
        "value": floats(rng, batch, length, h, dtype=dtype),
        "key_norm_scale": floats(rng, c, h, dtype=dtype),
        "query_norm_scale": floats(rng, c, h, dtype=dtype),
        "conv_norm_scale": floats(rng, c, h, dtype=dtype) if normed else None,
    }
    attributes = {"epsilon": 1e-3} if rng.random() < 0.5 else {}
    return Sample("EngramGate", inputs, attributes, outputs=(True, normed))


def hashes(rng: Rng) -> Sample:
    dtype = str(rng.choice(["int32", "int64"]))
    batch, length = int(rng.integers(1, 4)), int(rng.integers(1, 9))
    grams, heads = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    count, eos = (grams - 1) * heads, bool(rng.integers(2))
    ids = rng.integers(0, 5, (batch, length))
    segments = np.cumsum(rng.random((batch, length)) < 0.3, 1).astype(np.int32)
    past = rng.integers(0, 5, (batch, grams - 1)).astype(dtype)
    inputs: Inputs = {
        "input_ids": ids.astype(dtype),
        "multipliers": (2 * rng.integers(0, 10**9, grams + 1) + 1).astype(dtype),
        "vocab_sizes": rng.integers(1, 100, count).astype(dtype),
        "past_ids": perhaps(rng, past),
        "head_offsets": perhaps(rng, rng.integers(0, 1000, count).astype(dtype)),
        "eos_token_id": np.array(2, dtype) if eos else None,
        "segment_ids": perhaps(rng, segments),
    }
    attributes = {
        **{"max_ngram_size": grams, "n_head_per_ngram": heads, "pad_id": int(rng.integers(5))},
        "reset_on_eos": int(rng.integers(2)),
    }
    return Sample("NGramHashMapping", inputs, attributes, outputs=(True, bool(rng.integers(2))))


def crop(rng: Rng) -> Sample:
    n, c, h, w, boxes = (int(rng.integers(1, 6)) for _ in range(5))
    size = rng.integers(1, 6, 2).astype(np.int32)
    inputs: Inputs = {
        "x": floats(rng, n, c, h, w),
        "rois": (1.5 * rng.random((boxes, 4)) - 0.25).astype(np.float32),
        "batch_indices": rng.integers(0, n, boxes).astype(np.int32),
        "crop_size": size,
    }
    attributes: dict[str, Any] = {"mode": str(rng.choice(["bilinear", "nearest"]))}
    if rng.random() < 0.5:
        attributes["extrapolation_value"] = 1.5
    return Sample("CropAndResize", inputs, attributes, constants=("crop_size",))


def integers(rng: Rng) -> Sample:
    m, k, n = (int(rng.integers(1, 7)) for _ in range(3))
    outer = _outer(rng) if rng.random() < 0.5 else []
    inputs: Inputs = {
        "x": rng.integers(-(2**14), 2**14, (*outer, m, k)).astype(np.int16),
        "y": rng.integers(-(2**14), 2**14, (k, n)).astype(np.int16),
    }
    return Sample("MatMulInteger16", inputs)


def echo(rng: Rng) -> Sample:
    return Sample("SampleOp", {"x": floats(rng, *_outer(rng))})


def inverse(rng: Rng) -> Sample:
    n = int(rng.integers(1, 9))
    dtype = str(rng.choice(["float32", "float64"]))
    x = floats(rng, *(_outer(rng) if rng.random() < 0.6 else []), n, n, dtype=dtype)
    return Sample("Inverse", {"x": x + 3 * np.eye(n, dtype=dtype)[::-1]}, loose=10)


def warping(rng: Rng) -> Sample:
    m, n = (int(rng.integers(1, 9)) for _ in range(2))
    x = np.abs(floats(rng, m, n)).round(1 if rng.random() < 0.3 else 6)
    return Sample("DynamicTimeWarping", {"x": x[np.newaxis] if rng.random() < 0.5 else x})


def distances(rng: Rng) -> Sample:
    m, n, k = (int(rng.integers(1, 9)) for _ in range(3))
    dtype = str(rng.choice(["float32", "float64"]))
    metric = str(rng.choice(["euclidean", "sqeuclidean"]))
    inputs: Inputs = {"a": floats(rng, m, k, dtype=dtype), "b": floats(rng, n, k, dtype=dtype)}
    return Sample("CDist", inputs, {"metric": metric}, loose=10)


DRAWS: dict[str, Draw] = {
    "Inverse": inverse,
    "DynamicTimeWarping": warping,
    "CDist": distances,
    "HyperConnectionPreMix": pre_mix,
    "HyperConnectionPostMix": post_mix,
    "EngramGate": engram_gate,
    "NGramHashMapping": hashes,
    "CropAndResize": crop,
    "MatMulInteger16": integers,
    "SampleOp": echo,
}
