"""Mixtures of experts of every activation, routing and kind of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.types import Array

from .dry import normal
from .samples import Sample, sample

DOMAIN = "com.microsoft"
SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0}


def _routed(rows: int, experts: int, dtype: DType) -> Array:
    """Return logits without near-equal ones, so that rounding chooses no other experts."""
    order = np.random.default_rng(rows).permuted(np.tile(np.arange(experts), (rows, 1)), axis=1)
    return ((order - experts / 2) / 8).astype(dtype)


def moe(
    rows: int | tuple[int, int],
    hidden: int,
    inner: int,
    experts: int,
    *,
    third: bool = False,
    bias: bool = True,
    dtype: Any = float32,
    **attributes: Any,
) -> Sample:
    """Return a MoE with weights of floats."""
    shape = rows if isinstance(rows, tuple) else (rows,)
    wide = inner * (2 if "swiglu" in attributes.values() and not third else 1)

    def layer(n: int, k: int, seed: int) -> list[Array | None]:
        weights = normal(experts, n, k + seed)[..., :k] * k**-0.5
        return [weights.astype(dtype), normal(experts, n).astype(dtype) if bias else None]

    inputs = [normal(*shape, hidden).astype(dtype)]
    inputs.append(_routed(int(np.prod(shape)), experts, dtype))
    inputs += layer(wide, hidden, 0) + layer(hidden, inner, 1)
    if third:
        inputs += layer(inner, hidden, 2)
    constants = tuple(range(2, 8))
    return sample("MoE", inputs, constants, domain=DOMAIN, **attributes)


def q_moe(
    rows: int,
    hidden: int,
    inner: int,
    experts: int,
    *,
    bits: int = 4,
    block: int = 0,
    zeros: bool = False,
    third: bool = False,
    given: bool = False,
    bias: bool = True,
    dtype: Any = float32,
    scale_dtype: Any = None,
    router_dtype: Any = None,
    **attributes: Any,
) -> Sample:
    """Return a QMoE; with block 0, every column has one scale."""
    wide = inner * (2 if "swiglu" in attributes.values() and not third else 1)
    draw = np.random.default_rng(hidden + inner)

    def layer(n: int, k: int) -> list[Array | None]:
        count = (-(-k // block),) if block else ()
        weights = draw.integers(0, 256, (experts, n, -(-k * bits // 8))).astype(np.uint8)
        scales = (1 + draw.random((experts, n, *count))) * 2.0 ** (1 - bits) * k**-0.5
        offsets = draw.standard_normal((experts, n)).astype(dtype) if bias else None
        return [weights, scales.astype(scale_dtype or dtype), offsets]

    def points(n: int, k: int) -> Array | None:
        if not zeros:
            return None
        blocks = -(-k // block) if block else 0
        size = (experts, n, -(-blocks * bits // 8)) if block else (experts, -(-n * bits // 8))
        return draw.integers(0, 256, size).astype(np.uint8)

    inputs: list[Array | None] = [normal(rows, hidden).astype(dtype)]
    inputs.append(_routed(rows, experts, router_dtype or dtype))
    inputs += layer(wide, hidden) + layer(hidden, inner)
    inputs += layer(inner, hidden) if third else [None] * 3
    inputs += [points(wide, hidden), points(hidden, inner)]
    inputs.append(points(inner, hidden) if third else None)
    inputs.append(np.abs(_routed(rows, experts, dtype)[::-1]) + dtype.type(0.25) if given else None)
    attributes |= {"expert_weight_bits": bits, **({"block_size": block} if block else {})}
    while inputs[-1] is None:
        inputs.pop()
    constants = tuple(range(2, 14))
    return sample("QMoE", inputs, constants, domain=DOMAIN, **attributes)


def samples() -> list[Sample]:
    """Return mixtures of one row, a few, and more than one tile or block has."""
    return [
        moe(1, 40, 24, 4, k=2),
        moe(3, 33, 16, 3, activation_type="gelu", k=3, bias=False),
        moe((2, 5), 40, 24, 5, third=True, activation_type="silu", k=2, dtype=float16),
        moe(1, 64, 40, 40, k=4, swiglu_fusion=1, swiglu_limit=0.5, **SWIGLU, dtype=float16),
        moe(
            7,
            24,
            16,
            4,
            k=2,
            swiglu_fusion=2,
            normalize_routing_weights=1,
            **SWIGLU,
            swiglu_limit=0.2,
            swiglu_limit_after_activation=1,
        ),
        moe(70, 24, 16, 3, k=2, use_sparse_mixer=1, dtype=bfloat16),
        moe(2, 24, 16, 4, activation_type="identity", third=True, normalize_routing_weights=1, k=3),
        q_moe(1, 64, 96, 8, k=4, block=32, swiglu_fusion=1, swiglu_limit=0.7, **SWIGLU),
        q_moe(1, 160, 96, 8, k=4, block=32, dtype=float16, swiglu_fusion=1, **SWIGLU),
        q_moe(6, 80, 48, 4, k=2, block=32, zeros=True, dtype=float16, activation_type="silu"),
        q_moe(40, 64, 64, 3, k=2, block=64, dtype=bfloat16, third=True, activation_type="silu"),
        q_moe(5, 48, 33, 3, bits=8, zeros=True, k=2, dtype=float16, scale_dtype=float32),
        q_moe(3, 64, 32, 33, k=2, block=16, zeros=True, bias=False, dtype=float16),
        q_moe(4, 64, 64, 4, bits=2, block=64, k=1, given=True, normalize_routing_weights=1),
        q_moe(3, 48, 64, 4, bits=8, block=16, k=2, given=True, third=True, zeros=True),
        q_moe(1, 64, 32, 6, block=32, k=3, given=True, dtype=float16, router_dtype=float32),
        # Shared memory has room for the scales of all experts of a row for half as many columns.
        q_moe(1, 16, 13824, 4, bits=8, block=16, zeros=True, k=4, dtype=float16),
        q_moe(90, 32, 32, 2, block=32, k=1, swiglu_fusion=2, **SWIGLU, dtype=float16),
        q_moe(40, 160, 80, 4, block=32, k=2, swiglu_fusion=1, zeros=True, **SWIGLU, dtype=float16),
        q_moe(150, 70, 136, 2, bits=8, block=128, k=2, dtype=bfloat16, bias=False),
        q_moe(40, 96, 72, 4, block=32, k=1, third=True, activation_type="gelu", dtype=float16),
    ]
