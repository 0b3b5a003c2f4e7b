"""Which layers of quantized tensors have kernels for integers that are faster than floats."""

from __future__ import annotations

from ...runtime.ir.op import Op
from ...runtime.ir.types import TensorType

#: Channels of a group from which on products of integers are worthwhile; or one.
FEWEST_CHANNELS = 16
#: Integers that kernels read at once of a row.
WORD = 4


def why_floats(op: Op, x: TensorType, w: TensorType) -> str:
    """Return why a layer is no faster on integers, an empty text if it is.

    Args:
        op: what it would be on integers.
        x: the image, or the left matrices.
        w: the filters, or the right matrices.
    """
    from ...runtime.ops.quantize import QLinearConv, QLinearMatMul  # once a GPU is starting

    if isinstance(op, QLinearConv):
        channels = None if w.shape is None else w.shape[1]
        is_wide = isinstance(channels, int) and (channels == 1 or channels % FEWEST_CHANNELS == 0)
        if op.group == 1 or is_wide:
            return ""
        return f"groups of {channels} channels, neither one nor a multiple of {FEWEST_CHANNELS}"
    if isinstance(op, QLinearMatMul):
        terms = (x.shape or (None,))[-1]
        if isinstance(terms, int) and terms % WORD == 0:
            return ""
        return f"rows of {terms} integers are not known to be whole words of {WORD}"
    return "kernels for layers of integers store integers"
