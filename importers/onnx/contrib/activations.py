"""Activations, Softmax and Dropout, with the bias that onnxruntime's optimizer fuses into them."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Kind, Results, T, contrib


@contrib("Gelu")
def gelu(b: NodeBuilder, x: T) -> str:
    """Return x Φ(x)."""
    return b.Gelu(x)


@contrib("BiasGelu")
def bias_gelu(b: NodeBuilder, a: T, bias: T) -> str:
    """Gelu of a + bias; the bias is a vector along the last axis."""
    _need_bias(b, a, bias)
    return b.Gelu(b.Add(a, bias))


@contrib("FastGelu")
def fast_gelu(b: NodeBuilder, x: T, bias: T | None = None) -> str:
    """The tanh approximation of Gelu, of x or x + bias."""
    if bias is not None:
        _need_bias(b, x, bias)
        x = b.Add(x, bias)
    return b.Gelu(x, approximate="tanh")


@contrib("QuickGelu")
def quick_gelu(b: NodeBuilder, x: T, *, alpha: float = 1.702) -> str:
    """Return x · sigmoid(alpha · x)."""
    return b.Swish(x, alpha=alpha)


def _need_bias(b: NodeBuilder, x: str, bias: str) -> None:
    b.need_shape(bias, "bias", b.dim(x, -1))


@contrib("BiasSoftmax")
def bias_softmax(
    b: NodeBuilder, data: T, bias: T, *, axis: int = 1, is_inner_broadcast: int
) -> str:
    """Softmax of data + bias over all axes from `axis` on; the bias is broadcast."""
    rank, inner = b.rank(data), b.rank(bias)
    axis += rank if axis < 0 else 0
    if is_inner_broadcast and inner < rank:
        missing = rank - inner
        first = max(axis - missing, 0)
        bias = b.Unsqueeze(bias, b.ints(*range(first, first + missing)))
    total = b.Add(data, bias)
    if axis == rank - 1:
        return b.Softmax(total, axis=axis)
    flat = b.Softmax(b.Flatten(total, axis=axis), axis=1)
    return b.reshape_like(flat, total)


@contrib("BiasDropout", outputs=(1, 2))
def bias_dropout(
    b: NodeBuilder,
    data: T,
    bias: T,
    residual: T | None = None,
    ratio: Annotated[str, Kind("R", dtypes.FLOATS)] | None = None,
    training_mode: Annotated[str, Kind("B", frozenset({dtypes.bool_}))] | None = None,
    *,
    seed: int | None = None,
) -> Results:
    """Dropout of data + bias, plus an optional residual."""
    total = b.Add(data, bias)
    y, mask = b.chosen("Dropout", (True, b.wants(1)), total, ratio, training_mode, seed=seed)
    return (y if residual is None else b.Add(y, residual)), mask
