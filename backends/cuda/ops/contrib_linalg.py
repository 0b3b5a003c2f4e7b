"""Matrix inverses."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.ir.dtypes import FLOATS
from ....runtime.ops.contrib_linalg import Inverse
from ....runtime.ops.triangles import is_unit_lower
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch
from ..recipe.operands import Scratch, Tensor
from ..recipe.source import arithmetic

#: Threads per block; one block per matrix.
THREADS, LOWER_THREADS = 128, 256
#: Bytes of shared memory without asking for more.
SHARED = 48 << 10


@kernel(Inverse)
def inverse(op: Inverse, y: Tensor, x: Tensor) -> Answer:
    """Gaussian elimination with pivoting, or by halves where a matrix is known to be triangular."""
    refused = need_dtypes(FLOATS, x)
    if refused:
        return refused
    compute, n = arithmetic(x.dtype), x.dims[-1]
    size = 1 << max(1, (n - 1).bit_length())
    shared = (2 * size * (size + 1) + size * size // 4) * compute.itemsize
    if is_unit_lower(x.value) and shared <= SHARED:
        return Launch(
            "gemm/inverse_lower.cu",
            "inverse_lower",
            grid=(x.size // (n * n) if n else 0, 1, 1),
            block=LOWER_THREADS,
            args={"x": x, "y": y, "n": n},
            types=(("T", x.dtype), ("A", compute)),
            constants=(("N", size), ("THREADS", LOWER_THREADS)),
            note=f"{n} x {n}",
        )
    launch = Launch(
        "gemm/inverse.cu",
        "inverse",
        grid=(x.size // (n * n) if n else 0, 1, 1),
        block=THREADS,
        args={"x": x, "work": Scratch(0), "y": y, "n": n},
        types=(("T", x.dtype), ("A", compute)),
    )
    return replace(launch, scratch=2 * x.size * compute.itemsize)
