"""Products with packed weights: some rows of them are unpacked, multiplied, and overwritten.

Never more than a few hundred kilobytes of them are floats at a time, which stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import numpy as np

from ....runtime.ir.dtypes import float32, uint8
from ....runtime.ir.types import Array
from ....runtime.ops.packed import BNB4, MatMulBnb4, MatMulNBits
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.chain import Chain
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, Scratch, Tape
from ..numerics.products import sums

#: Elements of the weights that are unpacked at a time.
ELEMENTS = 1 << 18
#: Rows come in groups of so many, where there are as many: whole bytes, and whole groups of BLAS.
GROUP = 16


@builder(MatMulNBits)
def matmul_nbits(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Multiply by integers of a few bits."""
    op = chain.head.op
    assert isinstance(op, MatMulNBits)
    if op.is_prepacked:
        return op.is_prepacked
    return _Product(chain, op.N, op.blocks * op.block_size, partial(_integers, op)).step(site)


@builder(MatMulBnb4)
def matmul_bnb4(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Multiply by codes of bitsandbytes."""
    op = chain.head.op
    assert isinstance(op, MatMulBnb4)
    return _Product(chain, op.N, op.K, partial(_codes, op), adds=not op.transB).step(site)


#: Fills an array [rows, length] with the rows from the first number to before the second.
Unpack = Callable[[list[Array | None], int, int, Array], None]


class _Product:
    """The first input times the transpose of weights [rows, length], or times these weights.

    Args:
        chain: whose head it is.
        rows: of the weights.
        length: elements of a row, those that pad the last block with it.
        unpack: gives some rows.
        adds: whether the weights are not transposed, so that products of their rows are added.
    """

    def __init__(
        self, chain: Chain, rows: int, length: int, unpack: Unpack, *, adds: bool = False
    ) -> None:
        self._node, self._rows, self._length = chain.head, rows, length
        self._unpack, self._adds = unpack, adds
        wanted = max(GROUP, ELEMENTS // length // GROUP * GROUP)
        self._bounds = [*range(0, rows, wanted), rows]
        self._scratch = Scratch()
        self._piece = self._scratch.take(min(wanted, rows) * length, float32)
        self._workers = 1 if adds else thread_pool.size()

    def step(self, site: BuildContext) -> HostStep:
        """Return what runs it."""
        name = f"{self._node.kind}: {len(self._bounds) - 1} parts"
        return HostStep(name, site, self._record, self._workers, self._scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        operands = [bound.get(value) for value in self._node.inputs]
        a, out = operands[0], bound[self._node.output]
        assert a is not None
        flat = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
        parts = list(pairwise(self._bounds))
        calls = [self._part(bound, operands, *flat, first, last) for first, last in parts]
        if self._adds:
            return [[partial(out.fill, 0), *calls]]
        return [[call] for call in calls]

    def _part(
        self,
        bound: Bound,
        operands: list[Array | None],
        a: Array,
        out: Array,
        first: int,
        last: int,
    ) -> Callable[[], object]:
        weights = bound.scratch(self._piece, (last - first, self._length))
        bias = operands[5] if len(operands) > 5 else None
        dtype = sums(a.dtype)

        def run() -> None:
            self._unpack(operands, first, last, weights)
            left = a.astype(dtype, copy=False)
            if self._adds:
                out[:] = out + left[:, first:last] @ weights
                return
            right, target = weights[:, : a.shape[1]].T, out[:, first:last]
            if target.dtype == dtype and bias is None:
                np.matmul(left, right, out=target)
                return
            product = left @ right
            if bias is not None:
                product += bias[first:last]
            target[:] = product

        return run


def _integers(
    op: MatMulNBits, operands: list[Array | None], first: int, last: int, out: Array
) -> None:
    """Fill `out` with (b - zero_points) * scales."""
    _, b, scales, zero_points, g_idx, *_ = (*operands, *(None,) * 3)
    assert b is not None
    assert scales is not None
    shape = op.N, op.blocks
    default = 0 if zero_points is not None else 1 << (op.bits - 1)
    blob = b.reshape(op.N, -1)[first:last]
    _look_up(_integers_of(op.bits, default), blob, out)
    factors = scales.reshape(shape)[first:last].astype(float32, copy=False)
    points = None if zero_points is None else _points(op, zero_points, first, last)
    if g_idx is None:
        by_block = out.reshape(last - first, op.blocks, op.block_size)
        if points is not None:
            by_block -= points[:, :, None]
        by_block *= factors[:, :, None]
        return
    columns, group = out[:, : len(g_idx)], g_idx.reshape(-1)
    if points is not None:
        columns -= points[:, group]
    columns *= factors[:, group]


def _points(op: MatMulNBits, zero_points: Array, first: int, last: int) -> Array:
    """Return the zero points of some rows as floats."""
    if zero_points.dtype != uint8:
        return zero_points.reshape(op.N, op.blocks)[first:last].astype(float32, copy=False)
    packed = zero_points.reshape(op.N, -1)[first:last]
    found = np.empty((last - first, packed.shape[1] * (8 // op.bits)), float32)
    _look_up(_integers_of(op.bits, 0), packed, found)
    return found[:, : op.blocks]


def _codes(op: MatMulBnb4, operands: list[Array | None], first: int, last: int, out: Array) -> None:
    """Fill `out` with the numbers that the codes stand for, times the factors of their blocks."""
    _, b, absmax = operands
    assert b is not None
    assert absmax is not None
    start, stop = first * op.K, last * op.K
    flat = out.reshape(-1)
    packed = b.reshape(-1)[start // 2 : -(-stop // 2)]
    if stop % 2:
        found = np.empty(2 * len(packed), float32)
        _look_up(_numbers_of(op.quant_type), packed, found)
        flat[:] = found[: stop - start]
    else:
        _look_up(_numbers_of(op.quant_type), packed, flat)
    factors = absmax.reshape(-1).astype(float32, copy=False)
    if start % op.block_size == 0 and stop % op.block_size == 0:
        blocks = factors[start // op.block_size : stop // op.block_size]
        by_block = flat.reshape(-1, op.block_size)
        by_block *= blocks[:, None]
        return
    flat *= factors[np.arange(start, stop) // op.block_size]


def _look_up(table: Array, packed: Array, out: Array) -> None:
    """Fill `out` with what every byte stands for."""
    shape = (*packed.shape, table.shape[1])
    np.take(table, packed, axis=0, out=out.reshape(shape), mode="clip")


@cache
def _integers_of(bits: int, zero_point: int) -> Array:
    """Return the integers that every byte has, lowest bits first, less a zero point."""
    every = np.arange(256)[:, None] >> np.arange(0, 8, bits)
    return np.asarray((every & ((1 << bits) - 1)) - zero_point, float32)


@cache
def _numbers_of(quant_type: int) -> Array:
    """Return the two numbers that every byte stands for, highest bits first."""
    table = np.array(BNB4[quant_type], float32)
    every = np.arange(256)
    return np.stack([table[every >> 4], table[every & 15]], 1)
