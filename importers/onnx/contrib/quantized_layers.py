"""Layers with quantized weights: attention, embeddings, LSTM; transposed convolutions."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Int32, Int64, Kind, Results, T, contrib
from .embedding import words_seen
from .heads import FILTER, head_size, need_heads, positions
from .quantized import Q, W
from .self_attention import joint_attention

Half = Annotated[str, Kind("S", frozenset({dtypes.float32, dtypes.float16}))]


@contrib("QAttention", outputs=(1, 2))
def q_attention(
    b: NodeBuilder,
    x: Q,
    weight: W,
    bias: Half,
    input_scale: Half,
    weight_scale: Half,
    mask_index: Int32 | None = None,
    input_zero_point: Q | None = None,
    weight_zero_point: W | None = None,
    past: Half | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Results:
    """Attention with a quantized input projection."""
    if past_present_share_buffer or do_rotary:
        raise b.unsupported(
            "asks for do_rotary or past_present_share_buffer",
            "which onnxruntime's CPU does not run either: quantize the model with them left out",
        )
    heads = need_heads(b, num_heads)
    b.rank(x, 3)
    b.rank(weight, 2)
    hidden = b.need_extent(weight, 1) // 3
    head_size(b, hidden, heads, "the weights")
    b.need_shape(bias, "bias", 3 * hidden)
    sums = b.MatMulInteger(x, weight, _scalar(b, input_zero_point), weight_zero_point)
    factor = b.Mul(input_scale, weight_scale)
    product = b.Add(b.Mul(b.cast(sums, b.dtype(factor)), factor), bias)
    given = (mask_index, None, mask_filter_value, scale, bool(unidirectional))
    return joint_attention(b, product, (hidden, hidden, hidden), heads, past, given)


def _scalar(b: NodeBuilder, x: str | None) -> str | None:
    """Return a one-element vector as a scalar."""
    return x if x is None or not b.dims(x) else b.Reshape(x, b.constant(np.array([], np.int64)))


@contrib("QEmbedLayerNormalization", outputs=(2, 2))
def q_embed_layer_normalization(
    b: NodeBuilder,
    input_ids: Int32,
    segment_ids: Int32 | None,
    word_embedding: Q,
    position_embedding: Q,
    segment_embedding: Q | None,
    gamma: Q,
    beta: Q,
    mask: Int32 | None,
    word_embedding_scale: Float32,
    position_embedding_scale: Float32,
    segment_embedding_scale: Float32 | None,
    gamma_scale: Float32,
    beta_scale: Float32,
    word_embedding_zero_point: Q,
    position_embedding_zero_point: Q,
    segment_embedding_zero_point: Q | None,
    gamma_zero_point: Q,
    beta_zero_point: Q,
    *,
    epsilon: float = 1e-12,
) -> Results:
    """EmbedLayerNormalization of quantized tables, dequantized after the lookup."""

    def looked_up(table: str, scale: str, zero_point: str, ids: str) -> str:
        return b.DequantizeLinear(b.Gather(table, ids, axis=0), scale, zero_point)

    b.rank(input_ids, 2)
    total = looked_up(word_embedding, word_embedding_scale, word_embedding_zero_point, input_ids)
    places = positions(b, b.size(input_ids, 1))
    position = position_embedding_scale, position_embedding_zero_point
    total = b.Add(total, looked_up(position_embedding, *position, places))
    segment = segment_embedding, segment_embedding_scale, segment_embedding_zero_point, segment_ids
    table, scale, zero_point, ids = segment
    if table is not None and scale is not None and zero_point is not None and ids is not None:
        total = b.Add(total, looked_up(table, scale, zero_point, ids))
    elif any(segment):
        raise b.error("has some of the four inputs of segments; expected all of them, or none")
    y = b.LayerNormalization(
        total,
        b.DequantizeLinear(gamma, gamma_scale, gamma_zero_point),
        b.DequantizeLinear(beta, beta_scale, beta_zero_point),
        epsilon=epsilon,
    )
    return y, words_seen(b, input_ids, mask)


@contrib("DynamicQuantizeLSTM", outputs=(0, 3))
def dynamic_quantize_lstm(
    b: NodeBuilder,
    x: Float32,
    w: W,
    r: W,
    bias: Float32 | None,
    sequence_lens: Int32 | None,
    initial_h: Float32 | None,
    initial_c: Float32 | None,
    p: Float32 | None,
    w_scale: Float32,
    w_zero_point: W,
    r_scale: Float32,
    r_zero_point: W,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> Results:
    """LSTM with quantized weights [directions, inputs, 4 * hidden]."""
    given = {"activation_alpha": activation_alpha, "activation_beta": activation_beta}
    weights, recurrence = (
        b.transpose(_by_gate(b, *each), 0, 2, 1)
        for each in ((w, w_scale, w_zero_point), (r, r_scale, r_zero_point))
    )
    return b.chosen(
        "LSTM",
        (b.wants(0), b.wants(1), b.wants(2)),
        *(x, weights, recurrence, bias, sequence_lens, initial_h, initial_c, p),
        **given,
        activations=activations,
        clip=clip,
        direction=direction,
        hidden_size=hidden_size or b.need_extent(r, 1),
        input_forget=input_forget,
    )


def _by_gate(b: NodeBuilder, x: str, scale: str, zero_point: str) -> str:
    """Return (x - zero_point) * scale, with one scale per direction or per column."""
    b.rank(x, 3)
    columns = b.cast(zero_point, dtypes.int32), scale
    point, factor = (b.reshape(each, b.need_extent(x, 0), 1, -1) for each in columns)
    return b.Mul(b.cast(b.Sub(b.cast(x, dtypes.int32), point), dtypes.float32), factor)


@contrib("ConvTransposeWithDynamicPads")
def conv_transpose_with_dynamic_pads(
    b: NodeBuilder,
    x: T,
    w: T,
    pads: Int64 | None = None,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """ConvTranspose without pads, cropped by `pads` at each end of each axis."""
    if auto_pad != "NOTSET":
        raise b.unsupported(f"auto_pad={auto_pad!r} together with pads", "remove auto_pad")
    y = b.ConvTranspose(
        x,
        w,
        bias,
        dilations=dilations or None,
        group=group,
        kernel_shape=kernel_shape or None,
        output_padding=output_padding or None,
        strides=strides or None,
    )
    if pads is None:
        return y
    count = b.rank(x) - 2
    first, last = b.several("Split", 2, pads, b.ints(count, count), axis=0, num_outputs=2)
    ends = b.Sub(b.Shape(y, start=2), last)
    return b.Slice(y, first, ends, b.ints(*range(2, count + 2)))
