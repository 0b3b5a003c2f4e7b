"""SparseAttention: block-sparse attention as in Phi-3-small."""

from __future__ import annotations

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, Results, T, contrib
from .grouped_query import CacheAppend, grown, heads_of, ids_of
from .heads import join_heads, need_heads, positions
from .rotary import rotated


@contrib("SparseAttention", outputs=(3, 3))
def sparse_attention(
    b: NodeBuilder,
    query: T,
    key: T | None,
    value: T | None,
    past_key: T,
    past_value: T,
    block_row_indices: Int32,
    block_col_indices: Int32,
    total_sequence_length: Int32,
    key_total_sequence_lengths: Int32,
    cos_cache: T | None = None,
    sin_cache: T | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sparse_block_size: int,
) -> Results:
    """Attention of new positions to past ones in the blocks given by a layout per head.

    The caches have room for the maximum length. Head h uses layout h modulo the number of layouts.
    """
    heads, groups = need_heads(b, num_heads), need_heads(b, kv_num_heads, "kv_num_heads")
    if heads % groups:
        raise b.error(f"num_heads={heads} is not a multiple of kv_num_heads={groups}")
    if sparse_block_size < 1:
        raise b.error(f"sparse_block_size={sparse_block_size}; expected 1 or more")
    q, k, v, size = heads_of(b, query, key, value, heads, groups)
    step = _step(b, query, key_total_sequence_lengths, total_sequence_length)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise b.error("do_rotary=1 needs cos_cache and sin_cache")
        ids = ids_of(b, query, step, None)
        q, k = (rotated(b, x, cos_cache, sin_cache, ids, size, rotary_interleaved) for x in (q, k))
    keys = grown(b, past_key, k, step, "past_key", groups, size)
    values = grown(b, past_value, v, step, "past_value", groups, size)
    seen = _seen(b, step, block_row_indices, block_col_indices, keys, heads, sparse_block_size)
    y = b.Attention(q, keys, values, seen, scale=scale or size**-0.5)
    return join_heads(b, y, heads, size), keys, values


def _step(b: NodeBuilder, query: str, lengths: str, total: str) -> CacheAppend:
    length = b.size(query, 1)
    total = b.Reshape(b.cast(total, dtypes.int64), b.ints(1))
    valid = b.Reshape(b.cast(lengths, dtypes.int64), b.ints(-1))
    is_prompt = b.Equal(length, total)
    past = b.Where(is_prompt, b.ints(0), b.Sub(valid, length))
    return CacheAppend(length, total, past, valid, is_prompt)


def _seen(
    b: NodeBuilder, step: CacheAppend, rows: str, columns: str, keys: str, heads: int, block: int
) -> str:
    """Return the visibility of keys, [batch, heads, length, cache size]."""
    layouts = b.extent(rows, 0)
    if layouts is not None and heads % layouts:
        raise b.error(f"num_heads={heads} is not a multiple of the {layouts} layouts")
    blocks = _blocks(b, rows, columns)
    size = b.ints(block)
    assert step.past is not None
    own = b.Add(b.Unsqueeze(step.past, b.ints(1)), positions(b, step.length))
    places = positions(b, b.size(keys, 2))
    last = b.Sub(b.size(blocks, 1), b.ints(1))
    of_queries = b.Gather(blocks, b.Min(b.Div(own, size), last), axis=1)
    near = b.Gather(of_queries, b.Min(b.Div(places, size), last), axis=3)
    of_heads = b.Mod(b.arange(heads), b.size(rows, 0))
    shown = b.Gather(b.transpose(near, 1, 0, 2, 3), of_heads, axis=1)
    return b.And(shown, b.LessOrEqual(places, b.Unsqueeze(own, b.ints(1, 3))))


def _blocks(b: NodeBuilder, rows: str, columns: str) -> str:
    """Return CSR indices as bool [layouts, rows, columns]."""
    b.rank(rows, 2)
    b.rank(columns, 2)
    count = b.Sub(b.size(rows, 1), b.ints(1))
    begin = b.Unsqueeze(b.slice(rows, 1, 0, -1), b.ints(2))
    end = b.Unsqueeze(
        b.Slice(rows, b.ints(1), b.ints(np.iinfo(np.int64).max), b.ints(1)), b.ints(2)
    )
    entries = b.cast(positions(b, b.size(columns, 1)), dtypes.int32)
    is_of_row = b.And(b.GreaterOrEqual(entries, begin), b.Less(entries, end))
    places = b.cast(positions(b, count), dtypes.int32)
    is_at = b.Equal(b.Unsqueeze(columns, b.ints(2)), places)
    found = b.MatMul(b.cast(is_of_row, dtypes.float32), b.cast(is_at, dtypes.float32))
    return b.Greater(found, b.constant(np.array(0, np.float32)))
