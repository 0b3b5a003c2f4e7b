"""Attention of com.microsoft, which includes the input projection."""

from __future__ import annotations

import numpy as np

from .builder import NodeBuilder
from .declaration import Int32, Results, T, contrib
from .heads import FILTER, head_size, need_heads
from .multi_head import scored


@contrib("Attention", outputs=(1, 2))
def attention(
    b: NodeBuilder,
    x: T,
    weights: T,
    bias: T | None = None,
    mask_index: Int32 | None = None,
    past: T | None = None,
    attention_bias: T | None = None,
    past_sequence_length: Int32 | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: tuple[int, ...] = (),
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Results:
    """Attention of x @ weights + bias, whose columns are queries, keys and values."""
    if past_present_share_buffer or past_sequence_length is not None:
        raise b.unsupported(
            "keeps past and present in one buffer (past_present_share_buffer)",
            "export the decoder with past and present apart",
        )
    if do_rotary:
        raise b.unsupported(
            "do_rotary=1, which onnxruntime's CPU does not run either",
            "fuse the model with MultiHeadAttention and RotaryEmbedding",
        )
    heads = need_heads(b, num_heads)
    b.rank(x, 3)
    sizes = hidden_sizes(b, weights, qkv_hidden_sizes, heads)
    product = b.MatMul(x, weights)
    if bias is not None:
        b.need_shape(bias, "bias", sum(sizes))
        product = b.Add(product, bias)
    causal = bool(unidirectional)
    given = (mask_index, attention_bias, mask_filter_value, scale, causal)
    return joint_attention(b, product, sizes, heads, past, given)


def joint_attention(
    b: NodeBuilder,
    product: str,
    sizes: tuple[int, int, int],
    heads: int,
    past: str | None,
    given: tuple[str | None, str | None, float, float, bool],
) -> Results:
    """Return the attention of queries, keys and values in one tensor, and keys and values.

    Args:
        b: adds the nodes.
        product: [batch, length, sum of sizes].
        sizes: hidden sizes of queries, keys and values.
        heads: number of heads.
        past: keys and values [2, batch, heads, length, size], or None.
        given: mask, bias, bias of masked scores, scale and whether causal, as `scored` takes them.
    """
    q, k, v = b.several("Split", 3, product, b.ints(*sizes), axis=2, num_outputs=3)
    y, key, value, _ = scored(b, (q, k, v), heads, _past(b, past), *given, states=b.wants(1))
    if not key:
        return y, None
    first = b.ints(0)
    return y, b.Concat(b.Unsqueeze(key, first), b.Unsqueeze(value, first), axis=0)


def hidden_sizes(
    b: NodeBuilder, weights: str, given: tuple[int, ...], heads: int
) -> tuple[int, int, int]:
    """Return the hidden sizes of queries, keys and values."""
    b.rank(weights, 2)
    columns = b.need_extent(weights, 1)
    if not given:
        given = (columns // 3,) * 3
    if len(given) != 3 or given[0] != given[1] or sum(given) != columns:
        raise b.error(
            f"qkv_hidden_sizes={list(given)}; expected three, the first two equal, of the sum "
            f"{columns}, which the weights {b.type(weights)} have"
        )
    for size in given:
        head_size(b, size, heads, "the weights")
    return given[0], given[1], given[2]


def _past(b: NodeBuilder, past: str | None) -> tuple[str | None, str | None]:
    """Return keys and values from [2, batch, heads, length, size]."""
    if past is None:
        return None, None
    b.rank(past, 5)
    b.need_shape(past, "past", 2, *(b.dim(past, axis) for axis in range(1, 5)))
    key, value = (b.Gather(past, b.constant(np.array(i, np.int64)), axis=0) for i in (0, 1))
    return key, value
