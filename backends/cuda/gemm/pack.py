"""Packing of constants into the orders that kernels need, once, on the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.types import Array
from ..recipe.layout import ceil_div
from ..recipe.operands import Packed, Tensor

#: Converts [batch, n, k] to the order of a schedule.
Order = Callable[[Array], Array]
#: The factor of a matrix, and whether it is [n, k].
Form = tuple[float, bool]
#: The mantissa bits of float32 that tf32 lacks.
LACKING = 13
#: Terms per step in the order of `in_parts`.
STEP = 32


# ── rows: a column of B, or a filter, of all its terms ───────────────────────────────────────────


def rows_of(b: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b, which is [k, n], or [n, k] if transposed, as [n, k]."""
    rows = b if transposed else b.reshape(b.shape[0], -1).T
    return rows if alpha == 1 else (rows * np.float32(alpha)).astype(b.dtype)


def filters_of(w: Array, groups: int, channels: int) -> Array:
    """Return weights [m, c, *kernel] as [group, m / group, kernel * channels].

    Args:
        w: the weights.
        groups: number of groups.
        channels: c or more; zero-padded.
    """
    filters, taps = w.shape[0] // groups, prod(w.shape[2:])
    packed = np.zeros((groups * filters, taps, channels), w.dtype)
    packed[..., : w.shape[1]] = w.reshape(w.shape[0], w.shape[1], taps).transpose(0, 2, 1)
    return packed.reshape(groups, filters, taps * channels)


def padded(rows: Array, multiple: int) -> Array:
    """Return rows zero-padded to a multiple of this many elements."""
    *outer, count = rows.shape
    found = np.zeros((*outer, ceil_div(count, multiple) * multiple), rows.dtype)
    found[..., :count] = rows
    return found


def in_parts(rows: Array, parts: int) -> Array:
    """Return float32 [batch, n, k] as tf32 numbers: [batch, step, part, n, 32 terms].

    The rows of a step are in the swizzled order of `cp_async.cuh`: chunk c of row r, of four terms,
    is at c ^ (r % 8). Rows and terms are zero-padded.
    """
    count, n, k = rows.shape
    eights, steps = ceil_div(n, 8), ceil_div(k, STEP)
    filled = np.zeros((count, 8 * eights, STEP * steps), np.float32)
    filled[:, :n, :k] = rows
    chunks = filled.reshape(count, eights, 8, steps, 8, 4).transpose(0, 3, 1, 2, 4, 5)
    row, place = np.indices((8, 8))
    swizzled = chunks[:, :, :, row, place ^ row]
    packed = np.empty((count, steps, parts, *swizzled.shape[2:]), np.float32)
    for part, numbers in enumerate(cut(swizzled)[:parts]):
        packed[:, :, part] = numbers
    return packed.reshape(count, steps, parts, 8 * eights, STEP)


def rows_of_part(n: int) -> int:
    """Return the rows per part of a step in the order of `in_parts`, for n rows."""
    return ceil_div(n, 8) * 8


def size_in_parts(n: int, k: int, parts: int) -> int:
    """Return the number of elements of a matrix [n, k] in the order of `in_parts`."""
    return ceil_div(k, STEP) * parts * rows_of_part(n) * STEP


def cut(numbers: Array) -> tuple[Array, Array]:
    """Return tf32 numbers, high and low, that sum to float32 numbers except for their last bits."""
    bits = numbers.view(np.uint32)
    mask, half = np.uint32(2**32 - 2**LACKING), np.uint32(2 ** (LACKING - 1))
    high = ((bits + half) & mask).view(np.float32)
    odd = ~np.isfinite(high) | ~np.isfinite(numbers)
    if odd.any():  # infinities, NaNs, and values that would round to infinity
        high[odd] = np.where(np.isnan(numbers), np.float32(np.nan), (bits & mask).view(np.float32))[
            odd
        ]
    with np.errstate(invalid="ignore"):
        low = numbers - high
    low[~np.isfinite(low)] = 0
    return high, ((low.view(np.uint32) + half) & mask).view(np.float32)


# ── constants of a graph ─────────────────────────────────────────────────────────────────────────


def packed_matrix(b: Tensor, form: Form, order: str, arrange: Order) -> Packed:
    """Return alpha * b as [n, k] in an order named `order`, which `arrange` makes."""
    pack = partial(_matrix, form=form, arrange=arrange)
    return Packed((b.value,), (f"columns {order}", *form), pack)


def _matrix(b: Array, form: Form, arrange: Order) -> Array:
    return arrange(rows_of(b, *form))


def packed_filters(
    w: Tensor, groups: int, channels: int, order: str, arrange: Order, joined: int = 1
) -> Packed:
    """Return weights in a packed order; see `filters_of`, `joined_groups` and `packed_matrix`."""
    pack = partial(_filters, groups=groups, channels=channels, arrange=arrange, joined=joined)
    return Packed((w.value,), (f"filters {order}", groups, channels, joined), pack)


def _filters(w: Array, groups: int, channels: int, arrange: Order, joined: int) -> Array:
    return arrange(filters_of(joined_groups(w, groups, joined), groups, channels))


def joined_groups(w: Array, groups: int, joined: int) -> Array:
    """Return weights [m, c, *kernel] as [m, joined * c, *kernel], zero for other groups' channels.

    Args:
        w: the weights of ``groups * joined`` groups.
        groups: number of remaining groups.
        joined: how many groups become one.
    """
    m, c, *kernel = w.shape
    if joined == 1:
        return w
    found = np.zeros((groups, joined, m // (groups * joined), joined, c, *kernel), w.dtype)
    each = np.arange(joined)
    found[:, each, :, each] = w.reshape(groups, joined, -1, c, *kernel).swapaxes(0, 1)
    return found.reshape(m, joined * c, *kernel)


# ── columns: without tensor cores ────────────────────────────────────────────────────────────────


def pack_columns(b: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b as [k, n], with columns zero-padded to a multiple of four."""
    columns = b.T if transposed else b.reshape(b.shape[0], -1)
    k, n = columns.shape
    found = np.zeros((k, ceil_div(n, 4) * 4), b.dtype)
    np.multiply(columns, np.float32(alpha), out=found[:, :n])
    return found


def pack_windows(w: Array, groups: int) -> Array:
    """Return weights [m, c, *kernel] as [group, kernel * c, m / group], padded to fours."""
    return padded(filters_of(w, groups, w.shape[1]).transpose(0, 2, 1), 4)


def pack_bias(c: Array, n: int, beta: float) -> Array:
    """Return beta * c as [n]."""
    return np.broadcast_to(c.ravel() * np.float32(beta), (n,)).astype(c.dtype)
