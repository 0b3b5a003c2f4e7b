"""Rows of constants, packed on the host or by a kernel.

float32 as several numbers takes a core 10 ns per element: half a second for the weights of a
transformer on many cores. They are uploaded as they are instead, and packed by `pack_rows.cu`.
Rows of 16-bit floats that are columns in memory are transposed by a kernel as well.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float16, float32
from ....runtime.ir.types import Array, TensorType
from ..codegen.copies import transposition
from ..recipe.launch import THREADS, Launch
from ..recipe.operands import ceil_div, words_of
from ..recipe.packing import PackingLaunch
from .f16x3 import in_halves
from .pack import EIGHTS, STEP, InParts, filters_of, joined_groups, rows_of

#: Converts [batch, n, k] to the order of a schedule.
Order = Callable[[Array], Array]
#: Elements below which the host packs sooner than an upload and a launch take.
MIN_SIZE = 1 << 16
#: Maximum blocks of a grid along z.
MAX_BATCH = (1 << 16) - 1


@record
class MatrixPacking:
    """Packs the rows of alpha * b; see `rows_of`.

    Attributes:
        alpha: the factor.
        transposed: whether b is [n, k] instead of [k, n].
        arrange: the order.
    """

    alpha: float
    transposed: bool
    arrange: Order

    def __call__(self, source: Array) -> Array:
        """Pack on the host."""
        return self.arrange(rows_of(source, self.alpha, self.transposed))

    def launch(self, source: Array) -> PackingLaunch | None:
        """Return the launch that does it; see `KernelPacking`."""
        if self.alpha != 1 or source.ndim < 2 or not source.flags.c_contiguous:
            return None
        if self.arrange is EIGHTS:
            return None if self.transposed else _transposing(source)
        matrices = source.reshape(-1, *source.shape[-2:])
        rows = matrices if self.transposed else matrices.swapaxes(1, 2)
        return _launch(source, rows[:, :, None], self.arrange)


@record
class FilterPacking:
    """Packs the filters of a convolution; see `filters_of` and `joined_groups`.

    Attributes:
        groups, channels, joined: their arguments.
        arrange: the order.
    """

    groups: int
    channels: int
    joined: int
    arrange: Order

    def __call__(self, source: Array) -> Array:
        """Pack on the host."""
        filters = joined_groups(source, self.groups, self.joined)
        return self.arrange(filters_of(filters, self.groups, self.channels))

    def launch(self, source: Array) -> PackingLaunch | None:
        """Return the launch that does it; see `KernelPacking`."""
        m, c, *kernel = source.shape
        if self.joined > 1 or self.channels != c or not source.flags.c_contiguous:
            return None
        filters = source.reshape(self.groups, m // self.groups, c, prod(kernel))
        return _launch(source, filters.swapaxes(2, 3), self.arrange)


def _transposing(source: Array) -> PackingLaunch | None:
    """Return the launch that packs [..., k, n] of 16 bits as `EIGHTS` of [..., n, k]."""
    *outer, k, n = source.shape
    batch, width = prod(outer), ceil_div(k, 8) * 8
    if source.itemsize != 2 or source.size < MIN_SIZE or batch > MAX_BATCH:
        return None
    launch = transposition(batch, k, n, (n, width), words_of(source.dtype), width)
    return PackingLaunch(launch, source, TensorType(source.dtype, (*outer, n, width)))


def _launch(source: Array, rows: Array, arrange: Order) -> PackingLaunch | None:
    """Return the launch that packs a view of an array: [batch, n, outer, inner] of k terms."""
    batch, n, outer, inner = rows.shape
    if source.dtype != float32 or source.size < MIN_SIZE or batch > MAX_BATCH:
        return None
    eights, steps = ceil_div(n, 8), ceil_div(outer * inner, STEP)
    if arrange is in_halves:
        entry, parts = "rows_in_halves", 2
        result = TensorType(float16, (batch, steps, 8 * eights, 2 * STEP))
    elif isinstance(arrange, InParts):
        entry, parts = "rows_in_parts", arrange.parts
        result = TensorType(float32, (batch, steps, parts, 8 * eights, STEP))
    else:
        return None
    distances = (stride // source.itemsize for stride in rows.strides)
    names = ("of_matrix", "of_row", "of_outer", "of_inner")
    launch = Launch(
        "gemm/pack_rows.cu",
        entry,
        grid=(eights, 1, batch),
        block=THREADS,
        args={
            **{"x": None, "y": None, "rows": n, "terms": outer * inner, "inner": inner},
            **dict(zip(names, distances, strict=True)),
        },
        types=(("T", float32),),
        constants=(("PARTS", parts),),
        code='#define KIND "f16"',
    )
    return PackingLaunch(launch, source, result)
