"""Hyper-connections and Engram: mixing of streams, gates, and n-gram hashes."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, Kind, Results, T, contrib

#: Gates, whose dtype may differ from the streams'.
M = Annotated[str, Kind("M", dtypes.FLOATS)]
Ids = Annotated[str, Kind("I", frozenset({dtypes.int32, dtypes.int64}))]


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


def _grouped(b: NodeBuilder, streams: str, branches: int) -> str:
    """Return streams as [..., branches, size] from flat [..., branches * size]."""
    if not branches:
        return streams
    rank, size = b.rank(streams), b.need_extent(streams, -1)
    if size % branches:
        raise b.error(f"num_branches={branches} do not divide the {size} columns of streams")
    return b.reshape(streams, *((0,) * (rank - 1)), branches, size // branches)


@contrib("HyperConnectionPreMix")
def hyper_connection_pre_mix(
    b: NodeBuilder, streams: T, pre_mix: M, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> str:
    """Sum of the streams, each multiplied by its gates."""
    x = b.cast(_grouped(b, streams, num_branches), dtypes.float32)
    rank = b.rank(x)
    gates = b.cast(pre_mix, dtypes.float32)
    if b.rank(pre_mix) < rank:
        is_flat = num_branches and b.extent(pre_mix, -1) == b.extent(streams, -1)
        size = b.need_extent(x, -1)
        gates = (
            b.reshape(gates, *((0,) * (rank - 2)), num_branches, size)
            if is_flat and size > 1
            else b.Unsqueeze(gates, b.ints(-1))
        )
    total = b.ReduceSum(b.Mul(x, gates), b.ints(-2), keepdims=0)
    return b.cast(b.Mul(total, b.number(reduction_scale, total)), b.dtype(streams))


@contrib("HyperConnectionPostMix")
def hyper_connection_post_mix(
    b: NodeBuilder,
    streams: T,
    block_output: T,
    post_mix: M,
    stream_mix: M | None = None,
    *,
    num_branches: int = 0,
) -> str:
    """Mixed streams, each with the gated output added."""
    x = b.cast(_grouped(b, streams, num_branches), dtypes.float32)
    rank = b.rank(x)
    gates = b.cast(post_mix, dtypes.float32)
    if b.rank(post_mix) < rank:
        gates = b.Unsqueeze(gates, b.ints(-1))
    added = b.Mul(gates, b.Unsqueeze(b.cast(block_output, dtypes.float32), b.ints(-2)))
    if stream_mix is not None:
        order = (*range(rank - 2), rank - 1, rank - 2)
        mixes = b.Transpose(b.cast(stream_mix, dtypes.float32), perm=order)
        x = b.MatMul(mixes, x)
    y = b.cast(b.Add(x, added), b.dtype(streams))
    return b.reshape_like(y, streams) if num_branches else y


@contrib("EngramGate", outputs=(1, 2))
def engram_gate(
    b: NodeBuilder,
    key: T,
    query: T,
    value: T,
    key_norm_scale: T,
    query_norm_scale: T,
    conv_norm_scale: T | None = None,
    *,
    epsilon: float = 1e-5,
) -> Results:
    """A gate from the normalized product of keys and queries, times a shared value."""
    hidden = b.need_extent(key, -1)
    keys, queries = (
        _normed(b, x, scale, epsilon)
        for x, scale in ((key, key_norm_scale), (query, query_norm_scale))
    )
    dot = b.ReduceSum(b.Mul(keys, queries), b.ints(-1), keepdims=1)
    dot = b.Mul(dot, b.number(hidden**-0.5, dot))
    root = b.Sqrt(b.Max(b.Abs(dot), b.number(1e-6, dot)))
    gate = b.Sigmoid(b.Mul(b.Sign(dot), root))
    wide = b.Mul(gate, b.Unsqueeze(b.cast(value, dtypes.float32), b.ints(2)))
    normed = None
    if b.wants(1):
        if conv_norm_scale is None:
            raise b.error("output gated_value_normed needs the input conv_norm_scale")
        normed = b.cast(_normed(b, wide, conv_norm_scale, epsilon), b.dtype(key))
    return b.cast(wide, b.dtype(key)), normed


def _normed(b: NodeBuilder, x: str, scale: str, epsilon: float) -> str:
    """Return RMS-normalized rows times a scale per connection, in float32."""
    wide = b.cast(x, dtypes.float32)
    mean = b.ReduceMean(b.Mul(wide, wide), b.ints(-1), keepdims=1)
    root = b.Sqrt(b.Add(mean, b.number(epsilon, mean)))
    return b.Mul(b.Div(wide, root), b.cast(scale, dtypes.float32))


@contrib("HyperConnectionLowRankMix", outputs=(2, 3))
def hyper_connection_low_rank_mix(
    b: NodeBuilder,
    streams: T,
    norm_scale: T,
    down_weight: T,
    up_weight: T,
    inject_weight: T,
    prev_block_output: T | None = None,
    prev_post_gate: T | None = None,
    *,
    epsilon: float = 1e-5,
    gate_div: float = 1.0,
    gate_mul: float = 1.0,
    num_branches: int,
    reduction_scale: float = 1.0,
    silu_alpha: float = 1.0,
) -> Results:
    """Gates of low rank from normalized streams: the next block's input, and what its result gets.

    Every step is rounded to the dtype of the streams.
    """
    if (prev_block_output is None) != (prev_post_gate is None):
        raise b.error("prev_block_output and prev_post_gate come together, or not at all")
    if num_branches < 1 or not gate_div:
        raise b.error(f"num_branches={num_branches}, gate_div={gate_div}")
    dtype = b.dtype(streams)
    x = _grouped(b, streams, num_branches)
    if prev_block_output is not None and prev_post_gate is not None:
        gates = b.Unsqueeze(b.cast(prev_post_gate, dtypes.float32), b.ints(-1))
        block = b.Unsqueeze(b.cast(prev_block_output, dtypes.float32), b.ints(-2))
        x = b.cast(b.Add(b.cast(x, dtypes.float32), b.Mul(gates, block)), dtype)
    scale = b.reshape(norm_scale, num_branches, b.need_extent(x, -1))
    normal = b.cast(_normed(b, x, scale, epsilon), dtype)
    rows = b.reshape_like(normal, streams)
    down = b.scaled(b.MatMul(rows, down_weight), silu_alpha)
    hidden = b.Mul(down, b.Sigmoid(down))
    gate = b.reshape_like(b.Sigmoid(b.MatMul(hidden, up_weight)), x)
    both = b.Mul(b.cast(normal, dtypes.float32), b.cast(gate, dtypes.float32))
    total = b.scaled(b.ReduceSum(both, b.ints(-2), keepdims=0), reduction_scale)
    inject = b.MatMul(rows, inject_weight)
    if gate_div != 1:
        inject = b.Div(inject, b.number(gate_div, inject))
    after = b.scaled(b.Sigmoid(inject), gate_mul)
    return b.cast(total, dtype), after, b.reshape_like(x, streams) if b.wants(2) else None


# ── hashes ───────────────────────────────────────────────────────────────────────────────────────


def hashes(
    b: NodeBuilder,
    shifted: list[str],
    multipliers: str,
    vocab_sizes: str,
    head_offsets: str | None,
    heads: int,
) -> str:
    """Return the hashes of all n-grams, pairs first; `shifted` are ids 0, 1, … positions before."""
    found: list[str] = []
    mixed = ""
    for k, ids in enumerate(shifted):
        term = b.Mul(ids, b.slice(multipliers, 0, k, k + 1))
        mixed = b.BitwiseXor(mixed, term) if mixed else term
        if k:
            sizes = b.slice(vocab_sizes, 0, (k - 1) * heads, k * heads)
            found.append(b.Mod(b.Unsqueeze(mixed, b.ints(-1)), sizes))
    whole = found[0] if len(found) == 1 else b.Concat(*found, axis=-1)
    return whole if head_offsets is None else b.Add(whole, head_offsets)


def need_grams(b: NodeBuilder, max_ngram_size: int, n_head_per_ngram: int) -> None:
    """Raise ModelError unless there are n-grams and heads."""
    if max_ngram_size < 2 or n_head_per_ngram < 1:
        raise b.error(
            f"max_ngram_size={max_ngram_size}, n_head_per_ngram={n_head_per_ngram}; "
            "expected 2 or more, and 1 or more"
        )


@contrib("NGramHashMapping", outputs=(1, 2))
def ngram_hash_mapping(
    b: NodeBuilder,
    input_ids: Ids,
    multipliers: Ids,
    vocab_sizes: Ids,
    past_ids: Ids | None = None,
    head_offsets: Ids | None = None,
    eos_token_id: Ids | None = None,
    segment_ids: Int32 | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
) -> Results:
    """Hashes of every token with its predecessors in the same sequence."""
    need_grams(b, max_ngram_size, n_head_per_ngram)
    before = max_ngram_size - 1
    missing = b.number(pad_id, input_ids)
    if eos_token_id is not None:
        missing = b.Reshape(eos_token_id, b.ints())
    if past_ids is None:
        past_ids = b.Expand(missing, b.shape(b.size(input_ids, 0), before))
    whole, length = b.Concat(past_ids, input_ids, axis=1), b.size(input_ids, 1)

    def shift(x: str, k: int) -> str:
        return b.slice(x, 1, before - k, b.Add(length, b.ints(before - k)))

    lost: str | None = None
    begins = None if segment_ids is None else _begins(b, segment_ids, before)
    shifted = [input_ids]
    for k in range(1, max_ngram_size):
        ids = shift(whole, k)
        if begins is not None:
            lost = either(b, lost, shift(begins, k - 1))
        if reset_on_eos and eos_token_id is not None:
            lost = either(b, lost, b.Equal(ids, missing))
        shifted.append(ids if lost is None else b.Where(lost, missing, ids))
    y = hashes(b, shifted, multipliers, vocab_sizes, head_offsets, n_head_per_ngram)
    present = b.slice(whole, 1, length, b.Add(length, b.ints(before))) if b.wants(1) else None
    return y, present


def either(b: NodeBuilder, one: str | None, other: str) -> str:
    """Return where one of two holds; the first may be missing."""
    return other if one is None else b.Or(one, other)


def _begins(b: NodeBuilder, segment_ids: str, before: int) -> str:
    """Return where a new segment starts, after `before` columns of false."""
    first = b.slice(segment_ids, 1, 0, 1)
    earlier = b.Concat(first, b.slice(segment_ids, 1, 0, -1), axis=1)
    changed = b.Not(b.Equal(segment_ids, earlier))
    nothing = b.Expand(b.constant(np.array(False)), b.shape(b.size(segment_ids, 0), before))
    return b.Concat(nothing, changed, axis=1)
