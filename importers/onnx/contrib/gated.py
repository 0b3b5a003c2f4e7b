"""Gates and gated normalizations of models with linear attention."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Kind, Results, T, contrib

#: The dtype of a state or scale, which may differ from the data's.
S = Annotated[str, Kind("S", dtypes.FLOATS)]

Half = Annotated[str, Kind("T", frozenset({dtypes.float16, dtypes.bfloat16}))]


@contrib("LinearAttention", outputs=(2, 2))
def linear_attention(
    b: NodeBuilder,
    query: T,
    key: T,
    value: T,
    past_state: S | None = None,
    decay: T | None = None,
    beta: T | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> Results:
    """ONNX's LinearAttention, where each head of queries or keys may serve several of values."""
    if state_window:
        raise b.unsupported(
            f"state_window={state_window}: states of several positions",
            "export the model without speculative decoding",
        )
    width = b.need_extent(query, 2) if q_num_heads < kv_num_heads else b.extent(query, 2)
    size = width // q_num_heads if width else None
    key = _repeat_heads(b, key, "key", size, kv_num_heads)
    if q_num_heads < kv_num_heads:
        query = _repeat_heads(b, query, "query", size, kv_num_heads)
    return b.several(
        "LinearAttention",
        2,
        query,
        key,
        value,
        past_state,
        decay,
        beta,
        chunk_size=chunk_size,
        kv_num_heads=kv_num_heads,
        q_num_heads=max(q_num_heads, kv_num_heads),
        scale=scale,
        update_rule=update_rule,
    )


