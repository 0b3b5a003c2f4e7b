"""Rows of constants, packed on the host or by a kernel.

float32 as several numbers takes a core 10 ns per element: half a second for the weights of a
transformer on many cores. They are uploaded as they are instead, and packed by `pack_rows.cu`.
Rows that are columns in memory are transposed by a kernel as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float16, float32
from ....runtime.ir.types import Array, TensorType
from ..codegen.copies import transposition
from ..recipe.launch import THREADS, Arguments, Launch
from ..recipe.operands import Ints, Scratch, Tensor, ceil_div, words_of
from ..recipe.packing import PackingLaunch
from .f16x3 import in_halves, scales_of
from .pack import EIGHTS, STEP, InParts, InWords, filters_of, joined_groups, rows_of
from .pack_filters import Rows

#: Converts [batch, n, k] to the order of a schedule.
Order = Callable[[Array], Array]
#: Elements below which the host packs sooner than an upload and a launch take, and below which it
#: only reads them sooner, as for scales: it stores such small results together.
MIN_SIZE, MIN_READ = 1 << 16, 1 << 18
#: Maximum blocks of a grid along z.
MAX_BATCH = (1 << 16) - 1


@record
class MatrixPacking:
    """Packs the rows of alpha * b, perhaps times a scale of their terms; see `rows_of`.

    Attributes:
        alpha: the factor.
        transposed: whether b is [n, k] instead of [k, n].
        arrange: the order.
    """

    alpha: float
    transposed: bool
    arrange: Order

    def __call__(self, source: Array, scale: Array | None = None) -> Array:
        """Pack on the host."""
        if scale is None:
            return self.arrange(rows_of(source, self.alpha, self.transposed))
        scaled = _scaled_rows(source, scale, self.alpha, self.transposed)
        return self.arrange(rows_of(scaled, 1.0, self.transposed))

    def launch(self, source: Array, scale: Array | None = None) -> PackingLaunch | None:
        """Return the launch that does it; see `KernelPacking`."""
        if source.ndim < 2 or not source.flags.c_contiguous:
            return None
        if isinstance(self.arrange, InWords):
            plain = self.alpha == 1 and scale is None and not self.transposed
            return _transposing(source, self.arrange.elements) if plain else None
        if scale is not None and not are_of_terms(scale, float32, source, self.transposed):
            return None
        view = matrix_view(source.shape, self.transposed)
        return _of_constant(source, view, self.arrange, self.alpha, scale)


def _scaled_rows(b: Array, scale: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b, [k, n], or [n, k] if transposed, times a scale of the terms."""
    factors = scale.reshape(-1) * np.float32(alpha)
    return b * (factors if transposed else factors[:, None])


def are_of_terms(scale: Array, dtype: DType, source: Array, transposed: bool) -> bool:
    """Whether a scale has a number of a dtype for each term of a matrix, as kernels read them."""
    terms = source.shape[-1 if transposed else -2]
    return scale.dtype == dtype and scale.flags.c_contiguous and scale.size == terms


@record
class SumPacking:
    """The sums of the rows of alpha * b, [k, n], [2, n]: times a scale and a shift of their terms.

    Without a shift, the second sums are zero.

    Attributes:
        alpha, transposed: see `MatrixPacking`.
    """

    alpha: float
    transposed: bool

    def __call__(self, source: Array, scale: Array, *shift: Array) -> Array:
        """Sum on the host."""

        def sums(factors: Array) -> Array:
            scaled = _scaled_rows(source, factors, self.alpha, self.transposed)
            return np.add.reduce(scaled, axis=int(self.transposed), dtype=np.float64)

        found = sums(scale)
        shifts = sums(shift[0]) if shift else np.zeros_like(found)
        return np.stack((found, shifts)).astype(np.float32)

    def launch(self, source: Array, scale: Array, *shift: Array) -> PackingLaunch | None:
        """Return the launch that does it, with another order of summation; see `KernelPacking`."""
        factors = dict(zip(("scale", "shift"), (scale, *shift), strict=False))
        if not _is_for_kernels(source) or source.ndim != 2:
            return None
        if not all(
            are_of_terms(each, float32, source, self.transposed) for each in factors.values()
        ):
            return None
        view = matrix_view(source.shape, self.transposed)
        (_, n, _, terms), (_, of_row, _, of_inner) = view.sizes, view.steps
        args = {
            **{"x": None, "scale": None, "shift": None, "alpha": self.alpha, "y": None},
            **{"rows": n, "terms": terms, "of_row": of_row, "of_inner": of_inner},
        }
        launch = _kernel("sums_of_rows", (ceil_div(n, 8), 2, 1), args)
        return PackingLaunch(launch, {"x": source, **factors}, TensorType(float32, (2, n)))


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
        if self.arrange == EIGHTS:
            return self._eights(w).launch(w)
        # Scales of halves are packed apart from them.
        if self.joined > 1 or not isinstance(self.arrange, InParts):
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

    def _view(self, dims: Ints) -> View:
        m, c, *kernel = dims
        rows, taps = m // self.groups, prod(kernel)
        steps = rows * c * taps, c * taps, 1, taps
        return View((self.groups, rows, taps, self.channels), steps, c)


