"""Weights of a few bits, in the order in which kernels unpack them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ....runtime.ops.packed import MatMulNBits
from ..recipe.operands import Packed, Tensor, ceil_div
from .interleaved import interleaved

#: Bytes of a row of weights per step.
STEP = 64
#: Rows of a strip of fragments, and bytes of a strip that a warp reads at a time.
STRIP, CHUNK = 16, 512


@record
class PackedWeights:
    """Integers of a few bits in rows of blocks, with one scale per block.

    Attributes:
        op: the operator, which defines the packing.
        b, scales: constants.
        zero_points: constants: packed like the integers, or floats; None for the middle of the
            range.
        other: weights of the same kind, interleaved with these by `INTERLEAVE` rows;
            None if there are none.
    """

    op: MatMulNBits
    b: Tensor
    scales: Tensor
    zero_points: Tensor | None
    other: PackedWeights | None = None

    @property
    def bytes(self) -> int:
        """Bytes per row, in whole steps."""
        return ceil_div(self.op.blocks * self.op.block_size * self.op.bits // 8, STEP) * STEP

    @property
    def of_step(self) -> int:
        """Scales per step, at least one."""
        return max(1, STEP * 8 // self.op.bits // self.op.block_size)

    @property
    def blocks(self) -> int:
        """Scales per row, in whole steps, and in whole 4-byte words if they have two bytes."""
        whole = max(self.of_step, 2)
        return ceil_div(self.op.blocks, whole) * whole

    @property
    def factor_bytes(self) -> int:
        """Bytes of scales and zero points per step, in whole 4-byte words."""
        size = self.scales.dtype.itemsize
        return max(4, self.of_step * size * (1 if self.zero_points is None else 2))

    @property
    def row_factors(self) -> int:
        """Bytes of scales and zero points per row, in whole 4-byte words."""
        return self.blocks * (1 if self.zero_points is None else 2) * self.scales.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Total bytes of integers, scales and zero points."""
        own = self.op.N * (self.bytes + self.row_factors)
        return own + (0 if self.other is None else self.other.nbytes)

    @property
    def words(self) -> Packed:
        """The integers in the order of `words_of`."""
        op = self.op
        pack = partial(words_of, rows=op.N, nbytes=self.bytes, bits=op.bits)
        layout = ("words of four lanes", op.N, self.bytes, op.bits)
        own = Packed((self.b.value,), layout, pack)
        return own if self.other is None else interleaved(own, self.other.words)

    @property
    def row_words(self) -> Packed:
        """The integers in the order of `gemv_integers.cuh`: that of `words`, or `in_sixteens`."""
        op = self.op
        if op.block_size >= self.four_words:
            return self.words
        rows, nbytes = op.N, self.bytes
        pack = partial(in_sixteens, rows=rows, nbytes=nbytes, bits=op.bits)
        own = Packed((self.b.value,), ("words in sixteens", rows, nbytes, op.bits), pack)
        return own if self.other is None else interleaved(own, self.other.row_words)

    @property
    def four_words(self) -> int:
        """Terms of a word of each of four lanes."""
        return 4 * 32 // self.op.bits

    @property
    def factors(self) -> Packed:
        """The scales, interleaved with zero points if there are any; see `factors_of`."""
        op, zeros = self.op, self.zero_points
        sources = (self.scales.value,) if zeros is None else (self.scales.value, zeros.value)
        pack = partial(factors_of, rows=op.N, count=op.blocks, padded=self.blocks, bits=op.bits)
        own = Packed(sources, ("factors", op.N, op.blocks, self.blocks, op.bits), pack)
        return own if self.other is None else interleaved(own, self.other.factors)

    def factor_bytes_of(self, terms: int) -> int:
        """Return the bytes of scales and zero points of a row for a step of this many terms."""
        each = max(1, terms // self.op.block_size)
        return each * self.scales.dtype.itemsize * (1 if self.zero_points is None else 2)

    @property
    def chunks(self) -> int:
        """Chunks per strip of fragments."""
        return ceil_div(self.op.K * self.op.bits, CHUNK * 8 // STRIP)

    @property
    def strips(self) -> int:
        """Strips of fragments, of both weights if there are others."""
        return ceil_div(self.op.N * (1 if self.other is None else 2), STRIP)

    @property
    def fragments(self) -> Packed:
        """The integers in the order of `fragments_of`."""
        rows, bits = self._rows, self.op.bits
        pack = partial(fragments_of, rows.pack, chunks=self.chunks, bits=bits)
        return Packed(rows.sources, ("fragments", rows.layout, self.chunks, bits), pack)

    @property
    def _rows(self) -> Packed:
        """The integers in rows as they are."""
        op = self.op
        own = Packed((self.b.value,), ("rows", op.N), partial(_in_rows, rows=op.N))
        return own if self.other is None else interleaved(own, self.other._rows)

    @property
    def strip_factors(self) -> int:
        """Scales and zero points of a block of a strip."""
        return STRIP * (1 if self.zero_points is None else 2)

    def blocks_of(self, terms: int) -> int:
        """Return the blocks per row, in whole steps of this many terms."""
        whole = max(1, terms // self.op.block_size)
        return ceil_div(self.op.blocks, whole) * whole

    def fragment_factors(self, terms: int) -> Packed:
        """Return scales and zero points in the order of `fragment_factors_of`, in whole steps."""
        factors, blocks = self.factors, self.blocks_of(terms)
        pack = partial(fragment_factors_of, factors.pack, blocks=blocks)
        return Packed(factors.sources, ("factors of fragments", factors.layout, blocks), pack)

    @property
    def are_constant(self) -> bool:
        """Whether all of them are constant."""
        tensors = (self.b, self.scales, self.zero_points)
        own = all(x is None or x.data is not None for x in tensors)
        return own and (self.other is None or self.other.are_constant)

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """Compile-time constants of kernels that unpack them."""
        zeros = ("ZEROS", self.zero_points is not None)
        return ("BITS", self.op.bits), ("BLOCK", self.op.block_size), zeros


def words_of(b: Array, rows: int, nbytes: int, bits: int) -> Array:
    """Return integers as [rows, nbytes]: of every 64 bytes, word 4 i + j is at 4 j + i.

    Within a word, integers of less than eight bits are in the order in which kernels need them:
    integer i is in byte 0, 2, 1 or 3 for i % 4 = 0 to 3. One mask then selects two neighbours, one
    in either half of the word, and a shift by a byte the next two.

    Args:
        b: rows of bytes, zero-padded if shorter.
        rows: number of rows.
        nbytes: bytes per row of the result, a multiple of 64.
        bits: of an integer.
    """
    found = np.zeros((rows, nbytes), np.uint8)
    found[:, : b.size // rows] = b.reshape(rows, -1)
    words = found.view(np.uint32).reshape(rows, -1, 4, 4)
    words = np.ascontiguousarray(words.swapaxes(2, 3))
    for one, other in _SWAPS[bits]:
        _swap(words, bits, one, other)
    return words.view(np.uint8).reshape(rows, nbytes)


def in_sixteens(b: Array, rows: int, nbytes: int, bits: int) -> Array:
    """Return integers in the order of `words_of`, but of every word of four lanes rearranged.

    Each lane has four of every sixteen adjacent integers, so that these are of one product.

    Args:
        b: see `words_of`.
        rows: see there.
        nbytes: see there.
        bits: see there.
    """
    found = np.zeros((rows, nbytes), np.uint8)
    found[:, : b.size // rows] = b.reshape(rows, -1)
    lanes = found.reshape(rows, -1, 8 // bits, 4, bits // 2).swapaxes(2, 3)
    return words_of(np.ascontiguousarray(lanes), rows, nbytes, bits)


#: Types of two pairs of integers, by bits per integer.
_JOINED = {2: np.uint8, 4: np.uint16, 8: np.uint32}
#: Bits of an integer's number in its word that change places, by bits per integer.
_SWAPS = {2: ((0, 3), (1, 2), (0, 1)), 4: ((0, 2),), 8: ()}


def _swap(words: Array, bits: int, one: int, other: int) -> None:
    """Exchange, in place, integers whose numbers differ in the order of two of their bits.

    Args:
        words: uint32.
        bits: per integer.
        one: the lower bit of the numbers.
        other: the higher one.
    """
    numbers = [i for i in range(32 // bits) if i >> one & 1 and not i >> other & 1]
    mask = np.uint32(sum(((1 << bits) - 1) << i * bits for i in numbers))
    apart = np.uint32(((1 << other) - (1 << one)) * bits)
    differ = (words ^ words >> apart) & mask
    words ^= differ
    differ <<= apart
    words ^= differ


def factors_of(
    scales: Array, zeros: Array | None = None, *, rows: int, count: int, padded: int, bits: int
) -> Array:
    """Return scales as [rows, padded, 1], or with zero points as [rows, padded, 2].

    Args:
        scales: `count` per row.
        zeros: likewise, or packed, each row in whole bytes.
        rows: of the weights.
        count: blocks per row.
        padded: at least `count`; zero-padded.
        bits: bits per packed zero point.
    """
    found = np.zeros((rows, padded, 1 if zeros is None else 2), scales.dtype)
    found[:, :count, 0] = scales.reshape(rows, count)
    if zeros is not None and zeros.dtype == np.uint8:
        packed = zeros.reshape(rows, -1, 1)
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        single = (packed >> shifts & np.uint8(2**bits - 1)).reshape(rows, -1)
        found[:, :count, 1] = single[:, :count]
    elif zeros is not None:
        found[:, :count, 1] = zeros.reshape(rows, count)
    return found


def _in_rows(b: Array, rows: int) -> Array:
    return b.reshape(rows, -1)


def fragments_of(rows: Callable[..., Array], *sources: Array, chunks: int, bits: int) -> Array:
    """Return integers as fragments, uint8 [strips, chunks, CHUNK].

    A fragment is the part of a lane in the left operand of a product of 16-bit floats with sixteen
    rows and terms, for mma.sync and wgmma alike: two neighbours each of an upper row and of a lower
    one, and of the same rows eight terms later. In a chunk, each lane has a word of sixteen bytes
    with its integers of adjacent fragments. Two fragments take turns by the terms of their first
    and second halves; in four bytes, integers are in the order of `words_of`.

    Args:
        rows: returns the integers, [rows, bytes], from its sources.
        sources: see there.
        chunks: per strip.
        bits: of an integer.
    """
    found = rows(*sources)
    strips, width = ceil_div(len(found), STRIP), chunks * CHUNK // STRIP
    if found.shape != (strips * STRIP, width):
        whole = np.zeros((strips * STRIP, width), np.uint8)
        width = min(width, found.shape[1])
        whole[: len(found), :width] = found[:, :width]
        found = whole
    if bits == 2:
        found = np.stack((found & 15, found >> 4), axis=-1)  # a byte for each pair of neighbours
    pairs = found.view(np.uint16 if bits == 8 else np.uint8)
    # Strips, halves, rows; chunks, pairs of fragments, fragments, halves, lanes of a row.
    parts = pairs.reshape(strips, 2, 8, chunks, -1, 2, 2, 4)
    upper, lower = parts[:, 0], parts[:, 1].astype(_JOINED[bits])
    lower <<= 2 * bits
    lower |= upper
    ordered = np.ascontiguousarray(lower.transpose(0, 2, 1, 6, 3, 5, 4))
    words = ordered.reshape(strips, chunks, -1).view(np.uint32)
    for one, other in _SWAPS[bits]:
        _swap(words, bits, one, other)
    return words.view(np.uint8)


def fragment_factors_of(factors: Callable[..., Array], *sources: Array, blocks: int) -> Array:
    """Return scales and zero points of fragments, [strips, blocks, 8 rows, 2 halves, 1 or 2].

    Args:
        factors: returns those of `factors_of` from its sources.
        sources: see there.
        blocks: per row; zero-padded.
    """
    found = factors(*sources)[:, :blocks]
    rows, count, kinds = found.shape
    padded = np.zeros((ceil_div(rows, STRIP) * STRIP, blocks, kinds), found.dtype)
    padded[:rows, :count] = found
    parts = padded.reshape(-1, 2, 8, blocks, kinds)
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 1, 4))
