"""Poolings that kernels of convolutions may do."""

from __future__ import annotations

from ....runtime.ops.pool import MaxPool
from ....runtime.ops.window import window
from ..recipe.operands import Tensor


def pools_squares(pool: MaxPool, x: Tensor) -> bool:
    """Whether a pooling has windows of 2 x 2 pixels side by side, which cover the image."""
    view = window(pool, x.dims[2:], pool.kernel_shape)
    plain = not view.is_dilated and not any((*view.pads_begin, *view.pads_end))
    return plain and view.kernel == view.strides == (2, 2) and all(d % 2 == 0 for d in x.dims[2:])
