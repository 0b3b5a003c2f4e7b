"""GroupQueryAttention: decoder attention with KV caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ....runtime.errors import UnsupportedError
from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .cache_bits import Bits, bits_of, packed, unpacked
from .declaration import Float32, Int32, Int64, Kind, Results, T, contrib
from .heads import head_size, join_heads, need_heads, positions, split_heads
from .rotary import rotated
from .sink import ScoreSettings, softened, visible, with_sink
from .window import present, window_of
from .window import seen as window_seen

Cache = Annotated[str, Kind("C", dtypes.FLOATS | {dtypes.int8, dtypes.uint8, dtypes.float8e4m3fn})]


@dataclass(frozen=True)
class CacheAppend:
    """What a call appends to the caches, as int64 vectors.

    Attributes:
        length: [1], number of new positions.
        total: [1], number of positions of the longest sequence, past included.
        past: [batch], number of cached positions before; None without a cache.
        valid: [batch], number of positions, past included.
        is_prompt: [1], bool: whether there is no past.
    """

    length: str
    total: str
    past: str | None
    valid: str
    is_prompt: str


@contrib("GroupQueryAttention", outputs=(1, 4))
def group_query_attention(
    b: NodeBuilder,
    query: T,
    key: T | None,
    value: T | None,
    past_key: Cache | None,
    past_value: Cache | None,
    seqlens_k: Int32,
    total_sequence_length: Int32,
    cos_cache: T | None = None,
    sin_cache: T | None = None,
    position_ids: Int64 | None = None,
    attention_bias: T | None = None,
    head_sink: T | None = None,
    k_scale: Float32 | None = None,
    v_scale: Float32 | None = None,
    q_norm_weight: T | None = None,
    k_norm_weight: T | None = None,
    query_seqlens: Int32 | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> Results:
    """Attention of new positions to those in a cache, to which they are appended.

    A cache has room for the maximum length, or exactly its contents; the results have room for the
    new contents. Rows after a sequence's end are unchanged. With `query_seqlens`, the first new
    positions of each sequence count; caches have room for all, and for the `total_sequence_length`.
    """
    _check_choices(b, causal, local_window_size, qk_output)
    heads, groups = _head_counts(b, num_heads, kv_num_heads)
    q, k, v, size = heads_of(b, query, key, value, heads, groups)
    if q_norm_weight is not None or k_norm_weight is not None:
        own = (q_norm_epsilon, k_norm_epsilon)
        epsilons = [qk_norm_epsilon if each is None else each for each in own]
        q, k = _normalized(b, (q, k), (q_norm_weight, k_norm_weight), size, epsilons)
    step = _step(b, query, past_key, seqlens_k, total_sequence_length)
    if query_seqlens is not None:
        if not causal or past_key is None or sliding_window_cache:
            raise _unsupported_padding(b)
        step = _padded(b, step, query_seqlens)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise b.error("do_rotary=1 needs cos_cache and sin_cache")
        ids = ids_of(b, query, step, position_ids)
        q, k = (rotated(b, x, cos_cache, sin_cache, ids, size, rotary_interleaved) for x in (q, k))
    if head_sink is None and smooth_softmax > 0:
        head_sink = b.constant(np.zeros(heads, b.dtype(query)))
    how = ScoreSettings(heads, groups, size, scale or size**-0.5, softcap, qk_output)
    asked = QuerySpan(bool(causal), local_window_size, attention_bias, head_sink)
    if sliding_window_cache:
        _need_floats(b, k_quant_type, v_quant_type)
        y, keys, values = _windowed(b, (q, k, v), (past_key, past_value), step, asked, how)
        return _joined(b, y, step, how), keys, values, None
    width = kv_cache_bit_width
    k_bits = bits_of(b, k_quant_type, k_scale, width, "k_quant_type", groups, size, past_key)
    v_bits = bits_of(b, v_quant_type, v_scale, width, "v_quant_type", groups, size, past_value)
    keys, k = _cached(b, past_key, k, step, "past_key", groups, k_bits)
    values, v = _cached(b, past_value, v, step, "past_value", groups, v_bits)
    y, scores = _attended(b, (q, k, v), step, asked, how)
    qk = _visible(b, scores, step) if b.wants(3) else None
    return _joined(b, y, step, how), keys, values, qk


def _check_choices(b: NodeBuilder, causal: int, window: int, qk_output: int) -> None:
    if causal not in (0, 1) or (not causal and window != -1):
        raise b.error(f"causal={causal}, local_window_size={window} exclude each other")
    if qk_output not in (0, 1, 2):
        raise b.error(f"qk_output={qk_output}; expected 0, 1 or 2")


def _head_counts(b: NodeBuilder, num_heads: int, kv_num_heads: int) -> tuple[int, int]:
    """Return the heads of queries, and of keys and values."""
    heads, groups = need_heads(b, num_heads), need_heads(b, kv_num_heads, "kv_num_heads")
    if heads % groups:
        raise b.error(f"num_heads={heads} is not a multiple of kv_num_heads={groups}")
    return heads, groups


def _need_floats(b: NodeBuilder, *kinds: str) -> None:
    """Refuse caches of a window that are quantized."""
    if any(kind != "NONE" for kind in kinds):
        raise b.unsupported(
            "sliding_window_cache=1 with caches that are quantized",
            "export the model with caches of the whole length, or of floats",
        )


@dataclass(frozen=True)
class QuerySpan:
    """Which keys a query sees, and biases: see the operator."""

    causal: bool
    local_window_size: int
    attention_bias: str | None
    head_sink: str | None


def _attended(
    b: NodeBuilder,
    qkv: tuple[str, str, str],
    step: CacheAppend,
    asked: QuerySpan,
    how: ScoreSettings,
) -> tuple[str, str]:
    """Return the result [batch, heads, length, size], and the scores."""
    query, key, _ = qkv
    window = asked.local_window_size - 1 if asked.local_window_size > 0 else -1
    length = step.valid
    if asked.causal:
        before = step.past or b.ints(0)
        length = b.Expand(b.Add(before, step.length), b.size(query, 0))
    if asked.head_sink is not None:
        b.need_shape(asked.head_sink, "head_sink", how.heads)
    if asked.head_sink is not None and b.wants(3):
        seen = visible(b, query, key, length, asked.causal, window)
        return with_sink(b, qkv, seen, asked.attention_bias, asked.head_sink, how)
    y, _, _, scores = b.chosen(
        "Attention",
        (True, False, False, b.wants(3) or asked.head_sink is not None),
        *qkv,
        asked.attention_bias,
        None,
        None,
        length,
        is_causal=int(asked.causal),
        left_window_size=window,
        scale=how.scale,
        softcap=how.softcap,
        qk_matmul_output_mode=3 if how.stage == 2 else 2,
    )
    if asked.head_sink is not None:
        y = softened(b, y, scores, asked.head_sink, how.heads)
    return y, scores


def _windowed(
    b: NodeBuilder,
    qkv: tuple[str, str, str],
    past: tuple[str | None, str | None],
    step: CacheAppend,
    asked: QuerySpan,
    how: ScoreSettings,
) -> tuple[str, str, str]:
    """Return the result [batch, heads, length, size] and the sliding-window caches."""
    if past[0] is None or past[1] is None or step.past is None:
        raise b.error("sliding_window_cache=1 needs past_key and past_value")
    if asked.attention_bias is not None or b.wants(3):
        raise b.unsupported(
            "sliding_window_cache=1 with attention_bias or output_qk",
            "export the model with caches of the whole length",
        )
    window = window_of(b, past[0], step.past, step.valid, asked.local_window_size)
    query = qkv[0]
    rows = [b.Concat(old, new, axis=2) for old, new in zip(past, qkv[1:], strict=True)]
    seen = window_seen(b, window, step.length, asked.local_window_size)
    if asked.head_sink is not None:
        b.need_shape(asked.head_sink, "head_sink", how.heads)
        y, _ = with_sink(b, (query, rows[0], rows[1]), seen, None, asked.head_sink, how)
    else:
        y = b.Attention(query, *rows, seen, scale=how.scale, softcap=how.softcap)
    keys, values = (present(b, window, x, how.groups, how.size) for x in rows)
    return y, keys, values


def heads_of(
    b: NodeBuilder, query: str, key: str | None, value: str | None, heads: int, groups: int
) -> tuple[str, str, str, int]:
    """Return queries, keys and values [batch, heads, length, size], and the head size."""
    b.rank(query, 3)
    hidden = b.need_extent(query, 2)
    if key is None or value is None:
        if key is not None or value is not None:
            raise b.error("key and value come together, or not at all in a packed query")
        size = head_size(b, hidden, heads + 2 * groups, "the packed query")
        sizes = b.ints(heads * size, groups * size, groups * size)
        query, key, value = b.several("Split", 3, query, sizes, axis=2, num_outputs=3)
    else:
        size = head_size(b, hidden, heads, "the query")
        for name, each in (("key", key), ("value", value)):
            b.need_shape(each, name, b.dim(query, 0), b.dim(query, 1), groups * size)
    q = split_heads(b, query, heads, size)
    k, v = (split_heads(b, x, groups, size) for x in (key, value))
    return q, k, v, size


def _normalized(
    b: NodeBuilder,
    qk: tuple[str, str],
    weights: tuple[str | None, str | None],
    size: int,
    epsilons: Sequence[float],
) -> tuple[str, str]:
    """Return queries and keys with RMSNormalization applied per head."""
    if weights[0] is None or weights[1] is None:
        raise b.error("q_norm_weight and k_norm_weight come together, or not at all")
    for name, weight in zip(("q_norm_weight", "k_norm_weight"), weights, strict=True):
        b.need_shape(weight or "", name, size)
    normal = (
        b.RMSNormalization(x, w, epsilon=epsilon)
        for x, w, epsilon in zip(qk, weights, epsilons, strict=True)
    )
    first, second = normal
    return first, second


def _step(b: NodeBuilder, query: str, past: str | None, seqlens_k: str, total: str) -> CacheAppend:
    one = b.ints(1)
    length = b.size(query, 1)
    total = b.Reshape(b.cast(total, dtypes.int64), one)
    valid = b.Add(b.Reshape(b.cast(seqlens_k, dtypes.int64), b.ints(-1)), one)
    is_prompt = b.Equal(length, total)
    before = None
    if past is not None:
        before = b.Where(is_prompt, b.ints(0), b.Sub(valid, length))
    return CacheAppend(length, total, before, valid, is_prompt)


def _unsupported_padding(b: NodeBuilder) -> UnsupportedError:
    reason = "query_seqlens without causal=1 and a cache of the whole length"
    return b.unsupported(reason, "export the model without padded chunks")


def _padded(b: NodeBuilder, step: CacheAppend, counts: str) -> CacheAppend:
    """Return a step in which only the first positions of each sequence are new."""
    counts = b.Reshape(b.cast(counts, dtypes.int64), b.ints(-1))
    never = b.constant(np.array([False]))
    return replace(step, past=b.Sub(step.valid, counts), is_prompt=never)


def ids_of(b: NodeBuilder, query: str, step: CacheAppend, given: str | None) -> str:
    """Return the positions [batch, length]; those of a prompt start at the first one given."""
    row = b.Unsqueeze(positions(b, step.length), b.ints(0))
    shape = b.shape(b.size(query, 0), step.length)
    if given is not None:
        b.rank(given, 2)
        first = b.slice(b.slice(given, 0, 0, 1), 1, 0, 1)
        return b.Where(step.is_prompt, b.Add(row, first), given)
    if step.past is None:
        return b.Expand(row, shape)
    return b.Expand(b.Add(row, b.Unsqueeze(step.past, b.ints(1))), shape)


def grown(
    b: NodeBuilder, past: str | None, new: str, step: CacheAppend, name: str, groups: int, size: int
) -> str:
    """Return a cache [batch, heads, length, size] with the new rows written."""
    if past is None or step.past is None:
        return new
    b.need_shape(past, name, b.dim(new, 0), groups, b.dim(past, 2), size)
    room = b.size(past, 2)
    missing = b.Sub(b.Max(room, step.total), room)
    widths = b.shape(b.unspecified_rows(4), b.ints(0, 0), missing, b.ints(0))
    return b.TensorScatter(b.Pad(past, widths), new, step.past, axis=2)


def _cached(
    b: NodeBuilder,
    past: str | None,
    new: str,
    step: CacheAppend,
    name: str,
    groups: int,
    bits: Bits | None,
) -> tuple[str, str]:
    """Return a cache with the new rows written, and what attention reads of it."""
    if bits is None:
        size = b.need_extent(new, 3)
        cache = grown(b, past, new, step, name, groups, size)
        return cache, cache
    cache = grown(b, past, packed(b, new, bits), step, name, groups, bits.width)
    return cache, unpacked(b, cache, bits, new)


def _joined(b: NodeBuilder, y: str, step: CacheAppend, how: ScoreSettings) -> str:
    """Return the rows of a result by head, of which those behind a sequence's end are open."""
    y = join_heads(b, y, how.heads, how.size)
    b.leave_open(y, b.Unsqueeze(_asked(b, step), b.ints(2)))
    return y


def _visible(b: NodeBuilder, scores: str, step: CacheAppend) -> str:
    """Return biases for all keys, 0 where a query may not see them."""
    scores = b.slice(scores, 3, 0, step.total)
    scores = b.Where(b.IsInf(scores), b.number(0.0, scores), scores)
    filled = b.Less(positions(b, step.total), b.Unsqueeze(step.valid, b.ints(1)))
    shown = b.And(b.Unsqueeze(_asked(b, step), b.ints(2)), b.Unsqueeze(filled, b.ints(1)))
    b.leave_open(scores, b.Unsqueeze(shown, b.ints(1)))
    return scores


def _asked(b: NodeBuilder, step: CacheAppend) -> str:
    """Return which queries are no padding: [batch, length]."""
    rows = b.Unsqueeze(positions(b, step.length), b.ints(0))
    before = b.Unsqueeze(step.past or b.ints(0), b.ints(1))
    return b.Less(b.Add(before, rows), b.Unsqueeze(step.valid, b.ints(1)))
