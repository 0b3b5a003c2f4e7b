"""Attention, rotary embeddings and linear attention."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

import numpy as np

from ....runtime.ir.dtypes import FLOATS, DType, bool_, float32, float64
from ....runtime.ops.attention import Attention, FlexAttention, LinearAttention, RotaryEmbedding
from ....runtime.plan.format import Format
from ..algorithms.registry import PLAIN, Answer, Setting, Stored, kernel, need_dtypes
from ..attention.flash import flash
from ..attention.heads import AttentionTask, Heads, by_head
from ..recipe.launch import Launch, each, launches_of
from ..recipe.operands import Scratch, Tensor, ceil_div, index_type
from ..recipe.source import arithmetic

WARPS = 4
#: Terms of a score that take as long as to add up those of the threads of a warp.
REDUCTION = 10
NO_SCORES = 4


@kernel(Attention, outputs=4)
def attention(
    op: Attention,
    y: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
    setting: Setting,
    stored: Stored = PLAIN,
) -> Answer:
    """Flash attention if only the result is needed; else compute row by row."""
    refused = need_dtypes(FLOATS, q, k, v) or need_dtypes(FLOATS | {bool_}, mask)
    if refused:
        return refused
    present_key, present_value, scores = (*more, None, None, None)[:3]
    keys, values = by_head(k, op.kv_num_heads), by_head(v, op.kv_num_heads)
    caches = ((present_key, past_key, keys), (present_value, past_value, values))
    launches = [_append(y, past, now) for y, past, now in caches if y is not None]
    if y is None and scores is None:
        return tuple(launches)
    queries = by_head(q, op.q_num_heads)
    result = queries if y is None else by_head(y, queries.dims[1])
    pasts = (past_key, past_value)
    halves = None if y is None or not stored.halves else Tensor(y.value, Format.HALVES)
    task = AttentionTask(
        op, queries, keys, values, result, mask, pasts, lengths, halves, stored.plain
    )
    quick = flash(task, setting.target) if scores is None else "scores are requested"
    if isinstance(quick, str):
        return (*launches, _rows(task, y, scores))
    return (*launches, *launches_of(quick))


@kernel(FlexAttention)
def flex_attention(
    op: FlexAttention, y: Tensor, q: Tensor, k: Tensor, v: Tensor, *, setting: Setting
) -> Answer:
    """Attention without bodies; a pass inlines those with bodies."""
    refused = need_dtypes(FLOATS, q, k, v)
    if refused or op.graphs():
        return refused or "bodies that modify scores"
    plain = Attention(scale=op.scale, softmax_precision=op.softmax_precision)
    return attention(plain, y, q, k, v, setting=setting)


#: Maximum word size for keys and values in bytes.
WORD = 8


def _append(y: Tensor, past: Tensor | None, now: Heads) -> Launch:
    _, count, _, size = now.dims
    length = 0 if past is None else past.dims[2]
    per = now.vector(WORD // y.dtype.itemsize)
    word = np.dtype(f"u{per * y.dtype.itemsize}")
    launch = each(
        "attention/sequence.cu",
        "append",
        y.size // per,
        {
            **{"past": past, "now": now.tensor, "y": y, "count": y.size // per},
            **{"heads": count, "total": y.dims[2], "length": length, "size": size // per},
            "by": {name: step // per for name, step in now.struct.items()},
        },
        types=(("T", word), ("S", word), ("A", float32)),
        constants=_NOTHING,
    )
    return replace(launch, pitched=(now.tensor,))


def _types(dtype: DType, state: DType) -> tuple[tuple[str, DType], ...]:
    return (("T", dtype), ("S", state), ("A", arithmetic(dtype)))


_NOTHING = (("DELTA", False), ("DECAYS", 0), ("RATES", 0))


def _lanes(keys: int, size: int) -> int:
    """Return how many threads share a score: 32 if that makes the longest thread's work shorter."""
    alone = ceil_div(keys, 32 * WARPS) * size
    shared = ceil_div(keys, WARPS) * (ceil_div(size, 32) + REDUCTION)
    return 32 if shared < alone else 1


