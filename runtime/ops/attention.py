"""Attention, rotary embeddings and linear attention."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import DType, bfloat16, float16, float32, float64
from ..ir.graph import Graph
from ..ir.op import Op, op
from ..ir.types import Array, Dim, Shape, TensorType, ValueType
from .shapes import (
    add,
    checked,
    dim,
    need_broadcastable,
    need_choice,
    need_rank,
    need_vector,
    quotient,
    same_dim,
    same_dtype,
    times,
)

Heads = tuple[Dim, Dim, Dim, Dim]


def repeats_after(mask: Array) -> int:
    """Return after how many samples a mask, [samples, ...], repeats; all of them if it does not.

    That of windows does after those of an image.
    """
    count = len(mask)
    for samples in (n for n in range(1, count) if count % n == 0):
        alike = np.array_equal(mask[0], mask[samples])
        if alike and np.array_equal(mask[:-samples], mask[samples:]):
            return samples
    return count


def _heads(x: TensorType | None, heads: int | None, name: str) -> Heads:
    """Return [batch, heads, length, size] of a tensor that may be [batch, length, hidden]."""
    if x is None or x.shape is None:
        return (None, None, None, None)
    need_rank(x, (3, 4), name)
    if len(x.shape) == 4:
        b, h, length, size = x.shape
        return b, h, length, size
    if heads is None:
        raise ShapeError(f"{name} {x} is of rank 3; the number of its heads is needed")
    b, length, hidden = x.shape
    return b, heads, length, quotient(hidden, heads, f"hidden size of {name} by its heads")


def _is_float64(dtype: DType | None) -> bool:
    """Whether an attribute requests float64; numpy considers None equal to it."""
    return dtype is not None and dtype == float64


def _need_grouped(queries: Dim, keys: Dim) -> None:
    if (queries, keys) != (0, 0):  # a size may be 0, which both have then
        quotient(queries, keys, "heads of the queries by heads of the keys")


@op
class Attention(Op):
    """softmax(softcap(scale * q @ k.T) + mask) @ v, head by head (ONNX 25).

    Inputs are [batch, heads, length, size], or [batch, length, heads * size] with the number of
    heads as attributes; each head of k and v serves a group of consecutive heads of q. Query i is
    at position ``i + offset``, where offset is the length of the past, or ``nonpad_kv_seqlen -
    length`` of its sample; `is_causal` and the window bounds refer to that. Fully masked rows give
    zeros. Outputs are y, the keys and values including the past, and the scores at the stage
    `qk_matmul_output_mode`.
    """

    dense = True
    outputs: ClassVar = (1, 4)
    is_causal: int = 0
    kv_num_heads: int | None = None
    left_window_size: int = -1
    q_num_heads: int | None = None
    qk_matmul_output_mode: int = 0
    right_window_size: int = -1
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: DType | None = None

    @property
    def is_wide(self) -> bool:
        """Whether scores are computed in float64 regardless of the inputs."""
        return _is_float64(self.softmax_precision)

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        attn_mask: TensorType | None = None,
        past_key: TensorType | None = None,
        past_value: TensorType | None = None,
        nonpad_kv_seqlen: TensorType | None = None,
    ) -> tuple[TensorType, TensorType, TensorType, TensorType]:
        self._need_consistent(q, k, v, past_key, past_value, nonpad_kv_seqlen)
        b, h, length, size = _heads(q, self.q_num_heads, "q")
        bk, hk, new, size_k = _heads(k, self.kv_num_heads, "k")
        bv, hv, new_v, size_v = _heads(v, self.kv_num_heads, "v")
        b = same_dim(same_dim(b, bk, "batches of q and k"), bv, "batches of q and v")
        hk = same_dim(hk, hv, "heads of k and v")
        new = same_dim(new, new_v, "lengths of k and v")
        size_k = same_dim(size, size_k, "head sizes of q and k")
        _need_grouped(h, hk)
        need_vector(nonpad_kv_seqlen, b, "nonpad_kv_seqlen")
        past = _past_length(past_key, (b, hk, None, size_k), "past_key")
        past_v = _past_length(past_value, (b, hk, None, size_v), "past_value")
        total = add(same_dim(past, past_v, "lengths of past_key and past_value"), new)
        _need_mask(attn_mask, (b, h, length, total))
        return (
            _joined(q, b, h, length, size_v),
            k.with_shape((b, hk, total, size_k)),
            v.with_shape((b, hk, total, size_v)),
            q.with_shape((b, h, length, total)),
        )

    def _need_consistent(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        past_key: TensorType | None,
        past_value: TensorType | None,
        nonpad_kv_seqlen: TensorType | None,
    ) -> None:
        same_dtype(q, k, past_key)
        same_dtype(v, past_value)
        if (past_key is None) != (past_value is None):
            raise ShapeError("past_key and past_value must both be given or both omitted")
        if past_key is not None and nonpad_kv_seqlen is not None:
            raise ShapeError("nonpad_kv_seqlen excludes past_key and past_value")
        if min(self.left_window_size, self.right_window_size) < -1:
            raise ShapeError(f"{self}: a window bound is 0 or more, or -1 for none")
        if not 0 <= self.qk_matmul_output_mode <= 3:
            raise ShapeError(f"qk_matmul_output_mode={self.qk_matmul_output_mode}; ONNX has 0 to 3")


def _past_length(past: TensorType | None, shape: Heads, name: str) -> Dim:
    """Return the length of a cache [batch, heads, length, size], 0 if there is none."""
    if past is None:
        return 0
    need_rank(past, 4, name)
    if past.shape is None:
        return None
    for found, wanted in zip(past.shape, shape, strict=True):
        same_dim(found, wanted, f"{name} {past} and the heads of k and v")
    return past.shape[2]


def _need_mask(mask: TensorType | None, scores: Heads) -> None:
    if mask is None or mask.shape is None:
        return
    if not mask.shape:
        raise ShapeError("attn_mask is a scalar; its last axis goes over the keys")
    last, total = mask.shape[-1], scores[-1]
    if isinstance(last, int) and isinstance(total, int) and last > total:
        raise ShapeError(f"attn_mask {mask} is longer than the {total} keys")
    need_broadcastable(mask, (*scores[:3], None), "attn_mask")


def _joined(like: TensorType, b: Dim, h: Dim, length: Dim, size: Dim) -> TensorType:
    """Return the result's type, with the rank of the queries, 3 or 4."""
    if like.shape is None:
        return like.with_shape(None)
    if len(like.shape) == 4:
        return like.with_shape((b, h, length, size))
    return like.with_shape(checked((b, length, times(h, size))))


