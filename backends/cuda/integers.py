"""Products of matrices of bytes on tensor cores, with sums in int32: `mma_integer.cu`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...runtime.dtypes import DType, float32, int8, uint8
from ...runtime.types import Array
from .compile import Target
from .gemm.atoms import atom_of
from .half import MATRIX, WINDOWS
from .half_tiles import STEP, TILES, HalfTile, Task, estimate, splits_of
from .launch import Launch
from .layout import ceil_div
from .operands import Members, Packed, Scratch, Tensor
from .rounding import narrow

#: The types that are multiplied.
BYTES = frozenset({int8, uint8})
WHOLE, CLUSTER = 0, 2
#: Bytes that are copied at once: rows of `a` are multiples of the smallest.
VECTORS = (16, 8, 4)
#: Elements of a tensor, whose places are counted in 32 bits; and products of a stack.
MOST_ELEMENTS, MOST_PRODUCTS = 2**30, 2**12
#: Bytes of what a block of `mma_integer.cu` keeps of a column.
OF_COLUMN = 16


@dataclass(frozen=True, slots=True)
class Quantization:
    """What integers stand for, and what becomes of their sums.

    Attributes:
        zeros: zero points of the left and the right operand.
        scales: of the left and the right operand and of the result; None where sums are results.
        y_zero: zero point of the result.
        bias: one int32 a filter, of the sums' scale.
    """

    zeros: tuple[Tensor | None, Tensor | None]
    scales: tuple[Tensor, Tensor, Tensor] | None = None
    y_zero: Tensor | None = None
    bias: Tensor | None = None

    @property
    def shifts_b(self) -> bool:
        """Whether the right operand has zero points that may not be 0."""
        zero = self.zeros[1]
        return zero is not None and (zero.known is None or bool(zero.known.any()))

    @property
    def parameters(self) -> dict[str, Tensor | None]:
        """The arguments of the kernel: zero points, scales, and the zero point of the result."""
        b_zero = self.zeros[1] if self.shifts_b else None
        a_scale, b_scale, y_scale = self.scales or (None, None, None)
        return {
            **{"a_zero": self.zeros[0], "b_zero": b_zero, "a_scale": a_scale},
            **{"b_scale": b_scale, "y_scale": y_scale, "y_zero": self.y_zero},
        }

    @property
    def steps(self) -> dict[str, int]:
        """Struct `Steps` of the kernel."""
        given = self.parameters.items()
        return {name: int(t is not None and t.size > 1) for name, t in given}

    @property
    def by_row(self) -> bool:
        """Whether rows have parameters of their own."""
        return any(self.steps[name] for name in ("a_zero", "a_scale", "y_scale", "y_zero"))


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """Products y = a @ b' by `mma_integer.cu`.

    Attributes:
        y: the results.
        a: the left operand; an image may have been packed in the workspace.
        b: [products or 1][n][ldb], zeros behind column k.
        sums: of the rows of `b`, int32.
        types: of the elements of `a` and `b`.
        shape: rows, columns and terms of one product.
        lda, ldb, ldc: distances of rows, in elements.
        quantization: what integers stand for.
        batch: how many products, and the distances of their operands: (count, a, b, y).
        rows: what the rows of `a` are: MATRIX, PIXELS or WINDOWS.
        vector: elements of `a` that are copied at once.
        table: elements of a window (WINDOWS).
        image: geometry (PIXELS, WINDOWS).
    """

    y: Tensor
    a: Tensor | Scratch
    b: Packed | Scratch
    sums: Packed | Scratch
    types: tuple[DType, DType]
    shape: tuple[int, int, int]
    lda: int
    ldb: int
    ldc: int
    quantization: Quantization
    batch: tuple[int, int, int, int] = (1, 0, 0, 0)
    rows: int = MATRIX
    vector: int = 16
    table: Packed | None = None
    image: Members | None = None

    @property
    def task(self) -> Task:
        """What a tile is chosen for; two terms are as many bytes as one of 16 bits."""
        (m, n, k), count = self.shape, self.batch[0]
        traffic = count * (m * k + n * k + m * n * self.y.dtype.itemsize)
        return Task(m, n, ceil_div(k, 2), count, self.rows != MATRIX, self.rows == WINDOWS, traffic)

    @property
    def vector_c(self) -> int:
        """Results that are stored at once."""
        return 8 if all(n % 8 == 0 for n in (self.shape[1], self.ldc, self.batch[3])) else 1


def choose_integer(p: IntegerProduct, target: Target) -> tuple[HalfTile, int]:
    """Return the tile and the number of splits, by what products of 16-bit floats take."""
    usable = [
        tile
        for tile in TILES
        if tile.shared(tile.stages) + tile.bn * OF_COLUMN <= target.shared
        and (not tile.wgmma or (target.has_wgmma and not p.quantization.shifts_b))
    ]
    ways = [
        (estimate(p.task, tile, splits, target), i, splits)
        for i, tile in enumerate(usable)
        for splits in (splits_of(p.task, tile, target) if target.has_clusters else [1])
    ]
    _, i, splits = min(ways)
    return usable[i], splits


def multiply_integers(
    p: IntegerProduct, target: Target, way: tuple[HalfTile, int] | None = None
) -> Launch:
    """Return the launch of a product.

    Args:
        p: what is multiplied.
        target: the GPU.
        way: tile and number of splits, more than one only where there are clusters; chosen where
            None.
    """
    tile, splits = way or choose_integer(p, target)
    (m, n, k), (count, batch_a, batch_b, batch_c), q = p.shape, p.batch, p.quantization
    tiles_n = ceil_div(n, tile.bn)
    steps = ceil_div(ceil_div(k, 2 * STEP), splits)
    scale_type = q.scales[0].dtype if q.scales else float32
    image = (p.a,) if isinstance(p.a, Tensor) else ()
    columns = tile.bn // tile.warps_n if tile.wgmma else 0
    return Launch(
        "mma_integer.cu",
        "mma_integer",
        grid=(ceil_div(m, tile.bm) * tiles_n, 1, count * splits),
        block=tile.threads,
        args={
            **{"a": p.a, "b": p.b, "y": p.y, "table": p.table, "b_sums": p.sums, "bias": q.bias},
            **{**q.parameters, "m": m, "n": n, "k": k, "lda": p.lda, "ldb": p.ldb, "ldc": p.ldc},
            **{"tiles_n": tiles_n, "batch_a": batch_a, "batch_b": batch_b, "batch_c": batch_c},
            **{"splits": splits, "by": q.steps, "image": p.image},
        },
        types=(("T", p.types[0]), ("U", p.types[1]), ("Y", p.y.dtype), ("S", scale_type)),
        constants=(
            *tile.constants,
            *(("ROWS", p.rows), ("VECTOR", p.vector), ("VECTOR_C", p.vector_c)),
            *(("SPLIT", CLUSTER if splits > 1 else WHOLE), ("ZERO_B", q.shifts_b)),
            ("BY_ROW", q.by_row),
        ),
        code="\n".join((atom_of(*p.types).code(columns), narrow(p.y.dtype, float32))),
        shared=tile.shared(steps),
        cluster=(1, 1, splits),
        early=isinstance(p.b, Packed),  # it is read before the kernel in front has ended
        note=f"{tile.title}{f' split {splits}' if splits > 1 else ''}",
        pitched=(*image, p.y) if p.rows != MATRIX else (),
    )


# ── matrix products ──────────────────────────────────────────────────────────────────────────────


def need_bytes(
    operands: tuple[Tensor, Tensor, Tensor], quantization: Quantization, target: Target
) -> str:
    """Return why y, a and b are not for `mma_integer.cu`; empty where they are."""
    y, a, b = operands
    if not target.has_tf32:
        return f"tensor cores of {target.arch}"
    if not {a.dtype, b.dtype} <= BYTES or (quantization.scales and y.dtype not in BYTES):
        return "not all of them are bytes"
    if max(a.size, b.size, y.size) >= MOST_ELEMENTS or a.size * b.size == 0:
        return f"{max(a.size, b.size, y.size)} elements"
    return ""


def integer_matmul(
    y: Tensor, a: Tensor, b: Tensor, quantization: Quantization, target: Target
) -> tuple[Launch, ...] | str:
    """Return numpy's `matmul` of integers less their zero points, or why it needs another kernel.

    Args:
        y: the result: int32, or bytes where there are scales.
        a: the left operand, whose rows are multiples of four bytes.
        b: the right operand: packed once where it is a constant, else in every run.
        quantization: what the integers stand for.
        target: the GPU.
    """
    refused = need_bytes((y, a, b), quantization, target)
    if refused:
        return refused
    if b.rank < 2 or a.dims[-1] % VECTORS[-1]:
        return "a vector on the right" if b.rank < 2 else f"{a.dims[-1]} terms"
    (k, n), m = b.dims[-2:], a.dims[-2] if a.rank > 1 else 1
    of_a, of_b = (prod(t.dims[:-2]) for t in (a, b))
    count = prod(y.dims) // (m * n)
    if not {of_a, of_b} <= {1, count} or count > MOST_PRODUCTS:
        return f"a stack of {of_a} matrices with one of {of_b}"
    ldb = ceil_div(k, VECTORS[0]) * VECTORS[0]
    batch = (count, m * k * (of_a > 1), n * ldb * (of_b > 1), m * n)
    if of_b == 1 and not quantization.by_row:
        m, batch = m * of_a, (1, 0, 0, 0)
    packing: tuple[Launch, ...] = ()
    if b.data is not None:
        columns = Packed((b.value,), "integer columns", pack_columns)
        sums = Packed((b.value,), "sums of columns", sums_of_columns)
    else:
        columns, sums, packing = _packed(b, ldb)
    product = IntegerProduct(
        y=y,
        a=a,
        b=columns,
        sums=sums,
        types=(a.dtype, b.dtype),
        shape=(m, n, k),
        lda=k,
        ldb=ldb,
        ldc=n,
        quantization=quantization,
        batch=batch,
        vector=next(v for v in VECTORS if k % v == 0),
    )
    return (*packing, multiply_integers(product, target))


def _packed(b: Tensor, ldb: int) -> tuple[Scratch, Scratch, tuple[Launch, ...]]:
    """Return computed columns in the workspace, their sums behind them, and what packs them."""
    (k, n), count = b.dims[-2:], prod(b.dims[:-2])
    columns, sums = Scratch(0), Scratch(ceil_div(count * n * ldb, 256) * 256)
    launch = Launch(
        "pack_integers.cu",
        "pack_integers",
        grid=(ceil_div(n, 32), count, 1),
        block=256,
        args={"x": b, "y": columns, "sums": sums, "k": k, "n": n, "ldb": ldb},
        types=(("T", b.dtype),),
        scratch=sums.offset + 4 * count * n,
    )
    return columns, sums, (launch,)


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_columns(b: Array) -> Array:
    """Return matrices [..., k, n] as [..., n, k], in rows of sixteens with zeros behind them."""
    return in_sixteens(np.swapaxes(b, -1, -2))


def sums_of_columns(b: Array) -> Array:
    """Return the sums of matrices [..., k, n] over k, modulo 2**32."""
    return b.sum(-2, dtype=np.int64).astype(np.int32)


def in_sixteens(rows: Array) -> Array:
    """Return rows with zeros behind them up to a multiple of sixteen."""
    *outer, count = rows.shape
    padded = np.zeros((*outer, ceil_div(count, VECTORS[0]) * VECTORS[0]), rows.dtype)
    padded[..., :count] = rows
    return padded
