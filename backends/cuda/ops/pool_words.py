"""Pooling of 16-bit floats in words of eight channels.

Images are channels-last. The kernel computes in float32.
"""

from __future__ import annotations

from math import prod

from ....runtime.ops.window import Window
from ..codegen.epilogue import Epilogue
from ..gemm.atoms import HALVES, atom_of
from ..recipe.launch import Launch, each
from ..recipe.operands import Ints, Tensor, by_axis, sizes

THREADS = 128
MAX, AVERAGE, AVERAGE_PADDED, NORM = range(4)
#: Maximum bytes of a window that a thread loads at once.
TOGETHER = 256
#: Maximum number of blocks along the second grid axis.
MAX_IMAGES = 65535


def pools_words(y: Tensor | None, x: Tensor) -> bool:
    """Whether kernels of words support these tensors."""
    return (
        y is not None
        and x.dtype in HALVES
        and x.rank == 4
        and x.is_channels_last
        and x.dims[1] % 8 == 0
        and 0 < max(x.size, y.size) < 2**30
        and x.dims[0] <= MAX_IMAGES
    )


def half_pool(kind: int, y: Tensor, x: Tensor, view: Window, epilogue: Epilogue) -> Launch:
    """Return a pooling in words of channels.

    Args:
        kind: MAX, AVERAGE or AVERAGE_PADDED.
        y: the result.
        x: the input; `pools_words` must hold.
        view: the windows.
        epilogue: applied to results.
    """
    kernel_h, kernel_w = view.kernel
    count = y.size // 8
    plane = {
        **{"channels": x.dims[1], **sizes("", x.dims[2:]), **sizes("out_", y.dims[2:])},
        **{"row_x": x.row, "row_y": y.row},
        **by_axis(stride=view.strides, dilation=view.dilations, pad=view.pads_begin),
        **dict(zip(("pad_bottom", "pad_right"), view.pads_end, strict=True)),
    }
    return each(
        "image/pool_vectorized.cu",
        "pool_words",
        count,
        block=THREADS,
        args={"x": x, "y": y, **epilogue.args, "count": count, "p": plane},
        types=(("T", x.dtype), *epilogue.aliases),
        constants=(
            *(("KIND_OF", kind), ("KH", kernel_h), ("KW", kernel_w)),
            ("PLAIN", not epilogue.title),
            ("BATCH", at_once(view.kernel, 8 * x.dtype.itemsize)),
            *(("VECTOR_C", 8), *epilogue.flags(None)),
        ),
        code=f"{atom_of(x.dtype).code()}\n{epilogue.code}",
        concurrent=True,
        note=f"{kernel_h}x{kernel_w} {epilogue.title}".strip(),
        pitched=(x, y, *epilogue.pitched),
    )


def at_once(kernel: Ints, nbytes: int) -> int:
    """Return how many elements of a window a thread loads at once, of this many bytes each.

    All of them if possible, else those of a plane or of a row.
    """
    counts = (prod(kernel[axis:]) for axis in range(len(kernel)))
    return next((count for count in counts if count * nbytes <= TOGETHER), 1)
