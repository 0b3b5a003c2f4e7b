"""MultiHeadAttention on projected queries, keys and values."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.types import Dim
from .builder import NodeBuilder
from .declaration import Int32, Results, T, contrib
from .heads import (
    FILTER,
    join_heads,
    need_heads,
    padding,
    penalty,
    positions,
    split_heads,
)


@contrib("MultiHeadAttention", outputs=(1, 4))
def multi_head_attention(
    b: NodeBuilder,
    query: T,
    key: T | None = None,
    value: T | None = None,
    bias: T | None = None,
    key_padding_mask: Int32 | None = None,
    attention_bias: T | None = None,
    past_key: T | None = None,
    past_value: T | None = None,
    past_sequence_length: Int32 | None = None,
    cache_indirection: Int32 | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Results:
    """Attention of rows of heads, packed or not, with optional biases, mask and past."""
    if past_sequence_length is not None or cache_indirection is not None:
        raise b.unsupported(
            "keeps past and present in one buffer (past_sequence_length, cache_indirection)",
            "export the decoder without --use_decoder_masked_mha",
        )
    heads = need_heads(b, num_heads)
    query, key, value = _unpacked(b, query, key, value, heads)
    apart = b.rank(key, 3, 4) == 4
    query, key, value = _biased(b, bias, query, key, value, apart)
    if apart:
        query = split_heads(b, query, heads, b.need_extent(query, 2) // heads)
    return scored(
        b,
        (query, key, value),
        heads,
        (past_key, past_value),
        key_padding_mask,
        attention_bias,
        mask_filter_value,
        scale,
        bool(unidirectional),
    )


def scored(
    b: NodeBuilder,
    qkv: tuple[str, str, str],
    heads: int,
    past: tuple[str | None, str | None],
    mask: str | None,
    attention_bias: str | None,
    mask_filter_value: float,
    scale: float,
    unidirectional: bool,
    states: bool | None = None,
) -> tuple[str, str, str, str]:
    """Return the result, the keys and values including the past, and the scores before softmax.

    Args:
        b: adds the nodes.
        qkv: [batch, length, hidden] each, or [batch, heads, length, size] each.
        heads: number of heads.
        past: keys and values [batch, heads, length, size], or None.
        mask: in one of the forms accepted by `padding`.
        attention_bias: added to the scores.
        mask_filter_value: bias of masked scores.
        scale: factor of the products; 0 for 1 / sqrt(size).
        unidirectional: whether attention is causal; the last query has the position of the last
            key where there are more keys.
        states: whether keys and values are needed; None to follow the node's outputs.
    """
    query, key, value = qkv
    split = b.rank(query, 3, 4) == 4
    length = 2 if split else 1
    added = attention_bias
    is_behind = unidirectional and not _are_together(b.dim(query, length), b.dim(key, length))
    if mask is not None:
        rows, _, total = _sizes(b, query, key, past[0], length)
        seen = padding(b, mask, query, rows, total)
        if attention_bias is None:
            added = penalty(b, seen, query, mask_filter_value)
        else:  # 16 bits of a sum with -10000 hold nothing of the bias
            wide = b.cast(attention_bias, dtypes.float32)
            added = b.Add(penalty(b, seen, wide, mask_filter_value), wide)
    if is_behind and b.dim(query, length) != 1:
        sizes = _sizes(b, query, key, past[0], length)
        added = _without_later(b, added or b.number(0.0, query), *sizes)
    each = None if split else heads
    y, k, v, scores = b.chosen(
        "Attention",
        (True, *((b.wants(1), b.wants(2)) if states is None else (states, states)), b.wants(3)),
        query,
        key,
        value,
        added,
        *past,
        is_causal=int(unidirectional and not is_behind),
        q_num_heads=each,
        kv_num_heads=each,
        scale=scale or None,
        qk_matmul_output_mode=2,
    )
    if split:
        y = join_heads(b, y, heads, b.need_extent(value, 3))
    if scores and unidirectional:  # hidden scores are the least number, not an infinity
        lowest = float(cast("Any", ml_dtypes.finfo)(b.dtype(query)).min)
        scores = b.Max(scores, b.number(lowest, query))
    return y, k, v, scores


def _are_together(queries: Dim, keys: Dim) -> bool:
    """Whether there are no more new keys than queries."""
    if isinstance(queries, int) and isinstance(keys, int):
        return keys <= queries
    return queries is not None and queries == keys


def _sizes(
    b: NodeBuilder, query: str, key: str, past: str | None, axis: int
) -> tuple[str, str, str]:
    """Return the numbers of queries, of new keys, and of all keys."""
    rows, new = b.size(query, axis), b.size(key, axis)
    return rows, new, new if past is None else b.Add(b.size(past, 2), new)


def _without_later(b: NodeBuilder, added: str, rows: str, new: str, total: str) -> str:
    """Return what is added to scores, -inf for keys behind the position of a query."""
    first = b.Sub(total, b.Min(rows, new))
    of_query = b.Unsqueeze(b.Add(positions(b, rows), first), b.ints(1))
    return b.Where(b.Greater(positions(b, total), of_query), b.number(-np.inf, added), added)


def _unpacked(
    b: NodeBuilder, query: str, key: str | None, value: str | None, heads: int
) -> tuple[str, str, str]:
    """Return queries, keys and values, each [batch, length, hidden] or by head."""
    rank = b.rank(query, 3, 5)
    if rank == 5:
        if key is not None or value is not None:
            raise b.error("has a packed query [batch, length, heads, 3, size] and a key or value")
        q, k, v = _parts(b, query, "query", heads, 3)
        return q, k, v
    if key is None:
        raise b.error("leaves out the key, which a query that is not packed needs")
    if value is None:
        b.rank(key, 5)
        k, v = _parts(b, key, "key", heads, 2)
        return query, k, v
    if b.rank(value, b.rank(key, 3, 4)) == 4:
        for name, each in (("key", key), ("value", value)):
            b.need_shape(each, name, b.dim(query, 0), heads, b.dim(key, 2), b.dim(each, 3))
    return query, key, value


def _parts(b: NodeBuilder, x: str, name: str, heads: int, count: int) -> tuple[str, ...]:
    """Return the parts of [batch, length, heads, count, size] as [batch, length, heads * size]."""
    size = b.need_extent(x, 4)
    b.need_shape(x, name, b.dim(x, 0), b.dim(x, 1), heads, count, size)
    parts = b.several("Split", count, x, axis=3, num_outputs=count)
    return tuple(b.reshape(each, 0, 0, heads * size) for each in parts)


def _biased(
    b: NodeBuilder, bias: str | None, query: str, key: str, value: str, apart: bool
) -> tuple[str, str, str]:
    """Return queries, keys and values with their biases added; keys by head already have theirs."""
    if bias is None:
        return query, key, value
    hidden = b.need_extent(query, 2)
    if apart:
        return b.Add(query, b.slice(bias, 0, 0, hidden)), key, value
    inner = b.need_extent(value, 2)
    b.need_shape(bias, "bias", 2 * hidden + inner)
    sizes = b.ints(hidden, hidden, inner)
    parts = b.several("Split", 3, bias, sizes, axis=0, num_outputs=3)
    q, k, v = (b.Add(x, part) for x, part in zip((query, key, value), parts, strict=True))
    return q, k, v