def _repeat_heads(b: NodeBuilder, x: str, name: str, size: int | None, count: int) -> str:
    """Return [batch, length, count * size]: every head of x as often as it takes, in a row."""
    width = b.extent(x, 2)
    if not size or width is None or width == count * size:
        return x
    heads = width // size
    if width % size or not heads or count % heads:
        raise b.error(
            f"{name} is {b.type(x)}; with heads of {size} elements, their number must divide "
            f"kv_num_heads={count}"
        )
    apart = b.reshape(x, 0, 0, heads, 1, size)
    repeated = b.Expand(apart, b.ints(1, 1, 1, count // heads, 1))
    return b.reshape(repeated, 0, 0, count * size)


@contrib("LinearAttentionGate", outputs=(1, 2))
def linear_attention_gate(
    b: NodeBuilder, a: T, dt_bias: Float32, decay_scale: Float32, rate: T | None = None
) -> Results:
    """decay_scale * Softplus(a + dt_bias), in float32, and Sigmoid(rate)."""
    wide = b.Softplus(b.Add(b.cast(a, dtypes.float32), dt_bias))
    decay = b.cast(b.Mul(decay_scale, wide), b.dtype(a))
    if b.wants(1) and rate is None:
        raise b.error("leaves out b, of which output 1 (beta) is made")
    return decay, b.Sigmoid(rate) if b.wants(1) else None


@contrib("GatedRMSNorm")
def gated_rms_norm(
    b: NodeBuilder,
    x: T,
    scale: T,
    gate: T,
    *,
    activation: str = "silu",
    epsilon: float = 1e-5,
) -> str:
    """RMSNormalization of groups with the size of `scale`, times an activated gate."""
    if activation not in ("silu", "swish", "sigmoid"):
        raise b.error(f"activation='{activation}'; expected silu, swish or sigmoid")
    size = b.need_extent(scale, 0)
    rank = b.rank(x)
    whole = b.need_extent(x, -1)
    if whole % size:
        raise b.error(f"x is {b.type(x)}; its last axis must be a multiple of {size}")
    groups = b.reshape(x, *([0] * (rank - 1)), whole // size, size)
    y = b.reshape_like(b.RMSNormalization(groups, scale, epsilon=epsilon), x)
    return b.Mul(y, b.Sigmoid(gate) if activation == "sigmoid" else b.Swish(gate))


@contrib("GatedAdd")
def gated_add(b: NodeBuilder, x: T, y: T, gate: T, gate_weight: T | None = None) -> str:
    """Return x + gate * y, with one gate per row, or the sigmoid of a product of one's own."""
    if gate_weight is not None:
        gate = b.Sigmoid(b.MatMul(gate, gate_weight))
    return b.Add(x, b.Mul(y, gate))


@contrib("SwiGLU")
def swiglu(
    b: NodeBuilder,
    gate: T,
    up: T | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    round_activation: int = 0,
) -> str:
    """ONNX's SwiGLU with limits, and both halves in one tensor where `up` is left out."""
    dtype = b.dtype(gate)
    if up is None:
        gate, up = b.several("Split", 2, gate, axis=-1, num_outputs=2)
    g, linear = (b.cast(each, dtypes.float32) for each in (gate, up))
    if limit > 0:
        low, high = b.number(-limit, g), b.number(limit, g)
        g, linear = b.Clip(g, None, high), b.Clip(linear, low, high)
    if activation_beta:
        linear = b.Add(linear, b.number(activation_beta, linear))
    if not round_activation:
        return b.cast(b.SwiGLU(g, linear, alpha=activation_alpha), dtype)
    rounded = b.cast(b.Swish(g, alpha=activation_alpha), dtype)
    return b.cast(b.Mul(b.cast(rounded, dtypes.float32), linear), dtype)


@contrib("RouterGateUpProj", outputs=(2, 2))
def router_gate_up_proj(
    b: NodeBuilder,
    x: Half,
    weights: Half,
    *,
    activation: str = "swiglu",
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    router_size: int,
) -> Results:
    """Logits of a router, and an activated shared expert, of one product."""
    if activation != "swiglu":
        raise b.error(f"activation='{activation}'; expected swiglu")
    whole = b.need_extent(weights, 1)
    if not 0 < router_size < whole or (whole - router_size) % 2:
        raise b.error(f"router_size={router_size} of the {whole} columns of W")
    sizes = b.ints(router_size, whole - router_size)
    logits, both = b.several("Split", 2, b.MatMul(x, weights), sizes, axis=-1, num_outputs=2)
    alpha, beta = activation_alpha, activation_beta
    y = swiglu(b, both, activation_alpha=alpha, activation_beta=beta, limit=limit)
    return logits, y


@contrib("CausalConvWithState", outputs=(2, 3))
def causal_conv_with_state(
    b: NodeBuilder,
    x: T,
    weight: T,
    bias: T | None = None,
    past_state: T | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> Results:
    """ONNX's CausalConvWithState with optional dilation and channels-last layout."""
    if ndim != 1 or state_window or state_update_capacity:
        raise b.unsupported(
            f"ndim={ndim}, state_window={state_window}, "
            f"state_update_capacity={state_update_capacity}",
            "export convolutions along one axis, without speculative decoding",
        )
    if input_channel_offset or input_channels or state_length or state_channels_last != -1:
        raise b.unsupported(
            f"input_channel_offset={input_channel_offset}, input_channels={input_channels}, "
            f"state_length={state_length}, state_channels_last={state_channels_last}: a form of "
            "one GPU",
            "export the model for the CPU",
        )
    if dilation < 1:
        raise b.error(f"dilation={dilation}; expected 1 or more")
    if channels_last:
        b.rank(x, 3)
        x = b.transpose(x, 0, 2, 1)
        past_state = past_state and b.transpose(past_state, 0, 2, 1)
    if dilation == 1:
        results = b.several(
            "CausalConvWithState", 2, x, weight, bias, past_state, activation=activation
        )
    else:
        results = _dilated(b, x, weight, bias, past_state, activation, dilation)
    if channels_last:
        y, state = (b.transpose(each, 0, 2, 1) for each in results)
        return y, state
    return results


def _dilated(
    b: NodeBuilder,
    x: str,
    weight: str,
    bias: str | None,
    past_state: str | None,
    activation: str,
    dilation: int,
) -> tuple[str, str]:
    """Return the convolution over past and new positions, and the new state."""
    channels = b.need_extent(weight, 0)
    carried = (b.need_extent(weight, 2) - 1) * dilation
    if past_state is None:
        zero = b.number(0.0, x)
        past_state = b.Expand(zero, b.shape(b.size(x, 0), channels, carried))
    whole = b.Concat(past_state, x, axis=2)
    y = b.Conv(whole, weight, bias, group=channels, dilations=(dilation,))
    if activation in ("silu", "swish"):
        y = b.Swish(y)
    elif activation != "none":
        raise b.error(f"activation='{activation}'; expected silu, swish or none")
    end = b.size(whole, 2)
    return y, b.slice(whole, 2, b.Sub(end, b.ints(carried)), end)


@contrib("ScaledSiLU")
def scaled_silu(b: NodeBuilder, x: T, scale: S | None = None, *, alpha: float = 1.0) -> str:
    """SiLU of a multiple of x, rounded to the dtype of x after every step."""
    dtype = b.dtype(x)
    wide = b.cast(x, dtypes.float32)
    factor = b.number(alpha, wide) if scale is None else b.cast(scale, dtypes.float32)
    z = b.cast(b.Mul(factor, wide), dtype)
    return b.Mul(z, b.Sigmoid(z))


@contrib("BranchwiseRMSNorm")
def branchwise_rms_norm(
    b: NodeBuilder, x: T, scale: S | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> str:
    """RMSNormalization of every branch of a row, whose axes may be flattened."""
    rank = b.rank(x)
    size = b.need_extent(x, -1)
    groups = x
    if num_branches:
        if num_branches < 0 or size % num_branches:
            raise b.error(f"num_branches={num_branches} does not divide x {b.type(x)}")
        size //= num_branches
        groups = b.reshape(x, *([0] * (rank - 1)), num_branches, size)
    wide = b.cast(groups, dtypes.float32)
    ones = b.Expand(b.number(1.0, wide), b.ints(size))
    y = b.RMSNormalization(wide, ones, epsilon=epsilon)
    if scale is not None:
        factor = b.cast(scale, dtypes.float32)
        if b.rank(scale, 1, 2) == 1 and b.need_extent(scale, 0) != size:
            factor = b.reshape(factor, -1, size)
        y = b.Mul(y, factor)
    y = b.cast(y, b.dtype(x))
    return b.reshape_like(y, x) if num_branches else y
