"""Common parts of quantized operators: dequantize, compute in float32, quantize."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Kind

#: Bytes: of the same dtype within a node.
Q = Annotated[str, Kind("T", frozenset({dtypes.int8, dtypes.uint8}))]
#: Bytes of a second operand, whose dtype may differ.
W = Annotated[str, Kind("W", frozenset({dtypes.int8, dtypes.uint8}))]


def dequantized(b: NodeBuilder, x: str, scale: str, zero_point: str | None) -> str:
    """Return (x - zero_point) * scale."""
    return b.DequantizeLinear(x, scale, zero_point)


def quantized(b: NodeBuilder, y: str, scale: str, zero_point: str | None, like: str) -> str:
    """Return y quantized to the dtype of `like`; an omitted zero point is 0."""
    if zero_point is None:
        zero_point = b.constant(np.zeros((), b.known_dtype(like) or dtypes.uint8))
    return b.QuantizeLinear(y, scale, zero_point)


def last_channels(b: NodeBuilder, x: str, channels_last: int, *, back: bool = False) -> str:
    """Return an image with its channels moved behind the batch, or back."""
    if not channels_last:
        return x
    rank = b.rank(x)
    inner = range(1, rank - 1)
    return b.transpose(x, 0, *((*(i + 1 for i in inner), 1) if back else (rank - 1, *inner)))
