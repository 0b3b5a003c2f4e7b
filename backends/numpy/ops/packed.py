"""Products with packed weights, which are unpacked a few rows at a time.

At most two megabytes of them are floats at a time, which stay in the cache. For few rows
of the other operand, the bare codes of each block are multiplied and the sums scaled: one scaling
per block instead of one per element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from ....runtime.ir.dtypes import float32, float64, uint8
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.packed import MatMulBnb4, MatMulNBits
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.chain import Chain
from ..engine.cost import balanced, blocks_worth
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

#: Elements of weights unpacked at a time, and at most where sums are scaled.
ELEMENTS, PART = 1 << 18, 1 << 19
#: Bytes of weights from which on there is no second copy of them, whose order would be faster.
COPIED = 1 << 23
#: Granularity of rows: whole bytes, and whole groups of BLAS.
GROUP = 16
#: Maximum rows of the other operand for which sums are scaled instead of weights; more of them,
#: as many as there are bytes in a block, where weights are kept as columns.
FEW = 8
#: Maximum rows that each part of a product may put into the order of the codes.
SOME = 96
#: Nanoseconds per element of the weights on one core.
UNPACK = 0.3


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
        codes = IntegerCodes(op)
        columns = _Columns.of(chain.head, codes)
        if _rows(chain) <= (FEW if columns is None else max(FEW, codes.width)):
            return _CodeProduct(chain, op.N, codes, columns).step(site)
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


def _is_plain(node: Node) -> bool:
    """Whether sums are multiplied by scales in float32, without zero points."""
    _, _, scales, *others = node.inputs
    has_points = any(value is not None for value in others[:1])
    return scales is not None and scales.tensor.dtype == float32 and not has_points


def _rows(chain: Chain) -> int:
    """Return the rows of the first input."""
    dims = chain.output.tensor.dims
    return chain.output.tensor.size // dims[-1]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Constant integer weights kept as columns, of which BLAS adds multiples.

    Products with their rows are short dot products, one per block: two to three times as slow.

    Attributes:
        codes: of the weights.
        packed: bytes [rows, bytes].
        factors: scales [rows, blocks], if these are all that a sum needs.
    """

    codes: IntegerCodes
    packed: Value
    factors: Value | None

    @classmethod
    def of(cls, node: Node, codes: IntegerCodes) -> _Columns | None:
        """Return them; None where they would be no constants, or take much memory."""
        _, packed, factors, *_ = node.inputs
        if packed is None or factors is None:
            return None
        if not packed.is_constant or packed.tensor.size >= COPIED:
            return None
        return cls(codes, packed, factors if factors.is_constant and _is_plain(node) else None)

    @property
    def values(self) -> tuple[Value, ...]:
        """What is read in no other form."""
        return (self.packed,) if self.factors is None else (self.packed, self.factors)

    def columns(self, bound: Bound, parts: Sequence[tuple[int, int]]) -> Array:
        """Return the columns of every part, one part after the other."""

        def pack(packed: Array) -> Array:
            every = self.codes.turned(packed)
            return np.concatenate([every[:, first:last].reshape(-1) for first, last in parts])

        return bound.packed((self.packed,), ("columns of codes", self.codes.planes, *parts), pack)

    def scales(self, bound: Bound, factors: Value) -> Array:
        """Return the scales [blocks, rows]."""
        blocks = self.codes.blocks

        def pack(scales: Array) -> Array:
            return scales.reshape(-1, blocks).T.astype(float32, "C")

        return bound.packed((factors,), ("columns of scales", blocks), pack)


class _CodeProduct:
    """A few rows times transposed weights [rows, length], with sums scaled per block."""

    def __init__(
        self,
        chain: Chain,
        rows: int,
        codes: IntegerCodes | TableCodes,
        columns: _Columns | None = None,
    ) -> None:
        self._node, self._codes, self._count = chain.head, codes, rows
        self._few, self._columns = _rows(chain), columns
        self._length = codes.planes * codes.blocks * codes.width
        self._parts = self._cut()
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

    def _cut(self) -> list[tuple[int, int]]:
        """Return ranges of rows, in whole groups, so that each thread has as many."""
        size, workers = self._count * self._length, thread_pool.size()
        count = max(-(-size // PART), blocks_worth(size * UNPACK, workers))
        groups = -(-self._count // GROUP)
        count = max(1, min(groups, balanced(count, workers) if count > 1 else 1))
        bounds = [min(self._count, groups * i // count * GROUP) for i in range(count + 1)]
        return list(pairwise(bounds))

    def _record(self, bound: Bound) -> list[Tape]:
        kept = () if self._columns is None else self._columns.values
        operands = [None if value in kept else bound.get(value) for value in self._node.inputs]
        return [self._part(bound, operands, *part) for part in self._parts]

    def _unpacked(
        self, tape: Tape, bound: Bound, operands: list[Array | None], first: int, last: int
    ) -> Array:
        """Record the calls that unpack rows; return them as [planes, blocks, width, rows].

        Zeros follow up to a multiple of `GROUP`.
        """
        codes, held = self._codes, self._columns
        count, wide = last - first, -(-(last - first) // GROUP) * GROUP
        spare = bound.scratch(self._bytes, (count * self._length,))
        shape = codes.planes, codes.blocks, codes.width
        length = codes.blocks * codes.width
        if held is not None:
            columns = held.columns(bound, self._parts)[first * length : last * length]
            floats = bound.scratch(self._floats, (codes.planes, length, wide))
            filled, rest = floats[..., :count], floats[..., count:]
            calls = held.codes.centred_calls(columns.reshape(length, count), filled, spare)
            found = floats.reshape(*shape, wide)
        else:
            floats = bound.scratch(self._floats, (codes.planes, wide, length))
            filled, rest = floats[:, :count], floats[:, count:]
            calls = codes.calls(operands, first, last, filled, spare)
            found = floats.reshape(shape[0], wide, *shape[1:]).transpose(0, 2, 3, 1)
        if rest.size:
            tape.append(partial(rest.fill, 0))
        tape += calls
        return found

    def _part(self, bound: Bound, operands: list[Array | None], first: int, last: int) -> Tape:
        codes, few = self._codes, self._few
        planes, blocks, width = codes.planes, codes.blocks, codes.width
        tape: Tape = []
        right = self._unpacked(tape, bound, operands, first, last)
        left = bound.scratch(self._left, (planes, blocks, few, width))
        found = bound.scratch(self._sums, (planes, blocks, few, right.shape[-1]))
        total, *others = found[..., : last - first]
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

        tape += [
            self._arranged(a.reshape(few, -1), left),
            recorded(left, right, found),
            *(partial(np.add, total, other, total) for other in others),
            scale,
        ]
        factors = None
        if self._columns is not None and self._columns.factors is not None:
            factors = self._columns.scales(bound, self._columns.factors)[:, first:last]
        elif _is_plain(self._node):
            factors = codes.scales(operands, first, last)[0].T  # a view
        if factors is not None:
            tape[-1] = partial(np.multiply, total, factors[:, np.newaxis], total)
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
