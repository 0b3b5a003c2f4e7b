"""Attention in its forms, rotary embeddings, linear attention, causal convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float64

from .generate import INT64, Array, Dice, ints
from .oracles import Make, agree
from .sample import Sample, smooth


def attention(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset, "T1")
    batch, size, size_v = dice.randint(1, 2), dice.randint(1, 4), dice.randint(1, 4)
    heads = dice.randint(1, 2)
    queries = heads * dice.randint(1, 3)
    length, keys = dice.randint(1, 4), dice.randint(1, 5)
    flat = dice.chance(0.4)
    attributes: dict[str, Any] = dice.given(
        is_causal=(0, 1), scale=lambda: dice.uniform(0.2, 1), softcap=lambda: dice.uniform(0.5, 3)
    )

    def made(count: int, rows: int, depth: int) -> Array:
        shape = (batch, rows, count * depth) if flat else (batch, count, rows, depth)
        return dice.array(dtype, shape)

    q, k, v = made(queries, length, size), made(heads, keys, size), made(heads, keys, size_v)
    if flat:
        attributes |= {"q_num_heads": queries, "kv_num_heads": heads}
    past = dice.randint(1, 3) if dice.chance(0.3) else 0
    padded = opset >= 24 and not past and dice.chance(0.3)
    whole = (batch, queries, length, past + keys)
    mask = _mask(dice, dtype, whole, opset) if dice.chance(0.5) else None
    inputs: list[Array | None] = [q, k, v, mask, None, None, None]
    if past:
        inputs[4] = dice.array(dtype, (batch, heads, past, size))
        inputs[5] = dice.array(dtype, (batch, heads, past, size_v))
    if padded:
        inputs[6] = ints([dice.randint(1, keys) for _ in range(batch)])
    outputs: Any = (True, bool(past), bool(past), dice.chance(0.3))
    if outputs[3]:
        attributes |= dice.given(qk_matmul_output_mode=(0, 1, 2, 3))
    inputs = inputs if opset >= 24 else inputs[:6]

    def want(*arrays: Array | None) -> Any:
        found = attended(attributes, (*arrays, *[None] * (7 - len(arrays))))
        return tuple(y for y, wanted in zip(found, outputs, strict=True) if wanted)

    return Sample(op, tuple(inputs), attributes, opset, outputs=outputs,
                  bound=smooth(size + keys + past), want=want)  # fmt: skip


def attended(attributes: dict[str, Any], inputs: tuple[Array | None, ...]) -> list[Array]:
    """Return what the text of the specification gives, with every head on its own."""
    q, k, v, mask, past_k, past_v, valid = inputs
    assert q is not None
    assert k is not None
    assert v is not None
    flat = q.ndim == 3
    if flat:
        q = _heads(q, attributes["q_num_heads"])
        k, v = (_heads(x, attributes["kv_num_heads"]) for x in (k, v))
    past = 0 if past_k is None else past_k.shape[2]
    if past_k is not None and past_v is not None:
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    length, total = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    scale = np.float32(attributes["scale"]) if "scale" in attributes else q.shape[-1] ** -0.5
    products = float(scale) * q @ k.repeat(group, 1).swapaxes(-1, -2)
    softcap = float(np.float32(attributes.get("softcap", 0)))
    capped = softcap * np.tanh(products / softcap) if softcap else products
    bias = np.zeros((len(q), 1, length, total))
    if mask is not None:
        added = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask
        missing = [(0, 0)] * (added.ndim - 1) + [(0, total - added.shape[-1])]
        bias = bias + np.pad(added, missing, constant_values=-np.inf)
    keys = np.arange(total)
    count = np.full(len(q), total) if valid is None else valid
    bias = np.where(keys < count[:, None, None, None], bias, -np.inf)
    if attributes.get("is_causal"):
        offset = np.full(len(q), past) if valid is None else valid - length
        last = np.arange(length)[:, None] + offset[:, None, None, None]
        bias = np.where(keys <= last, bias, -np.inf)
    masked = capped + bias
    top = masked.max(-1, keepdims=True)
    e = np.exp(masked - np.where(np.isfinite(top), top, 0))
    shares = e / np.where(e.sum(-1, keepdims=True) == 0, 1, e.sum(-1, keepdims=True))
    y = shares @ v.repeat(group, 1)
    shown = (products, capped, masked, shares)[attributes.get("qk_matmul_output_mode", 0)]
    y = y.swapaxes(1, 2).reshape(len(y), length, -1) if flat else y
    return [y, k, v, shown]


def _heads(x: Array, count: int) -> Array:
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def _mask(dice: Dice, dtype: Any, whole: tuple[int, ...], opset: int) -> Array:
    shape = tuple(1 if dice.chance(0.4) else d for d in whole[:2]) + whole[2:]
    shape = shape[dice.randint(0, 2) :]
    if dice.chance(0.5):
        return dice.array(dtype, shape)
    found = dice.array(bool, shape)
    found[..., 0] = True  # a row that attends to nothing is a matter of its own
    return found


def rotary(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    batch, heads, length = (dice.randint(1, 3) for _ in range(3))
    pairs = dice.randint(1, 3)
    part = dice.chance(0.3)
    size = 2 * pairs + (2 * dice.randint(1, 2) if part else 0)
    flat = dice.chance(0.5)
    shape = (batch, length, heads * size) if flat else (batch, heads, length, size)
    attributes: dict[str, Any] = dice.given(interleaved=(0, 1))
    attributes |= {"num_heads": heads} if flat else {}
    attributes |= {"rotary_embedding_dim": 2 * pairs} if part else {}
    x = dice.array(dtype, shape)
    if dice.chance(0.5):
        angles = dice.array(float64, (10, pairs))
        where = dice.array(INT64, (batch, length), 0, 9)
        inputs = (x, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype), where)
    else:
        angles = dice.array(float64, (batch, length, pairs))
        inputs = (x, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype))
    return Sample(op, inputs, attributes, opset, bound=smooth(4))


def linear_attention(op: str, dice: Dice) -> Sample:
    dtype = dice.floating(op, 27)
    batch, length, heads = dice.randint(1, 2), dice.randint(1, 4), dice.randint(1, 2)
    queries, size, size_v = heads * dice.randint(1, 2), dice.randint(1, 4), dice.randint(1, 4)
    rule = dice.some("linear", "gated", "delta", "gated_delta")
    q, k, v = (dice.array(dtype, (batch, length, n), -0.5, 0.5)
               for n in (queries * size, heads * size, heads * size_v))  # fmt: skip
    state = dice.array(dtype, (batch, heads, size, size_v)) if dice.chance(0.5) else None
    decay = beta = None
    if "gated" in rule:
        decay = dice.array(dtype, (batch, length, heads * dice.some(1, size)), -1, 0)
    if "delta" in rule:
        beta = dice.array(dtype, (batch, length, dice.some(1, heads)), 0, 1)
    attributes = {"q_num_heads": queries, "kv_num_heads": heads, "update_rule": rule}
    attributes |= dice.given(scale=lambda: dice.uniform(0.2, 1))
    return Sample(op, (q, k, v, state, decay, beta), attributes, 27, outputs=2,
                  bound=smooth(8 * length + size))  # fmt: skip


def causal_conv(op: str, dice: Dice) -> Sample:
    dtype = dice.floating(op, 27)
    batch, channels, length, taps = (dice.randint(1, 4) for _ in range(4))
    x = dice.array(dtype, (batch, channels, length))
    w = dice.array(dtype, (channels, 1, taps))
    bias = dice.array(dtype, (channels,)) if dice.chance(0.5) else None
    state = dice.array(dtype, (batch, channels, taps - 1)) if dice.chance(0.5) else None
    attributes = dice.given(activation=("none", "silu", "swish"))
    return Sample(op, (x, w, bias, state), attributes, 27, outputs=2, bound=smooth(taps + 4))


MAKERS: dict[str, Make] = {
    "Attention": attention,
    "CausalConvWithState": causal_conv,
    "LinearAttention": linear_attention,
    "RotaryEmbedding": rotary,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