@op
class FlexAttention(Op):
    """prob_mod(softmax(score_mod(scale * q @ k.T))) @ v of rank 4 (ai.onnx.preview 1).

    The bodies map a tensor [batch, heads, length, keys] to another of the same type; scores are
    of `softmax_precision`, float32 by default and float64 for float64.
    """

    domain: ClassVar = "ai.onnx.preview"
    dense = True
    prob_mod: Graph | None = None
    scale: float | None = None
    score_mod: Graph | None = None
    softmax_precision: DType | None = None

    @property
    def is_wide(self) -> bool:
        """Whether scores are computed in float64 regardless of the inputs."""
        return _is_float64(self.softmax_precision)

    def precision(self, dtype: DType) -> DType:
        """Return the dtype of the scores of queries of `dtype`."""
        return self.softmax_precision or (float32 if dtype in (float16, bfloat16) else dtype)

    def body_inputs(
        self, q: TensorType, k: TensorType, v: TensorType
    ) -> tuple[tuple[ValueType | None, ...], ...]:
        b, h, length, _ = _heads(q, None, "q")
        keys = _heads(k, None, "k")[2]
        scores = TensorType(self.precision(q.dtype), (b, h, length, keys))
        return tuple((scores,) for _ in self.graphs())

    def infer(self, q: TensorType, k: TensorType, v: TensorType) -> TensorType:
        same_dtype(q, k, v)
        for name, type_ in (("q", q), ("k", k), ("v", v)):
            need_rank(type_, 4, name)
        for body in self.graphs():
            if len(body.inputs) != 1 or len(body.outputs) != 1:
                raise ShapeError(f"body '{body.name}' must have one input and one output")
        b, h, length, size = _heads(q, None, "q")
        bk, hk, keys, size_k = _heads(k, None, "k")
        bv, hv, keys_v, size_v = _heads(v, None, "v")
        b = same_dim(same_dim(b, bk, "batches of q and k"), bv, "batches of q and v")
        same_dim(keys, keys_v, "lengths of k and v")
        same_dim(size, size_k, "head sizes of q and k")
        _need_grouped(h, same_dim(hk, hv, "heads of k and v"))
        return q.with_shape((b, h, length, size_v))


