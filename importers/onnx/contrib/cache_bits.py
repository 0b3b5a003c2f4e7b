"""Quantized KV caches: writing and reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder


@dataclass(frozen=True)
class Bits:
    """The quantization of a cache [batch, heads, length, size].

    Attributes:
        scale: one for all elements, or one per channel of each head.
        bits: 8 for int8; 4 for two values per uint8, the first in the low half, offset by 8.
        size: head size.
    """

    scale: str
    bits: int
    size: int


def bits_of(
    b: NodeBuilder, kind: str, scale: str | None, bits: int, name: str, heads: int, size: int
) -> Bits | None:
    """Return the quantization selected by the attribute `name`; None if there is none."""
    if kind == "NONE":
        if scale is not None:
            raise b.error(f"has a scale, but {name}='NONE'")
        return None
    if kind not in ("PER_TENSOR", "PER_CHANNEL"):
        raise b.error(f"{name}='{kind}'; expected NONE, PER_TENSOR or PER_CHANNEL")
    if scale is None:
        raise b.error(f"{name}='{kind}' needs a scale")
    if bits not in (0, 4, 8):
        raise b.error(f"kv_cache_bit_width={bits}; expected 4 or 8")
    if b.rank(scale, 1, 4) == 1:
        shape = (1, 1, 1, 1) if kind == "PER_TENSOR" else (1, heads, 1, size)
        scale = b.reshape(scale, *shape)
    return Bits(scale, bits or 8, size)


def packed(b: NodeBuilder, x: str, how: Bits) -> str:
    """Return the cache contents for rows of floats."""
    lowest = -(1 << (how.bits - 1))
    wide = b.Round(b.Div(b.cast(x, dtypes.float32), how.scale))
    whole = b.Clip(wide, b.number(lowest, wide), b.number(-lowest - 1, wide))
    if how.bits == 8:
        return b.cast(whole, dtypes.int8)
    nibbles = b.cast(b.Add(whole, b.number(8.0, wide)), dtypes.uint8)
    pairs = b.reshape(nibbles, 0, 0, -1, how.size // 2, 2)
    low, high = (b.Gather(pairs, b.constant(np.array(i, np.int64)), axis=4) for i in (0, 1))
    return b.BitwiseOr(low, b.BitShift(high, _byte(b, 4), direction="LEFT"))


def unpacked(b: NodeBuilder, cache: str, how: Bits, like: str) -> str:
    """Return the floats in a cache, in the dtype of `like`."""
    if how.bits == 8:
        whole = b.cast(cache, dtypes.float32)
    else:
        low = b.BitwiseAnd(cache, _byte(b, 15))
        high = b.BitShift(cache, _byte(b, 4), direction="RIGHT")
        last = b.ints(4)
        both = b.Concat(b.Unsqueeze(low, last), b.Unsqueeze(high, last), axis=4)
        heads = b.dim(cache, 1)
        wide = b.cast(
            b.reshape(both, 0, heads if isinstance(heads, int) else 0, -1, how.size), dtypes.float32
        )
        whole = b.Sub(wide, b.number(8.0, wide))
    return b.cast(b.Mul(whole, how.scale), b.dtype(like))


def _byte(b: NodeBuilder, value: int) -> str:
    return b.constant(np.array(value, np.uint8))
