"""Packed sequences without padding (packing mode).

Offsets [batch, length] list the positions of a padded batch: first those of tokens, in order, then
those of padding. Only as many count as there are tokens.
"""

from __future__ import annotations

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, Results, T, contrib
from .heads import FILTER, head_size, need_heads, positions
from .multi_head import scored
from .self_attention import hidden_sizes


@contrib("RemovePadding", outputs=(4, 4))
def remove_padding(b: NodeBuilder, x: T, sequence_token_count: Int32) -> Results:
    """The tokens [tokens, hidden], offsets, cumulative lengths, and the maximum length."""
    b.rank(x, 3)
    b.rank(sequence_token_count, 1)
    zero = b.ints(0)
    counts = b.cast(sequence_token_count, dtypes.int64)
    seen = b.Less(positions(b, b.size(x, 1)), b.Unsqueeze(counts, b.ints(1)))
    order = _tokens_first(b, b.Reshape(seen, b.ints(-1)))
    total = b.ReduceSum(counts, zero)
    rows = b.reshape(x, -1, b.size(x, 2))
    sums = b.Pad(b.CumSum(counts, b.constant(np.array(0, np.int64))), b.ints(1, 0))
    narrow = (b.cast(each, dtypes.int32) for each in (b.reshape_like(order, seen), sums))
    return (
        b.Gather(rows, b.Slice(order, zero, total), axis=0),
        *narrow,
        b.ReduceMax(sequence_token_count, zero),
    )


def _tokens_first(b: NodeBuilder, seen: str) -> str:
    """Return the positions of tokens, then those of padding: int64 [positions]."""
    first = b.constant(np.array(0, np.int64))
    token, padding = (b.cast(each, dtypes.int64) for each in (seen, b.Not(seen)))
    behind = b.Add(b.ReduceSum(token, b.ints(0)), b.CumSum(padding, first, exclusive=1))
    rank = b.Where(seen, b.CumSum(token, first, exclusive=1), behind)
    return b.ScatterElements(rank, rank, positions(b, b.size(seen, 0)), axis=0)


@contrib("RestorePadding")
def restore_padding(b: NodeBuilder, x: T, token_offset: Int32) -> str:
    """The tokens scattered to [batch, length, hidden], with zeros for padding."""
    b.rank(x, 2)
    b.rank(token_offset, 2)
    return _restored(b, x, token_offset)


def _restored(b: NodeBuilder, x: str, token_offset: str) -> str:
    width = b.size(x, 1)
    size = b.Mul(b.size(token_offset, 0), b.size(token_offset, 1))
    empty = b.Expand(b.number(0, x), b.shape(size, width))
    whole = b.ScatterND(empty, b.Unsqueeze(_offsets(b, x, token_offset), b.ints(1)), x)
    return b.Reshape(whole, b.Concat(b.Shape(token_offset), width, axis=0), allowzero=1)


def _offsets(b: NodeBuilder, x: str, token_offset: str) -> str:
    """Return the positions of tokens: int64 [tokens]."""
    flat = b.Reshape(b.cast(token_offset, dtypes.int64), b.ints(-1))
    return b.Slice(flat, b.ints(0), b.size(x, 0))


@contrib("PackedAttention")
def packed_attention(
    b: NodeBuilder,
    x: T,
    weights: T,
    bias: T,
    token_offset: Int32,
    cumulative_sequence_length: Int32,
    attention_bias: T | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] = (),
    scale: float = 0.0,
) -> str:
    """Attention of x @ weights + bias within each sequence."""
    heads = need_heads(b, num_heads)
    b.rank(x, 2)
    sizes = hidden_sizes(b, weights, qkv_hidden_sizes, heads)
    b.need_shape(bias, "bias", sum(sizes))
    total = b.Add(b.MatMul(x, weights), bias)
    q, k, v = b.several("Split", 3, total, b.ints(*sizes), axis=1, num_outputs=3)
    places = token_offset, cumulative_sequence_length
    return _attended(b, (q, k, v), heads, places, attention_bias, scale)


