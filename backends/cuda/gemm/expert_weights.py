"""Weights of mixtures of experts, in the order in which kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ....runtime.ops.experts import ExpertLayer
from ....runtime.ops.packed import MatMulNBits
from ..recipe.operands import Operand, Packed, Tensor, ceil_div
from .atoms import HALVES
from .pack import padded
from .packed_weights import STEP, PackedWeights, factors_of, words_of

#: Terms that share a scale in memory where all terms of a column do.
BLOCK = 128


@record
class Constants:
    """The constants of one layer: weights, and scales and zero points of integers."""

    weights: Tensor
    scales: Tensor | None = None
    zero_points: Tensor | None = None
    bias: Tensor | None = None

    @property
    def are_known(self) -> bool:
        """Whether all of them are constants."""
        found = self.weights, self.scales, self.zero_points, self.bias
        return all(tensor is None or tensor.data is not None for tensor in found)


@record
class ExpertWeights:
    """One product of all experts, or two whose results meet in an activation.

    Attributes:
        layer: sizes of one product.
        dtype: of the rows that are multiplied.
        sources: one layer, or two; of one layer with two products, rows belong to either.
        products: one or two.
        fusion: of one layer with two products: 1 if their rows take turns, 2 if all of the first
            precede those of the second; 0 otherwise.
    """

    layer: ExpertLayer
    dtype: DType
    sources: tuple[Constants, ...]
    products: int = 1
    fusion: int = 0

    @property
    def is_unpacked(self) -> bool:
        """Whether integers become floats in memory: their blocks are too short for the kernels."""
        return bool(self.layer.bits) and self.block % (128 // self.layer.bits) != 0

    @property
    def bits(self) -> int:
        """Bits per weight in memory; 0 for floats."""
        return 0 if not self.layer.bits or self.is_unpacked else self.layer.bits

    @property
    def title(self) -> str:
        """The kind of weights, for reports."""
        if not self.layer.bits:
            return "floats"
        return f"{self.layer.bits} bits{'' if self.bits else ', unpacked in memory'}"

    @property
    def block(self) -> int:
        """Terms that share a scale in memory."""
        return BLOCK if self.layer.block >= self.layer.rows else self.layer.block

    @property
    def _blocks(self) -> int:
        return ceil_div(self.layer.rows, self.block)

    @property
    def bytes(self) -> int:
        """Bytes per row of integers, in whole steps."""
        return ceil_div(self._blocks * self.block * self.layer.bits // 8, STEP) * STEP

    @property
    def blocks(self) -> int:
        """Scales per row in memory: those of whole steps, and whole words."""
        whole = max(2, STEP * 8 // self.layer.bits // self.block)
        return ceil_div(self._blocks, whole) * whole

    def packed_like(self, x: Tensor) -> PackedWeights:
        """Return the weights of one expert, for the sizes of tiles; scales have the dtype of x."""
        layer, source = self.layer, self.sources[0]
        sizes = {"K": layer.rows, "N": layer.columns, "bits": layer.bits, "block_size": self.block}
        return PackedWeights(MatMulNBits(**sizes), source.weights, x, source.zero_points)

    @property
    def has_zeros(self) -> bool:
        """Whether scales have zero points."""
        return any(source.zero_points is not None for source in self.sources)

    @property
    def row_factors(self) -> int:
        """Bytes of scales and zero points per row."""
        return self.blocks * (1 + self.has_zeros) * self.dtype.itemsize

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """Compile-time constants of kernels that read them."""
        k = self.layer.rows
        if not self.bits:
            return ("K", k), ("PITCH", ceil_div(k, self._word) * self._word)
        return (
            *(("BITS", self.bits), ("BLOCK", self.block), ("ZEROS", self.has_zeros)),
            *(("K", k), ("BYTES", self.bytes), ("BLOCKS", self.blocks)),
            ("VECTOR", k % (32 // self.bits) == 0),
        )

    @property
    def _word(self) -> int:
        return 8 if self.dtype in HALVES else 4

    @property
    def args(self) -> dict[str, Operand | None]:
        """The arguments of kernels by name."""
        if self.bits:
            return {"w": self._words, "scales": self._factors, "bias": self.bias}
        return {"w": self._floats, "bias": self.bias}

    @property
    def _words(self) -> Packed:
        pack = partial(_words_of, nbytes=self.bytes, bits=self.layer.bits)
        return self._arranged("words", pack, "weights")

    @property
    def _factors(self) -> Packed:
        pack = partial(
            _factors_of,
            dtype=self.dtype,
            count=self._blocks,
            padded_to=self.blocks,
            bits=self.layer.bits,
            has_zeros=self.has_zeros,
        )
        return self._arranged(("factors", self.has_zeros), pack, "scales", "zero_points")

    @property
    def _floats(self) -> Packed:
        pack = partial(_floats_of, layer=self.layer, dtype=self.dtype, word=self._word)
        names = ("weights", "scales", "zero_points") if self.layer.bits else ("weights",)
        return self._arranged("floats", pack, *names)

    @property
    def bias(self) -> Packed | None:
        """The biases as [experts, products, columns]; None for none."""
        if all(source.bias is None for source in self.sources):
            return None
        shape = (self.layer.experts, self.layer.columns)
        return self._arranged("bias", partial(_bias_of, shape=shape, dtype=self.dtype), "bias")

    def _arranged(self, name: object, pack: Callable[..., Array], *fields: str) -> Packed:
        """Return constants as [experts, products, columns, ...].

        Args:
            name: identifies the order of a row.
            pack: makes [experts, rows, ...] of the constants of one layer, None for absent ones.
            fields: names of these constants.
        """
        tensors = [[getattr(source, field) for field in fields] for source in self.sources]
        given = tuple(tuple(tensor is not None for tensor in one) for one in tensors)
        values = tuple(t.value for one in tensors for t in one if t is not None)
        layout = ("experts", name, self.layer, self.fusion, self.dtype.name, given)
        return Packed(values, layout, partial(_arrange, pack, given, self.fusion))


def _words_of(w: Array, nbytes: int, bits: int) -> Array:
    rows = w.shape[0] * w.shape[1]
    return words_of(w, rows, nbytes, bits).reshape(*w.shape[:2], nbytes)


def _factors_of(
    scales: Array,
    zeros: Array | None = None,
    *,
    dtype: DType,
    count: int,
    padded_to: int,
    bits: int,
    has_zeros: bool,
) -> Array:
    experts, rows = scales.shape[:2]
    own = scales.reshape(experts * rows, -1).astype(dtype)
    own = np.repeat(own, count // own.shape[1], 1)
    points = None
    if has_zeros:
        points = np.full(own.shape, 1 << (bits - 1), dtype)
        if zeros is not None:
            points = _points(zeros, scales, bits).astype(dtype)
            points = np.repeat(points, count // points.shape[1], 1)
    sizes = {"rows": len(own), "count": count, "padded": padded_to, "bits": bits}
    return factors_of(own, points, **sizes).reshape(experts, rows, -1)


def _floats_of(
    w: Array,
    scales: Array | None = None,
    zeros: Array | None = None,
    *,
    layer: ExpertLayer,
    dtype: DType,
    word: int,
) -> Array:
    if scales is not None:
        w = _unpacked(w, scales, zeros, layer).astype(dtype)
    return padded(w, word)


def _bias_of(bias: Array | None = None, *, shape: tuple[int, int], dtype: DType) -> Array:
    return np.zeros(shape, dtype) if bias is None else bias


def _arrange(
    pack: Callable[..., Array], given: tuple[tuple[bool, ...], ...], fusion: int, *arrays: Array
) -> Array:
    left = iter(arrays)
    layers = [pack(*(next(left) if is_given else None for is_given in one)) for one in given]
    if len(layers) > 1:
        return np.ascontiguousarray(np.stack(layers, 1))
    (found,) = layers
    if fusion != 1:
        return np.ascontiguousarray(found)
    experts, rows, *rest = found.shape
    return np.ascontiguousarray(found.reshape(experts, rows // 2, 2, *rest).swapaxes(1, 2))


def _codes(packed: Array, bits: int) -> Array:
    """Return the integers of bytes, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def _points(zeros: Array, scales: Array, bits: int) -> Array:
    """Return zero points as [rows of all experts, blocks], for scales by block or by row."""
    experts, rows, *blocks = scales.shape
    if blocks:
        codes = _codes(zeros.reshape(experts * rows, -1), bits)
        return codes[:, : blocks[0]]
    return _codes(zeros.reshape(experts, -1), bits)[:, :rows].reshape(-1, 1)


def _unpacked(w: Array, scales: Array, zeros: Array | None, layer: ExpertLayer) -> Array:
    """Return integers [experts, rows, bytes] as floats [experts, rows, terms]."""
    experts, rows, _ = w.shape
    shape = experts, rows, -1
    found = _codes(w, layer.bits)[..., : layer.rows].astype(np.float32)
    factors = scales.reshape(shape).astype(np.float32)
    points = np.full_like(factors, 1 << (layer.bits - 1))
    if zeros is not None:
        points = _points(zeros, scales, layer.bits).astype(np.float32).reshape(shape)
    block = layer.block
    found -= points.repeat(block, 2)[..., : layer.rows]
    found *= factors.repeat(block, 2)[..., : layer.rows]
    return found
