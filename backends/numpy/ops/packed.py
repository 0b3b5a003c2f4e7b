"""Products with packed weights, which are unpacked a few rows at a time.

At most two megabytes of them are floats at a time, which stay in the cache. For few rows
of the other operand, the bare codes of each block are multiplied and the sums scaled: one scaling
per block instead of one per element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from ....runtime.ir.dtypes import float32, float64, uint8
from ....runtime.ir.types import Array
from ....runtime.ops.packed import MatMulBnb4, MatMulNBits
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.chain import Chain
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, ScratchLayout, Tape
from ..numerics.packed_codes import (
    IntegerCodes,
    PackedProduct,
    TableCodes,
    unpack_integers,
    unpack_table,
)
from ..numerics.products import recorded, sums
from .packed_columns import FEW, GROUP, PART, ColumnProduct, parts_of

#: Elements of weights unpacked at a time, unless sums are scaled.
ELEMENTS = 1 << 18
#: Maximum rows that each part of a product may put into the order of the codes.
SOME = 96


@builder(MatMulNBits)
def matmul_nbits(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Product with integers of a few bits."""
    op = chain.head.op
    assert isinstance(op, MatMulNBits)
    if op.is_prepacked:
        return op.is_prepacked
    inputs = chain.head.inputs
    is_ordered = len(inputs) < 5 or inputs[4] is None
    if is_ordered and not _is_wide(chain):
        if ColumnProduct.applies(chain):
            return ColumnProduct(chain).step(site)
        if _rows(chain) <= FEW:
            return _CodeProduct(chain, op.N, IntegerCodes(op)).step(site)
        if _rows(chain) <= SOME:
            return _ScaledProduct(chain, op).step(site)
    length = op.blocks * op.block_size
    return _PackedProduct(chain, op.N, length, partial(unpack_integers, op)).step(site)


