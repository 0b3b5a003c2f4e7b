"""Products with weights of a few bits, which lie packed in memory.

Few rows are multiplied by `gemv_packed.cu`, which unpacks them on the way; for more rows they are
unpacked into the workspace, where the other schedules read them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import bfloat16, float32
from ....runtime.ir.types import Array
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Answer, Setting
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, each, sharing
from ..recipe.layout import ceil_div
from ..recipe.operands import Packed, Scratch, Tensor
from ..recipe.targets import Target
from . import f16, tf32x3
from .atoms import atom_of
from .gemv import EIGHT, RowTile
from .problem import Gemm, Matrix, widest

#: The most columns of tensor cores that `gemv_packed.cu` is for; of a row of float32 there are as
#: many as it has planes of bfloat16.
MAX_COLUMNS, PLANES = 24, 3
#: Bytes of a row of weights that a step has.
STEP = 64


@dataclass(frozen=True, slots=True)
class Weights:
    """Integers of a few bits in rows, each block of which has a scale.

    Attributes:
        op: says how they are packed.
        b, scales: constants.
        zero_points: constants: packed as the integers, or floats; None for the middle.
    """

    op: MatMulNBits
    b: Tensor
    scales: Tensor
    zero_points: Tensor | None

    @property
    def bytes(self) -> int:
        """Bytes of a row, in whole steps."""
        return ceil_div(self.op.blocks * self.op.block_size * self.op.bits // 8, STEP) * STEP

    @property
    def of_step(self) -> int:
        """Scales of a step, at least one."""
        return max(1, STEP * 8 // self.op.bits // self.op.block_size)

    @property
    def blocks(self) -> int:
        """Scales of a row, in whole steps."""
        return ceil_div(self.op.blocks, self.of_step) * self.of_step

    @property
    def words(self) -> Packed:
        """The integers, as `words_of` has them."""
        pack = partial(words_of, rows=self.op.N, nbytes=self.bytes)
        return Packed((self.b.value,), ("words of four lanes", self.op.N, self.bytes), pack)

    @property
    def factors(self) -> Packed:
        """The scales, zeros beside them where there are any; see `factors_of`."""
        op, zeros = self.op, self.zero_points
        sources = (self.scales.value,) if zeros is None else (self.scales.value, zeros.value)
        pack = partial(factors_of, rows=op.N, count=op.blocks, padded=self.blocks, bits=op.bits)
        return Packed(sources, ("factors", op.N, op.blocks, self.blocks, op.bits), pack)

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """What kernels that unpack them are compiled with."""
        zeros = ("ZEROS", self.zero_points is not None)
        return ("BITS", self.op.bits), ("BLOCK", self.op.block_size), zeros


def words_of(b: Array, rows: int, nbytes: int) -> Array:
    """Return [rows, nbytes] of integers: of every 64 bytes, word 4 i + j at place 4 j + i.

    Args:
        b: rows of bytes, which may be shorter; zeros follow.
        rows: how many.
        nbytes: of a row of the result, a multiple of 64.
    """
    found = np.zeros((rows, nbytes), np.uint8)
    found[:, : b.size // rows] = b.reshape(rows, -1)
    words = found.view(np.uint32).reshape(rows, -1, 4, 4)
    return np.ascontiguousarray(words.swapaxes(2, 3)).view(np.uint8).reshape(rows, nbytes)


def factors_of(
    scales: Array, zeros: Array | None = None, *, rows: int, count: int, padded: int, bits: int
) -> Array:
    """Return scales as [rows, padded, 1], or with zeros of the same type as [rows, padded, 2].

    Args:
        scales: `count` of each row.
        zeros: likewise, or packed, each row in whole bytes.
        rows: of the weights.
        count: blocks of a row.
        padded: the same or more; zeros behind the last.
        bits: of a packed zero.
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