@contrib("PackedMultiHeadAttention")
def packed_multi_head_attention(
    b: NodeBuilder,
    query: T,
    key: T | None,
    value: T | None,
    bias: T | None,
    token_offset: Int32,
    cumulative_sequence_length: Int32,
    attention_bias: T | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    scale: float = 0.0,
) -> str:
    """Attention within each sequence; queries may include keys and values."""
    heads = need_heads(b, num_heads)
    if b.rank(query, 2, 4) == 4:
        if key is not None or value is not None:
            raise b.error("has a packed query [tokens, heads, 3, size] and a key or value")
        size = b.need_extent(query, 3)
        b.need_shape(query, "query", b.dim(query, 0), heads, 3, size)
        parts = b.several("Split", 3, query, axis=2, num_outputs=3)
        qkv = tuple(b.reshape(each, 0, heads * size) for each in parts)
    elif key is None or value is None:
        raise b.error("leaves out key or value, which a query that is not packed needs")
    else:
        qkv = query, key, value
    sizes = [b.need_extent(each, 1) for each in qkv]
    if bias is not None:
        b.need_shape(bias, "bias", sum(sizes))
        parts = b.several("Split", 3, bias, b.ints(*sizes), axis=0, num_outputs=3)
        qkv = tuple(b.Add(each, part) for each, part in zip(qkv, parts, strict=True))
    q, k, v = qkv
    places = token_offset, cumulative_sequence_length
    return _attended(b, (q, k, v), heads, places, attention_bias, scale)


def _attended(
    b: NodeBuilder,
    qkv: tuple[str, str, str],
    heads: int,
    places: tuple[str, str],
    attention_bias: str | None,
    scale: float,
) -> str:
    """Return attention of tokens [tokens, hidden] within their own sequence, in packed form.

    Args:
        b: adds the nodes.
        qkv: [tokens, hidden] each.
        heads: number of heads.
        places: offsets [batch, length], and cumulative lengths [batch + 1].
        attention_bias: added to the scores of the padded batch.
        scale: see `multi_head.scored`.
    """
    offsets, sums = places
    b.rank(offsets, 2)
    b.rank(sums, 1)
    for name, each in zip(("query", "key", "value"), qkv, strict=True):
        head_size(b, b.need_extent(each, 1), heads, f"the {name}")
    lengths = b.Sub(b.Slice(sums, b.ints(1), b.ints(_FAR)), b.Slice(sums, b.ints(0), b.ints(-1)))
    q, k, v = (_restored(b, each, offsets) for each in qkv)
    lowest = float(np.finfo(np.float32).min)
    y, *_ = scored(
        b, (q, k, v), heads, (None, None), lengths, attention_bias, lowest, scale, False, False
    )
    rows = b.reshape(y, -1, b.need_extent(qkv[2], 1))
    return b.Gather(rows, _offsets(b, qkv[0], offsets), axis=0)


#: An end beyond every axis.
_FAR = 2**31 - 1


@contrib("GatedRelativePositionBias")
def gated_relative_position_bias(
    b: NodeBuilder,
    query_layer: T,
    query_bias: T,
    rel_pos: T,
    weight: T,
    bias: T,
    eco_a: T,
    token_offset: Int32 | None = None,
    *,
    num_heads: int,
) -> str:
    """Gated relative position biases [batch, heads, length, length]."""
    heads = need_heads(b, num_heads)
    hidden = b.need_extent(query_layer, -1)
    size = head_size(b, hidden, heads, "the query")
    units = b.need_extent(weight, 1)
    if units % 2:
        raise b.error(f"weight is {b.type(weight)}; expected an even number of columns")
    b.need_shape(weight, "weight", size, units)
    b.need_shape(bias, "bias", units)
    query = b.Add(query_layer, query_bias)
    if token_offset is not None:
        b.rank(query_layer, 2)
        query = _restored(b, query, token_offset)
    b.rank(query, 3)
    split = b.transpose(b.reshape(query, 0, 0, heads, size), 0, 2, 1, 3)
    gates = b.reshape(b.Add(b.MatMul(split, weight), bias), 0, 0, 0, 2, units // 2)
    gates = b.Sigmoid(b.ReduceSum(gates, b.ints(-1), keepdims=0))
    first, second = b.several("Split", 2, gates, axis=-1, num_outputs=2)
    inner = b.Sub(b.Mul(second, eco_a), b.number(1, query))
    return b.Mul(b.Add(b.Mul(first, inner), b.number(2, query)), rel_pos)
