"""Products with weights of a few bits that stay packed in memory.

Few rows are multiplied by `gemv_packed.cu` and more rows by `mixed_input.cu` or, on Hopper,
`swap_ab.cu`, which unpack weights on the fly; for many rows, and in float32, weights are unpacked
to the workspace for the other schedules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import bfloat16, float32
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Answer, Setting, need_dtypes
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, each, sharing
from ..recipe.operands import Scratch, Tensor, ceil_div
from ..recipe.targets import Target
from . import f16, f32
from .atoms import atom_of
from .between import ON_ITS_OWN, Between, Measured
from .gemv import EIGHT, MANY, MAX_ROWS, RowNorm, RowTile, by_product, prologue_of, scaled_prologue
from .interleaved import INTERLEAVE, interleaved_biases
from .linear import TILED
from .packed_weights import STEP, PackedWeights
from .problem import GemmArguments, Matrix, widest
from .schedules import mixed_input, swap_ab
from .tile import LAUNCH, MEMORY

#: Bytes of padding between rows of scales in shared memory, which place them in different banks.
BANKS = 16
#: Number of bfloat16 planes that represent float32 on tensor cores.
PLANES = 3
#: Maximum rows for which `mixed_input.cu` may be faster than `swap_ab.cu`, and bits per weight of
#: the products of fewer rows by which they are compared.
MIXED_ROWS, COMPARED = 32, 4
#: Steps per warp from which on rows are long.
LONG = 7
#: Rows of weights of a block, in units of eight, of which one for each multiprocessor has all, by
#: whether there is one row of x or several: blocks of 16 or 32 rows would be one or two for each.
#: With 3 and 4, and with 5 for several rows, a step of Qwen2.5-7B takes 15 % less time on an H200
#: with one and 8 sequences, of Qwen3-4B 11 and 9 %, of Phi-3 mini, Phi-2, Phi-4 and Gemma 2 2B 4 to
#: 5 %. With 6 and 8 sequences, one of Llama-3-8B and Qwen3-4B takes 2 % more. Several rows of
#: planes leave registers for 4; experts were measured with 5 and 6.
FILLING, FILLING_SEVERAL, FILLING_PLANES, FILLING_EXPERTS = (3, 4, 5, 6), (3, 4, 5), (3, 4), (5, 6)
#: Warps of a block that has a multiprocessor for itself.
ALONE = 16
#: Rows of weights of a tile, in the same units, if a block takes several in turns: half as many
#: again as otherwise have more bytes in flight, and warps wait for each other less often. On an
#: H200, a layer of Llama-3-8B takes 0.9 to 1.3 us less of 41 with 4 bits in blocks of 128, one of
#: 70B 7 of 166, and logits of 4096 and 3584 terms 76 us instead of 82, and 75 instead of 87. More
#: yet take as long, but where no multiprocessor has as many rows then, as with 70B, 1 to 5 us less.
#: With smaller blocks than of `FEW_SCALES` terms, they spill registers.
PERSISTENT, MORE_PERSISTENT, FEW_SCALES = 6, 8, 128
#: Bits of weights, and maximum terms, with which kernels normalize several rows as they multiply.
#: On an H200, a step of 8 sequences takes 9 % less time with rows of 896 terms (Qwen2.5-0.5B), 1.5
#: to 2 % with 2048 (Llama-3.2-1B), and 1 % more with 4096 (Llama-3-8B).
SCALED_BITS, SCALED_TERMS = 4, 2048
#: Terms of a product on tensor cores, which are of one block.
SHORTEST = 16
#: Minimum number of terms per thread of `unpack_weights.cu`.
TERMS = 8


def choose(
    op: MatMulNBits,
    target: Target,
    products: int = 1,
    rows: int = 1,
    filling: Collection[int] = FILLING,
) -> RowTile:
    """Return the tile to take: as measured on H100s and H200s with 2048 to 28672 rows of weights.

    More rows per block share the reads of x; more warps have more bytes in flight, if blocks are
    few and rows are long enough. If there are many more blocks than multiprocessors, small ones
    hide what others do besides loading. A single row of x leaves registers for two steps of long
    rows of weights. If these are longer than a step of all warps, blocks may fill the GPU once; see
    `FILLING`. If there are `MANY` tiles for each multiprocessor, one block takes them in turns.

    Args:
        op: the product.
        target: the GPU.
        products: number of products in one kernel.
        rows: of x.
        filling: see `FILLING`.
    """
    n = op.N * products
    eights = 4 if ceil_div(n, 4 * EIGHT) >= 0.9 * target.processors else 2
    blocks, steps = ceil_div(n, eights * EIGHT), ceil_div(op.K * op.bits, 8 * STEP)
    wide = ceil_div(n, EIGHT * target.processors)
    is_long = rows == 1 and steps >= 4 * LONG
    more = 2 if rows == 1 and steps >= ALONE * LONG else 1
    if steps > ALONE and wide in filling and wide % products == 0:
        return RowTile(wide, ALONE, more if wide == eights else 1)
    if is_long and blocks >= MANY * target.processors:
        return RowTile(_persistent(op, n, target), ALONE, 1, persistent=1)
    if blocks >= 2 * target.processors:
        return RowTile(eights, 4, 2 if is_long else 1, 4)
    if blocks <= target.processors and steps >= ALONE:
        return RowTile(eights, ALONE, more)
    return RowTile(eights, 8, 1, 2)


def _reads_ahead(tile: RowTile, rows: int) -> bool:
    """Return whether blocks bring weights behind those in registers into the second cache.

    With one row, a step of Llama-3.2-1B takes 422 us instead of 429 on an H200, but where blocks
    have a multiprocessor for themselves, and with 8 rows, as long or longer.
    """
    return rows == 1 and tile.resident > 1 and tile.steps == 1


def _persistent(op: MatMulNBits, n: int, target: Target) -> int:
    """Return the eights of n rows of weights that a block has at a time."""

    def most(eights: int) -> int:  # of a multiprocessor
        return eights * ceil_div(ceil_div(n, eights * EIGHT), target.processors)

    has_few_scales = op.block_size >= FEW_SCALES
    return min((PERSISTENT, MORE_PERSISTENT) if has_few_scales else (PERSISTENT,), key=most)


@record
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
    weights: PackedWeights
    bias: Tensor | None

    @property
    def rows(self) -> int:
        """Rows of `a`."""
        return prod(self.a.dims[:-1])

    @property
    def planes(self) -> int:
        """How many numbers represent one element of `a` on tensor cores."""
        return PLANES if self.a.dtype == float32 else 1


def packed_linear(
    op: MatMulNBits, y: Tensor, inputs: Sequence[Tensor | None], setting: Setting
) -> PackedLinear | str:
    """Return a product for the kernels of this module, or why they cannot compute it.

    Args:
        op: the operator.
        y: the result.
        inputs: of the operator.
        setting: the GPU and the user's options for it.
    """
    a, b, scales, zeros, indices, bias = (*inputs, None, None, None)[:6]
    if not (a and b and scales) or indices:
        return "indices of blocks"
    if setting.asked:
        return f"algorithm '{setting.asked[0]}'"
    refused = op.is_prepacked or need_dtypes(TILED, a, scales, bias)
    return refused or PackedLinear(y, a, PackedWeights(op, b, scales, zeros), bias)


def multiply_packed(layer: PackedLinear, epilogue: Epilogue, setting: Setting) -> Answer:
    """Return the launches of a product with its epilogue, or why there are none."""
    rows, largest = layer.rows, max(layer.y.size, layer.a.size)
    if not layer.weights.are_constant:
        return "computed weights"
    if not rows or largest >= 2**31:
        return f"{rows} rows"
    few = multiply_packed_rows((layer,), epilogue, setting.target)
    if isinstance(few, Launch):
        return few
    weights, target, gemm = layer.weights, setting.target, _unpacked_gemm(layer)
    if layer.a.dtype != float32:
        unpacked = time_unpacked(gemm, weights, epilogue, target)
        found = unpacking_in_registers(replace(gemm, b=weights.words), weights, epilogue, target)
        if found is not None and found[0] < unpacked:
            return found[1]
    return _unpacked(gemm, weights, epilogue, setting)


def unpacking_in_registers(
    gemm: GemmArguments,
    weights: PackedWeights,
    epilogue: Epilogue,
    target: Target,
    products: int = 1,
    between: Between = ON_ITS_OWN,
) -> tuple[float, tuple[Launch, ...]] | None:
    """Return a product whose kernel unpacks weights, with its estimate; None if there is none."""
    swapped = swap_ab.SwapAb(gemm, weights, products, between=between)
    mixed = mixed_input.MixedInput(gemm, weights, products, between.left)
    many, divides = gemm.shape[0] > MIXED_ROWS, between.measured is not None
    fast = swapped.choose(target) if many or divides or weights.op.bits == COMPARED else None
    found = mixed.choose(target) if not divides and (fast is None or not many) else None
    if found and (fast is None or found.microseconds < fast.microseconds):
        return found.microseconds, mixed.launches(epilogue, found.config, target)
    return fast and (fast.microseconds, (swapped.launch(epilogue, fast.config, target),))


def multiply_packed_rows(
    layers: Sequence[PackedLinear],
    epilogue: Epilogue,
    target: Target,
    norm: RowNorm | None = None,
    left: Measured | None = None,
) -> Launch | str:
    """Return the launch for few rows and constant weights, or why there is none.

    Args:
        layers: one product, or two with the same `a` and weights of one kind, whose results are
            combined by the epilogue.
        epilogue: computes what is stored.
        target: the GPU.
        norm: the normalization of `a`, if any.
        left: what is stored for one of the results, if any.
    """
    first, count = layers[0], len(layers)
    between = Between(norm and norm.measured, left)
    a, weights, rows, planes = first.a, first.weights, first.rows, first.planes
    op = weights.op
    if rows > MAX_ROWS:
        return f"{rows} rows"
    whole = weights.four_words
    if op.block_size % min(SHORTEST, whole) or (op.block_size % whole and whole % op.block_size):
        return f"blocks of {op.block_size}"
    scaled = norm if rows > 1 and between.measured is None else None
    if scaled and (refused := _unscalable(scaled, first)):
        return refused
    prologue = (
        scaled_prologue(scaled, op.K, a.dtype) if scaled else prologue_of(norm, op.K, a.dtype)
    )
    pitch = ceil_div(weights.row_factors, BANKS) * BANKS + BANKS
    tile, tiles = _tile_of(first, count, pitch, prologue.shared, target)
    if tile.eights < count:
        return f"{weights.row_factors} bytes of scales per row"
    if between != ON_ITS_OWN and tile.persistent:
        return "blocks that take several tiles"
    terms, fragment = 32 // op.bits, bfloat16 if planes > 1 else a.dtype
    biases = [layer.bias for layer in layers]
    return Launch(
        "gemm/gemv_packed.cu",
        "gemv_packed",
        grid=(tile.grid(op.N * count, target), 1, 1),
        block=32 * tile.warps,
        args={
            **by_product("w", [layer.weights.row_words for layer in layers]),
            **by_product("scales", [layer.weights.factors for layer in layers]),
            **{"x": between.rows_or(a), **prologue.args, "y": first.y},
            **{**by_product("bias", biases), **epilogue.args, **between.args, "n": op.N},
        },
        types=(("T", fragment), ("X", a.dtype), ("R", epilogue.stored)),
        constants=(
            *(("M", rows), ("PLANES", planes), ("PRODUCTS", count), *tile.constants),
            *(("PERSISTENT", tile.persistent > 0), *weights.constants),
            *(("K", op.K), ("BYTES", weights.bytes), ("BLOCKS", weights.blocks)),
            *(("EDGE", tile.is_uneven(op.N, count)), ("VECTOR", op.K % terms == 0)),
            *(*epilogue.flags(next(filter(None, biases), None)), *prologue.constants),
            *(("SCALED", scaled is not None), ("AHEAD", _reads_ahead(tile, rows))),
            *between.constants,
        ),
        code=f"{atom_of(fragment).code()}\n{epilogue.code}",
        shared=prologue.shared + tiles * tile.eights * EIGHT * pitch,
        note=(
            f"{prologue.note}{tile.note(rows, count)}, {op.bits} bits{between.note} "
            f"{epilogue.title}"
        ).strip(),
    )


def _tile_of(
    layer: PackedLinear, count: int, pitch: int, shared: int, target: Target
) -> tuple[RowTile, int]:
    """Return the tile of a block, with room for scales and sums, and how many it has at a time.

    Args:
        layer: a product.
        count: number of products.
        pitch: bytes of the scales of a row of weights.
        shared: bytes of shared memory that its prologue takes.
        target: the GPU.
    """
    rows, planes = layer.rows, layer.planes
    filling = FILLING if rows == 1 else FILLING_SEVERAL if planes == 1 else FILLING_PLANES
    tile = choose(layer.weights.op, target, count, rows, filling)
    tiles = 1 if tile.persistent == 0 else 2
    per_row = tiles * (pitch + 4 * tile.warps * rows * planes)  # scales, and partial sums
    beside = shared + tiles * between_sums(tile.warps * rows * planes)
    return with_scales(tile, per_row, beside, target, count), tiles


def _unscalable(norm: RowNorm, layer: PackedLinear) -> str | None:
    """Return why a kernel cannot divide several rows by their root mean square."""
    op, dtype = layer.weights.op, layer.a.dtype
    if norm.centred or norm.shift is not None or dtype == float32:
        return f"{norm.kind} of {layer.rows} rows in {dtype.name}"
    return None if scales_rows(op) else f"{op.K} terms of {op.bits} bits"


def scales_rows(op: MatMulNBits) -> bool:
    """Whether kernels divide several rows of 16-bit floats as they multiply them."""
    return op.bits == SCALED_BITS and op.K <= SCALED_TERMS and op.K * op.bits % (8 * STEP) == 0


def multiply_packed_pair(
    layers: tuple[PackedLinear, ...], epilogue: Epilogue, target: Target
) -> Answer:
    """Return the launch of two products, or why they are computed separately.

    Args:
        layers: both, with the same `a`, weights of one kind, and the last result as `y`.
        epilogue: combines both results.
        target: the GPU.
    """
    product = gemm_of(layers)
    if isinstance(product, str):
        return product
    gemm, weights = product
    found = unpacking_in_registers(gemm, weights, epilogue, target, products=2)
    if found is None:
        return "no tile fits"
    if found[0] >= sum(_time(layer, epilogue, target) for layer in layers):
        return "estimated to take as long as two products"
    return found[1]


def gemm_of(layers: Sequence[PackedLinear]) -> tuple[GemmArguments, PackedWeights] | str:
    """Return one product, or two as one with the columns of both, or why there is none.

    Args:
        layers: with the same `a`, weights of one kind, and the last result as `y`.
    """
    first, gemm, n = layers[0], _unpacked_gemm(layers[0]), layers[0].weights.op.N
    if first.a.dtype == float32 or (len(layers) > 1 and n % INTERLEAVE):
        return (
            f"{n} columns in {first.a.dtype.name}; expected a multiple of {INTERLEAVE} in 16 bits"
        )
    if not first.rows or max(first.y.size, first.a.size) >= 2**31:
        return f"{first.rows} rows"
    weights = first.weights
    if len(layers) > 1:
        weights = replace(weights, other=layers[1].weights)
        biases = interleaved_biases([layer.bias for layer in layers], n, first.a.dtype)
        gemm = replace(gemm, shape=(first.rows, 2 * n, first.weights.op.K), bias=biases)
    if not weights.are_constant:
        return "computed weights"
    return replace(gemm, b=weights.words), weights


def _time(layer: PackedLinear, epilogue: Epilogue, target: Target) -> float:
    """Return the estimate for one product in 16-bit floats."""
    gemm, weights = _unpacked_gemm(layer), layer.weights
    packed = replace(gemm, b=weights.words)
    found = unpacking_in_registers(packed, weights, epilogue, target)
    unpacked = time_unpacked(gemm, weights, epilogue, target)
    return unpacked if found is None else min(unpacked, found[0])


def between_sums(columns: int) -> int:
    """Return the bytes of shared memory between the sums of columns of all warps."""
    return 16 * columns


def with_scales(
    tile: RowTile, per_row: int, beside: int, target: Target, products: int = 1
) -> RowTile:
    """Return the tile with as many of its rows as shared memory has room for, possibly none.

    Args:
        tile: with as many rows as are wanted.
        per_row: bytes of shared memory per row of weights.
        beside: other bytes of shared memory.
        target: the GPU.
        products: number of products that share the rows equally.
    """
    eights = tile.eights
    while eights and beside + eights * EIGHT * per_row > target.shared // tile.resident:
        eights = eights // 2 // products * products
    return replace(tile, eights=eights)


def _unpacked_gemm(layer: PackedLinear) -> GemmArguments:
    """Return a product by weights unpacked at the start of the workspace."""
    a, op = layer.a, layer.weights.op
    return GemmArguments(
        a=Matrix(a, op.K, widest((4, 2) if a.dtype == float32 else f16.VECTORS, op.K)),
        b=Scratch(0),
        c=layer.y,
        shape=(layer.rows, op.N, op.K),
        ldb=ceil_div(op.K, EIGHT) * EIGHT,
        ldc=op.N,
        bias=layer.bias,
        dtype=a.dtype,
    )


def time_unpacked(
    gemm: GemmArguments, weights: PackedWeights, epilogue: Epilogue, target: Target
) -> float:
    """Return the estimate for unpacking and multiplying in 16-bit floats."""
    written = weights.op.N * gemm.ldb * gemm.dtype.itemsize
    unpacking = LAUNCH + (weights.nbytes + written) / MEMORY
    return unpacking + f16.time_from_workspace(gemm, epilogue, target)


def _unpacked(
    gemm: GemmArguments, weights: PackedWeights, epilogue: Epilogue, setting: Setting
) -> Answer:
    """Return launches that unpack the weights to the workspace and multiply by them."""
    op, schedule = weights.op, f32 if gemm.dtype == float32 else f16
    product = schedule.from_workspace(gemm, epilogue, setting)
    if isinstance(product, str):
        return product
    launches, to = product
    per_row = ceil_div(gemm.ldb, max(TERMS, 32 // op.bits))
    unpacking = each(
        "gemm/unpack_weights.cu",
        "unpack_weights",
        op.N * per_row,
        {
            **{"w": weights.words, "scales": weights.factors, "to": to},
            **{"count": op.N * per_row, "per_row": per_row, "bytes": weights.bytes},
            **{"blocks": weights.blocks, "depth": op.K, "ldb": gemm.ldb},
        },
        types=(("X", gemm.dtype),),
        constants=weights.constants,
        note=f"{op.bits} bits",
    )
    nbytes = op.N * gemm.ldb * gemm.dtype.itemsize
    return sharing(replace(unpacking, scratch=to.offset + nbytes), *launches)
