"""Attention: heads, masks, caches, windows; rotary embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .case import FLOAT16, FLOAT32, Array, Case, by_reference, draw


def joined(x: Array) -> Array:
    """Return [batch, length, heads * size]."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)


def attention(
    heads: tuple[int, int] = (4, 4),
    lengths: tuple[int, int] = (3, 5),
    *,
    size: int = 8,
    size_v: int = 8,
    mask: Array | None = None,
    past: int = 0,
    flat: bool = False,
    dtype: Any = FLOAT32,
    outputs: int = 1,
    **attributes: Any,
) -> Case:
    q = draw(0, (2, heads[0], lengths[0], size), dtype)
    k = draw(1, (2, heads[1], lengths[1], size), dtype)
    v = draw(2, (2, heads[1], lengths[1], size_v), dtype)
    if flat:
        q, k, v = (joined(x) for x in (q, k, v))
        attributes |= {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    inputs: list[Array | None] = [q, k, v, mask]
    if past:
        cache = (2, heads[1], past)
        inputs += [draw(5, (*cache, size), dtype), draw(6, (*cache, size_v), dtype)]
    return Case("Attention", tuple(inputs), attributes, outputs=outputs, error=32, opset=23)


def rotary(
    shape: tuple[int, ...],
    pairs: int,
    *,
    positions: bool = True,
    batch: int = 2,
    **attributes: Any,
) -> Case:
    length = shape[1] if len(shape) == 3 else shape[2]
    angles = draw(2, (20, pairs) if positions else (batch, length, pairs))
    inputs: tuple[Array, ...] = (draw(1, shape), np.cos(angles), np.sin(angles))
    if positions:
        inputs = (*inputs, np.random.default_rng(3).integers(0, 20, (batch, length)))
    case = Case("RotaryEmbedding", inputs, attributes, opset=23)
    # onnxruntime wants x's batch, where ONNX's formula broadcasts.
    if batch == shape[0]:
        return case
    return replace(case, want=lambda *inputs: by_reference(case, *inputs)[0])


BOOLEAN = draw(9, (3, 5), np.bool_) | np.eye(3, 5, dtype=bool)
ADDED = draw(9, (2, 1, 3, 5))

ATTENTION = [
    attention(),
    attention(size_v=5),
    attention((6, 2)),
    attention(flat=True),
    attention((6, 2), flat=True, size_v=5),
    attention(mask=BOOLEAN),
    attention(mask=ADDED),
    attention(is_causal=1, lengths=(5, 5)),
    attention(scale=0.5),
    attention(softcap=2.0),
    attention(past=4, outputs=3),
    attention((6, 2), past=4, outputs=3, is_causal=1, lengths=(3, 3)),
    attention(outputs=4, qk_matmul_output_mode=0),
    attention(mask=ADDED, outputs=4, qk_matmul_output_mode=3),
    attention(dtype=FLOAT16),
    attention((6, 2), dtype=FLOAT16, flat=True, size=16, size_v=16),
    attention(mask=BOOLEAN, dtype=FLOAT16, size=12),
    attention(dtype=FLOAT16, is_causal=1, lengths=(5, 5), past=2, outputs=3),
    *(attention(lengths=(70, 130), size=size, size_v=size) for size in (64, 80, 128)),
    attention(lengths=(70, 130), size=33, size_v=20),
    attention(mask=draw(9, (2, 1, 70, 130)), lengths=(70, 130), size=64),
    attention(is_causal=1, lengths=(130, 130), size=32, softcap=3.0),
]
ROTARY = [
    rotary((2, 4, 3, 8), 4),
    rotary((2, 4, 3, 8), 4, positions=False),
    rotary((2, 4, 3, 8), 4, interleaved=1),
    rotary((2, 3, 32), 4, num_heads=4),
    rotary((2, 4, 3, 8), 2, rotary_embedding_dim=4),
    rotary((2, 4, 3, 8), 4, positions=False, batch=1),
    rotary((2, 3, 32), 4, num_heads=4, batch=1),
]
CASES = [*ATTENTION, *ROTARY]