def choose(op: MatMulNBits, target: Target) -> RowTile:
    """Return the tile to take: as measured on an H200 with 2048 to 128256 rows of weights.

    More rows a block share the work of reading x; more warps have more bytes on their way, where
    blocks are few and rows are long enough that each warp has two steps.
    """
    eights = 4 if ceil_div(op.N, 4 * EIGHT) >= 0.9 * target.processors else 2
    few = ceil_div(op.N, eights * EIGHT) < 2 * target.processors
    steps = ceil_div(op.K * op.bits, 8 * STEP)
    return RowTile(eights, 16, 1) if few and steps >= 32 else RowTile(eights, 8, 1, 2)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A product with packed weights.

    Attributes:
        y: [..., n].
        a: [..., k].
        weights: [n, k], constants.
        bias: [n] or None.
    """

    y: Tensor
    a: Tensor
    weights: Weights
    bias: Tensor | None

    @property
    def rows(self) -> int:
        """Rows of `a`."""
        return prod(self.a.dims[:-1])

    @property
    def planes(self) -> int:
        """Numbers that stand for one of `a` on tensor cores."""
        return PLANES if self.a.dtype == float32 else 1


def multiply_packed(layer: PackedLinear, epilogue: Epilogue, setting: Setting) -> Answer:
    """Return the launches of a product with `epilogue` on every result, or why there are none."""
    weights, rows, largest = layer.weights, layer.rows, max(layer.y.size, layer.a.size)
    constants = (weights.b, weights.scales, weights.zero_points)
    if any(x is not None and x.data is None for x in constants):
        return "weights of run time"
    if not rows or largest >= 2**31:
        return f"{rows} rows"
    op = weights.op
    if rows * layer.planes <= MAX_COLUMNS and op.block_size % (128 // op.bits) == 0:
        return _few_rows(layer, epilogue, choose(op, setting.target))
    return _unpacked(layer, epilogue, setting)


def _few_rows(layer: PackedLinear, epilogue: Epilogue, tile: RowTile) -> Launch:
    a, weights, bias, rows, planes = layer.a, layer.weights, layer.bias, layer.rows, layer.planes
    op = weights.op
    terms, fragment = 32 // op.bits, bfloat16 if planes > 1 else a.dtype
    return Launch(
        "gemm/gemv_packed.cu",
        "gemv_packed",
        grid=(tile.blocks(op.N), 1, 1),
        block=32 * tile.warps,
        args={
            **{"w": weights.words, "scales": weights.factors, "x": a, "y": layer.y},
            **{"bias": bias, **epilogue.args, "n": op.N},
        },
        types=(("T", fragment), ("X", a.dtype), ("R", layer.y.dtype)),
        constants=(
            *(("M", rows), ("PLANES", planes), *tile.constants),
            *weights.constants,
            *(("K", op.K), ("BYTES", weights.bytes), ("BLOCKS", weights.blocks)),
            *(("EDGE", op.N % (tile.eights * EIGHT) != 0), ("VECTOR", op.K % terms == 0)),
            ("BIAS", bias is not None),
        ),
        code=f"{atom_of(fragment).code()}\n{epilogue.code}",
        note=f"{rows} by {tile}, {op.bits} bits {epilogue.title}".strip(),
    )


def _unpacked(layer: PackedLinear, epilogue: Epilogue, setting: Setting) -> Answer:
    """Return what unpacks the weights into the workspace, and multiplies by them there."""
    a, weights, op = layer.a, layer.weights, layer.weights.op
    ldb = ceil_div(op.K, EIGHT) * EIGHT
    nbytes = op.N * ldb * a.dtype.itemsize
    schedule, vectors = (tf32x3, (4, 2)) if a.dtype == float32 else (f16, f16.VECTORS)
    gemm = Gemm(
        a=Matrix(a, op.K, widest(vectors, op.K)),
        b=Scratch(0),
        c=layer.y,
        shape=(layer.rows, op.N, op.K),
        ldb=ldb,
        ldc=op.N,
        bias=layer.bias,
        dtype=a.dtype,
    )
    product = schedule.from_workspace(gemm, epilogue, setting)
    if isinstance(product, str):
        return product
    launches, to = product
    words = ceil_div(ldb * op.bits, 32)
    unpacking = each(
        "gemm/unpack_weights.cu",
        "unpack_weights",
        op.N * words,
        {
            **{"w": weights.words, "scales": weights.factors, "to": to},
            **{"count": op.N * words, "words": words, "bytes": weights.bytes},
            **{"blocks": weights.blocks, "depth": op.K, "ldb": ldb},
        },
        types=(("X", a.dtype),),
        constants=weights.constants,
        note=f"{op.bits} bits",
    )
    return sharing(replace(unpacking, scratch=to.offset + nbytes), *launches)
