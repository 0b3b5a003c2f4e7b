"""Rotary position embeddings, standalone and for attention."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Int64, Kind, Results, T, contrib
from .heads import head_size, positions


@contrib("RotaryEmbedding")
def rotary_embedding(
    b: NodeBuilder,
    x: T,
    position_ids: Int64,
    cos_cache: T,
    sin_cache: T,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> str:
    """RotaryEmbedding; a single position is the offset of the first token.

    `scale` is ignored, as in onnxruntime. With `is_packed_batching`, a row has the tokens of
    several sequences, and may be longer than the caches: the positions say where each token is.
    """
    if rotary_embedding_dim and num_heads < 1:
        raise b.error(f"rotary_embedding_dim={rotary_embedding_dim} needs num_heads")
    for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        b.rank(cache, 2)
        if rotary_embedding_dim:
            b.need_shape(cache, name, b.dim(cache, 0), rotary_embedding_dim // 2)
    heads = None
    if b.rank(x, 3, 4) == 3:
        hidden = b.need_extent(x, 2)
        if rotary_embedding_dim:
            heads = num_heads
        else:
            pairs = b.need_extent(cos_cache, 1)
            heads = head_size(b, hidden, 2 * pairs, "x, in heads of twice the pairs of cos_cache,")
    ids = every_position(b, x, position_ids)
    return b.RotaryEmbedding(
        x,
        cos_cache,
        sin_cache,
        ids,
        interleaved=interleaved,
        num_heads=heads,
        rotary_embedding_dim=rotary_embedding_dim or None,
    )


def every_position(b: NodeBuilder, x: str, position_ids: str) -> str:
    """Return positions [batch, length], where only the first one may be given."""
    if b.rank(position_ids, 2, 1) == 2:
        return position_ids
    b.need_shape(position_ids, "position_ids", 1)
    length = b.size(x, b.rank(x, 3, 4) - 2)
    row = b.Add(positions(b, length), position_ids)
    return b.Expand(b.Unsqueeze(row, b.ints(0)), b.shape(b.size(x, 0), length))


def rotated(
    b: NodeBuilder, x: str, cos: str, sin: str, ids: str, size: int, interleaved: int
) -> str:
    """Return heads [batch, heads, length, size] with as many pairs rotated as `cos` has."""
    pairs = b.need_extent(cos, 1)
    if 2 * pairs > size:
        raise b.error(f"cos_cache is {b.type(cos)}, with more than half of a head of {size}")
    partial = 2 * pairs if 2 * pairs < size else None
    return b.RotaryEmbedding(
        x, cos, sin, ids, interleaved=interleaved, rotary_embedding_dim=partial
    )


@contrib("MRotaryEmbedding")
def multimodal_rotary_embedding(
    b: NodeBuilder,
    x: T,
    position_ids: Int64,
    cos_cache: T,
    sin_cache: T,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: tuple[int, ...],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> str:
    """RotaryEmbedding with three positions: each pair of a head uses one of them.

    `scale` multiplies what is rotated. See `rotary_embedding` for `is_packed_batching`.
    """
    if len(mrope_section) != 3 or min(mrope_section) < 0:
        raise b.error(f"mrope_section={list(mrope_section)}; expected three sizes")
    if mrope_layout not in (0, 1):
        raise b.error(f"mrope_layout={mrope_layout}; expected 0 or 1")
    b.rank(position_ids, 3)
    pairs = b.need_extent(cos_cache, 1)
    if sum(mrope_section) != pairs:
        raise b.error(f"mrope_section={list(mrope_section)} is not the {pairs} pairs of cos_cache")
    stream = _streams(mrope_section, pairs, bool(mrope_layout))
    heads = None
    if b.rank(x, 3, 4) == 3:
        hidden = b.need_extent(x, 2)
        heads = num_heads or head_size(b, hidden, 2 * pairs, "x, in heads as cos_cache has them,")
    cos, sin = (
        b.scaled(_mixed(b, cache, position_ids, stream), scale) for cache in (cos_cache, sin_cache)
    )
    return b.RotaryEmbedding(
        x,
        cos,
        sin,
        interleaved=interleaved,
        num_heads=heads,
        rotary_embedding_dim=rotary_embedding_dim or None,
    )


def _streams(section: tuple[int, ...], pairs: int, interleaved: bool) -> np.ndarray[Any, Any]:
    """Return which of the three positions each pair uses."""
    if not interleaved:
        return np.repeat(np.arange(3), section)
    stream = np.zeros(pairs, np.int64)
    for i in (1, 2):
        stream[i : 3 * section[i] : 3] = i
    return stream


def _mixed(b: NodeBuilder, cache: str, ids: str, stream: np.ndarray[Any, Any]) -> str:
    """Return [batch, length, pairs] of a cache, for positions [3, batch, length]."""
    found = b.Gather(cache, ids, axis=0)
    parts = [b.Gather(found, b.constant(np.array(i, np.int64)), axis=0) for i in range(3)]
    mixed = parts[0]
    for i in (1, 2):
        mixed = b.Where(b.constant(stream == i), parts[i], mixed)
    return mixed


Half = Annotated[str, Kind("T", frozenset({dtypes.float16}))]


@contrib("GemmaRotaryEmbedding", outputs=(2, 2))
def gemma_rotary_embedding(
    b: NodeBuilder, emb: Float32, q: Half, q_rot: Half, k: Half, k_rot: Half
) -> Results:
    """Queries and keys times the cosine, plus their rotated halves times the sine."""
    b.rank(emb, 3)
    heads = b.ints(1)
    cos, sin = (
        b.Unsqueeze(b.cast(each, dtypes.float16), heads) for each in (b.Cos(emb), b.Sin(emb))
    )
    pairs = (q, q_rot), (k, k_rot)
    first, second = (b.Add(b.Mul(x, cos), b.Mul(rotated, sin)) for x, rotated in pairs)
    return first, second
