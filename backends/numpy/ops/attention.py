"""Attention, rotary embeddings and linear attention; half floats are computed in float32."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import bool_, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.attention import (
    Attention,
    FlexAttention,
    LinearAttention,
    RotaryEmbedding,
)
from ..engine.registry import kernel
from ..numerics.halves import in_dtype, store
from ..numerics.products import multiply, sums


def by_head(x: Array, heads: int | None) -> Array:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    if x.ndim == 4:
        return x
    assert heads is not None
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def _joined(x: Array) -> Array:
    """Return [batch, heads, length, size] as [batch, length, heads * size]."""
    b, heads, length, size = x.shape
    return x.swapaxes(1, 2).reshape(b, length, heads * size)


def _products(a: Array, b: Array) -> Array:
    """Multiply the matrices of every head; heads of `b` are shared by consecutive heads of `a`."""
    batch, heads, rows, size = a.shape
    together = a.reshape(batch, b.shape[1], heads // b.shape[1] * rows, size)
    return multiply(together, b).reshape(batch, heads, rows, b.shape[-1])


@kernel(Attention)
def attention(
    op: Attention,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Return the results, the keys and values including the past, and the scores."""
    queries = by_head(q, op.q_num_heads)
    keys, values = (by_head(x, op.kv_num_heads) for x in (k, v))
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        keys = np.concatenate([past_key, keys], 2)
        values = np.concatenate([past_value, values], 2)
    dtype = float64 if op.is_wide else sums(q.dtype)
    scale = queries.shape[3] ** -0.5 if op.scale is None else op.scale
    transposed = keys.astype(dtype, copy=False).swapaxes(2, 3)
    stages = [_products(queries.astype(dtype) * dtype.type(scale), transposed)]
    capped = op.softcap * np.tanh(stages[0] / op.softcap) if op.softcap > 0 else stages[0]
    bias = _bias(op, stages[0].shape, mask, past, nonpad_kv_seqlen).astype(dtype)
    stages += [capped, capped + bias]
    stages.append(_softmax(stages[2], bias))
    result = _products(stages[3], values.astype(dtype, copy=False))
    if q.ndim == 3:
        result = _joined(result)
    scores = stages[op.qk_matmul_output_mode]
    return result.astype(q.dtype), keys, values, scores.astype(q.dtype)


def _bias(
    op: Attention,
    shape: tuple[int, ...],
    mask: Array | None,
    past: int,
    nonpad_kv_seqlen: Array | None,
) -> Array:
    """Return the bias for scores of `shape`: the mask, and -inf for hidden keys."""
    batch, _, rows, total = shape
    queries = np.arange(rows)[:, np.newaxis] + past
    keys = np.arange(total)
    seen = np.ones((1, 1, 1, 1), bool)
    if nonpad_kv_seqlen is not None:
        valid = nonpad_kv_seqlen.reshape(batch, 1, 1, 1)
        queries = queries + valid - rows
        seen = keys < valid
    seen = np.broadcast_to(seen & seen_keys(op, queries, keys), (len(seen), 1, rows, total))
    bias = np.where(seen, 0.0, -np.inf)
    if mask is None:
        return bias
    added = np.where(mask, 0.0, -np.inf) if mask.dtype == bool_ else mask.astype(float64)
    short = [(0, 0)] * (mask.ndim - 1) + [(0, total - mask.shape[-1])]
    return bias + np.pad(added, short, constant_values=-np.inf)


def seen_keys(op: Attention, queries: Array, keys: Array) -> Array:
    """Return which keys each query sees, from their positions: [..., rows, keys]."""
    seen = np.ones(np.broadcast_shapes(queries.shape, keys.shape), bool)
    if op.is_causal:
        seen &= keys <= queries
    if op.left_window_size >= 0:
        seen &= queries - keys <= op.left_window_size
    if op.right_window_size >= 0:
        seen &= keys - queries <= op.right_window_size
    return seen


