"""Convolutions of 16-bit floats with the MaxPool behind them as one kernel."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.ir.graph import Node
from ....runtime.ops.conv import Conv
from ....runtime.ops.pool import MaxPool
from ....runtime.ops.window import window
from ..algorithms.registry import Answer, RecipeContext
from ..algorithms.selection import SELECTORS
from ..gemm import f16
from ..gemm.convolution import problem_of
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.operands import Tensor
from .few_channels_mma import pooled_few_channels


def pools_squares(pool: MaxPool, x: Tensor) -> bool:
    """Whether a pooling has windows of 2 x 2 pixels side by side, which cover the image."""
    view = window(pool, x.dims[2:], pool.kernel_shape)
    plain = not view.is_dilated and not any((*view.pads_begin, *view.pads_end))
    return plain and view.kernel == view.strides == (2, 2) and all(d % 2 == 0 for d in x.dims[2:])


def pooled_convolution(context: RecipeContext, before: Tensor, pool: Node) -> Answer:
    """Return a convolution fused with max pooling.

    Args:
        context: the convolution, its epilogue, and the pooled result.
        before: the result before pooling.
        pool: the MaxPool: of 2 x 2 pixels, or any behind a first layer.
    """
    assert isinstance(pool.op, MaxPool)
    y, setting = context.y, context.setting
    conv = problem_of(replace(context, y=before))
    if isinstance(conv, str) or not isinstance(conv.op, Conv) or y is None:
        return "not a convolution"
    if setting.asked or setting.choices or conv.group > 1:
        return "the pooling is a separate step"
    if not y.is_channels_last or not before.is_channels_last or conv.need_constants():
        return "images not in channels-last format"
    if conv.epilogue.reads_along or conv.epilogue.stored != conv.epilogue.sums:
        return "an operand that is not pooled, or results of another dtype"
    if conv.x.is_channels_last:
        plain = pools_squares(pool.op, before)
        return f16.pooled_convolution(conv, y) if plain else "windows other than 2 x 2"
    apart = SELECTORS[Conv].pick(conv).microseconds + LAUNCH + 2 * (before.size + y.size) / MEMORY
    view = window(pool.op, before.dims[2:], pool.op.kernel_shape)
    return pooled_few_channels(conv, view, y, apart)
