"""Matrix products in which equal rows and columns give equal results, wherever they are.

BLAS sums the products of an element in an order that depends on its position: remainders at the
edges of tiles use other kernels. Results that should be equal then differ in their last bits.
Multiples of the tile size have no remainders, so remainders are computed separately, zero-padded.
The tile sizes depend on the processor and are determined on first use, in a few milliseconds. Where
even whole tiles differ, `margins` helps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from ....runtime.ir.dtypes import DType, float32, float64
from ....runtime.ir.types import Array
from . import blas, margins
from .calls import direct

#: Rows and columns without remainders in any of OpenBLAS's kernels.
ROWS, COLUMNS = 4, 16
#: The same for contiguous columns, unless they are few: these kernels compute
#: dot products.
DOTS, FEW = 4, 8
#: Maximum elements of a matrix for which a padded copy is cheaper than another call.
WHOLE = 1 << 16
#: Maximum multiplications for which OpenBLAS may use small-matrix kernels.
SMALL = 10**6


def sums(dtype: DType) -> DType:
    """Return the dtype in which products of `dtype` are summed.

    float32 for half floats and float32, but float64 if BLAS cannot be made consistent for float32.
    Others unchanged.
    """
    if dtype.kind in "iubc" or dtype == float64:
        return dtype
    return float32 if _is_even_inside() or _is_even_between_margins() else float64


def is_small(m: int, k: int, n: int) -> bool:
    """Return whether BLAS may use a small-matrix kernel for a row-major left matrix."""
    return m > 1 and m * k * n <= SMALL


def multiply(a: Array, b: Array) -> Array:
    """Return a @ b, as `numpy.matmul`, for (stacked) matrices of one dtype."""
    if (wide := sums(a.dtype)) != a.dtype:
        return multiply(a.astype(wide), b.astype(wide)).astype(a.dtype)
    if _grain(a, b) == (1, 1) and not _needs_margins(a, b):
        return np.matmul(a, b)
    stacks = a.shape[:-2], b.shape[:-2]
    lead = np.broadcast_shapes(*stacks) if any(stacks) else ()
    out = np.empty((*lead, a.shape[-2], b.shape[-1]), a.dtype)
    recorded(a, b, out)()
    return out


def recorded(a: Array, b: Array, out: Array, *, is_fixed: bool = False) -> Callable[[], object]:
    """Return the call that computes a @ b into `out`, which has the dtype of the sums.

    It may be repeated, for new contents of the same arrays.

    Args:
        a: matrices, or a vector.
        b: the same.
        out: the result.
        is_fixed: whether `b` is constant.
    """
    if b.ndim == 1:
        return recorded(a, b[:, np.newaxis], out[..., np.newaxis])
    if a.ndim == 1:
        return recorded(a[np.newaxis], b, out[..., np.newaxis, :])
    if a.dtype != out.dtype or b.dtype != out.dtype:
        return partial(_multiply_widened, a, b, out)
    if a.shape[-1] == 1:
        return partial(np.multiply, a, b, out)
    if _needs_margins(a, b):
        return margins.recorded(a, b, out, is_fixed=is_fixed)
    rows, columns = _grain(a, b)
    if rows == columns == 1:
        return partial(np.matmul, a, b, out)
    is_vector = min(out.shape[-2:]) == 1
    if is_vector and rows == 1:
        return _by_vector(a, b, out, columns, WHOLE if is_fixed else 0)
    if is_vector and columns == 1:
        vector, matrix, product = (x.swapaxes(-1, -2) for x in (b, a, out))
        return _by_vector(vector, matrix, product, rows, 0)
    if not is_vector and _has_one_order(a.dtype):
        return _transposed(a, b, out)
    return partial(_multiply_padded, a, b, out, rows, columns)


def stacked(a: Array, b: Array, out: Array) -> Callable[[], object]:
    """Return the call for stacks [n, ., .] of matrices; that of a plain product for a stack of one.

    See `recorded`.
    """
    return recorded(a[0], b[0], out[0]) if len(a) == 1 else recorded(a, b, out)


def _grain(a: Array, b: Array) -> tuple[int, int]:
    """Return the multiples of rows and columns for which BLAS is consistent."""
    if a.dtype not in (float32, float64):
        return 1, 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if k < 2 or not (m and n) or m == n == 1:
        return 1, 1
    a_is_transposed, b_is_transposed = (x.strides[-2] < x.strides[-1] for x in (a, b))
    if min(m, n) == 1 and _has_even_vectors(a.dtype):
        dots = k > FEW and (b_is_transposed if m == 1 else not a_is_transposed)
        grain = DOTS if dots else COLUMNS
        found = (1, grain) if m == 1 else (grain, 1)
    elif min(m, n) == 1 or not _has_one_order(a.dtype):
        found = ROWS, COLUMNS
    elif a_is_transposed or not is_small(m, k, n):
        found = 1, 1
    else:
        found = 1, DOTS if b_is_transposed else COLUMNS
    return (1, 1) if m % found[0] == n % found[1] == 0 else found


def _needs_margins(a: Array, b: Array) -> bool:
    """Return whether a product is consistent only between margins."""
    if a.dtype != float32 or not min(a.shape[-1], a.shape[-2] - 1, b.shape[-1] - 1) > 0:
        return False
    return not _is_even_inside() and _is_even_between_margins()


def _multiply_widened(a: Array, b: Array, out: Array) -> None:
    """Compute a @ b into `out`, in its dtype."""
    recorded(a.astype(out.dtype, copy=False), b.astype(out.dtype, copy=False), out)()


def _multiply_padded(a: Array, b: Array, out: Array, rows: int, columns: int) -> None:
    """Compute a @ b into `out`, with both padded to multiples of the grain."""
    product = np.matmul(_padded(a, -2, rows), _padded(b, -1, columns))
    np.copyto(out, product[..., : out.shape[-2], : out.shape[-1]])


def _transposed(a: Array, b: Array, out: Array) -> Callable[[], None]:
    """Return the call that multiplies by a column-major copy of `a`."""
    copy = np.empty((*a.shape[:-2], *a.shape[:-3:-1]), a.dtype).swapaxes(-1, -2)

    def call() -> None:
        np.copyto(copy, a)
        np.matmul(copy, b, out=out)

    return call


def _by_vector(vector: Array, b: Array, out: Array, grain: int, maximum: int) -> Callable[[], None]:
    """Return the call that multiplies a multiple of the grain of columns, and the rest padded.

    A constant matrix of up to `maximum` elements is padded as a whole, immediately.
    """
    whole = 0 if b.size <= maximum else b.shape[-1] - b.shape[-1] % grain
    first, last = (..., slice(0, whole)), (..., slice(whole, None))
    source, target = b[last], out[last]
    rest = _padded(source, -1, grain)
    place = rest[..., : source.shape[-1]]
    product = np.empty((*out.shape[:-1], rest.shape[-1]), out.dtype)
    found = product[..., : source.shape[-1]]

    multiply = direct(partial(np.matmul, vector, rest, product))
    copy = direct(partial(np.copyto, target, found))

    def finish() -> None:
        multiply()
        copy()

    def call() -> None:
        if whole:
            np.matmul(vector, b[first], out=out[first])
        np.copyto(place, source)
        finish()

    return finish if maximum and not whole else call


def _padded(x: Array, axis: int, grain: int) -> Array:
    """Return matrices zero-padded along an axis to a multiple of the grain."""
    missing = -x.shape[axis] % grain
    if not missing:
        return x
    shape = list(x.shape)
    shape[axis] += missing
    transposed = x.strides[-2] < x.strides[-1]
    wide = np.zeros((*shape[:-2], *shape[:-3:-1]) if transposed else shape, x.dtype)
    wide = wide.swapaxes(-1, -2) if transposed else wide
    wide[..., : x.shape[-2], : x.shape[-1]] = x
    return wide


@cache
def _has_one_order(dtype: DType) -> bool:
    """Return whether all kernels but those for small matrices and vectors sum in one order."""
    return _is_even(dtype, ((5, 64, 7), (17, 64, 33), (3, 100, 2), (12, 64, 250), (100, 64, 196)))


@cache
def _has_even_vectors(dtype: DType) -> bool:
    """Return whether products of a vector and a multiple of the grain are consistent."""
    return _is_even(dtype, ((1, 27, 4), (1, 27, 16), (1, 500, 20)))


@cache
def _is_even_inside() -> bool:
    """Return whether all whole float32 tiles are summed in one order."""
    return _is_even(float32, ((24, 64, 48), (4, 64, 32)))


@cache
def _is_even_between_margins() -> bool:
    """Return whether margins make float32 consistent on kernels with two orders."""
    sizes = ((2, 64, 19), (7, 64, 33), (24, 64, 49), (31, 400, 75), (33, 64, 649))
    return _has_even_vectors(float32) and _is_even(float32, sizes, _multiply_between_margins)


def _multiply_between_margins(a: Array, b: Array) -> Array:
    out = np.empty((a.shape[-2], b.shape[-1]), a.dtype)
    margins.recorded(a, b, out)()
    return out


@cache
def _is_even(
    dtype: DType,
    sizes: tuple[tuple[int, int, int], ...],
    multiply: Callable[[Array, Array], Array] = np.matmul,
) -> bool:
    """Test whether equal rows and columns give equal results, for sizes [m, k, n].

    Both matrices are column-major, for which there are no small-matrix kernels.
    """
    with blas.one_thread():
        for m, k, n in sizes:
            a = np.sin(np.arange(k * m, dtype=dtype)).reshape(k, m).T
            b = np.cos(np.arange(n * k, dtype=dtype)).reshape(n, k).T
            by_row = multiply(np.repeat(a[:1].T, m, 1).T, b)
            by_column = multiply(a, np.repeat(b[:, :1].T, n, 0).T)
            if (by_row != by_row[:1]).any() or (by_column != by_column[:, :1]).any():
                return False
    return True
