"""Quantized KV caches: writing and reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import DType
from .builder import NodeBuilder


@dataclass(frozen=True)
class Bits:
    """The quantization of a cache [batch, heads, length, size].

    Attributes:
        scale: one for all elements, or one per channel of each head.
        stored: int8, float8e4m3fn, or uint8: two values of 4 bits, the first in the low half, both
            offset by 8.
        size: head size.
    """

    scale: str
    stored: DType
    size: int

    @property
    def width(self) -> int:
        """Return the elements of the cache per head."""
        return self.size // 2 if self.stored == dtypes.uint8 else self.size


#: What holds elements of each `kv_cache_bit_width`; 0, the default, is of 8 bits.
_STORED = {0: (dtypes.int8, dtypes.float8e4m3fn), 4: (dtypes.uint8,)}
_STORED[8] = _STORED[0]


def bits_of(
    b: NodeBuilder,
    kind: str,
    scale: str | None,
    bits: int,
    name: str,
    heads: int,
    size: int,
    cache: str | None,
) -> Bits | None:
    """Return the quantization of `cache` selected by the attribute `name`; None if there is none.

    A new cache of 8 bits is of int8.
    """
    if kind == "NONE":
        if scale is not None:
            raise b.error(f"has a scale, but {name}='NONE'")
        return None
    if kind not in ("PER_TENSOR", "PER_CHANNEL"):
        raise b.error(f"{name}='{kind}'; expected NONE, PER_TENSOR or PER_CHANNEL")
    if scale is None:
        raise b.error(f"{name}='{kind}' needs a scale")
    if bits not in _STORED:
        raise b.error(f"kv_cache_bit_width={bits}; expected 4 or 8")
    stored = (b.known_dtype(cache) if cache is not None else None) or _STORED[bits][0]
    if stored not in _STORED[bits]:
        expected = " or ".join(map(dtypes.name_of, _STORED[bits]))
        raise b.error(
            f"{name}='{kind}' with kv_cache_bit_width={bits} needs a cache of {expected}, "
            f"not {dtypes.name_of(stored)}"
        )
    if b.rank(scale, 1, 4) == 1:
        shape = (1, 1, 1, 1) if kind == "PER_TENSOR" else (1, heads, 1, size)
        scale = b.reshape(scale, *shape)
    return Bits(scale, stored, size)


def packed(b: NodeBuilder, x: str, how: Bits) -> str:
    """Return the cache contents for rows of floats."""
    scaled = b.Div(b.cast(x, dtypes.float32), how.scale)
    if how.stored == dtypes.float8e4m3fn:
        return b.cast(scaled, how.stored)
    lowest = -8 if how.stored == dtypes.uint8 else -128
    wide = b.Round(scaled)
    whole = b.Clip(wide, b.number(lowest, wide), b.number(-lowest - 1, wide))
    if how.stored == dtypes.int8:
        return b.cast(whole, dtypes.int8)
    nibbles = b.cast(b.Add(whole, b.number(8.0, wide)), dtypes.uint8)
    pairs = b.reshape(nibbles, 0, 0, -1, how.width, 2)
    low, high = (b.Gather(pairs, b.constant(np.array(i, np.int64)), axis=4) for i in (0, 1))
    return b.BitwiseOr(low, b.BitShift(high, _byte(b, 4), direction="LEFT"))


def unpacked(b: NodeBuilder, cache: str, how: Bits, like: str) -> str:
    """Return the floats in a cache, in the dtype of `like`."""
    if how.stored != dtypes.uint8:
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
