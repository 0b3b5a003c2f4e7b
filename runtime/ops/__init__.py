"""The operators of ONNX, one file per family: declaration and shape rule."""

from . import (
    conv,
    elementwise,
    gather,
    matmul,
    norm,
    pool,
    reduce,
    shape,
)

__all__ = [
    "conv",
    "elementwise",
    "gather",
    "matmul",
    "norm",
    "pool",
    "reduce",
    "shape",
]
