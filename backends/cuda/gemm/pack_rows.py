"""Rows of constants, packed on the host or by a kernel.

float32 as several numbers takes a core 10 ns per element: half a second for the weights of a
transformer on many cores. They are uploaded as they are instead, and packed by `pack_rows.cu`.
Rows of 16-bit floats that are columns in memory are transposed by a kernel as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float16, float32
from ....runtime.ir.types import Array, TensorType
from ..codegen.copies import transposition
from ..recipe.launch import THREADS, Launch
from ..recipe.operands import Ints, Scratch, Tensor, ceil_div, words_of
from ..recipe.packing import PackingLaunch
from .f16x3 import in_halves
from .pack import EIGHTS, STEP, InParts, filters_of, joined_groups, rows_of
from .pack_filters import Rows

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
        *outer, rows, columns = source.shape
        steps = rows * columns, columns, 0, 1
        if not self.transposed:
            rows, columns, steps = columns, rows, (rows * columns, 1, 0, columns)
        view = _View((prod(outer), rows, 1, columns), steps, columns)
        return _of_constant(source, view, self.arrange)


def scaled_rows(b: Array, scale: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b, [k, n], or [n, k] if transposed, times a scale of the terms."""
    factors = scale.reshape(-1) * np.float32(alpha)
    return b * (factors if transposed else factors[:, None])


@record
class ScaledPacking:
    """Packs the rows of alpha * b, times a scale of their terms, as `MatrixPacking` does.

    Attributes:
        alpha, transposed, arrange: see there.
    """

    alpha: float
    transposed: bool
    arrange: Order

    def __call__(self, source: Array, scale: Array) -> Array:
        """Pack on the host."""
        scaled = scaled_rows(source, scale, self.alpha, self.transposed)
        return self.arrange(rows_of(scaled, 1.0, self.transposed))

    def launch(self, source: Array, scale: Array) -> PackingLaunch | None:
        """Return the launch that does it; see `KernelPacking`."""
        plain = MatrixPacking(1.0, self.transposed, self.arrange)
        return plain.launch(scaled_rows(source, scale, self.alpha, self.transposed))


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
        if self.joined > 1 or not source.flags.c_contiguous:
            return None
        return _of_constant(source, self._view(source.shape), self.arrange)

    def computed(self, w: Tensor) -> Launch | None:
        """Return the launch that packs computed weights; see `FilterOrder`."""
        if self.arrange is EIGHTS:
            return self._eights(w).launch(w)
        # Scales of halves are packed apart from them.
        if self.joined > 1 or self.arrange is in_halves:
            return None
        made = _launch(self._view(w.dims), self.arrange)
        if made is None:
            return None
        launch, result = made
        return replace(launch, args={**launch.args, "x": w, "y": Scratch(0)}, scratch=result.nbytes)

    def _eights(self, w: Tensor) -> Rows:
        m, c, *kernel = w.dims
        rows, taps = m // self.groups, prod(kernel)
        stored = self.joined * c if self.joined > 1 else self.channels
        return Rows(
            rows=(self.groups, rows),
            of_row=(rows * c * taps, c * taps),
            terms=(taps, stored),
            of_term=(1, taps),
            pitch=ceil_div(taps * stored, 8) * 8,
            filled=c,
            own=rows // self.joined,
        )

    def _view(self, dims: Ints) -> _View:
        m, c, *kernel = dims
        rows, taps = m // self.groups, prod(kernel)
        steps = rows * c * taps, c * taps, 1, taps
        return _View((self.groups, rows, taps, self.channels), steps, c)


@record
class _View:
    """Contiguous elements as matrices of rows of terms.

    Attributes:
        sizes: matrices, rows, outer terms and inner terms.
        steps: distances between these.
        filled: how many inner terms exist; the others are zero.
    """

    sizes: tuple[int, int, int, int]
    steps: tuple[int, int, int, int]
    filled: int


def _transposing(source: Array) -> PackingLaunch | None:
    """Return the launch that packs [..., k, n] of 16 bits as `EIGHTS` of [..., n, k]."""
    *outer, k, n = source.shape
    batch, width = prod(outer), ceil_div(k, 8) * 8
    if source.itemsize != 2 or source.size < MIN_SIZE or batch > MAX_BATCH:
        return None
    launch = transposition(batch, k, n, (n, width), words_of(source.dtype), width)
    return PackingLaunch(launch, source, TensorType(source.dtype, (*outer, n, width)))


def _of_constant(source: Array, view: _View, arrange: Order) -> PackingLaunch | None:
    """Return the launch that packs a view of a large array of float32."""
    if source.dtype != float32 or source.size < MIN_SIZE:
        return None
    made = _launch(view, arrange)
    return None if made is None else PackingLaunch(made[0], source, made[1])


def _launch(view: _View, arrange: Order) -> tuple[Launch, TensorType] | None:
    """Return the launch that packs float32, and the type of its result."""
    batch, n, outer, inner = view.sizes
    if batch > MAX_BATCH:
        return None
    eights, steps = ceil_div(n, 8), ceil_div(outer * inner, STEP)
    if arrange is in_halves:
        entry, parts, blocks = "rows_in_halves", 2, 1
        result = TensorType(float16, (batch, steps, 8 * eights, 2 * STEP))
    elif isinstance(arrange, InParts):
        entry, parts, blocks = "rows_in_parts", arrange.parts, ceil_div(steps, 4)
        result = TensorType(float32, (batch, steps, parts, 8 * eights, STEP))
    else:
        return None
    names = ("of_matrix", "of_row", "of_outer", "of_inner")
    launch = Launch(
        "gemm/pack_rows.cu",
        entry,
        grid=(eights, min(blocks, MAX_BATCH), batch),
        block=THREADS,
        args={
            **{"x": None, "y": None, "rows": n, "terms": outer * inner, "inner": inner},
            **dict(zip(names, view.steps, strict=True)),
            "filled": view.filled,
        },
        types=(("T", float32),),
        constants=(("PARTS", parts),),
        code='#define KIND "f16"',
    )
    return launch, result
