"""Convolutions with the MaxPool behind them as one kernel, or as the last one of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Node
from ....runtime.ops.conv import Conv
from ....runtime.ops.pool import MaxPool
from ....runtime.ops.window import window
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext
from ..algorithms.selection import SELECTORS
from ..gemm import conv_f16, conv_f32, image_halves
from ..gemm.convolution import ConvProblem, problem_of
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.operands import Tensor
from .few_channels_mma import pooled_few_channels
from .pools import pools_squares
from .winograd import fused, nonfused

#: How algorithms store the maxima of squares of float32 results.
POOLING: Mapping[str, Callable[[ConvProblem, str], Answer]] = {
    "tensor_cores": conv_f32.convolution,
    "in_halves": image_halves.make,
    "winograd_f2": partial(fused, out=2),
    "winograd_f4": partial(fused, out=4),
    "winograd_f2_nonfused": partial(nonfused, out=2),
    "winograd_f4_nonfused": partial(nonfused, out=4),
}


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
    if not y.is_channels_last or not before.is_channels_last or conv.need_constants():
        return "images not in channels-last format"
    if conv.epilogue.pitched or conv.epilogue.stored != conv.epilogue.sums:
        return "an operand that is not pooled, or results of another dtype"
    wide, squares = conv.x.dtype == float32, pools_squares(pool.op, before)
    own = setting.is_decided
    is_last = conv.x.format.plain is Format.CHANNELS_LAST
    if is_last and not squares:
        return "windows other than 2 x 2"
    if wide and squares and (own or is_last):
        return _of_float32(replace(conv, pooled=y))
    if own or conv.group > 1:
        return "the pooling is a separate step"
    if is_last:
        return conv_f16.pooled_convolution(conv, y)
    apart = SELECTORS[Conv].pick(conv).microseconds + LAUNCH + _bytes(before, y) / MEMORY
    view = window(pool.op, before.dims[2:], pool.op.kernel_shape)
    found = pooled_few_channels(conv, view, y, apart)
    return (
        _of_float32(replace(conv, pooled=y))
        if wide and squares and isinstance(found, str)
        else found
    )


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.size * tensor.dtype.itemsize for tensor in tensors)


def _of_float32(conv: ConvProblem) -> Answer:
    """Return the algorithm that is chosen, if it can store maxima."""
    found = SELECTORS[Conv].pick(conv)
    if found.algorithm not in POOLING:
        return f"{found.algorithm} does not pool"
    return found.reason or POOLING[found.algorithm](conv, found.variant)