def _rows(task: AttentionTask, y: Tensor | None, scores: Tensor | None) -> Launch:
    """Return the launch of `attention.cu`, one block per query row."""
    op, dtype = task.op, task.q.tensor.dtype
    compute = float64 if op.is_wide else arithmetic(dtype)
    stage = NO_SCORES if scores is None else op.qk_matmul_output_mode
    batch, heads, rows, size = task.q.dims
    return Launch(
        "attention/attention.cu",
        "attention",
        grid=(batch * heads * rows, 1, 1),
        block=32 * WARPS,
        args={
            **{**task.operands, **task.strides, **task.numbers},
            **{"y": y, "scores": scores, "work": Scratch(0)},
        },
        types=(
            *(("T", dtype), ("V", task.v.tensor.dtype), ("A", compute)),
            ("M", dtype if task.mask is None else task.mask.dtype),
        ),
        constants=(
            *task.constants,
            *(("WARPS", WARPS), ("STAGE", stage), ("LANES", _lanes(task.total, size))),
        ),
        scratch=batch * heads * rows * max(task.total, 1) * compute.itemsize,
        note=f"{batch * heads} x {rows} x {task.total}",
        pitched=task.pitched,
    )


@kernel(RotaryEmbedding)
def rotary_embedding(
    op: RotaryEmbedding,
    y: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
) -> Answer:
    """Rotate the pairs of every head."""
    refused = need_dtypes(FLOATS, x) or need_dtypes((x.dtype,), cos, sin)
    if refused:
        return refused
    heads, result = by_head(x, op.num_heads), by_head(y, op.num_heads)
    images, count, rows, size = heads.dims
    half = (op.rotary_embedding_dim or size) // 2
    widest = min(WORD // x.dtype.itemsize, heads.vector(WORD), result.vector(WORD))
    vector = gcd(widest, half, size - 2 * half)
    chunks = (size - half) // vector
    batches = cos.dims[0] if positions is None else positions.dims[0]
    threads = images * count * rows * chunks
    launch = each(
        "attention/rotate.cu",
        "rotate",
        threads,
        {
            **{"x": x, "cosine": cos, "sine": sin, "positions": positions, "y": y},
            **{"count": threads, "heads": count, "rows": rows, "half": half, "chunks": chunks},
            **{"batches": max(1, batches), "places": cos.size // half},
            **{"by": heads.struct, "to": result.struct},
        },
        types=(
            *(("T", x.dtype), ("A", arithmetic(x.dtype))),
            ("Index", index_type(x.size, y.size)),
        ),
        constants=(("INTERLEAVED", bool(op.interleaved)), ("VECTOR", vector)),
    )
    return replace(launch, pitched=(x,))


@kernel(LinearAttention, outputs=2)
def linear_attention(
    op: LinearAttention,
    y: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Update a state per head at every position, one thread per column."""
    state = more[0] if more else None
    refused = need_dtypes(FLOATS, q, past, state) or need_dtypes((q.dtype,), k, v, decay, beta)
    if refused:
        return refused
    heads = op.kv_num_heads
    batch, length, hidden = k.dims
    size_k, size_v = hidden // heads, v.dims[2] // heads
    decays = 0 if decay is None else 1 if decay.dims[2] == heads else 2
    if decays == 2 and size_k == 1:
        decays = 1
    compute = arithmetic(q.dtype)
    states = past or state
    launch = each(
        "attention/sequence.cu",
        "recur",
        batch * heads * size_v,
        {
            **{"q": q, "k": k, "v": v, "past": past, "decay": decay, "beta": beta},
            **{"y": y, "state_out": state, "state": Scratch(0), "count": batch * heads * size_v},
            "g": {
                **{"heads": heads, "query_heads": op.q_num_heads, "length": length},
                **{"size_k": size_k, "size_v": size_v},
            },
            "scale": op.scale or size_k**-0.5,
        },
        types=_types(q.dtype, q.dtype if states is None else states.dtype),
        constants=(
            *(("DELTA", beta is not None), ("DECAYS", decays)),
            ("RATES", 0 if beta is None else beta.dims[2]),
        ),
        note=op.update_rule,
    )
    return replace(launch, scratch=prod((batch, heads, size_k, size_v)) * compute.itemsize)
