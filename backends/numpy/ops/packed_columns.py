"""Products of rows with constant weights of a few bits that are kept as columns.

BLAS adds multiples of a matrix's rows faster than it makes short dot products, such as those of a
block. So the codes are stored with the outputs next to each other, as `orders` asks for: that
leaves a few calls to unpack them, and the rows of the other operand are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from ....runtime.ir.dtypes import float32, int8, uint8
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.packed import MatMulNBits
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.chain import Chain
from ..engine.cost import balanced, blocks_worth
from ..engine.registry import ordering
from ..engine.step import Bound, HostStep, Piece, ScratchLayout, Tape
from ..numerics.calls import summing
from ..numerics.halves import copying, store
from ..numerics.packed_codes import IntegerCodes
from ..numerics.products import recorded, sums

#: Bytes of weights from which on they keep the order of the file, of which memory may be a map.
LARGE = 1 << 23
#: Granularity of outputs, for BLAS.
GROUP = 16
#: Elements of weights that are floats at a time: as many as stay in the cache, and the most where
#: a product has all terms of its outputs.
CHUNK, PART = 1 << 18, 1 << 19
#: Maximum rows of the other operand whose sums may take more memory than floats.
FEW = 8
#: Nanoseconds per element of the weights on one core.
UNPACK = 0.3


@ordering(MatMulNBits)
def orders(node: Node) -> Iterator[tuple[Value, tuple[int, ...]]]:
    """Yield constants of a MatMulNBits, and their axes as `ColumnProduct` wants them in memory."""
    if not _has_columns(node):
        return
    for value in node.inputs[1:3]:
        if value is not None and (rank := value.tensor.rank) and rank > 1:
            yield value, (*range(1, rank), 0)


def _has_columns(node: Node) -> bool:
    """Whether weights are constants in the order of their terms, and not large."""
    op = node.op
    _, packed, scales, points, groups, _ = _padded(node)
    given = [value for value in (packed, scales, points) if value is not None]
    if not isinstance(op, MatMulNBits) or op.is_prepacked or groups is not None:
        return False
    nbytes = op.N * op.blocks * op.block_size * op.bits // 8
    return all(value.is_constant for value in given) and nbytes < LARGE


class ColumnProduct:
    """Some rows times transposed weights [outputs, length].

    Of few rows the sums of each block are scaled, for more the weights.

    Args:
        chain: a MatMulNBits for which `applies` holds.
    """

    def __init__(self, chain: Chain) -> None:
        op = chain.head.op
        self._x, self._packed, factors = chain.operands
        assert isinstance(op, MatMulNBits)
        assert factors is not None
        self._node, self._factors = chain.head, factors
        _, _, _, self._points, _, self._bias = _padded(chain.head)
        self._codes = codes = IntegerCodes(op)
        self._terms, self._rows = op.K, chain.output.tensor.size // op.N
        self._length = op.blocks * op.block_size
        self._scales_sums = self._rows <= max(FEW, op.block_size * op.bits // 8)
        size = op.N * self._length
        self._parts = parts_of(op.N, size, 1 if self._scales_sums else -(-size // PART))
        self._wide = wide = max(-(-(last - first) // GROUP) * GROUP for first, last in self._parts)
        self._chunk = codes.blocks
        if self._scales_sums:
            self._chunk = max(1, min(codes.blocks, CHUNK // (op.block_size * wide)))
        self._scratch, self._dtype = ScratchLayout(), sums(float32)
        self._floats = self._scratch.take(wide * self._chunk * op.block_size, self._dtype)
        self._bytes = self._scratch.take(wide * self._chunk * op.block_size, uint8)
        self._by_block = self._scratch.take(codes.blocks * wide, self._dtype)
        self._left = self._reserve_rows()
        self._sums = self._reserve_sums()

    def _reserve_rows(self) -> Piece | None:
        """Return workspace for the rows, unless products read them as they are."""
        is_same = self._x.tensor.dtype == self._dtype
        if self._scales_sums:
            is_same &= self._length == self._terms and self._codes.factor == 1
        return None if is_same else self._scratch.take(self._rows * self._length, self._dtype)

    def _reserve_sums(self) -> Piece | None:
        """Return workspace for sums, unless they are the result."""
        if self._scales_sums:
            return self._scratch.take(self._codes.blocks * self._rows * self._wide, self._dtype)
        is_whole = all((last - first) % GROUP == 0 for first, last in self._parts)
        if is_whole and self._node.output.tensor.dtype == self._dtype:
            return None
        return self._scratch.take(self._rows * self._wide, self._dtype)

    @staticmethod
    def applies(chain: Chain) -> bool:
        """Whether this can run a MatMulNBits."""
        return _has_columns(chain.head)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        what = "sums" if self._scales_sums else "weights"
        name = f"{self._node.kind}: {len(self._parts)} parts by columns, {what} scaled"
        workers = thread_pool.size() if len(self._parts) > 1 else 1
        return HostStep(name, site, self._record, workers, self._scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        x, out = bound[self._x], bound[self._node.output]
        rows, target = x.reshape(self._rows, -1), out.reshape(self._rows, -1)
        return [self._part(bound, rows, target, slice(*part)) for part in self._parts]

    def _part(self, bound: Bound, x: Array, out: Array, part: slice) -> Tape:
        tape: Tape = []
        if self._scales_sums:
            self._scale_sums(tape, bound, x, out[:, part], part)
        else:
            self._scale_weights(tape, bound, x, out[:, part], part)
        return tape

    def _unpacked(self, tape: Tape, bound: Bound, part: slice, blocks: slice) -> Array:
        """Record the calls that unpack some columns; return [blocks, block, outputs], padded."""
        codes, count = self._codes, part.stop - part.start
        wide, width = -(-count // GROUP) * GROUP, codes.width
        shape = blocks.stop - blocks.start, width * codes.planes, wide
        floats = bound.scratch(self._floats, shape)
        if count < wide:
            tape.append(partial(floats[..., count:].fill, 0))
        columns = self._columns(bound)[blocks.start * width : blocks.stop * width, part]
        spare = bound.scratch(self._bytes, (count * shape[0] * shape[1],))
        planes = floats.reshape(-1, codes.planes, wide)[..., :count].swapaxes(0, 1)
        tape += codes.calls_of(columns, planes, spare)
        return floats

    def _columns(self, bound: Bound) -> Array:
        """Return the bytes of all rows as columns: [blocks * width, outputs]."""
        outputs = self._codes.outputs

        def pack(packed: Array) -> Array:
            return np.ascontiguousarray(packed.reshape(outputs, -1).T)

        return bound.packed((self._packed,), "columns", pack)

    def _rows_of(self, tape: Tape, bound: Bound, x: Array, factor: int = 1) -> Array:
        """Return rows of the dtype of the sums, divided by a factor and padded to whole blocks."""
        if self._left is None:
            return x
        rows = bound.scratch(self._left, (len(x), self._length))
        inside = rows[:, : x.shape[1]]
        if x.shape[1] < self._length:
            tape.append(partial(rows[:, x.shape[1] :].fill, 0))
        if x.dtype != rows.dtype:
            tape.append(copying(inside, x))
            x = inside
        if x is not inside or factor != 1:
            tape.append(partial(np.multiply, x, rows.dtype.type(1 / factor), inside))
        return rows

    def _scale_sums(self, tape: Tape, bound: Bound, x: Array, out: Array, part: slice) -> None:
        """Record the products of blocks, and the calls that add up scaled sums."""
        codes, count = self._codes, out.shape[1]
        rows = self._rows_of(tape, bound, x, codes.factor)
        left = rows.reshape(len(x), codes.blocks, -1).swapaxes(0, 1)
        assert self._sums is not None
        wide = -(-count // GROUP) * GROUP
        every = bound.scratch(self._sums, (codes.blocks, self._rows, wide))
        for first in range(0, codes.blocks, self._chunk):
            some = slice(first, min(first + self._chunk, codes.blocks))
            weights = self._unpacked(tape, bound, part, some)
            tape.append(recorded(left[some], weights, every[some]))
        found, factors = every[..., :count], self._scales(bound)[:, part]
        if (points := self._centred_points(bound)) is not None:
            own = points[:, np.newaxis, part]
            tape.append(partial(_subtract_points, left, codes.factor, own, found))
        if out.dtype == found.dtype and self._bias is None:
            tape.append(summing("brn,bn->rn", found, factors, out=out))
            return
        addend = None if self._bias is None else bound[self._bias][part]
        tape.append(partial(_finish, found, factors, addend, out))

    def _scale_weights(self, tape: Tape, bound: Bound, x: Array, out: Array, part: slice) -> None:
        """Record the calls that scale the floats of the codes, and the product with them."""
        codes, count = self._codes, out.shape[1]
        floats = self._unpacked(tape, bound, part, slice(0, codes.blocks))
        by_block = bound.scratch(self._by_block, (codes.blocks, count))
        weights = floats[..., :count]
        if (points := self._centred_points(bound)) is not None:
            scale = by_block.dtype.type(codes.factor)
            tape.append(partial(np.multiply, points[:, part], scale, by_block))
            tape.append(partial(np.subtract, weights, by_block[:, np.newaxis], weights))
        factor = by_block.dtype.type(1 / codes.factor)
        tape.append(partial(np.multiply, self._scales(bound)[:, part], factor, by_block))
        tape.append(partial(np.multiply, weights, by_block[:, np.newaxis], weights))
        rows = self._rows_of(tape, bound, x)[:, : self._terms]
        found = out
        if self._sums is not None:
            found = bound.scratch(self._sums, (len(x), floats.shape[2]))
        columns = floats.reshape(self._length, -1)[: self._terms]
        tape.append(recorded(rows, columns, found))
        if self._bias is not None:
            addend = bound.as_dtype(self._bias, self._dtype)[part]
            tape.append(partial(np.add, found[:, :count], addend, found[:, :count]))
        if found is not out:
            tape.append(partial(store, out, found[:, :count]))

    def _scales(self, bound: Bound) -> Array:
        """Return the scales as [blocks, outputs]."""
        shape = self._codes.outputs, self._codes.blocks

        def pack(scales: Array) -> Array:
            return np.ascontiguousarray(scales.reshape(shape).T.astype(self._dtype, copy=False))

        return bound.packed((self._factors,), ("scales by block", self._dtype), pack)

    def _centred_points(self, bound: Bound) -> Array | None:
        """Return the zero points of centred codes [blocks, outputs]; integers if they are."""
        if self._points is None:
            return None
        codes, dtype = self._codes, self._dtype if self._points.tensor.dtype != uint8 else int8

        def pack(*held: Array) -> Array:
            _, points = codes.scales([None, None, *held, None], 0, codes.outputs)
            assert points is not None
            return np.ascontiguousarray(points.T.astype(dtype))

        layout = ("zero points by block", codes.factor, dtype)
        return bound.packed((self._factors, self._points), layout, pack)


def parts_of(rows: int, size: int, fewest: int) -> list[tuple[int, int]]:
    """Return ranges of the weights' rows, in whole groups, so that each thread has as many.

    Args:
        rows: of the weights.
        size: their elements.
        fewest: minimum number of ranges.
    """
    workers = thread_pool.size()
    count = max(fewest, blocks_worth(size * UNPACK, workers))
    groups = -(-rows // GROUP)
    count = max(1, min(groups, balanced(count, workers) if count > 1 else 1))
    bounds = [min(rows, groups * i // count * GROUP) for i in range(count + 1)]
    return list(pairwise(bounds))


def _padded(node: Node) -> list[Value | None]:
    """Return all six inputs; those left out are None."""
    return [*node.inputs, *(None,) * 6][:6]


def _subtract_points(left: Array, factor: int, points: Array, found: Array) -> None:
    """Subtract what zero points [blocks, 1, outputs] add to the sums [blocks, rows, outputs]."""
    of_block = left.sum(-1)[..., np.newaxis] * left.dtype.type(factor)
    np.subtract(found, of_block * points, out=found)


def _finish(found: Array, factors: Array, bias: Array | None, out: Array) -> None:
    """Write sums that are scaled, plus a bias, in another dtype."""
    total = np.einsum("brn,bn->rn", found, factors)
    if bias is not None:
        total += bias
    store(out, total)
