"""DecoderMaskedMultiHeadAttention: one token per row against a KV buffer."""

from __future__ import annotations

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, Results, T, contrib
from .heads import FILTER, head_size, join_heads, need_heads, penalty, positions, split_heads
from .multi_head import scored


@contrib("DecoderMaskedMultiHeadAttention", outputs=(1, 4))
def decoder_masked_multi_head_attention(
    b: NodeBuilder,
    query: T,
    key: T | None = None,
    value: T | None = None,
    mask_index: Int32 | None = None,
    attention_bias: T | None = None,
    past_key: T | None = None,
    past_value: T | None = None,
    past_sequence_length: Int32 | None = None,
    beam_width: Int32 | None = None,
    cache_indirection: Int32 | None = None,
    bias: T | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
) -> Results:
    """Attention of one token to itself and a past, or to an encoder's keys and values."""
    heads = need_heads(b, num_heads)
    if key is None:
        width = b.need_extent(query, 2)
        parts = b.several("Split", 3, query, axis=2, num_outputs=3)
        query, key, value = parts
        if width % 3:
            raise b.error(f"has a packed query of {width} columns; expected 3 parts")
    if value is None:
        raise b.error("has a key and no value")
    apart = b.rank(key, 3, 4) == 4
    hidden = b.need_extent(query, 2)
    size = head_size(b, hidden, heads, "query")
    if bias is not None:
        query = b.Add(query, b.slice(bias, 0, 0, hidden))
        if not apart:
            inner = b.need_extent(value, 2)
            key = b.Add(key, b.slice(bias, 0, hidden, 2 * hidden))
            value = b.Add(value, b.slice(bias, 0, 2 * hidden, 2 * hidden + inner))
    q = split_heads(b, query, heads, size)
    if not apart:
        key = split_heads(b, key, heads, size)
        value = split_heads(b, value, heads, b.need_extent(value, 2) // heads)
    if apart or past_key is None or past_value is None or not past_present_share_buffer:
        past = (None, None) if apart else (past_key, past_value)
        asked = (mask_index, attention_bias, mask_filter_value, scale)
        y, k, v, qk = scored(b, (q, key, value), heads, past, *asked, False)
        return y, (None if apart else k), (None if apart else v), qk
    if past_sequence_length is None:
        raise b.error("past_present_share_buffer=1 needs past_sequence_length")
    before = b.cast(b.Reshape(past_sequence_length, b.ints(1)), dtypes.int64)
    mask = _TokenMask(query, mask_index, attention_bias, mask_filter_value)
    beams, past = cache_indirection, (past_key, past_value)
    return _in_buffer(b, (q, key, value), past, before, beams, mask, heads, scale)


@record
class _TokenMask:
    """What is added to the scores of a token; see the operator's inputs of these names."""

    query: str
    mask_index: str | None
    attention_bias: str | None
    mask_filter_value: float

    def added(self, b: NodeBuilder) -> str | None:
        """Return what is added; None if nothing is."""
        if self.mask_index is None:
            return self.attention_bias
        seen = b.Not(b.Equal(self.mask_index, b.constant(np.array(0, np.int32))))
        hidden = penalty(b, b.Unsqueeze(seen, b.ints(1, 2)), self.query, self.mask_filter_value)
        return hidden if self.attention_bias is None else b.Add(hidden, self.attention_bias)


def _in_buffer(
    b: NodeBuilder,
    qkv: tuple[str, str, str],
    past: tuple[str, str],
    before: str,
    cache_indirection: str | None,
    mask: _TokenMask,
    heads: int,
    scale: float,
) -> Results:
    """Return the results where keys and values are written into the buffers of the past.

    Args:
        b: builds the nodes.
        qkv: query, key and value of the token, [batch, heads, 1, size].
        past: buffers of keys and values.
        before: number of their positions, int64 [1].
        cache_indirection: from which beam each position is; None for each beam's own.
        mask: of the scores.
        heads: their number.
        scale: factor of the scores; 0 for the usual one.
    """
    q, *new = qkv
    places = b.Expand(before, b.size(mask.query, 0))
    keys, values = (
        b.TensorScatter(old, token, places, axis=-2) for old, token in zip(past, new, strict=True)
    )
    seen_keys, seen_values = keys, values
    if cache_indirection is not None:
        chosen = _beams(b, cache_indirection, before)
        seen_keys, seen_values = (_of_beams(b, x, chosen, heads) for x in (keys, values))
    added = mask.added(b)
    total = b.Add(before, b.ints(1))
    y, _, _, scores = b.chosen(
        "Attention",
        (True, False, False, b.wants(3)),
        *(q, seen_keys, seen_values, added, None, None, b.Expand(total, b.size(mask.query, 0))),
        scale=scale or None,
        qk_matmul_output_mode=2,
    )
    qk = b.slice(scores, 3, 0, total) if b.wants(3) else None
    return join_heads(b, y, heads, b.need_extent(new[1], 3)), keys, values, qk


def _beams(b: NodeBuilder, cache_indirection: str, before: str) -> str:
    """Return the source beam of every position of every beam: int64 [batch, beams, positions]."""
    length = b.size(cache_indirection, 2)
    is_past = b.Less(positions(b, length), before)
    own = b.Unsqueeze(positions(b, b.size(cache_indirection, 1)), b.ints(1))
    return b.Where(is_past, b.cast(cache_indirection, dtypes.int64), own)


def _of_beams(b: NodeBuilder, cache: str, chosen: str, heads: int) -> str:
    """Return a cache [batch * beams, heads, length, size] with positions taken from other beams."""
    size = b.need_extent(cache, 3)
    length = b.size(cache, 2)
    batch, beams = b.size(chosen, 0), b.size(chosen, 1)
    whole = b.shape(batch, beams, heads, length, size)
    apart = b.Reshape(cache, whole, allowzero=1)
    part = b.slice(chosen, 2, 0, length)
    index = b.Expand(b.Unsqueeze(part, b.ints(2, 4)), whole)
    found = b.GatherElements(apart, index, axis=1)
    return b.reshape_like(found, cache)
