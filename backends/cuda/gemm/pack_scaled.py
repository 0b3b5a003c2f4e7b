"""Weights of 16-bit floats times a scale of their terms, packed on the host or by a kernel.

They are mantissas and powers of two, so that weights and scales of any size keep their digits; see
`normalized_rows.cuh`.
"""

from __future__ import annotations

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import Array, TensorType
from ..recipe.launch import THREADS, Arguments, Launch
from ..recipe.operands import ceil_div
from ..recipe.packing import PackingLaunch
from .atoms import HALVES
from .linear import TILED
from .pack import EIGHTS, rows_of
from .pack_rows import MIN_SIZE, are_of_terms, matrix_view

#: Exponent of the greatest mantissa of a row.
TOP = 8


@record
class ScaledRows:
    """The mantissas of alpha * b, [k, n], as [n, k] in whole words of eight.

    Attributes:
        alpha: the factor.
        transposed: whether b is [n, k].
    """

    alpha: float
    transposed: bool

    def __call__(self, b: Array, scale: Array) -> Array:
        """Pack on the host."""
        return EIGHTS(_scaled(b, scale, self.alpha, self.transposed)[0])

    def launch(self, b: Array, scale: Array) -> PackingLaunch | None:
        """Return the launch that does it; see `KernelPacking`."""
        if self.alpha != 1 or not _are_for_kernels(b, self.transposed, scale):
            return None
        n, k = matrix_view(b.shape, self.transposed).sizes[1::2]
        result = TensorType(b.dtype, (n, ceil_div(k, 8) * 8))
        launch = _kernel("scaled_rows", b, self.transposed, scale, width=result.dims[-1])
        return PackingLaunch(launch, {"x": b, "scale": scale}, result)


@record
class ScaledColumns:
    """The powers of two, sums and shifts of the columns of alpha * b, float32 [3, n].

    Attributes:
        alpha, transposed: see `ScaledRows`.
    """

    alpha: float
    transposed: bool

    def __call__(self, b: Array, scale: Array, *shift: Array) -> Array:
        """Compute them on the host."""
        mantissas, powers = _scaled(b, scale, self.alpha, self.transposed)
        sums = mantissas.astype(np.float64).sum(-1) * powers
        shifts = np.zeros_like(sums)
        if shift:
            rows = rows_of(b, self.alpha, self.transposed).astype(np.float64)
            shifts = rows @ shift[0].reshape(-1).astype(np.float64)
        return np.stack((powers, sums, shifts)).astype(np.float32)

    def launch(self, b: Array, scale: Array, *shift: Array) -> PackingLaunch | None:
        """Return the launch that does it, with another order of summation; see `KernelPacking`."""
        if self.alpha != 1 or not _are_for_kernels(b, self.transposed, scale, *shift):
            return None
        sources = dict[str, Array](zip(("x", "scale", "shift"), (b, scale, *shift), strict=False))
        launch = _kernel("scaled_columns", b, self.transposed, scale, shift=None)
        n = matrix_view(b.shape, self.transposed).sizes[1]
        return PackingLaunch(launch, sources, TensorType(float32, (3, n)))


def _scaled(b: Array, scale: Array, alpha: float, transposed: bool) -> tuple[Array, Array]:
    """Return weights in rows, times the scale of the terms, as mantissas and powers of two."""
    rows = rows_of(b, alpha, transposed)
    wide = rows.astype(np.float32) * scale.reshape(-1).astype(np.float32)
    powers = np.exp2(np.frexp(np.abs(wide).max(-1, keepdims=True))[1].astype(np.float32) - TOP)
    return (wide / powers).astype(rows.dtype), powers[..., 0]


def _are_for_kernels(b: Array, transposed: bool, *factors: Array) -> bool:
    """Whether kernels read a large matrix, and numbers for each of its terms, as they are."""
    dtype = factors[0].dtype
    if b.ndim != 2 or b.size < MIN_SIZE or b.dtype not in HALVES or dtype not in TILED:
        return False
    there = all(are_of_terms(each, dtype, b, transposed) for each in factors)
    return b.flags.c_contiguous and there


def _kernel(entry: str, b: Array, transposed: bool, scale: Array, **more: int | None) -> Launch:
    """Return a launch of one of the kernels, which are compiled together."""
    view = matrix_view(b.shape, transposed)
    (_, n, _, k), (_, of_row, _, of_term) = view.sizes, view.steps
    args: Arguments = {
        **{"x": None, "scale": None, **({"shift": None} if "shift" in more else {}), "y": None},
        **{"rows": n, "terms": k, **{name: v for name, v in more.items() if v is not None}},
        **{"of_row": of_row, "of_term": of_term},
    }
    return Launch(
        "gemm/pack_scaled.cu",
        entry,
        grid=(ceil_div(n, 8), 1, 1),
        block=THREADS,
        args=args,
        types=(("T", b.dtype), ("S", scale.dtype)),
    )
