"""Attention and what transformers put around it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ...runtime.dtypes import FLOATS, DType, bool_, float32, float64
from ...runtime.ops.attention import Attention, FlexAttention, LinearAttention, RotaryEmbedding
from .compile import arithmetic
from .launch import Ints32, Ints64, Launch, Scratch, Tensor, each, scalar
from .layout import Ints, broadcast_strides
from .registry import Answer, kernel, need_dtypes
from .shape import words_of

WARPS = 4
NO_SCORES = 4


def _by_head(x: Tensor, heads: int | None) -> tuple[Ints, Ints64]:
    """Return [batch, heads, length, size], and the distances along the first three."""
    if x.rank == 4:
        return x.dims, Ints64(x.strides[:3])
    batch, length, hidden = x.dims
    count = heads or 1
    size = hidden // count
    return (batch, count, length, size), Ints64((length * hidden, size, hidden))


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
) -> Answer:
    """Compute row by row; a block a row."""
    refused = need_dtypes(FLOATS, q, k, v) or need_dtypes(FLOATS | {bool_}, mask)
    if refused:
        return refused
    present_key, present_value, scores = (*more, None, None, None)[:3]
    launches: list[Launch] = []
    for result, past, now in (
        (present_key, past_key, k),
        (present_value, past_value, v),
    ):
        if result is not None:
            launches.append(_append(result, past, now, op.kv_num_heads))
    if y is not None or scores is not None:
        wide = op.softmax_precision == float64
        launches.append(
            _rows(
                op,
                (y, scores),
                (q, k, v),
                mask=mask,
                past=(past_key, past_value),
                lengths=lengths,
                compute=float64 if wide else arithmetic(q.dtype),
            )
        )
    return tuple(launches)


@kernel(FlexAttention)
def flex_attention(op: FlexAttention, y: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Answer:
    """Compute it where no body modifies scores; a pass writes out those with one."""
    refused = need_dtypes(FLOATS, q, k, v)
    if refused or op.graphs():
        return refused or "bodies that modify scores"
    plain = Attention(scale=op.scale, softmax_precision=op.softmax_precision)
    wide = op.softmax_precision == float64
    compute = float64 if wide else arithmetic(q.dtype)
    return _rows(plain, (y, None), (q, k, v), compute=compute)


def _append(y: Tensor, past: Tensor | None, now: Tensor, heads: int | None) -> Launch:
    (_, count, _, size), steps = _by_head(now, heads)
    length = 0 if past is None else past.dims[2]
    return each(
        "sequence.cu",
        "append",
        y.size,
        *(past, now, y, np.int64(y.size)),
        *map(np.int32, (count, y.dims[2], length, size)),
        steps,
        types=(("T", words_of(y.dtype)), ("S", words_of(y.dtype)), ("A", float32)),
        constants=_NOTHING,
    )


def _types(dtype: DType, state: DType) -> tuple[tuple[str, DType], ...]:
    return (("T", dtype), ("S", state), ("A", arithmetic(dtype)))


_NOTHING = (("INTERLEAVED", False), ("DELTA", False), ("DECAYS", 0), ("RATES", 0))


def _rows(
    op: Attention,
    results: tuple[Tensor | None, Tensor | None],
    operands: tuple[Tensor, Tensor, Tensor],
    *,
    mask: Tensor | None = None,
    past: tuple[Tensor | None, Tensor | None] = (None, None),
    lengths: Tensor | None = None,
    compute: DType,
) -> Launch:
    """Return the launch of `attention.cu`; `results` are y and the scores."""
    (y, scores), (q, k, v) = results, operands
    (batch, heads, rows, size), of_q = _by_head(q, op.q_num_heads)
    (_, kv_heads, new, _), of_k = _by_head(k, op.kv_num_heads)
    (_, _, _, size_v), of_v = _by_head(v, op.kv_num_heads)
    before = 0 if past[0] is None else past[0].dims[2]
    total = before + new
    of_y = Ints64((heads * rows * size_v, rows * size_v, size_v))
    if q.rank == 3:
        of_y = Ints64((heads * rows * size_v, size_v, heads * size_v))
    mask_length, of_mask = 0, (0, 0, 0, 0)
    if mask is not None:
        mask_length = mask.dims[-1]
        of_mask = broadcast_strides(mask.dims, mask.format, (batch, heads, rows, mask_length))
    bounds = (op.left_window_size, op.right_window_size)
    sizes = (heads, kv_heads, rows, total, before, size, size_v, mask_length, *bounds)
    scale = size**-0.5 if op.scale is None else op.scale
    kind = 0 if mask is None else 1 if mask.dtype == bool_ else 2
    return Launch(
        "attention.cu",
        "attention",
        grid=(batch * heads * rows, 1, 1),
        block=32 * WARPS,
        args=(
            *(q, k, v, mask, *past, lengths, y, scores, Scratch(0), Ints32(sizes)),
            *(of_q, of_k, of_v, of_y, Ints64(of_mask[:3]), np.int64(of_mask[3])),
            *(scalar(scale, compute), scalar(op.softcap, compute)),
        ),
        types=(
            *(("T", q.dtype), ("V", v.dtype), ("M", q.dtype if mask is None else mask.dtype)),
            ("A", compute),
        ),
        constants=(
            *(("WARPS", WARPS), ("MASK", kind), ("CAUSAL", bool(op.is_causal))),
            ("LENGTHS", lengths is not None),
            ("STAGE", NO_SCORES if scores is None else op.qk_matmul_output_mode),
        ),
        scratch=batch * heads * rows * total * compute.itemsize,
        note=f"{batch * heads} x {rows} x {total}",
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
    (_, heads, rows, size), steps = _by_head(x, op.num_heads)
    rotated = op.rotary_embedding_dim or size
    batches = cos.dims[0] if positions is None else positions.dims[0]
    return each(
        "sequence.cu",
        "rotate",
        y.size,
        *(x, cos, sin, positions, y, np.int64(y.size)),
        *map(np.int32, (heads, rows, size, rotated, max(1, batches))),
        steps,
        types=_types(x.dtype, x.dtype),
        constants=(("INTERLEAVED", bool(op.interleaved)), *_NOTHING[1:]),
    )


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
    """Update a state per head with every position; a thread a column of it."""
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
        "sequence.cu",
        "recur",
        batch * heads * size_v,
        *(q, k, v, past, decay, beta, y, state, Scratch(0), np.int64(batch * heads * size_v)),
        Ints32((heads, op.q_num_heads, length, size_k, size_v)),
        scalar(op.scale or size_k**-0.5, compute),
        types=_types(q.dtype, q.dtype if states is None else states.dtype),
        constants=(
            *(("INTERLEAVED", False), ("DELTA", beta is not None), ("DECAYS", decays)),
            ("RATES", 0 if beta is None else beta.dims[2]),
        ),
        note=op.update_rule,
    )
    return replace(launch, scratch=prod((batch, heads, size_k, size_v)) * compute.itemsize)
