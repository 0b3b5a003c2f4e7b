"""Samples of operators that ONNX has under another name or signature, and of tensor utilities."""

from typing import Any

import numpy as np

from .draws_simple import DTYPES, Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]


def pad(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    shape = [int(rng.integers(2, 5)) for _ in range(rng.integers(1, 4))]
    mode = str(rng.choice(["constant", "reflect", "edge"]))
    pads = rng.integers(-1 if mode == "constant" else 0, 2, 2 * len(shape))
    value = np.array([0.5] if rng.random() < 0.5 else 0.5, dtype)
    inputs: Inputs = {
        "x": floats(rng, *shape, dtype=dtype),
        "pads": pads.astype(np.int64).reshape((1, -1) if rng.random() < 0.5 else -1),
        "value": perhaps(rng, value) if mode == "constant" else None,
    }
    constants = ("pads",)
    return Sample("Pad", inputs, {"mode": mode}, constants=constants, wide=dtype == "float16")


def range_(rng: Rng) -> Sample:
    dtype = str(rng.choice(["int16", "int32", "int64", "float32", "float64"]))
    step = int(rng.choice([1, 2, -1, -3]))
    start = int(rng.integers(-5, 5))
    limit = start + step * int(rng.integers(0, 6))
    shape = () if rng.random() < 0.5 else (1,)
    delta = np.full(shape, step, dtype)
    inputs: Inputs = {
        "start": np.full(shape, start, dtype),
        "limit": np.full(shape, limit, dtype),
        "delta": delta if step != 1 else perhaps(rng, delta),
    }
    return Sample("Range", inputs, constants=("start", "limit", "delta"))


def trilu(rng: Rng) -> Sample:
    shape = [int(rng.integers(1, 5)) for _ in range(rng.integers(2, 4))]
    dtype = str(rng.choice(["float32", "float64", "int64"]))
    k = np.array(int(rng.integers(-4, 5)), np.int64)
    inputs: Inputs = {"x": (10 * floats(rng, *shape)).astype(dtype), "k": perhaps(rng, k)}
    return Sample("Trilu", inputs, {"upper": int(rng.integers(2))}, constants=("k",))


def gather_nd(rng: Rng) -> Sample:
    shape = [int(rng.integers(1, 5)) for _ in range(rng.integers(1, 4))]
    depth = int(rng.integers(1, len(shape) + 1))
    outer = [int(rng.integers(1, 4)) for _ in range(rng.integers(0, 3))]
    indices = np.stack([rng.integers(0, size, outer) for size in shape[:depth]], -1)
    inputs: Inputs = {
        "data": floats(rng, *shape),
        "indices": indices.astype(str(rng.choice(["int32", "int64"]))),
    }
    return Sample("GatherND", inputs)


def expand_dims(rng: Rng) -> Sample:
    shape = [int(rng.integers(1, 5)) for _ in range(rng.integers(1, 4))]
    axis = np.array(int(rng.integers(-len(shape), len(shape) + 1)), np.int32)
    return Sample("ExpandDims", {"x": floats(rng, *shape), "axis": axis}, constants=("axis",))


def unique(rng: Rng) -> Sample:
    x = rng.integers(0, 5, int(rng.integers(1, 12))).astype(np.float32)
    return Sample("Unique", {"x": x}, outputs=(True, True, True))


def grid_sample(rng: Rng) -> Sample:
    n, c, h, w, oh, ow = (int(rng.integers(1, 5)) for _ in range(6))
    grid = (2.4 * rng.random((n, oh, ow, 2)) - 1.2).astype(np.float32)
    how: dict[str, Any] = {
        "mode": str(rng.choice(["bilinear", "nearest", "bicubic"])),
        "padding_mode": str(rng.choice(["zeros", "border", "reflection"])),
        "align_corners": int(rng.integers(2)),
    }
    inputs: Inputs = {"x": floats(rng, n, c, h + 1, w + 1), "grid": grid}
    return Sample("GridSample", inputs, how, loose=5)


def bias_softmax(rng: Rng) -> Sample:
    shape = [int(rng.integers(1, 4)) for _ in range(4)]
    axis = int(rng.integers(1, 4))
    inner = int(rng.integers(2))
    # The bias lacks axes from another one on up to `axis`, or all of those before.
    lost = int(rng.integers(0, axis))
    bias = shape[:lost] + shape[axis:] if inner else shape[axis:]
    if not inner:
        lost = 0
    data = floats(rng, *shape)
    added = floats(rng, *bias)

    def instead(x: Any, y: Any) -> list:
        whole = y.reshape([*shape[:lost], *[1] * (axis - lost), *shape[axis:]])
        total = (x + whole).reshape(int(np.prod(shape[:axis])), -1)
        e = np.exp(total - total.max(-1, keepdims=True))
        return [(e / e.sum(-1, keepdims=True)).reshape(shape)]

    how = {"axis": axis, "is_inner_broadcast": inner}
    return Sample("BiasSoftmax", {"data": data, "bias": added}, how, instead=instead)


def all_finite(rng: Rng) -> Sample:
    inputs: Inputs = {}
    for i in range(int(rng.integers(1, 4))):
        x = floats(rng, int(rng.integers(1, 5)), 2)
        if rng.random() < 0.3:
            x[0, 0] = rng.choice([np.nan, np.inf, -np.inf])
        inputs[f"x{i}"] = x
    how = [{}, {"isinf_only": 1}, {"isnan_only": 1}][rng.integers(3)]

    def instead(*tensors: Any) -> list:
        flat = np.concatenate([x.ravel() for x in tensors])
        odd = np.isnan(flat) if "isnan_only" in how else ~np.isfinite(flat)
        return [np.array(not (np.isinf(flat) if "isinf_only" in how else odd).any())]

    return Sample("IsAllFinite", inputs, how, instead=instead)


def torch_embedding(rng: Rng) -> Sample:
    inputs: Inputs = {"weight": floats(rng, 6, 3), "indices": rng.integers(0, 6, (2, 3))}
    return Sample("TorchEmbedding", inputs, instead=lambda w, i: [w[i]])


def unfold(rng: Rng) -> Sample:
    shape = [int(rng.integers(1, 4)) for _ in range(rng.integers(1, 4))]
    dim = int(rng.integers(0, len(shape)))
    shape[dim] = int(rng.integers(4, 9))
    how = {"dim": dim - int(rng.integers(2)) * len(shape), "size": int(rng.integers(1, 4))}
    how["step"] = int(rng.integers(1, 4))
    return Sample("UnfoldTensor", {"x": floats(rng, *shape)}, how)


def multimodal(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, s, n = (int(rng.integers(1, 4)) for _ in range(3))
    layout = int(rng.integers(2))
    section = [2, 1, 1] if layout else [int(rng.integers(0, 3)) for _ in range(3)]
    section[0] += 1
    pairs = sum(section)
    shape = (b, n, s, 2 * pairs) if rng.random() < 0.5 else (b, s, n * 2 * pairs)
    inputs: Inputs = {
        "x": floats(rng, *shape, dtype=dtype),
        "position_ids": rng.integers(0, 9, (3, b, s)),
        "cos_cache": floats(rng, 9, pairs, dtype=dtype),
        "sin_cache": floats(rng, 9, pairs, dtype=dtype),
    }
    how: dict[str, Any] = {"mrope_section": section, "mrope_layout": layout, "num_heads": n}
    how["interleaved"] = int(rng.integers(2))
    if rng.random() < 0.3:
        how["scale"] = 0.5
    if rng.random() < 0.3:
        how["is_packed_batching"] = 1
    return Sample("MRotaryEmbedding", inputs, how)


def ngrams(rng: Rng) -> Sample:
    n, length = int(rng.integers(1, 4)), int(rng.integers(3, 9))
    inputs: Inputs = {"ids": rng.integers(0, 3, (2, length)), "scores": floats(rng, 2, 5)}
    return Sample("NGramRepeatBlock", inputs, {"ngram_size": n})


def rfft(rng: Rng) -> Sample:
    x = floats(rng, int(rng.integers(1, 4)), 2 * int(rng.integers(1, 6)))

    def instead(x: Any) -> list:
        found = np.fft.rfft(x.astype(np.float64))
        return [np.stack([found.real, found.imag], -1).astype(np.float32)]

    return Sample("Rfft", {"x": x}, {"signal_ndim": 1}, instead=instead)


def bias_dropout(rng: Rng) -> Sample:
    shape = (2, int(rng.integers(1, 4)), int(rng.integers(1, 5)))
    inputs: Inputs = {
        "data": floats(rng, *shape),
        "bias": floats(rng, *shape[2:]),
        "residual": perhaps(rng, floats(rng, *shape)),
    }

    def instead(data: Any, bias: Any, residual: Any) -> list:
        total = data + bias if residual is None else data + bias + residual
        return [total, np.ones(shape, bool)]

    return Sample("BiasDropout", inputs, {}, (True, True), instead=instead)


DRAWS: dict[str, Draw] = {
    "BiasDropout": bias_dropout,
    "NGramRepeatBlock": ngrams,
    "Rfft": rfft,
    "MRotaryEmbedding": multimodal,
    "UnfoldTensor": unfold,
    "BiasSoftmax": bias_softmax,
    "IsAllFinite": all_finite,
    "TorchEmbedding": torch_embedding,
    "Pad": pad,
    "Range": range_,
    "Trilu": trilu,
    "GatherND": gather_nd,
    "ExpandDims": expand_dims,
    "Unique": unique,
    "GridSample": grid_sample,
}
