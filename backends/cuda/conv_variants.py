"""Convolution's relatives: folding, deformed, causal."""

from __future__ import annotations

import numpy as np

from ...runtime.dtypes import FLOATS
from ...runtime.ops.conv import CausalConvWithState, Col2Im, DeformConv
from ...runtime.ops.window import window
from .compile import arithmetic
from .elementwise import NUMBERS
from .launch import Ints32, Launch, Tensor, each
from .registry import Answer, kernel, need_dtypes, need_known
from .spatial import three
from .tail import no_tail


@kernel(Col2Im)
def col2im(op: Col2Im, y: Tensor, x: Tensor, image_shape: Tensor, block_shape: Tensor) -> Answer:
    """Fold blocks into images; a thread collects what arrives at one place."""
    refused = need_known(block_shape=block_shape) or need_dtypes(NUMBERS, x)
    if refused:
        return refused
    if y.rank > 5:
        return f"{y.rank - 2} spatial axes"
    view = window(op, y.dims[2:], block_shape.ints)
    fields = (
        *(three(view.output, 1), three(y.dims[2:], 1), three(view.kernel, 1)),
        *(three(view.strides, 1), three(view.dilations, 1), three(view.pads_begin, 0)),
    )
    return each(
        "conv.cu",
        "fold_columns",
        y.size,
        *(x, y, np.int64(y.size), np.int32(y.dims[1])),
        Ints32(tuple(n for field in fields for n in field)),
        types=(("X", x.dtype), ("W", x.dtype), ("Y", y.dtype), ("A", arithmetic(x.dtype))),
        constants=(
            *(("CHANNELS_LAST", False), ("BIAS", False)),
            *(("ZERO_X", False), ("ZERO_W", False)),
        ),
        code=no_tail(y.dtype).code,
    )


@kernel(DeformConv)
def deform_conv(
    op: DeformConv,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
) -> Answer:
    """Sample at moved positions, and add up what the weights make of it."""
    refused = need_dtypes(FLOATS, x)
    if refused:
        return refused
    if x.rank != 4:
        return f"{x.rank - 2} spatial axes"
    view = window(op, x.dims[2:], w.dims[2:])
    plane = (
        *(*x.dims[1:], *y.dims[1:], *view.kernel, *view.strides, *view.pads_begin),
        *(*view.dilations, op.group, op.offset_group),
    )
    return each(
        "deform.cu",
        "deform_conv",
        y.size,
        *(x, w, offset, b, mask, y, np.int64(y.size), Ints32(plane)),
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
    )


@kernel(CausalConvWithState, outputs=2)
def causal_conv_with_state(
    op: CausalConvWithState,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Convolve each channel with its own past."""
    refused = need_dtypes(FLOATS, x)
    if refused:
        return refused
    (_, channels, length), size = x.dims, weight.dims[2]
    types = (("T", x.dtype), ("A", arithmetic(x.dtype)))
    constants = (("SILU", op.activation != "none"),)
    launches: list[Launch] = []
    if y is not None:
        sizes = (np.int64(y.size), *map(np.int32, (channels, length, size)))
        launches.append(
            each("causal.cu", "causal_conv", y.size, *(x, weight, bias, past, y, *sizes),
                 types=types, constants=constants)
        )  # fmt: skip
    for state in more[:1]:
        if state is not None:
            sizes = (np.int64(state.size), *map(np.int32, (length, size - 1)))
            launches.append(
                each("causal.cu", "causal_state", state.size, *(x, past, state, *sizes),
                     types=types, constants=constants)
            )  # fmt: skip
    return tuple(launches)
