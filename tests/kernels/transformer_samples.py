"""Graphs of one node for the kernels of transformers: attention, rows, products of run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32

from .dry import normal
from .samples import Sample, sample

LOWEST = float(np.finfo(np.float32).min)


def attention(
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    size: tuple[int, int],
    dtype: DType,
    *more: Any,
    outputs: int = 1,
    **attributes: Any,
) -> Sample:
    """Return an Attention of (batch, heads, heads of the keys), with what comes behind v."""
    batch, of_q, of_k = heads
    q = normal(batch, of_q, lengths[0], size[0]).astype(dtype)
    k = (normal(batch, of_k, lengths[1], size[0]) * np.float32(1.5)).astype(dtype)
    v = normal(batch, of_k, lengths[1], size[1]).astype(dtype)
    return sample("Attention", [q, k, v, *more], outputs=outputs, **attributes)


def attentions(dtype: DType) -> Iterator[Sample]:
    """Yield every kind of mask, window, cache and size of heads."""
    yield attention((1, 2, 2), (19, 70), (32, 32), dtype)
    yield attention((1, 4, 2), (7, 130), (20, 33), dtype, is_causal=1)
    yield attention((2, 2, 1), (70, 70), (16, 48), dtype, normal(2, 1, 1, 70))
    yield attention((1, 12, 1), (1, 70), (16, 16), dtype, normal(1, 12, 1, 70))  # ALiBi of a step
    yield attention((1, 2, 2), (9, 70), (32, 32), dtype, normal(9, 60) > 0.5, softcap=2.0)
    yield attention((1, 2, 2), (40, 128), (32, 32), dtype, normal(1, 2, 40, 100))
    if dtype in (float16, bfloat16):  # relative positions, computed in half precision as well
        yield attention((2, 2, 1), (70, 150), (64, 64), dtype, normal(2, 2, 70, 150).astype(dtype))
    yield attention((1, 1, 1), (80, 200), (8, 8), dtype, left_window_size=5, right_window_size=90)
    yield attention((1, 2, 2), (3, 5), (64, 64), dtype, np.full((3, 5), LOWEST, np.float32))
    yield attention((1, 2, 2), (3, 5), (64, 64), dtype, np.full((3, 5), -np.inf, np.float32))
    past = [normal(1, 2, 7, 8).astype(dtype), normal(1, 2, 7, 12).astype(dtype)]
    yield attention((1, 4, 2), (3, 4), (8, 12), dtype, None, *past, outputs=3, is_causal=1)
    lengths = np.array([9, 4])
    yield attention((2, 2, 2), (3, 9), (16, 16), dtype, None, None, None, lengths, is_causal=1)
    rows = [normal(2, n, width).astype(dtype) for n, width in ((5, 32), (9, 16), (9, 16))]
    yield sample("Attention", rows, q_num_heads=4, kv_num_heads=2)


#: Queries and keys, shape of a mask, and attributes of `few_blocks`.
SHARED_KEYS: list[tuple[tuple[int, int], tuple[int, ...] | None, dict[str, Any]]] = [
    ((70, 150), None, {}),
    ((70, 130), (1, 1, 1, 110), {"softcap": 2.0}),
    ((70, 300), (1, 2, 1, 299), {}),
    ((33, 128), (1, 1, 1, 40), {}),  # the mask hides all keys of the second group
    ((40, 130), None, {"scale": -0.5}),
    *(((70, 200), None, {}), ((70, 577), None, {})),  # three groups
]


def few_blocks(
    lengths: tuple[int, int], mask: tuple[int, ...] | None, attributes: dict[str, Any]
) -> Sample:
    """Return an attention of two heads."""
    more = () if mask is None else (normal(*mask).astype(float16),)
    heads, size = (1, 2, 2), (64, 64)
    return attention(heads, lengths, size, float16, *more, **attributes)


def long_heads(dtype: DType) -> Iterator[Sample]:
    """Yield attentions of channels, whose heads have an element per pixel, as in DaViT and XCiT."""
    yield attention((1, 2, 2), (12, 12), (400, 400), dtype)
    mask = normal(9, 11)
    yield attention((2, 2, 1), (9, 11), (515, 330), dtype, mask, softcap=2.0, is_causal=1)
    modes = {"outputs": 4, "qk_matmul_output_mode": 2}
    yield attention((1, 1, 1), (3, 6), (333, 40), dtype, None, None, None, None, **modes)


def few_queries(dtype: DType) -> Iterator[Sample]:
    """Yield attentions of few queries over long keys, in parts; heads share keys in all but one."""
    yield attention((1, 8, 2), (1, 1000), (64, 64), dtype)
    yield attention((2, 2, 2), (2, 650), (40, 24), dtype, left_window_size=300, is_causal=1)
    hidden = np.zeros((1, 4, 3, 900), np.float32)
    hidden[:, 0], hidden[:, 1, :, 64:], hidden[:, 2, 1, :700] = -np.inf, -np.inf, LOWEST
    yield attention((1, 4, 1), (3, 900), (33, 20), dtype, hidden)
    yield attention((1, 4, 2), (16, 700), (16, 16), dtype, normal(16, 690) > 0.5, softcap=2.0)
    past = [normal(1, 2, 897, size).astype(dtype) for size in (8, 16)]
    yield attention((1, 6, 2), (3, 3), (8, 16), dtype, None, *past, outputs=3, is_causal=1)
    lengths = np.array([900, 1, 333])
    yield attention((3, 4, 2), (2, 900), (16, 16), dtype, None, None, None, lengths, is_causal=1)
    yield attention((1, 35, 1), (5, 600), (8, 8), dtype)  # more rows than a block has
    yield attention((1, 2, 1), (1, 600), (256, 192), dtype)


def others(dtype: DType) -> Iterator[Sample]:
    """Yield the nodes around attention."""
    for count in (1, 5, 100, 1024, 2600):
        x, scale = normal(3, 2, count).astype(dtype), normal(count).astype(dtype)
        yield sample("LayerNormalization", [x, scale, scale])
        yield sample("RMSNormalization", [x, scale])
    yield sample("LayerNormalization", [x.reshape(3, 2, 26, 100), scale.reshape(26, 100)], axis=2)
    extremes = np.array((0, 1e-4, -1e-4, 9, -9, 25, -25, 1e4, -1e4), np.float32)
    x = np.concatenate((normal(299) * np.float32(4), extremes)).reshape(4, 77).astype(dtype)
    yield sample("Gelu", [x])
    yield sample("Gelu", [x], approximate="tanh")
    yield sample("Mish", [x])
    yield sample("SwiGLU", [x, x[::-1].copy()])
    for a, b in (
        ((19, 24), (24, 33)),
        ((2, 3, 9, 20), (2, 3, 20, 17)),
        ((3, 9, 20), (20, 17)),
        ((9, 20), (3, 20, 17)),
        ((9, 21), (21, 17)),
    ):
        yield sample("MatMul", [normal(*a).astype(dtype), normal(*b).astype(dtype)])
    yield sample("Gemm", [normal(9, 16).astype(dtype), normal(21, 16).astype(dtype)], transB=1)


def samples() -> list[Sample]:
    """Return all of them."""
    found: list[Sample] = []
    for dtype in (float32, float16, bfloat16):
        found += attentions(dtype)
        found += long_heads(dtype)
        found += few_queries(dtype)
        found += others(dtype)
    return found
