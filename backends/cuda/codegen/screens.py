"""The launch that looks for infinities and NaN."""

from __future__ import annotations

from ....runtime.ir.dtypes import DType, bfloat16, float16, float32
from ....runtime.plan.backend import View
from ..recipe.launch import Launch
from ..recipe.operands import ceil_div, words_of

THREADS = 256
#: Maximum blocks: several waves of any GPU.
MAX_BLOCKS = 4096
#: The bits of the exponent.
_EXPONENTS: dict[DType, int] = {float32: 0x7F800000, float16: 0x7C00, bfloat16: 0x7F80}


def find_not_finite(x: View) -> Launch | None:
    """Return the launch that sets `found` to 1 if `x` has an infinity or NaN.

    Its addresses `found` (4 bytes, on the device or pinned) and `x` are null.

    Args:
        x: dense elements.

    Returns:
        None for dtypes other than float16, bfloat16 and float32.
    """
    dtype = x.type.dtype
    if dtype not in _EXPONENTS:
        return None
    count = x.nbytes // dtype.itemsize
    blocks = ceil_div(count * dtype.itemsize, THREADS * 16)
    return Launch(
        "reduce/not_finite.cu",
        "not_finite",
        grid=(min(blocks, MAX_BLOCKS), 1, 1),
        block=THREADS,
        args={"found": None, "x": None, "count": count},
        types=(("T", words_of(dtype)),),
        constants=(("EXPONENT", _EXPONENTS[dtype]),),
    )
