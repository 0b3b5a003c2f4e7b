"""Channels-last operators that onnxruntime's optimizer writes for diffusion models."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .convolution import channels_first, channels_last
from .declaration import Kind, Results, T, contrib

#: The dtype of a scale, which may differ from the data's.
M = Annotated[str, Kind("M", dtypes.FLOATS)]


@contrib("GroupNorm")
def group_norm(
    b: NodeBuilder,
    x: T,
    gamma: M,
    beta: M,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> str:
    """GroupNormalization, followed by Swish if `activation` is 1."""
    return _normalized(b, x, (gamma, beta), activation, bool(channels_last), epsilon, groups)


@contrib("SkipGroupNorm", outputs=(1, 2))
def skip_group_norm(
    b: NodeBuilder,
    x: T,
    gamma: M,
    beta: M,
    skip: T,
    bias: T | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Results:
    """GroupNorm of x + skip + bias; that sum is also an output."""
    ahead = (1, 2) if channels_last else (2, 3)
    if b.rank(skip, 4, 2) == 2:
        skip = b.Unsqueeze(skip, b.ints(*ahead))
    total = b.Add(x, skip)
    if bias is not None:
        total = b.Add(total, bias if channels_last else b.Unsqueeze(bias, b.ints(1, 2)))
    y = _normalized(b, total, (gamma, beta), activation, bool(channels_last), epsilon, groups)
    return y, total


def _normalized(
    b: NodeBuilder,
    x: str,
    affine: tuple[str, str],
    activation: int,
    last: bool,
    epsilon: float,
    groups: int,
) -> str:
    if activation not in (0, 1):
        raise b.error(f"activation={activation}; expected 0, or 1 for SiLU")
    b.rank(x, 4)
    gamma, beta = (b.cast(each, b.dtype(x)) for each in affine)
    y = channels_first(b, x) if last else x
    y = b.GroupNormalization(y, gamma, beta, epsilon=epsilon, num_groups=groups)
    if activation:
        y = b.Swish(y)
    return channels_last(b, y) if last else y


@contrib("BiasAdd")
def bias_add(b: NodeBuilder, x: T, bias: T, skip: T) -> str:
    """Return x + bias + skip."""
    return b.Add(b.Add(x, bias), skip)


@contrib("BiasSplitGelu")
def bias_split_gelu(b: NodeBuilder, x: T, bias: T) -> str:
    """The left half of x + bias times Gelu of the right half."""
    left, right = b.several("Split", 2, b.Add(x, bias), axis=-1, num_outputs=2)
    return b.Mul(left, b.Gelu(right))
