"""Products of rows with constant weights of a few bits that are kept as columns.

BLAS adds multiples of a matrix's rows faster than it makes short dot products, such as those of a
block. So the codes are stored with the outputs next to each other, and centred: that leaves two or
three calls to unpack them, and the rows of the other operand are read as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import float32, uint8
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.ops.packed import MatMulNBits
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.chain import Chain
from ..engine.step import Bound, HostStep, ScratchLayout, Tape
from ..numerics.calls import summing
from ..numerics.halves import copying, store
from ..numerics.packed_codes import IntegerCodes
from ..numerics.products import recorded, sums

#: Bytes of weights from which on there is no second copy of them in another order.
COPIED = 1 << 23
#: Granularity of outputs, for BLAS.
GROUP = 16


class ColumnProduct:
    """Some rows times transposed weights [outputs, length], with sums scaled per block.

    Args:
        chain: a MatMulNBits for which `applies` holds.
        parts: ranges of outputs.
    """

    def __init__(self, chain: Chain, parts: Sequence[tuple[int, int]]) -> None:
        op = chain.head.op
        self._x, self._packed, factors = chain.operands
        assert isinstance(op, MatMulNBits)
        assert factors is not None
        self._node, self._parts, self._factors = chain.head, parts, factors
        _, _, _, self._points, _, self._bias = _padded(chain)
        self._codes = codes = IntegerCodes(op)
        self._rows = chain.output.tensor.size // op.N
        self._length = op.blocks * op.block_size
        wide = max(-(-(last - first) // GROUP) * GROUP for first, last in parts)
        self._scratch, self._dtype = ScratchLayout(), sums(float32)
        self._floats = self._scratch.take(wide * self._length, self._dtype)
        self._bytes = self._scratch.take(wide * self._length, uint8)
        self._sums = self._scratch.take(codes.blocks * self._rows * wide, self._dtype)
        self._left = None
        if self._x.tensor.dtype != self._dtype or self._length != op.K:
            self._left = self._scratch.take(self._rows * self._length, self._dtype)

    @staticmethod
    def applies(chain: Chain, few: int) -> bool:
        """Whether weights are constants, and the sums of blocks take no more memory than floats.

        Args:
            chain: a MatMulNBits without groups.
            few: rows of the other operand whose sums do not matter.
        """
        op = chain.head.op
        assert isinstance(op, MatMulNBits)
        _, packed, scales, points, *_ = _padded(chain)
        weights = (packed, scales, *(() if points is None else (points,)))
        if not all(value is not None and value.is_constant for value in weights):
            return False
        nbytes = op.N * op.blocks * op.block_size * op.bits // 8
        count = chain.output.tensor.size // op.N
        return nbytes < COPIED and count <= max(few, op.block_size * op.bits // 8)

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self._node.kind}: {len(self._parts)} parts by columns, sums scaled"
        workers = thread_pool.size() if len(self._parts) > 1 else 1
        return HostStep(name, site, self._record, workers, self._scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        x, out = bound[self._x], bound[self._node.output]
        rows, target = x.reshape(self._rows, -1), out.reshape(self._rows, -1)
        return [self._part(bound, rows, target, *part) for part in self._parts]

    def _part(self, bound: Bound, x: Array, out: Array, first: int, last: int) -> Tape:
        codes, count = self._codes, last - first
        wide = -(-count // GROUP) * GROUP
        tape: Tape = []
        floats = bound.scratch(self._floats, (self._length, wide))
        if count < wide:
            tape.append(partial(floats[:, count:].fill, 0))
        packed = self._own(self._columns(bound), first, last)
        spare = bound.scratch(self._bytes, (count * self._length,))
        planes = floats.reshape(-1, codes.planes, wide)[..., :count].swapaxes(0, 1)
        tape += codes.centred_calls(packed, planes, spare)
        left = self._rows_of(tape, bound, x)
        found = bound.scratch(self._sums, (codes.blocks, self._rows, wide))
        tape.append(recorded(left, floats.reshape(codes.blocks, -1, wide), found))
        self._scale(tape, bound, left, found[..., :count], out, (first, last))
        return tape

    def _columns(self, bound: Bound) -> Array:
        """Return the centred bytes of all parts; see `_by_part`."""
        layout = ("columns of codes", self._codes.planes, *self._parts)
        return bound.packed(
            (self._packed,), layout, lambda packed: self._by_part(self._codes.transposed(packed))
        )

    def _by_part(self, columns: Array) -> Array:
        """Return columns [terms, outputs] part by part: every row of a matrix, then the next one.

        Rows that continue beyond a part take half as long again to read.
        """
        return np.concatenate([columns[:, a:b].reshape(-1) for a, b in self._parts])

    def _own(self, columns: Array, first: int, last: int) -> Array:
        """Return those of one part, [terms, outputs]."""
        terms = columns.size // self._codes.outputs
        return columns[first * terms : last * terms].reshape(terms, last - first)

    def _rows_of(self, tape: Tape, bound: Bound, x: Array) -> Array:
        """Return the rows as [blocks, rows, block], of the dtype of the sums."""
        if self._left is not None:
            rows = bound.scratch(self._left, (len(x), self._length))
            if x.shape[1] < self._length:
                tape.append(partial(rows[:, x.shape[1] :].fill, 0))
            tape.append(copying(rows[:, : x.shape[1]], x))
            x = rows
        return x.reshape(len(x), self._codes.blocks, -1).swapaxes(0, 1)

    def _scale(
        self, tape: Tape, bound: Bound, left: Array, found: Array, out: Array, part: tuple[int, int]
    ) -> None:
        """Record the calls that add up scaled sums [blocks, rows, outputs]."""
        out, factors = out[:, slice(*part)], self._own(self._by_block(bound, 0), *part)
        if self._points is not None:
            own = self._own(self._by_block(bound, 1), *part)[:, np.newaxis]
            tape.append(partial(_subtract_points, left, own, found))
        if out.dtype == found.dtype and self._bias is None:
            tape.append(summing("brn,bn->rn", found, factors, out=out))
            return
        addend = None if self._bias is None else bound[self._bias][slice(*part)]
        tape.append(partial(_finish, found, factors, addend, out))

    def _by_block(self, bound: Bound, number: int) -> Array:
        """Return scales, divided by the factor of the codes, or zero points times it.

        Both are [blocks, outputs], part by part.
        """
        points = () if self._points is None else (self._points,)

        def pack(*held: Array) -> Array:
            codes = self._codes
            scales, points = codes.scales([None, None, *held, None], 0, codes.outputs)
            found = scales / codes.factor if points is None or not number else points * codes.factor
            return self._by_part(found.T.astype(self._dtype))

        layout = ("by block", self._codes.planes, number, self._dtype, *self._parts)
        return bound.packed((self._factors, *points), layout, pack)


def _padded(chain: Chain) -> list[Value | None]:
    """Return all six inputs; those left out are None."""
    return [*chain.head.inputs, *(None,) * 6][:6]


def _subtract_points(left: Array, points: Array, found: Array) -> None:
    """Subtract what zero points [blocks, 1, outputs] add to the sums [blocks, rows, outputs]."""
    np.subtract(found, left.sum(-1)[..., np.newaxis] * points, out=found)


def _finish(found: Array, factors: Array, bias: Array | None, out: Array) -> None:
    """Write sums that are scaled, plus a bias, in another dtype."""
    total = np.einsum("brn,bn->rn", found, factors)
    if bias is not None:
        total += bias
    store(out, total)