@record
class View:
    """Contiguous elements as matrices of rows of terms.

    Attributes:
        sizes: matrices, rows, outer terms and inner terms.
        steps: distances between these.
        filled: how many inner terms exist; the others are zero.
    """

    sizes: tuple[int, int, int, int]
    steps: tuple[int, int, int, int]
    filled: int


def matrix_view(dims: Ints, transposed: bool) -> View:
    """Return [..., k, n], or [..., n, k] if transposed, as matrices of rows of k terms."""
    *outer, rows, columns = dims
    steps = rows * columns, columns, 0, 1
    if not transposed:
        rows, columns, steps = columns, rows, (rows * columns, 1, 0, columns)
    return View((prod(outer), rows, 1, columns), steps, columns)


def _transposing(source: Array, word: int) -> PackingLaunch | None:
    """Return the launch that packs [..., k, n] as [..., n, k] in words of so many elements."""
    *outer, k, n = source.shape
    batch, width = prod(outer), ceil_div(k, word) * word
    if source.itemsize * word != 16 or source.size < MIN_SIZE or batch > MAX_BATCH:
        return None
    launch = transposition(batch, k, n, (n, width), words_of(source.dtype), width)
    return PackingLaunch(launch, {"x": source}, TensorType(source.dtype, (*outer, n, width)))


def _is_for_kernels(source: Array) -> bool:
    """Whether an array is one of float32 that is large enough, as kernels read it."""
    return source.dtype == float32 and source.size >= MIN_SIZE and source.flags.c_contiguous


def _of_constant(
    source: Array, view: View, arrange: Order, alpha: float = 1.0, scale: Array | None = None
) -> PackingLaunch | None:
    """Return the launch that packs a view of a large array of float32."""
    is_large = source.size >= MIN_READ or arrange is not scales_of
    made = _launch(view, arrange, alpha) if is_large and _is_for_kernels(source) else None
    if made is None:
        return None
    factors = {} if scale is None else {"scale": scale}
    return PackingLaunch(made[0], {"x": source, **factors}, made[1])


def _launch(view: View, arrange: Order, alpha: float = 1.0) -> tuple[Launch, TensorType] | None:
    """Return the launch that packs float32, and the type of its result."""
    batch, n, outer, inner = view.sizes
    if batch > MAX_BATCH:
        return None
    eights, steps = ceil_div(n, 8), ceil_div(outer * inner, STEP)
    parts, blocks = 2, 1
    if arrange is in_halves:
        entry = "rows_in_halves"
        result = TensorType(float16, (batch, steps, 8 * eights, 2 * STEP))
    elif arrange is scales_of:
        entry, result = "scales_of_rows", TensorType(float32, (batch, 8 * eights))
    elif isinstance(arrange, InParts):
        entry, parts, blocks = "rows_in_parts", arrange.parts, ceil_div(steps, 4)
        result = TensorType(float32, (batch, steps, parts, 8 * eights, STEP))
    else:
        return None
    names = ("of_matrix", "of_row", "of_outer", "of_inner")
    args = {
        **{"x": None, "scale": None, "alpha": alpha, "y": None},
        **{"rows": n, "terms": outer * inner, "inner": inner},
        **dict(zip(names, view.steps, strict=True)),
        "filled": view.filled,
    }
    return _kernel(entry, (eights, min(blocks, MAX_BATCH), batch), args, parts), result


def _kernel(entry: str, grid: tuple[int, int, int], args: Arguments, parts: int = 2) -> Launch:
    """Return a launch of one of the kernels, which are compiled together."""
    return Launch(
        "gemm/pack_rows.cu",
        entry,
        grid=grid,
        block=THREADS,
        args=args,
        types=(("T", float32),),
        constants=(("PARTS", parts),),
        code='#define KIND "f16"',
    )
