"""Samples of gates, gated norms and linear attention."""

from typing import Any

import numpy as np

from .draws_simple import DTYPES, Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]


def gate(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, t, h = (int(rng.integers(1, 5)) for _ in range(3))
    both = rng.random() < 0.5
    inputs: Inputs = {
        "a": floats(rng, b, t, h, dtype=dtype),
        "dt_bias": floats(rng, h),
        "decay_scale": floats(rng, h),
        "b": floats(rng, b, t, h, dtype=dtype) if both else None,
    }
    outputs = (True, True) if both else (True,)
    return Sample("LinearAttentionGate", inputs, {}, outputs)


def gated_norm(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, t, h, c = (int(rng.integers(1, 5)) for _ in range(4))
    inputs: Inputs = {
        "x": floats(rng, b, t, h * c, dtype=dtype),
        "scale": floats(rng, c, dtype=dtype),
        "gate": floats(rng, b, t, h * c, dtype=dtype),
    }
    how: dict[str, Any] = {"activation": str(rng.choice(["silu", "swish", "sigmoid"]))}
    how |= {"epsilon": 1e-3} if rng.random() < 0.5 else {}
    return Sample("GatedRMSNorm", inputs, how, loose=2)


def gated_add(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, t, c = (int(rng.integers(1, 5)) for _ in range(3))
    inputs: Inputs = {
        "x": floats(rng, b, t, c, dtype=dtype),
        "y": floats(rng, b, t, c, dtype=dtype),
        "gate": floats(rng, b, t, 1, dtype=dtype),
    }
    return Sample("GatedAdd", inputs)


def linear_attention(rng: Rng) -> Sample:
    b, t, times, size, inner = (int(rng.integers(1, 4)) for _ in range(5))
    heads = int(rng.choice([1, 2, 3, 4, 6]))
    fewer = [n for n in (1, 2, 3) if heads % n == 0]
    keys = heads if rng.random() < 0.5 else int(rng.choice(fewer))
    queries = heads * times if rng.random() < 0.5 else int(rng.choice(fewer))
    rule = str(rng.choice(["linear", "gated", "delta", "gated_delta"]))
    by_head = rng.random() < 0.5
    key = floats(rng, b, t, keys, size)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    inputs: Inputs = {
        "query": floats(rng, b, t, queries * size),
        "key": key.reshape(b, t, -1),
        "value": floats(rng, b, t, heads * inner),
        "past_state": perhaps(rng, floats(rng, b, heads, size, inner)),
        "decay": -np.abs(floats(rng, b, t, heads * (1 if by_head else size)))
        if "gated" in rule
        else None,
        "beta": rng.random((b, t, heads)).astype(np.float32) if "delta" in rule else None,
    }
    how = {"q_num_heads": queries, "kv_num_heads": heads, "update_rule": rule}
    known = int(min(keys, queries) < heads)
    return Sample("LinearAttention", inputs, how, (True, True), loose=4, known=known)


def causal_conv(rng: Rng) -> Sample:
    b, c, t = (int(rng.integers(1, 5)) for _ in range(3))
    k, dilation, last = int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(2))
    carried = (k - 1) * dilation
    shapes = [(b, t, c), (b, carried, c)] if last else [(b, c, t), (b, c, carried)]
    state = floats(rng, *shapes[1])
    inputs: Inputs = {
        "x": floats(rng, *shapes[0]),
        "weight": floats(rng, c, 1, k),
        "bias": perhaps(rng, floats(rng, c)),
        "past_state": perhaps(rng, state) if carried else None,
    }
    how: dict[str, Any] = {"activation": str(rng.choice(["none", "silu", "swish"]))}
    how |= {"dilation": dilation, "channels_last": last}
    constants = ("weight",)
    return Sample("CausalConvWithState", inputs, how, (True, True), constants)


def scaled_silu(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    x = floats(rng, 2, int(rng.integers(1, 6)), dtype=dtype)
    scale = np.array(0.5, str(rng.choice(["float32", "float16"])))
    inputs: Inputs = {"x": x, "scale": perhaps(rng, scale)}
    return Sample("ScaledSiLU", inputs, {"alpha": 1.5})


def branchwise(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    rows, c, h = (int(rng.integers(1, 5)) for _ in range(3))
    flat = rng.random() < 0.5
    scale = floats(rng, *[(c * h,), (c, h), (h,)][rng.integers(3)])
    shape = (rows, c * h) if flat else (rows, c, h)
    inputs: Inputs = {"x": floats(rng, *shape, dtype=dtype), "scale": perhaps(rng, scale, 0.7)}
    how = {"num_branches": c} if flat else {}
    return Sample("BranchwiseRMSNorm", inputs, how, loose=2)


DRAWS: dict[str, Draw] = {
    "BranchwiseRMSNorm": branchwise,
    "CausalConvWithState": causal_conv,
    "ScaledSiLU": scaled_silu,
    "LinearAttentionGate": gate,
    "GatedRMSNorm": gated_norm,
    "GatedAdd": gated_add,
    "LinearAttention": linear_attention,
}
