"""What models with linear attention run beside it: gates, and normalizations with a gate."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import Builder
from .declaration import Float32, Kind, Results, T, contrib

#: The dtype of a state or of a scale, where it is not that of the data.
S = Annotated[str, Kind("S", dtypes.FLOATS)]


@contrib("LinearAttention", outputs=(2, 2))
def linear_attention(
    b: Builder,
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
    """ONNX's LinearAttention."""
    if state_window:
        raise b.unsupported(
            f"state_window={state_window}: states of several positions",
            "export the model without speculative decoding",
        )
    if q_num_heads < kv_num_heads:
        raise b.unsupported(
            f"q_num_heads={q_num_heads} is less than kv_num_heads={kv_num_heads}",
            "repeat the queries for the heads of the keys",
        )
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
        q_num_heads=q_num_heads,
        scale=scale,
        update_rule=update_rule,
    )


@contrib("LinearAttentionGate", outputs=(1, 2))
def linear_attention_gate(
    b: Builder, a: T, dt_bias: Float32, decay_scale: Float32, rate: T | None = None
) -> Results:
    """decay_scale * Softplus(a + dt_bias), in float32, and Sigmoid(rate)."""
    wide = b.Softplus(b.Add(b.cast(a, dtypes.float32), dt_bias))
    decay = b.cast(b.Mul(decay_scale, wide), b.dtype(a))
    if b.wants(1) and rate is None:
        raise b.error("leaves out b, of which output 1 (beta) is made")
    return decay, b.Sigmoid(rate) if b.wants(1) else None


@contrib("GatedRMSNorm")
def gated_rms_norm(
    b: Builder,
    x: T,
    scale: T,
    gate: T,
    *,
    activation: str = "silu",
    epsilon: float = 1e-5,
) -> str:
    """RMSNormalization of groups of the size of `scale`, times an activation of a gate."""
    if activation not in ("silu", "swish", "sigmoid"):
        raise b.error(f"activation='{activation}'; expected silu, swish or sigmoid")
    size = b.need_extent(scale, 0)
    rank = b.rank(x)
    whole = b.need_extent(x, -1)
    if whole % size:
        raise b.error(f"x is {b.type(x)}; its last axis is no multiple of the {size} of scale")
    groups = b.reshape(x, *([0] * (rank - 1)), whole // size, size)
    y = b.Reshape(b.RMSNormalization(groups, scale, epsilon=epsilon), b.Shape(x))
    return b.Mul(y, b.Sigmoid(gate) if activation == "sigmoid" else b.Swish(gate))


@contrib("GatedAdd")
def gated_add(b: Builder, x: T, y: T, gate: T) -> str:
    """X + gate * y, a gate for each row."""
    return b.Add(x, b.Mul(y, gate))