@builder(MatMulBnb4)
def matmul_bnb4(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Product with the 4-bit codes of bitsandbytes."""
    op = chain.head.op
    assert isinstance(op, MatMulBnb4)
    is_whole = op.transB and op.K % op.block_size == 0
    if _rows(chain) <= FEW and is_whole and not _is_wide(chain):
        return _CodeProduct(chain, op.N, TableCodes(op)).step(site)
    unpack = partial(unpack_table, op)
    return _PackedProduct(chain, op.N, op.K, unpack, adds=not op.transB).step(site)


def _is_wide(chain: Chain) -> bool:
    """Whether the model is in float64, in which case weights are unpacked to it as well."""
    return chain.output.tensor.dtype == float64


def _rows(chain: Chain) -> int:
    """Return the rows of the first input."""
    dims = chain.output.tensor.dims
    return chain.output.tensor.size // dims[-1]


class _CodeProduct:
    """A few rows times transposed weights [rows, length], with sums scaled per block."""

    def __init__(self, chain: Chain, rows: int, codes: IntegerCodes | TableCodes) -> None:
        self._node, self._codes = chain.head, codes
        self._few = _rows(chain)
        self._length = codes.planes * codes.blocks * codes.width
        size = rows * self._length
        self._parts = parts_of(rows, size, -(-size // PART))
        wanted = max(-(-(last - first) // GROUP) * GROUP for first, last in self._parts)
        self._scratch, self._dtype = ScratchLayout(), sums(float32)
        self._floats = self._scratch.take(wanted * self._length, self._dtype)
        self._bytes = self._scratch.take(wanted * self._length, uint8)
        self._left = self._scratch.take(self._few * self._length, self._dtype)
        of_blocks = codes.planes * codes.blocks * self._few * wanted
        self._sums = self._scratch.take(of_blocks, self._dtype)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self._node.kind}: {len(self._parts)} parts, sums scaled"
        workers = thread_pool.size() if len(self._parts) > 1 else 1
        return HostStep(name, site, self._record, workers, self._scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        operands = [bound.get(value) for value in self._node.inputs]
        return [self._part(bound, operands, *part) for part in self._parts]

    def _part(self, bound: Bound, operands: list[Array | None], first: int, last: int) -> Tape:
        codes, few = self._codes, self._few
        planes, blocks, width = codes.planes, codes.blocks, codes.width
        count, wide = last - first, -(-(last - first) // GROUP) * GROUP
        floats = bound.scratch(self._floats, (planes, wide, blocks * width))
        spare = bound.scratch(self._bytes, (count * self._length,))
        left = bound.scratch(self._left, (planes, blocks, few, width))
        found = bound.scratch(self._sums, (planes, blocks, few, wide))
        right = floats.reshape(planes, wide, blocks, width).transpose(0, 2, 3, 1)
        total, *others = found[..., :count]
        a, out = operands[0], bound[self._node.output]
        assert a is not None
        target = out.reshape(few, -1)[:, first:last]
        bias = operands[5] if len(operands) > 5 else None

        def scale() -> None:
            scales, points = codes.scales(operands, first, last)
            if points is not None:
                # Compensates for `factor`.
                of_block = left.sum((0, 3))[..., np.newaxis] * codes.factor
                np.subtract(total, of_block * points.T[:, np.newaxis], out=total)
            np.multiply(total, scales.T[:, np.newaxis], out=total)

        def finish() -> None:
            product = np.add.reduce(total, 0)
            if bias is not None:
                product += bias[first:last]
            np.copyto(target, product, casting="same_kind")

        tape: Tape = [
            *codes.calls(operands, first, last, floats[:, :count], spare),
            self._arranged(a.reshape(few, -1), left),
            recorded(left, right, found),
            *(partial(np.add, total, other, total) for other in others),
            scale,
        ]
        scales, *points = operands[2:4]
        if scales is not None and scales.dtype == float32 and all(x is None for x in points):
            factors, _ = codes.scales(operands, first, last)  # a view
            tape[-1] = partial(np.multiply, total, factors.T[:, np.newaxis], total)
        if count < wide:
            tape.insert(0, partial(floats[:, count:].fill, 0))
        is_plain = target.dtype == total.dtype and bias is None
        tape.append(partial(np.add.reduce, total, 0, out=target) if is_plain else finish)
        return tape

    def _arranged(self, x: Array, left: Array) -> Callable[[], object]:
        """Return the call that reorders rows to match the codes, divided by `factor`."""
        codes = self._codes
        shape = len(x), codes.blocks, codes.width, codes.planes
        missing = self._length - x.shape[1]

        def arranging(rows: Array) -> Callable[[], object]:
            ordered = rows.reshape(shape).transpose(3, 1, 0, 2)
            return partial(np.multiply, ordered, 1 / codes.factor, left, dtype=left.dtype)

        if not missing:
            return arranging(x)
        return lambda: arranging(np.pad(x, ((0, 0), (0, missing))))()


class _ScaledProduct:
    """Some rows times integers in the order of their bytes, which are scaled."""

    def __init__(self, chain: Chain, op: MatMulNBits) -> None:
        self._node, self._codes = chain.head, IntegerCodes(op)
        self._length = op.blocks * op.block_size
        self._room = PackedProduct.room(self._codes, op.N, ELEMENTS)
        self._bounds = [*range(0, op.N, self._room // self._length), op.N]
        self._scratch = ScratchLayout()
        self._floats = self._scratch.take(self._room, float32)
        self._bytes = self._scratch.take(self._room, uint8)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self._node.kind}: {len(self._bounds) - 1} parts"
        return HostStep(name, site, self._record, thread_pool.size(), self._scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        operands = [bound.get(value) for value in self._node.inputs]
        a, out = operands[0], bound[self._node.output]
        assert a is not None
        x, y = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
        bias = operands[5] if len(operands) > 5 else None
        work = bound.scratch(self._floats, (self._room,)), bound.scratch(self._bytes, (self._room,))
        product, missing = PackedProduct(self._codes, *work), self._length - x.shape[1]

        def run(rows: range) -> None:
            target = y[:, rows.start : rows.stop]
            left = product.arranged(np.pad(x, ((0, 0), (0, missing))) if missing else x)
            if bias is None:
                product.part(operands, left, rows, target)
                return
            found = np.empty(target.shape, float32)
            product.part(operands, left, rows, found)
            target[:] = found + bias[rows.start : rows.stop]

        return [[partial(run, range(*part))] for part in pairwise(self._bounds)]


#: Fills an array [rows, length] with a range of rows.
Unpack = Callable[[list[Array | None], int, int, Array], None]


class _PackedProduct:
    """The first input times weights [rows, length] or their transpose.

    Args:
        chain: whose head it is.
        rows: of the weights.
        length: elements per row, padding of the last block included.
        unpack: unpacks a range of rows.
        adds: whether the weights are not transposed, so that products of row ranges are summed.
    """

    def __init__(
        self, chain: Chain, rows: int, length: int, unpack: Unpack, *, adds: bool = False
    ) -> None:
        self._node, self._rows, self._length = chain.head, rows, length
        self._unpack, self._adds = unpack, adds
        wanted = max(GROUP, ELEMENTS // length // GROUP * GROUP)
        self._bounds = [*range(0, rows, wanted), rows]
        self._scratch = ScratchLayout()
        dtype = float64 if _is_wide(chain) else float32
        self._piece = self._scratch.take(min(wanted, rows) * length, dtype)
        self._workers = 1 if adds else thread_pool.size()

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
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
