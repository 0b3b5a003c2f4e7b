"""Samples of what works on sequences without their padding, and of other GPUs' fusions.

onnxruntime's CPU has none of them; the formulas of its documentation are computed in float64.
"""

from typing import Any

import numpy as np

from .draws_simple import Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]


def lengths(rng: Rng) -> tuple[np.ndarray, int]:
    """Return the length of each sequence of a batch, and that of the padded ones."""
    most = int(rng.integers(1, 6))
    return rng.integers(1, most + 1, int(rng.integers(1, 4))), most + int(rng.integers(2))


def layout(counts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets [batch, length] and the sums of the lengths, as documented."""
    places = np.arange(len(counts) * length).reshape(-1, length)
    tokens = [place for row, n in zip(places, counts, strict=True) for place in row[:n]]
    others = [place for row, n in zip(places, counts, strict=True) for place in row[n:]]
    offsets = np.array(tokens + others, np.int32).reshape(-1, length)
    return offsets, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def remove(rng: Rng) -> Sample:
    counts, length = lengths(rng)
    x = floats(rng, len(counts), length, int(rng.integers(1, 5)), dtype=half(rng))

    def instead(x: Any, counts: Any) -> list:
        offsets, sums = layout(counts, length)
        rows = np.concatenate([row[:n] for row, n in zip(x, counts, strict=True)])
        return [rows, offsets, sums, np.array([counts.max()], np.int32)]

    inputs: Inputs = {"x": x, "counts": counts.astype(np.int32)}
    return Sample("RemovePadding", inputs, outputs=(True,) * 4, instead=instead)


def half(rng: Rng) -> str:
    return str(rng.choice(["float32", "float32", "float16"]))


def restore(rng: Rng) -> Sample:
    counts, length = lengths(rng)
    offsets, _ = layout(counts, length)
    x = floats(rng, int(counts.sum()), int(rng.integers(1, 5)), dtype=half(rng))

    def instead(x: Any, _: Any) -> list:
        found = np.zeros((len(counts), length, x.shape[1]), x.dtype)
        ends = np.cumsum(counts)
        for i, (n, end) in enumerate(zip(counts, ends, strict=True)):
            found[i, :n] = x[end - n : end]
        return [found]

    return Sample("RestorePadding", {"x": x, "offsets": offsets}, instead=instead)


def attended(qkv: Any, heads: int, counts: np.ndarray, bias: Any, scale: float) -> np.ndarray:
    """Return attention of each sequence separately, in float64."""
    rows, first = [], 0
    for i, n in enumerate(counts):
        q, k, v = (
            x[first : first + n].astype(np.float64).reshape(n, heads, -1).swapaxes(0, 1)
            for x in qkv
        )
        scores = q @ k.swapaxes(1, 2) * (scale or q.shape[-1] ** -0.5)
        if bias is not None:
            scores = scores + bias.astype(np.float64)[min(i, len(bias) - 1), :, :n, :n]
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y = scores / scores.sum(-1, keepdims=True) @ v
        rows.append(y.swapaxes(0, 1).reshape(n, -1))
        first += n
    return np.concatenate(rows)


def attention(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        dtype, heads = half(rng), int(rng.integers(1, 4))
        counts, length = lengths(rng)
        offsets, sums = layout(counts, length)
        tokens, inner = int(counts.sum()), heads * int(rng.integers(1, 5))
        outer = heads * int(rng.integers(1, 5)) if rng.random() < 0.5 else inner
        scale = 0.3 if rng.random() < 0.3 else 0.0
        how: dict[str, Any] = {"num_heads": heads, **({"scale": scale} if scale else {})}
        batch = 1 if rng.random() < 0.5 else len(counts)
        shape = batch, 1 if rng.random() < 0.3 else heads, length, length
        added = perhaps(rng, floats(rng, *shape, dtype=dtype))
        both: Inputs = {"offsets": offsets, "sums": sums, "attention_bias": added}
        bias = floats(rng, 2 * inner + outer, dtype=dtype)
        if name == "PackedAttention":
            width = int(rng.integers(1, 5))
            inputs: Inputs = {
                "x": floats(rng, tokens, width, dtype=dtype),
                "weights": floats(rng, width, 2 * inner + outer, dtype=dtype),
                "bias": bias,
            }
            how["qkv_hidden_sizes"] = [inner, inner, outer]
        elif rng.random() < 0.5:
            outer = inner
            bias = bias[: 3 * inner] if len(bias) >= 3 * inner else np.resize(bias, 3 * inner)
            whole = floats(rng, tokens, heads, 3, inner // heads, dtype=dtype)
            inputs = {"query": whole, "key": None, "value": None, "bias": perhaps(rng, bias)}
        else:
            sizes = {"query": inner, "key": inner, "value": outer}
            inputs = {n: floats(rng, tokens, size, dtype=dtype) for n, size in sizes.items()}
            inputs["bias"] = perhaps(rng, bias)
        given = {**inputs, **both}

        def instead(*_: Any) -> list:
            wide: dict[str, Any] = {
                n: None if x is None else x.astype(np.float64) for n, x in given.items()
            }
            ends = [inner, 2 * inner]
            if name == "PackedAttention":
                qkv: Any = np.split(wide["x"] @ wide["weights"] + wide["bias"], ends, -1)
            else:
                qkv = [wide["query"], wide["key"], wide["value"]]
                if wide["key"] is None:
                    qkv = [wide["query"][:, :, i].reshape(tokens, -1) for i in range(3)]
                if wide["bias"] is not None:
                    parts = np.split(wide["bias"], ends)
                    qkv = [x + part for x, part in zip(qkv, parts, strict=True)]
            return [attended(qkv, heads, counts, added, scale).astype(dtype)]

        return Sample(name, given, how, instead=instead, loose=2)

    return draw


def gated(rng: Rng) -> Sample:
    """The text of the documentation, where the view and the sum are of the last axis."""
    heads, size, units = (int(rng.integers(1, 4)) for _ in range(3))
    counts, length = lengths(rng)
    dtype, is_packed = half(rng), bool(rng.random() < 0.4)
    offsets, _ = layout(counts, length)
    shape = (int(counts.sum()),) if is_packed else (len(counts), length)
    inputs: Inputs = {
        "query": floats(rng, *shape, heads * size, dtype=dtype),
        "query_bias": floats(rng, heads * size, dtype=dtype),
        "rel_pos": floats(rng, 1, heads, length, length, dtype=dtype),
        "weight": floats(rng, size, 2 * units, dtype=dtype),
        "bias": floats(rng, 2 * units, dtype=dtype),
        "eco_a": floats(rng, 1, heads, 1, 1, dtype=dtype),
        "offsets": offsets if is_packed else None,
    }

    def instead(*given: Any) -> list:
        query, query_bias, rel_pos, weight, bias, eco_a = (x.astype(np.float64) for x in given[:6])
        if is_packed:
            padded = np.zeros((len(counts) * length, heads * size))
            padded[offsets.reshape(-1)[: len(query)]] = query
            query = padded.reshape(len(counts), length, -1)
        layer = (query + query_bias).reshape(len(counts), length, heads, size).transpose(0, 2, 1, 3)
        gates = (layer @ weight + bias).reshape(len(counts), heads, length, 2, units).sum(-1)
        gates = 1 / (1 + np.exp(-gates))
        first = gates[..., :1] * (gates[..., 1:] * eco_a - 1) + 2
        return [(first * rel_pos).astype(dtype)]

    there = np.arange(length) < counts[:, np.newaxis]
    rows = np.broadcast_to(
        there[:, np.newaxis, :, np.newaxis], (len(counts), heads, length, length)
    )
    counted = {0: rows} if is_packed else {}
    how = {"num_heads": heads}
    name = "GatedRelativePositionBias"
    return Sample(name, inputs, how, instead=instead, counts=counted, loose=2)


def gemma(rng: Rng) -> Sample:
    batch, heads, length, size = (int(rng.integers(1, 5)) for _ in range(4))
    names = ("q", "q_rot", "k", "k_rot")
    inputs: Inputs = {"emb": 9 * floats(rng, batch, length, size)}
    inputs |= {n: floats(rng, batch, heads, length, size, dtype="float16") for n in names}

    def instead(emb: Any, *states: Any) -> list:
        angle = emb.astype(np.float64)[:, np.newaxis]
        q, q_rot, k, k_rot = (x.astype(np.float64) for x in states)
        cos, sin = np.cos(angle), np.sin(angle)
        both = q * cos + q_rot * sin, k * cos + k_rot * sin
        return [x.astype(np.float16) for x in both]

    return Sample("GemmaRotaryEmbedding", inputs, outputs=(True, True), instead=instead)


def complex_product(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        dtype = str(rng.choice(["float32", "float64", "float16"]))
        shape = [int(rng.integers(1, 5)) for _ in range(rng.integers(1, 4))]
        other = [1 if rng.random() < 0.3 else size for size in shape]
        inputs: Inputs = {
            "a": floats(rng, *shape, 2, dtype=dtype),
            "b": floats(rng, *other[int(rng.integers(2)) :], 2, dtype=dtype),
        }

        def instead(a: Any, b: Any) -> list:
            x, y = (each.astype(np.float64) @ [1, 1j] for each in (a, b))
            found = x * (y.conj() if name.endswith("Conj") else y)
            return [np.stack([found.real, found.imag], -1).astype(dtype)]

        return Sample(name, inputs, instead=instead)

    return draw


DRAWS: dict[str, Draw] = {
    "RemovePadding": remove,
    "RestorePadding": restore,
    **{name: attention(name) for name in ("PackedAttention", "PackedMultiHeadAttention")},
    "GatedRelativePositionBias": gated,
    "GemmaRotaryEmbedding": gemma,
    **{name: complex_product(name) for name in ("ComplexMul", "ComplexMulConj")},
}
