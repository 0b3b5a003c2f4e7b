"""Products of few rows, bound by memory: `gemv.cu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Tensor, ceil_div
from ..recipe.targets import Target
from .atoms import HALVES, atom_of
from .between import Between, Measured
from .pack import in_words
from .problem import Linear, Shape, packed_matrix

T = TypeVar("T")
#: Bytes of one line across all banks of shared memory.
LINE = 128
#: Maximum number of rows for `gemv.cu`.
MAX_ROWS = 8
#: Rows of weights from which a warp reads one word each at a time.
EIGHT = 8
#: Bytes of a row that a warp reads in one step.
STEP = 64
#: Bytes of a row of weights, up to which a block of many has more in flight, for one row of A. On
#: an H200, 50257 by 768 weights take 19 instead of 24 us; steps of Llama-3.2-1B and 3-8B take as
#: long either way, and two rows of A 4 % longer.
SHORT_ROW = 4096
#: Minimum number of warps of one of many blocks where rows are short: they store its results. On an
#: H200, 8 rows by 4 terms of 147456 rows of weights take 24 instead of 71 us, and by 256 terms of
#: 30000 rows 13 instead of 16 us; few blocks gain nothing.
FEWEST = 4
#: Bytes of a row of float32 weights, of which there are few, that all are in flight before a kernel
#: waits. At batch 1 on an H200 MobileNetV2 takes 1 % less time with it, ResNet-50 0.5 %.
IN_FLIGHT = 8192
#: Blocks per multiprocessor that are many, and that nearly fill the GPU.
MANY, MOST = 4, 0.75


@record
class RowTile:
    """How a block of `gemv.cu` and its variants traverses the weights.

    Attributes:
        eights: rows of weights per block, in units of eight.
        warps: warps that share the terms of these rows.
        steps: number of 64-byte steps of a row in each of a thread's two buffers.
        resident: blocks per multiprocessor that fit in registers.
        persistent: blocks per multiprocessor that take all rows of weights in turns; 0 for one
            block for each part of the rows.
    """

    eights: int
    warps: int
    steps: int
    resident: int = 1
    persistent: int = 0

    def __str__(self) -> str:
        """A short description: ``16 rows, 8 warps, 4 steps``."""
        text = f"{self.eights * EIGHT} rows, {self.warps} warps, {self.steps} steps"
        return f"{text}, persistent" if self.persistent else text

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """The compile-time constants of `gemv.cuh`."""
        names = ("EIGHTS", "WARPS", "STEPS", "RESIDENT")
        return tuple(zip(names, (self.eights, self.warps, self.steps, self.resident), strict=True))

    def blocks(self, n: int) -> int:
        """Return the number of tiles of n rows of weights."""
        return ceil_div(n, self.eights * EIGHT)

    def grid(self, n: int, target: Target) -> int:
        """Return the number of blocks that run for n rows of weights."""
        blocks = self.blocks(n)
        return min(blocks, self.persistent * target.processors) if self.persistent else blocks

    def is_uneven(self, n: int, products: int) -> bool:
        """Return whether blocks have rows beyond the last of n."""
        return n % (self.eights * EIGHT // products) != 0

    def note(self, m: int, products: int) -> str:
        """Return a description for m rows of several products: ``1 by 16 rows ..., 2 products``."""
        return f"{m} by {self}" + (f", {products} products" if products > 1 else "")


@record
class RowNorm:
    """A normalization of rows that a kernel computes itself before multiplying.

    Attributes:
        scale: scale of the result, one element per element of a row.
        shift: shift of the result, or None.
        epsilon: added to the variance.
        centred: whether the mean is subtracted.
        kind: the operator, for reports.
        measured: what the product in front has left of the rows; None if the kernel has to
            normalize them.
    """

    scale: Tensor
    shift: Tensor | None
    epsilon: float
    centred: bool
    kind: str
    measured: Measured | None = None


@record
class Prologue:
    """What kernels do to the rows before multiplying; see `row_norm.cuh`.

    Attributes:
        args: arguments for it.
        constants: compile-time constants for it.
        shared: dynamic shared memory in bytes.
        note: the operator, for reports; empty for none.
    """

    args: Mapping[str, Tensor | float | None]
    constants: tuple[tuple[str, int | bool], ...]
    shared: int = 0
    note: str = ""


def prologue_of(norm: RowNorm | None, k: int, dtype: DType) -> Prologue:
    """Return the prologue for rows of `k` elements; `norm` supports a single row."""
    if norm is None:
        flags = (("ROW", k), ("NORMALIZED", False), ("CENTRED", False), ("SHIFTED", False))
        return Prologue({"scale": None, "shift": None, "epsilon": 0.0}, flags)
    if norm.measured is not None:
        plain = prologue_of(None, k, dtype)
        return replace(
            plain,
            args={**plain.args, "epsilon": norm.epsilon},
            note=f"after {norm.kind} in front, ",
        )
    row = ceil_div(k * dtype.itemsize, LINE) * LINE // dtype.itemsize
    shifted = norm.shift is not None
    return Prologue(
        {"scale": norm.scale, "shift": norm.shift, "epsilon": norm.epsilon},
        (("ROW", row), ("NORMALIZED", True), ("CENTRED", norm.centred), ("SHIFTED", shifted)),
        (2 + shifted) * row * dtype.itemsize,
        f"after {norm.kind}, ",
    )


def scaled_prologue(norm: RowNorm, k: int, dtype: DType) -> Prologue:
    """Return what scales several rows as they are multiplied; see `scaled_rows.cuh`."""
    args = {"scale": norm.scale, "shift": None, "epsilon": norm.epsilon}
    plain = prologue_of(None, k, dtype)
    return Prologue(args, plain.constants, k * dtype.itemsize, f"after {norm.kind}, ")


def choose(shape: Shape, dtype: DType, target: Target, products: int = 1) -> RowTile:
    """Return the tile to use, as measured on H100s with 2048 to 128256 rows of weights.

    All multiprocessors should have loads in flight from the first moment: many warps with few rows
    each, whose first words are prefetched while the previous kernel still runs.

    Args:
        shape: of the product.
        dtype: of its elements.
        target: the GPU.
        products: number of products in one kernel.
    """
    m, n, k = shape
    blocks = ceil_div(products * n, 2 * EIGHT)
    warps = _warps_of(k * dtype.itemsize)
    if warps < (16 if dtype in HALVES else 8) and blocks >= MANY * target.processors:
        return RowTile(2, warps, 1, 32 // warps if dtype in HALVES else 1)
    if dtype not in HALVES:
        row, few = k * dtype.itemsize, blocks < MOST * target.processors
        if m == products == 1 and few and 16 * STEP <= row <= IN_FLIGHT:
            return RowTile(1, 16, ceil_div(row, 2 * 16 * STEP))
        return RowTile(2 if blocks >= MOST * target.processors else products, 8, 2)
    if blocks >= MANY * target.processors:
        return RowTile(2, 16, 2 if m == 1 and k * dtype.itemsize <= SHORT_ROW else 1, 2)
    if not MOST * target.processors <= blocks <= target.processors:
        return RowTile(2 if blocks > target.processors else products, 16, 2, 2)
    # One block per multiprocessor, with up to eight steps of each row in flight.
    steps = k * dtype.itemsize // (16 * STEP)
    return RowTile(2, 16, max(1, min(4, steps // 2)))


def _warps_of(nbytes: int) -> int:
    """Return the warps with a step each of rows of this many bytes, at least those of a block."""
    return max(FEWEST, 1 << (ceil_div(nbytes, STEP) - 1).bit_length())


def multiply_rows(
    layers: Sequence[Linear],
    epilogue: Epilogue,
    target: Target,
    norm: RowNorm | None = None,
    left: Measured | None = None,
) -> Launch:
    """Return the launch of alpha * a @ b + bias for at most `MAX_ROWS` rows and constant `b`.

    Args:
        layers: one product, or two with the same `a` and shape, whose results are combined by the
            epilogue.
        epilogue: computes what is stored.
        target: the GPU.
        norm: the normalization of `a`, if any.
        left: what is stored for one of the results, if any.
    """
    first, count = layers[0], len(layers)
    x, (m, n, k) = first.a, first.shape
    between = Between(norm and norm.measured, left)
    prologue = prologue_of(norm, k, x.dtype)
    tile = choose(first.shape, x.dtype, target, count)
    order, arrange = in_words(x.dtype)
    weights = [packed_matrix(layer.b, layer.form, order, arrange) for layer in layers]
    biases = [layer.bias for layer in layers]
    return Launch(
        "gemm/gemv.cu",
        "gemv",
        grid=(tile.blocks(n * count), 1, 1),
        block=32 * tile.warps,
        args={
            **{**by_product("w", weights), "x": between.rows_or(x), **prologue.args, "y": first.y},
            **{**by_product("bias", biases), **epilogue.args, **between.args, "n": n},
        },
        types=epilogue.types,
        constants=(
            *(("M", m), ("PRODUCTS", count), *tile.constants),
            *(("K", k), ("PITCH", ceil_div(k, arrange.elements) * arrange.elements)),
            ("EDGE", tile.is_uneven(n, count)),
            *epilogue.flags(next(filter(None, biases), None)),
            *(*prologue.constants, *between.constants),
        ),
        code=f"{atom_of(x.dtype if x.dtype in HALVES else float32).code()}\n{epilogue.code}",
        shared=prologue.shared,
        note=f"{prologue.note}{tile.note(m, count)}{between.note} {epilogue.title}".strip(),
    )


def by_product(name: str, operands: Sequence[T]) -> dict[str, T | None]:
    """Return the arguments of one or two products by kernel parameter name."""
    return {f"{name}{i}": operand for i, operand in enumerate((*operands, None)[:2])}
