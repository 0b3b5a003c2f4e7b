"""Unpacking weights of a few bits to floats: with scales, or the bare codes, which is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np

from ....runtime.ir.dtypes import float32, float64, uint8
from ....runtime.ir.types import Array
from ....runtime.ops.packed import BNB4, MatMulBnb4, MatMulNBits
from .products import recorded

#: Granularity of rows of weights: whole groups of BLAS.
GROUP = 16
#: Maximum rows for which `PackedProduct` scales sums instead of weights.
FEW = 2
#: Maximum rows for which a product takes less time as that of the transposed operands.
TRANSPOSED = 96


class IntegerCodes:
    """The centred integers of MatMulNBits times `factor`, plane by plane.

    A byte contains one integer of each *plane*; those of one plane are adjacent: rows are [planes,
    blocks, width], for elements [blocks, width, planes].

    Attributes:
        planes: integers per byte.
        width: bytes per block.
        blocks: blocks per row.
        factor: power of two that multiplies all of them.
    """

    def __init__(self, op: MatMulNBits) -> None:
        self._op = op
        self.planes = 8 // op.bits
        self.blocks, self.width = op.blocks, op.block_size // self.planes
        self.factor = 1 << (8 - op.bits)

    @property
    def outputs(self) -> int:
        """Rows of the weights."""
        return self._op.N

    @property
    def _halves(self) -> np.uint8:
        """What centres all integers of a byte."""
        return uint8.type(sum(1 << (self._op.bits * (i + 1) - 1) for i in range(self.planes)))

    def calls(
        self, operands: list[Array | None], first: int, last: int, out: Array, spare: Array
    ) -> Iterator[Callable[[], object]]:
        """Yield the calls that write rows to `out` [planes, rows, blocks * width].

        `spare` has as many bytes, and is overwritten.
        """
        packed = _given(operands[1]).reshape(self._op.N, -1)[first:last]
        yield from self.calls_of(packed, out, spare)

    def calls_of(self, packed: Array, out: Array, spare: Array) -> Iterator[Callable[[], object]]:
        """Yield the calls that write the integers of bytes to `out` [planes, *their shape].

        `spare` has as many bytes as `out` has elements, and is overwritten.
        """
        every = spare.reshape(self.planes, *packed.shape)
        top, high = every[-1], uint8.type(256 - self.factor)
        yield partial(np.bitwise_xor, packed, self._halves, out=top)
        for i, plane in enumerate(every[:-1]):
            shift = uint8.type(256 >> (self._op.bits * (i + 1)))
            yield partial(np.multiply, top, shift, out=plane)
            if i:
                yield partial(np.bitwise_and, plane, high, out=plane)
        if self.planes > 1:
            yield partial(np.bitwise_and, top, high, out=top)
        yield partial(np.copyto, out, every.view(np.int8))

    def scales(
        self, operands: list[Array | None], first: int, last: int
    ) -> tuple[Array, Array | None]:
        """Return scales, and zero points of the codes if not 0: [rows, blocks]."""
        _, _, scales, points, *_ = (*operands, None)
        factors = _given(scales).reshape(self._op.N, self.blocks)[first:last]
        factors = factors.astype(float32, copy=False)
        if points is None:
            return factors, None
        return factors, _points(self._op, points, first, last) - (1 << (self._op.bits - 1))


class TableCodes:
    """The values of MatMulBnb4's codes, in blocks that end with their rows.

    The attributes are those of `IntegerCodes`.
    """

    planes, factor = 1, 1

    def __init__(self, op: MatMulBnb4) -> None:
        self._op = op
        self.blocks, self.width = op.K // op.block_size, op.block_size

    def calls(
        self, operands: list[Array | None], first: int, last: int, out: Array, spare: Array
    ) -> Iterator[Callable[[], object]]:
        """Yield the calls that write rows to `out` [1, rows, K]."""
        half = self._op.K // 2
        packed = _given(operands[1]).reshape(-1)[first * half : last * half]
        yield partial(_look_up, _numbers_of(self._op.quant_type), packed, out[0])

    def scales(self, operands: list[Array | None], first: int, last: int) -> tuple[Array, None]:
        """Return the factors [rows, blocks]."""
        factors = _given(operands[2]).reshape(-1, self.blocks)[first:last]
        return factors.astype(float32, copy=False), None


def unpack_integers(
    op: MatMulNBits, operands: list[Array | None], first: int, last: int, out: Array
) -> None:
    """Fill `out` [rows, blocks * block_size] with (b - zero_points) * scales of some rows."""
    _, b, scales, zero_points, g_idx, *_ = (*operands, *(None,) * 3)
    shape = op.N, op.blocks
    default = 0 if zero_points is not None else 1 << (op.bits - 1)
    blob = _given(b).reshape(op.N, -1)[first:last]
    _look_up(_integers_of(op.bits, default), blob, out)
    factors = _given(scales).reshape(shape)[first:last].astype(out.dtype, copy=False)
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


class PackedProduct:
    """Rows times packed weights, some rows of the weights at a time.

    Sums of at most `FEW` rows are scaled by block. For more rows the weights are scaled, which
    costs as much as the sums of about three rows.

    Args:
        codes: of the weights.
        floats: float32 workspace; its size is the number of weights unpacked at a time.
        spare: uint8 workspace of as many elements.
    """

    def __init__(self, codes: IntegerCodes, floats: Array, spare: Array) -> None:
        self._codes = codes
        self._length = codes.planes * codes.blocks * codes.width
        self._step = floats.size // self._length // GROUP * GROUP
        self._floats, self._spare = floats, spare

    @staticmethod
    def room(codes: IntegerCodes, rows: int, elements: int) -> int:
        """Return the size of the workspace for weights of this many rows.

        Args:
            codes: of the weights.
            rows: of the weights.
            elements: that should be unpacked at a time.
        """
        length = codes.planes * codes.blocks * codes.width
        step = max(GROUP, elements // length // GROUP * GROUP)
        return min(step, -(-rows // GROUP) * GROUP) * length

    def multiply(self, operands: list[Array | None], x: Array, out: Array) -> None:
        """Write products to `out`.

        Args:
            operands: of MatMulNBits.
            x: float32 [rows, length].
            out: float32 [rows, rows of the weights].
        """
        left = self.arranged(x)
        part = self._few if len(x) <= FEW else self.part
        for first in range(0, out.shape[1], self._step):
            last = min(first + self._step, out.shape[1])
            part(operands, left, range(first, last), out[:, first:last])

    def arranged(self, x: Array) -> Array:
        """Return [rows, planes, blocks, width] of rows of `length`, divided by the factor."""
        codes = self._codes
        ordered = x.reshape(len(x), codes.blocks, codes.width, codes.planes).transpose(0, 3, 1, 2)
        return np.multiply(ordered, 1 / codes.factor, dtype=float32, order="C")

    def part(self, operands: list[Array | None], left: Array, rows: range, out: Array) -> None:
        """Write products with some rows of the weights, which are scaled.

        Args:
            operands: of MatMulNBits.
            left: rows of `arranged`.
            rows: of the weights; the workspace has room for as many.
            out: [rows, these], of any dtype of floats.
        """
        codes = self._codes
        shape = len(rows), codes.planes, codes.blocks * codes.width
        floats = self._floats[: len(rows) * self._length].reshape(shape)
        self._unpack(operands, rows, floats)
        scales, points = codes.scales(operands, rows.start, rows.stop)
        if points is not None:
            floats -= np.repeat(points * codes.factor, codes.width, 1)[:, np.newaxis]
        floats *= np.repeat(scales, codes.width, 1)[:, np.newaxis]
        out[:] = times_transposed(left.reshape(len(left), -1), floats.reshape(len(rows), -1))

    def _unpack(self, operands: list[Array | None], rows: range, out: Array) -> None:
        """Fill `out` [rows, planes, blocks * width] with the codes of some rows, then zeros."""
        out[len(rows) :] = 0
        spare = self._spare[: len(rows) * self._length]
        planes = out[: len(rows)].swapaxes(0, 1)
        for call in self._codes.calls(operands, rows.start, rows.stop, planes, spare):
            call()

    def _few(self, operands: list[Array | None], left: Array, rows: range, out: Array) -> None:
        codes, count = self._codes, len(rows)
        planes, blocks, width = codes.planes, codes.blocks, codes.width
        wide = -(-count // GROUP) * GROUP
        floats = self._floats[: wide * self._length].reshape(planes, wide, blocks * width)
        self._unpack(operands, rows, floats.swapaxes(0, 1))
        right = floats.reshape(planes, wide, blocks, width).transpose(0, 2, 3, 1)
        found = np.empty((planes, blocks, 1, wide), float32)
        total, *others = found[..., 0, :count]
        scales, points = codes.scales(operands, rows.start, rows.stop)
        for row, own in zip(left, out, strict=True):
            recorded(row.reshape(planes, blocks, 1, width), right, found)()
            for other in others:
                np.add(total, other, out=total)
            if points is not None:
                of_block = row.sum((0, 2)) * codes.factor
                np.subtract(total, of_block[:, np.newaxis] * points.T, out=total)
            np.multiply(total, scales.T, out=total)
            np.add.reduce(total, 0, out=own)


def times_transposed(a: Array, b: Array) -> Array:
    """Return a [m, k] times b [n, k], transposed.

    OpenBLAS packs its right operand: of few rows of `a`, if these are the right one.
    """
    return (b @ a.T).T if len(a) <= TRANSPOSED else a @ b.T


def unpack_blocks(
    packed: Array, scales: Array, points: Array | None, bits: int, block: int, out: Array
) -> None:
    """Fill `out` [rows, terms] with (integer - point) * scale.

    Args:
        packed: uint8 [rows, bytes], lowest bits first.
        scales: [rows, blocks].
        points: zero points, packed likewise; None for the middle of the range.
        bits: per integer.
        block: terms that share a scale.
        out: floats.
    """
    rows, terms = out.shape
    count = 8 // bits
    is_whole = packed.shape[1] * count == terms
    codes = out if is_whole else np.empty((rows, packed.shape[1] * count), out.dtype)
    _look_up(_integers_of(bits, 0 if points is not None else 1 << (bits - 1)), packed, codes)
    zeros = None
    if points is not None:
        zeros = np.empty((rows, points.shape[1] * count), out.dtype)
        _look_up(_integers_of(bits, 0), points, zeros)
    for first in range(0, terms, block):
        own, at = codes[:, first : min(first + block, terms)], first // block
        if zeros is not None:
            own -= zeros[:, at : at + 1]
        own *= scales[:, at : at + 1]
    if not is_whole:
        out[...] = codes[:, :terms]


def unpack_table(
    op: MatMulBnb4, operands: list[Array | None], first: int, last: int, out: Array
) -> None:
    """Fill `out` [rows, K] with the values of codes times the factors of their blocks."""
    start, stop = first * op.K, last * op.K
    flat = out.reshape(-1)
    packed = _given(operands[1]).reshape(-1)[start // 2 : -(-stop // 2)]
    if stop % 2:
        found = np.empty(2 * len(packed), out.dtype)
        _look_up(_numbers_of(op.quant_type), packed, found)
        flat[:] = found[: stop - start]
    else:
        _look_up(_numbers_of(op.quant_type), packed, flat)
    factors = _given(operands[2]).reshape(-1).astype(out.dtype, copy=False)
    if start % op.block_size == 0 and stop % op.block_size == 0:
        blocks = factors[start // op.block_size : stop // op.block_size]
        by_block = flat.reshape(-1, op.block_size)
        by_block *= blocks[:, None]
        return
    flat *= factors[np.arange(start, stop) // op.block_size]


def _given(operand: Array | None) -> Array:
    """Return an operand that is never omitted."""
    assert operand is not None
    return operand


def _points(op: MatMulNBits, zero_points: Array, first: int, last: int) -> Array:
    """Return the zero points of some rows as floats."""
    if zero_points.dtype != uint8:
        wide = zero_points.dtype == float64
        found = zero_points.reshape(op.N, op.blocks)[first:last]
        return found if wide else found.astype(float32, copy=False)
    packed = zero_points.reshape(op.N, -1)[first:last]
    found = np.empty((last - first, packed.shape[1] * (8 // op.bits)), float32)
    _look_up(_integers_of(op.bits, 0), packed, found)
    return found[:, : op.blocks]


def _look_up(table: Array, packed: Array, out: Array) -> None:
    """Fill `out` with the values of every byte."""
    shape = (*packed.shape, table.shape[1])
    table = table.astype(out.dtype, copy=False)
    np.take(table, packed, axis=0, out=out.reshape(shape), mode="clip")


@cache
def _integers_of(bits: int, zero_point: int) -> Array:
    """Return the integers in every byte, lowest bits first, less a zero point."""
    every = np.arange(256)[:, None] >> np.arange(0, 8, bits)
    return np.asarray((every & ((1 << bits) - 1)) - zero_point, float32)


@cache
def _numbers_of(quant_type: int) -> Array:
    """Return the two values in every byte, highest bits first."""
    table = np.array(BNB4[quant_type], float32)
    every = np.arange(256)
    return np.stack([table[every >> 4], table[every & 15]], 1)
