"""Row normalizations, with the sum that onnxruntime's optimizer fuses into them."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Kind, Results, T, contrib

#: The dtype of scale and result, which may differ from the data's.
V = Annotated[str, Kind("S", dtypes.FLOATS)]


@contrib("SimplifiedLayerNormalization", outputs=(1, 2), domain="")
@contrib("SimplifiedLayerNormalization", outputs=(1, 2))
def simplified_layer_normalization(
    b: NodeBuilder,
    x: T,
    scale: V,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Results:
    """RMSNormalization under its former name, with 1 / rms as an optional output."""
    y = b.RMSNormalization(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    return y, _inverse_rms(b, x, axis, epsilon) if b.wants(1) else None


@contrib("SkipLayerNormalization", outputs=(1, 4))
def skip_layer_normalization(
    b: NodeBuilder,
    x: T,
    skip: T,
    gamma: T,
    beta: T | None = None,
    bias: T | None = None,
    *,
    epsilon: float = 1e-12,
) -> Results:
    """LayerNormalization of x + skip + bias over the last axis; that sum is also an output."""
    total = _sum(b, x, skip, gamma, bias)
    if beta is not None:
        b.need_shape(beta, "beta", b.dim(x, -1))
    wanted = (True, b.wants(1), b.wants(2))
    y, mean, deviation = b.chosen("LayerNormalization", wanted, total, gamma, beta, epsilon=epsilon)
    return y, mean, deviation, total


@contrib("SkipSimplifiedLayerNormalization", outputs=(1, 4))
def skip_simplified_layer_normalization(
    b: NodeBuilder,
    x: T,
    skip: T,
    gamma: T,
    bias: T | None = None,
    *,
    epsilon: float = 1e-12,
) -> Results:
    """RMSNormalization of x + skip + bias over the last axis; that sum is also an output.

    Output 1, the mean, does not exist; onnxscript's optimizer names it, and nothing reads it.
    """
    total = _sum(b, x, skip, gamma, bias)
    deviation = _inverse_rms(b, total, -1, epsilon) if b.wants(2) else None
    return b.RMSNormalization(total, gamma, epsilon=epsilon), None, deviation, total


def _sum(b: NodeBuilder, x: str, skip: str, gamma: str, bias: str | None) -> str:
    """Return x + skip + bias, where skip may lack the batch axis or have batch size 1."""
    rank = b.rank(x, 3, 2)
    hidden = b.dim(x, -1)
    b.need_shape(gamma, "gamma", hidden)
    if b.rank(skip, rank, 5 - rank) > rank:
        raise b.error(f"skip is {b.type(skip)}, which has more axes than the input {b.type(x)}")
    pairs = zip(reversed(b.dims(x) or ()), reversed(b.dims(skip) or ()), strict=False)
    if any(own == 1 and isinstance(other, int) and other != 1 for own, other in pairs):
        raise b.error(f"skip is {b.type(skip)}, which is larger than the input {b.type(x)}")
    total = b.Add(x, skip)
    if bias is None:
        return total
    b.need_shape(bias, "bias", hidden)
    return b.Add(total, bias)


def _inverse_rms(b: NodeBuilder, x: str, axis: int, epsilon: float) -> str:
    """Return 1 / sqrt(mean of squares + epsilon) in float32."""
    x = b.cast(x, dtypes.float32)
    axes = range(axis, 0) if axis < 0 else range(axis, b.rank(x))
    mean = b.ReduceMean(b.Mul(x, x), b.ints(*axes), keepdims=1)
    return b.Reciprocal(b.Sqrt(b.Add(mean, b.number(epsilon, x))))
