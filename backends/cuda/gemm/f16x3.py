"""float32 as two float16 numbers: how constants are packed, and which can be.

Tensor cores multiply float16 twice as fast as TF32, and three such products are as accurate:
`step_f16x3.cuh` describes them. float16 has a small range, so every row of constants (the weights
of one result) is scaled by a power of two, and kernels scale the other operand. Numbers far below
the greatest of their row lose bits: of no consequence, unless the other operand has far greater
numbers in these places. Constants that suggest so are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from math import prod

import numpy as np

from ....runtime.base.parallel import begin, share
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Node
from ....runtime.ir.types import Array
from ....runtime.ops.conv import Conv
from ....runtime.ops.matmul import Gemm, MatMul
from ..recipe.operands import ceil_div
from .findings import Findings
from .pack import STEP, swizzle

#: Exponents of the greatest number of a row, scaled, and of the totals of kernels; see
#: `step_f16x3.cuh`.
TOP, EXTRA = 14, 22
#: Rows that are packed at a time, so that they stay in the cache of a core.
ROWS = 64
#: Smallest positive float16.
SMALLEST = np.float16(2.0**-24)
_MAGNITUDE = np.uint16(0x7FFF)
#: The terms of a step in the order of `in_halves`.
_ORDER = np.arange(STEP).reshape(4, 2, 4).swapaxes(1, 2).reshape(-1)
#: Range of the greatest numbers of rows.
MIN_ROW, MAX_ROW = 2.0**-100, 2.0**100
#: Maximum factor of a matrix, and the inverse of the minimum.
MAX_ALPHA = 2.0**16
#: What the weights of a term must reach, relative to the greatest of their rows. Products keep all
#: bits down to 2^-17, on both sides.
MIN_TERM = 2.0**-13
#: Elements of weights from which on a separate thread looks at them.
MIN_JUDGED = 1 << 16
#: Rows of a product from which they are looked at before the kernel is chosen.
MIN_ROWS = 17


# ── packing ──────────────────────────────────────────────────────────────────────────────────────


def exponents(rows: Array) -> Array:
    """Return e for each row of [..., k]: 2^(e - 1) <= max |x| < 2^e; 0 for rows of zeros."""
    return np.frexp(_greatest(rows, rows.ndim - 1))[1]


def in_halves(rows: Array) -> Array:
    """Return float32 [..., n, k] as float16: [batch, step, n, 32 high and 32 low parts].

    Each row is scaled by a power of two. Of every 16 terms, 4 i + j has position
    8 (i / 2) + 2 j + i % 2; then rows are in the swizzled order of `cp_async.cuh`: chunk c of row
    r, of eight parts, is at c ^ (r % 8). Rows and terms are zero-padded.
    """
    rows = rows.reshape(-1, *rows.shape[-2:])
    count, n, k = rows.shape
    scaling = TOP + 1 - exponents(rows)[..., None]
    packed = np.empty((count, ceil_div(k, STEP), ceil_div(n, 8), 8, 8, 8), np.float16)

    def pack(place: tuple[int, int]) -> None:
        batch, first = place
        block = slice(first, first + ROWS)
        eights = slice(first // 8, (first + ROWS) // 8)
        swizzle(_chunks(rows[batch, block], scaling[batch, block]), packed[batch, :, eights])

    blocks = list(product(range(count), range(0, n, ROWS)))
    share(pack, blocks, rows.size)
    return packed.reshape(count, -1, 8 * packed.shape[2], 2 * STEP)


def _chunks(rows: Array, scaling: Array) -> Array:
    """Return rows times 2^scaling as float16: [step, n / 8, 8 rows, 8 chunks, 8 parts]."""
    n, k = rows.shape
    eights, steps = ceil_div(n, 8), ceil_div(k, STEP)
    filled = np.zeros((8 * eights, STEP * steps), np.float32)
    np.ldexp(rows, scaling, out=filled[:n, :k])
    chunks = np.empty((eights, 8, steps, 2, 4, 8), np.float16)
    ordered = np.take(filled.reshape(-1, STEP), _ORDER, axis=1)
    for part, numbers in enumerate(cut(ordered)):
        chunks[:, :, :, part] = numbers.reshape(eights, 8, steps, 4, 8)
    return chunks.reshape(eights, 8, steps, 8, 8).transpose(2, 0, 1, 3, 4)


def cut(numbers: Array) -> tuple[Array, Array]:
    """Return float16 numbers, high and low, that sum to float32 numbers below 2^15.

    No high part is zero unless its number is, as it may be multiplied by an infinity.
    """
    high = numbers.astype(np.float16)
    zero = high.view(np.uint16) & _MAGNITUDE == 0
    if zero.any():
        lost = zero & (numbers != 0)
        high[lost] = np.copysign(SMALLEST, numbers[lost])
    return high, (numbers - high.astype(np.float32)).astype(np.float16)


def scales_of(rows: Array) -> Array:
    """Return the factors of sums of rows of `in_halves` in kernels: [batch, n], padded with 1."""
    found = exponents(rows.reshape(-1, *rows.shape[-2:]))
    count, n = found.shape
    scales = np.ones((count, ceil_div(n, 8) * 8), np.float32)
    scales[:, :n] = np.ldexp(np.float32(1), EXTRA - TOP - 1 + found)
    return scales


# ── what can be packed ───────────────────────────────────────────────────────────────────────────


_REFUSALS = Findings[str]()
#: Ratio of the scales of terms up to which weights keep their bits if they do without these.
EVEN = 2.0**4


def matrix_refusal(b: Array, alpha: float, transposed: bool) -> str:
    """Return `refusal` of alpha * b: [..., k, n] or [k], or [..., n, k] if transposed."""
    if not 1 / MAX_ALPHA <= abs(alpha) <= MAX_ALPHA:
        return f"alpha={alpha}"
    first, second = b.shape[-2:] if b.ndim > 1 else (b.size, 1)
    axes = (0, 1, 2, 3) if transposed else (0, 2, 1, 3)
    return _found(b, (b.size // max(first * second, 1), first, second, 1), axes)


def _found(weights: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> str:
    """Return `refusal` of weights reshaped and transposed."""
    return _REFUSALS.of(
        weights, (*shape, *axes), lambda: refusal(weights.reshape(shape).transpose(axes))
    )


def scaled_refusal(b: Array, alpha: float, transposed: bool, scale: Array) -> str:
    """Return `matrix_refusal` of a matrix whose terms are multiplied by a scale each.

    Products keep all bits down to 2^-17 of the greatest weight of a row: where terms are refused
    from 2^-13 on, scales of about the same size change nothing.
    """
    refused, sizes = matrix_refusal(b, alpha, transposed), np.abs(scale.reshape(-1))
    there = sizes[sizes > 0]
    if refused or not there.size:
        return refused
    if 1 / MAX_ALPHA <= there.min() <= there.max() <= min(EVEN * there.min(), MAX_ALPHA):
        return ""

    def look() -> str:
        scaled = b * (sizes if transposed else sizes[:, None])
        return refusal((scaled if transposed else scaled.T)[None, ..., None])

    return _REFUSALS.of(b, (sizes.tobytes(), transposed), look)


def filter_refusal(w: Array, groups: int) -> str:
    """Return `refusal` of weights [m, c, *kernel] of this many groups."""
    m, c = w.shape[:2]
    taps = w.size // max(m * c, 1)
    return _found(w, (groups, m // groups, c, taps), (0, 1, 2, 3))


def judge(nodes: Iterable[Node]) -> Callable[[], None]:
    """Begin to find the refusals of large weights on several threads, before they are needed.

    Returns:
        A function that waits until all are known; see `begin`.
    """
    found = [each for each in map(_judgement, nodes) if each is not None]

    def find(each: tuple[Array, Callable[[], object]]) -> None:
        each[1]()

    return begin(find, found, sum(weights.size for weights, _ in found))


def _judgement(node: Node) -> tuple[Array, Callable[[], object]] | None:
    """Return the weights of a node, and the call that finds their refusal; None if few need it.

    Kernels for few rows do not ask, and reading the weights would take longer than they.
    """
    if not isinstance(node.op, MatMul | Gemm | Conv):
        return None
    w, dims = node.operands[1].data, node.output.tensor.dims
    if w is None or w.ndim < 2 or w.dtype != float32 or w.size < MIN_JUDGED or w in _REFUSALS:
        return None
    rows = prod(dims) // max(dims[1 if isinstance(node.op, Conv) else -1], 1)
    if rows < MIN_ROWS:
        return None
    match node.op:
        case Gemm(alpha=alpha, transB=transposed):
            return w, partial(matrix_refusal, w, alpha, bool(transposed))
        case MatMul():
            return w, partial(matrix_refusal, w, 1.0, False)
        case Conv(group=groups):
            return w, partial(filter_refusal, w, groups)


def refusal(weights: Array) -> str:
    """Return why constants cannot be packed; empty if they can.

    Args:
        weights: [batch, row, term, tap]; the taps of a term multiply numbers of one magnitude.
    """
    if not weights.size:
        return ""
    of_rows = _greatest(weights, (2, 3))
    if not np.isfinite(of_rows).all():
        return "infinities or NaNs among the weights"
    there = of_rows[of_rows > 0]
    if there.size and not MIN_ROW <= there.min() <= there.max() <= MAX_ROW:
        extreme = there.min() if there.min() < MIN_ROW else there.max()
        return f"weights of {extreme:.0e}"
    of_terms = _greatest(weights, 1, 2)
    low = (of_terms > 0) & (of_terms < MIN_TERM * of_rows.max(1, keepdims=True))
    for batch in np.flatnonzero(low.any(1)):
        terms, rows = np.flatnonzero(low[batch]), of_rows[batch] > 0
        each = _greatest(weights[batch][rows][:, terms], 2) / of_rows[batch][rows, None]
        shares = each.max(0)
        if shares.min() < MIN_TERM:
            term = terms[shares.argmin()]
            return f"weights of term {term} at most {shares.min():.0e} of the greatest beside them"
    return ""


def _greatest(x: Array, *axes: int | tuple[int, ...]) -> Array:
    """Return the greatest absolute values along some axes, one after the other, without a copy.

    To reduce the first and the last of three axes at once takes numpy 40 times as long.
    """
    high = low = x
    for axis in axes:
        high, low = high.max(axis, initial=0), low.min(axis, initial=0)
    return np.maximum(high, -low)
