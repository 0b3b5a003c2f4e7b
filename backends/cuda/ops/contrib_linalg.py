"""Matrix inverses."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.ir.dtypes import FLOATS
from ....runtime.ops.contrib_linalg import Inverse
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch
from ..recipe.operands import Scratch, Tensor
from ..recipe.source import arithmetic

#: Threads per block; one block per matrix.
THREADS = 128


@kernel(Inverse)
def inverse(op: Inverse, y: Tensor, x: Tensor) -> Answer:
    """Gaussian elimination with pivoting, one block per matrix."""
    refused = need_dtypes(FLOATS, x)
    if refused:
        return refused
    compute, n = arithmetic(x.dtype), x.dims[-1]
    launch = Launch(
        "gemm/inverse.cu",
        "inverse",
        grid=(x.size // (n * n) if n else 0, 1, 1),
        block=THREADS,
        args={"x": x, "work": Scratch(0), "y": y, "n": n},
        types=(("T", x.dtype), ("A", compute)),
    )
    return replace(launch, scratch=2 * x.size * compute.itemsize)
