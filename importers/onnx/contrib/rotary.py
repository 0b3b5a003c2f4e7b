"""Rotary position embeddings, alone and inside of attention."""

from __future__ import annotations

from .builder import Builder
from .declaration import Int64, T, contrib
from .heads import head_size, positions


@contrib("RotaryEmbedding")
def rotary_embedding(
    b: Builder,
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
    """Pairs of every head rotated by their position; a single position counts from there.

    `scale` is read by nobody, in onnxruntime neither.
    """
    if is_packed_batching:
        raise b.unsupported(
            "is_packed_batching=1: sequences that lie behind one another in one row",
            "export with a batch that is padded",
        )
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


def every_position(b: Builder, x: str, position_ids: str) -> str:
    """Return positions [batch, length] where there may be but the first one, of all sequences."""
    if b.rank(position_ids, 2, 1) == 2:
        return position_ids
    b.need_shape(position_ids, "position_ids", 1)
    length = b.size(x, b.rank(x, 3, 4) - 2)
    row = b.Add(positions(b, length), position_ids)
    return b.Expand(b.Unsqueeze(row, b.ints(0)), b.shape(b.size(x, 0), length))


def rotated(b: Builder, x: str, cos: str, sin: str, ids: str, size: int, interleaved: int) -> str:
    """Return heads [batch, heads, length, size], of which as many pairs are turned as `cos` has."""
    pairs = b.need_extent(cos, 1)
    if 2 * pairs > size:
        raise b.error(f"cos_cache is {b.type(cos)}, with more than half of a head of {size}")
    partial = 2 * pairs if 2 * pairs < size else None
    return b.RotaryEmbedding(
        x, cos, sin, ids, interleaved=interleaved, rotary_embedding_dim=partial
    )