@op
class RotaryEmbedding(Op):
    """Pairs (x1, x2) of every head rotated by its position's angle (ONNX 23).

    Pairs are the two halves of a head, or neighbours with `interleaved`; unless 0,
    `rotary_embedding_dim` is how many elements of each head, from the first on, are rotated. Caches
    are [positions, pairs] with `position_ids`, else [batch, length, pairs]. A batch of 1 serves
    all of x's, as ONNX's formula broadcasts, and as PyTorch exports caches.
    """

    interleaved: int = 0
    num_heads: int | None = None
    rotary_embedding_dim: int = 0

    def infer(
        self,
        x: TensorType,
        cos_cache: TensorType,
        sin_cache: TensorType,
        position_ids: TensorType | None = None,
    ) -> TensorType:
        same_dtype(x, cos_cache, sin_cache)
        need_rank(position_ids, 2, "position_ids")
        b, _, length, size = _heads(x, self.num_heads, "x")
        rotated = self.rotary_embedding_dim or size
        if self.rotary_embedding_dim < 0 or (
            isinstance(size, int) and self.rotary_embedding_dim > size
        ):
            raise ShapeError(f"rotary_embedding_dim={rotated} for heads of size {size}")
        pairs = quotient(rotated, 2, "rotated part of a head")
        for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
            need_rank(cache, 3 if position_ids is None else 2, name)
            same_dim(dim(cache, -1), pairs, f"last axis of {name} {cache} and pairs of {x}")
            if position_ids is None:
                _need_batch(cache, b, name)
                same_dim(dim(cache, 1), length, f"lengths of {name} and x")
        if position_ids is None:
            same_dim(dim(cos_cache, 0), dim(sin_cache, 0), "batches of cos_cache and sin_cache")
        else:
            _need_batch(position_ids, b, "position_ids")
        same_dim(dim(position_ids, 1), length, "lengths of position_ids and x")
        return x.without_value()


def _need_batch(given: TensorType, batch: Dim, name: str) -> None:
    """Raise ShapeError unless the first axis has the batch's size, or 1."""
    if dim(given, 0) != 1:
        same_dim(dim(given, 0), batch, f"batches of {name} and x")


@op
class LinearAttention(Op):
    """Attention by a recurrent state s of [d_k, d_v] per head: o = scale * q.T @ s (ONNX 27).

    s' = exp(decay) * s, without decay for "linear" and "delta"; then s is s' + k v.T, or with
    "delta" in the name s' + beta * k (v - s'.T k).T. Inputs are [batch, length, heads * size],
    states [batch, heads, d_k, d_v]; `decay` has one element per key dimension or per head, `beta`
    one per head or one for all. `chunk_size` is a hint; `scale` 0 stands for 1 / sqrt(d_k).
    """

    outputs: ClassVar = (2, 2)
    chunk_size: int = 64
    kv_num_heads: int
    q_num_heads: int
    scale: float = 0.0
    update_rule: str = "gated_delta"

    def infer(
        self,
        query: TensorType,
        key: TensorType,
        value: TensorType,
        past_state: TensorType | None = None,
        decay: TensorType | None = None,
        beta: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        same_dtype(query, key, value, decay, beta)
        self._need_gates(decay, beta)
        need_rank(past_state, 4, "past_state")
        for name, type_ in (("query", query), ("key", key), ("value", value)):
            need_rank(type_, 3, name)
        heads = self.kv_num_heads
        _need_grouped(self.q_num_heads, heads)
        d_k = quotient(dim(query, 2), self.q_num_heads, "query by its heads")
        d_k = same_dim(d_k, quotient(dim(key, 2), heads, "key by its heads"), "head sizes of q, k")
        d_v = quotient(dim(value, 2), heads, "value by its heads")
        packed = [t for t in (key, value, decay, beta) if t is not None]
        b, length = dim(query, 0), dim(query, 1)
        for type_ in packed:
            b = same_dim(b, dim(type_, 0), "batches")
            length = same_dim(length, dim(type_, 1), "lengths")
        _need_last(decay, "decay", (heads, times(heads, d_k)))
        _need_last(beta, "beta", (heads, 1))
        state: Shape = (b, heads, d_k, d_v)
        if past_state is not None and past_state.shape is not None:
            pairs = zip(state, past_state.shape, strict=True)
            state = tuple(same_dim(p, q, f"past_state {past_state} and state") for p, q in pairs)
        kept = query if past_state is None else past_state
        result = query.with_shape(checked((b, length, times(self.q_num_heads, state[3]))))
        return result, kept.with_shape(state)

    def _need_gates(self, decay: TensorType | None, beta: TensorType | None) -> None:
        need_choice(self.update_rule, "update_rule", "linear", "gated", "delta", "gated_delta")
        if "gated" in self.update_rule and decay is None:
            raise ShapeError(f"update_rule='{self.update_rule}' needs decay")
        if "delta" in self.update_rule and beta is None:
            raise ShapeError(f"update_rule='{self.update_rule}' needs beta")
        need_rank(decay, 3, "decay")
        need_rank(beta, 3, "beta")


def _need_last(x: TensorType | None, name: str, sizes: tuple[Dim, Dim]) -> None:
    last = dim(x, 2)
    if isinstance(last, int) and None not in sizes and last not in sizes:
        raise ShapeError(f"{name} {x} must have a last axis of {sizes[0]} or {sizes[1]}")
