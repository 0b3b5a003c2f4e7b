"""Recurrent layers of packed requests: convolutions and gated delta networks that carry states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Int32, Kind, Results, T, contrib
from .requests import Requests, need_capacity

#: Gates, which may be of float32 although the data have fewer bits.
G = Annotated[str, Kind("G", dtypes.FLOATS)]
_SPECULATIVE = "export the model without speculative decoding"
#: Names of the gates of Kimi Delta Attention.
_KIMI = ("sigmoid", "kda")


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────


@contrib("VarlenCausalConvWithState", outputs=(2, 3))
def varlen_causal_conv_with_state(
    b: NodeBuilder,
    x: T,
    weight: T,
    cumulative_sequence_length: Int32,
    bias: T | None,
    initial_state: T,
    capture_count: Int32 | None = None,
    kernel_delta: T | None = None,
    previous_mask: T | None = None,
    *,
    activation: str = "none",
    delta_offset: int = 0,
    dilation: int = 1,
    group_size: int = 1,
    state_update_capacity: int = 0,
) -> Results:
    """Depthwise convolution of tokens [tokens, channels] with their predecessors in a request."""
    if kernel_delta is not None or previous_mask is not None:
        raise b.unsupported("kernel_delta: weights that depend on the token", _SPECULATIVE)
    if activation not in ("none", "silu", "swish"):
        raise b.error(f"activation='{activation}'; expected silu, swish or none")
    if dilation < 1:
        raise b.error(f"dilation={dilation}; expected 1 or more")
    need_capacity(b, capture_count, state_update_capacity)
    b.rank(x, 2)
    channels, taps = b.need_extent(weight, 0), b.need_extent(weight, 2)
    carried = (taps - 1) * dilation
    b.need_shape(initial_state, "initial_state", None, channels, carried)
    requests = Requests(b, x, cumulative_sequence_length, carried)
    past = b.transpose(initial_state, 0, 2, 1)
    table = requests.with_past(x, past) if carried else x
    factors = b.transpose(b.cast(weight, dtypes.float32), 2, 1, 0)
    total = ""
    for tap in range(taps):
        offset = b.Sub(requests.offsets, b.ints((taps - 1 - tap) * dilation))
        rows = b.cast(requests.at(table, requests.owner, offset), dtypes.float32)
        term = b.Mul(rows, b.Gather(factors, b.constant(np.array(tap, np.int64)), axis=0))
        total = b.Add(total, term) if total else term
    if bias is not None:
        total = b.Add(total, b.cast(bias, dtypes.float32))
    y = b.cast(total if activation == "none" else b.Swish(total), b.dtype(x))
    last = requests.ends_at(table, requests.lengths) if carried else past
    captured = None
    if capture_count is not None and b.wants(2):
        captured = _captured(b, requests, x, capture_count, state_update_capacity)
    return y, b.transpose(last, 0, 2, 1), captured


def _captured(b: NodeBuilder, requests: Requests, x: str, wanted: str, capacity: int) -> str:
    """Return the first tokens of each request, as many as are wanted: [requests, capacity, …]."""
    slots = b.arange(capacity)
    lengths = b.Unsqueeze(requests.lengths, b.ints(1))
    rows = requests.of_each(x, b.Min(slots, b.Sub(lengths, b.ints(1))))
    is_wanted = b.Less(slots, b.Min(b.Unsqueeze(b.cast(wanted, dtypes.int64), b.ints(1)), lengths))
    return b.Where(b.Unsqueeze(is_wanted, b.ints(2)), rows, b.number(0.0, x))


# ── gated delta networks ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Heads:
    """Numbers of heads and their sizes, of queries and keys, and of values.

    `axes` is the number of axes that tokens have: one, or requests and lengths.
    """

    keys: int
    values: int
    key_size: int
    value_size: int
    axes: int


@contrib("GatedDeltaNet", outputs=(1, 3))
def gated_delta_net(
    b: NodeBuilder,
    query: T,
    key: T | None = None,
    value: T | None = None,
    cu_seqlens: Int32 | None = None,
    decay: G | None = None,
    beta: G | None = None,
    initial_state: Float32 | None = None,
    a_log: Float32 | None = None,
    dt_bias: Float32 | None = None,
    capture_count: Int32 | None = None,
    state_update_active: Int32 | None = None,
    *,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    state_update_capacity: int = 0,
    update_rule: str = "gated_delta",
) -> Results:
    """ONNX's LinearAttention of packed requests, with its gates; states are [.., d_v, d_k].

    Requests are padded with tokens that leave the state as it is.
    """
    if state_update_capacity:
        raise b.unsupported(f"state_update_capacity={state_update_capacity}", _SPECULATIVE)
    q, k, v, heads = _split(b, query, key, value, initial_state)
    if qk_l2_norm:
        tiny = 1e-6 if gate_activation in _KIMI else 1e-12
        q, k = (_unit(b, each, tiny) for each in (q, k))
    q, k = (_repeated(b, each, heads) for each in (q, k))
    gates = [
        _decay(b, decay, a_log, dt_bias, gate_activation, gate_lower_bound, heads)
        if "gated" in update_rule
        else None,
        _rate(b, beta, beta_activation, heads) if "delta" in update_rule else None,
    ]
    rows = [*(b.reshape(each, -1, heads.values * _last(b, each)) for each in (q, k, v)), *gates]
    batches, requests = _in_batches(b, rows, query, cu_seqlens, initial_state, heads)
    past = None if initial_state is None else b.transpose(initial_state, 0, 1, 3, 2)
    y, state = b.several(
        "LinearAttention",
        2,
        *batches[:3],
        past,
        *batches[3:],
        chunk_size=chunk_size,
        kv_num_heads=heads.values,
        q_num_heads=heads.values,
        scale=scale,
        update_rule=update_rule,
    )
    if requests is not None:
        y = b.GatherND(y, b.Concat(*_places(b, requests), axis=1))
    y = b.cast(y, b.dtype(query))
    lead = b.Shape(query, start=0, end=heads.axes)
    whole = b.Concat(lead, b.ints(heads.values, heads.value_size), axis=0)
    y = b.Reshape(y, whole, allowzero=1)
    return y, b.transpose(state, 0, 1, 3, 2), None


def _last(b: NodeBuilder, x: str) -> int:
    return b.need_extent(x, -1)


def _split(
    b: NodeBuilder, query: str, key: str | None, value: str | None, state: str | None
) -> tuple[str, str, str, _Heads]:
    """Return queries, keys and values [tokens, heads, size] in float32, and their sizes."""
    if (key is None) != (value is None):
        raise b.error("key and value come together, or not at all in a packed query")
    if key is not None and value is not None:
        b.rank(query, 3, 4)
        keys, inner = b.need_extent(query, -2), b.need_extent(value, -2)
        heads = _Heads(keys, inner, _last(b, query), _last(b, value), b.rank(query) - 2)
        parts = (query, key, value)
    else:
        if state is None:
            raise b.error("a packed query needs initial_state, which has the sizes of its heads")
        inner, width, size = (b.need_extent(state, axis) for axis in (1, 2, 3))
        keys = (_last(b, query) - inner * width) // (2 * size)
        heads = _Heads(keys, inner, size, width, b.rank(query) - 1)
        sizes = b.ints(keys * size, keys * size, inner * width)
        parts = b.several("Split", 3, query, sizes, axis=-1, num_outputs=3)
    if heads.keys < 1 or heads.values % heads.keys:
        raise b.error(
            f"{heads.values} heads of values are not a multiple of {heads.keys} of queries"
        )
    wanted = ((heads.keys, heads.key_size),) * 2 + ((heads.values, heads.value_size),)
    q, k, v = (
        b.reshape(b.cast(part, dtypes.float32), -1, *form)
        for part, form in zip(parts, wanted, strict=True)
    )
    return q, k, v, heads


def _unit(b: NodeBuilder, x: str, tiny: float) -> str:
    """Return rows of length one; `tiny` is added to their squares."""
    squares = b.ReduceSum(b.Mul(x, x), b.ints(-1), keepdims=1)
    return b.Div(x, b.Sqrt(b.Add(squares, b.number(tiny, squares))))


def _repeated(b: NodeBuilder, x: str, heads: _Heads) -> str:
    """Return queries or keys for every head of the values."""
    times = heads.values // heads.keys
    if times == 1:
        return x
    wide = b.Expand(b.Unsqueeze(x, b.ints(2)), b.ints(1, 1, times, 1))
    return b.reshape(wide, -1, heads.values, heads.key_size)


def _decay(
    b: NodeBuilder,
    decay: str | None,
    a_log: str | None,
    dt_bias: str | None,
    activation: str,
    bound: float,
    heads: _Heads,
) -> str:
    """Return logarithms of what remains of the state: [tokens, heads], or per element of keys."""
    if decay is None:
        raise b.error("leaves out decay, which update_rule needs")
    width = heads.key_size if b.rank(decay) == heads.axes + 2 else 1
    x = b.reshape(b.cast(decay, dtypes.float32), -1, heads.values, width)
    if activation != "none":
        if a_log is None:
            raise b.error(f"gate_activation='{activation}' needs a_log")
        rate = b.reshape(b.Exp(a_log), heads.values, 1)
        if dt_bias is not None:
            x = b.Add(x, b.reshape(dt_bias, heads.values, -1))
        if activation in ("softplus", "qwen"):
            x = b.Neg(b.Mul(rate, b.Softplus(x)))
        elif activation in _KIMI:
            x = b.scaled(b.Sigmoid(b.Mul(rate, x)), bound)
        else:
            raise b.error(f"gate_activation='{activation}'; expected none, softplus or sigmoid")
    return b.reshape(x, -1, heads.values * width)


def _rate(b: NodeBuilder, beta: str | None, activation: str, heads: _Heads) -> str:
    """Return the update rates [tokens, heads]."""
    if beta is None:
        raise b.error("leaves out beta, which update_rule needs")
    x = b.cast(beta, dtypes.float32)
    if activation == "sigmoid":
        x = b.Sigmoid(x)
    elif activation != "none":
        raise b.error(f"beta_activation='{activation}'; expected none or sigmoid")
    return b.reshape(x, -1, heads.values)


def _in_batches(
    b: NodeBuilder,
    rows: list[str | None],
    query: str,
    bounds: str | None,
    state: str | None,
    heads: _Heads,
) -> tuple[list[str | None], Requests | None]:
    """Return rows [tokens, n] as [requests, length, n]; the requests, if lengths differ."""
    if bounds is not None:
        requests = Requests(b, query, bounds, 0)
        slots = requests.places
        is_token = b.Less(slots, b.Unsqueeze(requests.lengths, b.ints(1)))
        inside = b.Where(is_token, slots, b.ints(0))
        mask = b.Unsqueeze(b.cast(is_token, dtypes.float32), b.ints(2))
        return [
            None if each is None else b.Mul(requests.of_each(each, inside), mask) for each in rows
        ], requests
    if state is not None:
        batch = b.size(state, 0)
    elif heads.axes == 2:
        batch = b.size(query, 0)
    else:
        raise b.error("needs cu_seqlens or initial_state, which tell the number of requests")
    return [None if x is None else b.reshape(x, batch, -1, _last(b, x)) for x in rows], None


def _places(b: NodeBuilder, requests: Requests) -> tuple[str, str]:
    """Return request and position of every token, [tokens, 1] each."""
    one = b.ints(1)
    return b.Unsqueeze(requests.owner, one), b.Unsqueeze(requests.offsets, one)