def _softmax(scores: Array, bias: Array) -> Array:
    """Return the softmax over the keys; zeros if all are masked."""
    greatest = scores.max(-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.where(np.isneginf(greatest), 0, greatest))
    total = exponentials.sum(-1, keepdims=True)
    masked = np.isneginf(bias.max(-1, keepdims=True, initial=-np.inf))
    return np.where(masked, 0, exponentials / total)


@kernel(FlexAttention)
def flex_attention(op: FlexAttention, q: Array, k: Array, v: Array) -> Array:
    """Return the results without bodies; a pass inlines those with bodies."""
    assert not op.graphs()
    dtype = float64 if op.is_wide else sums(q.dtype)
    scale = q.shape[3] ** -0.5 if op.scale is None else op.scale
    transposed = k.astype(dtype, copy=False).swapaxes(2, 3)
    scores = _products(q.astype(dtype) * dtype.type(scale), transposed)
    weights = _softmax(scores, np.zeros((1, 1, 1, 1)))
    return _products(weights, v.astype(dtype, copy=False)).astype(q.dtype)


@kernel(RotaryEmbedding)
def rotary_embedding(
    op: RotaryEmbedding,
    x: Array,
    cos: Array,
    sin: Array,
    position_ids: Array | None = None,
    *,
    out: Array,
) -> None:
    """Rotate the pairs of every head: x · cos plus the other of each pair times ±sin."""
    dtype = float64 if x.dtype == float64 else float32
    if position_ids is not None:
        cos, sin = cos[position_ids], sin[position_ids]
    size = 2 * cos.shape[-1]
    first, second = (
        (slice(0, size, 2), slice(1, size, 2))
        if op.interleaved
        else (slice(0, size // 2), slice(size // 2, size))
    )
    real, imaginary = (np.empty((*cos.shape[:-1], size), dtype) for _ in range(2))
    real[..., first] = real[..., second] = cos
    imaginary[..., second] = sin
    np.negative(imaginary[..., second], out=imaginary[..., first])
    result = out if out.dtype == dtype else np.empty(out.shape, dtype)
    arrays = in_dtype(x, dtype), result, np.empty(x.shape, dtype)
    source, target, spare = (by_head(each, op.num_heads) for each in arrays)
    for one, other in ((first, second), (second, first)):
        factors = imaginary[:, np.newaxis, :, one]
        np.multiply(source[..., other], factors, out=spare[..., one])
    np.copyto(target[..., size:], source[..., size:])
    source, target, spare = (each[..., :size] for each in (source, target, spare))
    np.multiply(source, real[:, np.newaxis], out=target)
    np.add(target, spare, out=target)
    if result is not out:
        store(out, result)


@kernel(LinearAttention)
def linear_attention(
    op: LinearAttention,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, Array]:
    """Update a state per head at every position, and read it."""
    dtype = sums(query.dtype)
    heads = op.kv_num_heads
    q = by_head(query, op.q_num_heads).astype(dtype)
    k, v = (by_head(x, heads).astype(dtype) for x in (key, value))
    factors = None if decay is None else np.exp(by_head(decay, heads).astype(dtype))
    rates = None if beta is None else by_head(beta, beta.shape[2]).astype(dtype)
    shape = (len(q), heads, k.shape[3], v.shape[3])
    state = np.zeros(shape, dtype) if past_state is None else past_state.astype(dtype)
    result = np.empty((*q.shape[:3], shape[3]), dtype)
    for t in range(q.shape[2]):
        if factors is not None:
            state = state * factors[:, :, t, :, np.newaxis]
        row, new = k[:, :, t, np.newaxis], v[:, :, t, np.newaxis]
        if rates is not None:
            new = rates[:, :, t, np.newaxis] * (new - multiply(row, state))
        state = state + row.swapaxes(2, 3) * new
        result[:, :, t] = _products(q[:, :, t : t + 1], state)[:, :, 0]
    result *= op.scale or shape[2] ** -0.5
    kept = query if past_state is None else past_state
    return _joined(result).astype(query.dtype), state.astype(kept.dtype)
