"""Fused and channels-last convolutions."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .activation_names import activated
from .builder import NodeBuilder
from .declaration import Kind, T, contrib

Pixels = Annotated[str, Kind("T", frozenset({dtypes.int8, dtypes.uint8}) | dtypes.FLOATS)]


@contrib("FusedConv")
def fused_conv(
    b: NodeBuilder,
    x: T,
    w: T,
    bias: T | None = None,
    z: T | None = None,
    *,
    activation: str | None = None,
    activation_params: tuple[float, ...] = (),
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """An activation of Conv + z."""
    y = b.Conv(
        x,
        w,
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    if z is not None:
        y = b.Add(y, z)
    return activated(b, y, activation, activation_params) if activation else y


@contrib("NhwcFusedConv")
def nhwc_fused_conv(
    b: NodeBuilder,
    x: T,
    w: T,
    bias: T | None = None,
    z: T | None = None,
    *,
    activation: str | None = None,
    activation_params: tuple[float, ...] = (),
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """FusedConv of channels-last tensors; filters have Conv's layout."""
    y = fused_conv(
        b,
        channels_first(b, x),
        w,
        bias,
        None if z is None else channels_first(b, z),
        activation=activation,
        activation_params=activation_params,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(b, y)


@contrib("NhwcConv")
def nhwc_conv(
    b: NodeBuilder,
    x: T,
    w: T,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """Conv of a channels-last tensor, with channels-last filters.

    onnxruntime's transformers optimizer writes it; filters whose shape has the channels where Conv
    has them are interpreted as Conv's.
    """
    channels, first = b.extent(x, -1), b.extent(w, 1)
    inner = None if channels is None else channels // max(group, 1)
    if first != inner or b.extent(w, -1) == inner:
        w = channels_first(b, w)
    y = b.Conv(
        channels_first(b, x),
        w,
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(b, y)


@contrib("NhwcMaxPool")
def nhwc_max_pool(
    b: NodeBuilder,
    x: Pixels,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> str:
    """MaxPool of a channels-last tensor."""
    y = b.MaxPool(
        channels_first(b, x),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_last(b, y)


def channels_first(b: NodeBuilder, x: str) -> str:
    """Return [n, …, channels] as [n, channels, …]."""
    rank = b.rank(x, 4, 3, 5)
    return b.transpose(x, 0, rank - 1, *range(1, rank - 1))


def channels_last(b: NodeBuilder, x: str) -> str:
    """Return [n, channels, …] as [n, …, channels]."""
    rank = b.rank(x, 4, 3, 5)
    return b.transpose(x, 0, *range(2, rank), 1)
