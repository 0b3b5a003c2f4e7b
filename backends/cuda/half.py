"""Matrix products of 16-bit floats, on tensor cores with float32 sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...runtime.dtypes import DType
from ...runtime.types import Array
from .compile import Target
from .gemm.atoms import F16_SUMS, atom_of
from .gemm.epilogue import epilogue_flags
from .half_bulk import MARGIN, bulk_product, choose_bulk, matrix_product
from .half_linear import Linear, choose_linear, linear_product
from .half_tiles import STEP, HalfTile, Task, choose, estimate
from .launch import Launch
from .layout import ceil_div
from .operands import Members, Packed, Scratch, Tensor
from .registry import Answer, Setting
from .tail import Tail

#: What the rows of `a` are in `mma.cu`; and how a split sum comes together.
MATRIX, PIXELS, WINDOWS = range(3)
WHOLE, PARTIAL, CLUSTER = range(3)
#: The way that adds up in float16.
HALF_SUMS = "half_sums"


# ── products ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HalfProduct:
    """One product c = a @ b' by `mma.cu`, split or not.

    Attributes:
        a, c: the operands; `a` may be in the workspace.
        b: [batch][n][ldb], zeros behind column k; constants, or in the workspace, or [n][k].
        shape: rows, columns and terms of one product.
        lda, ldb, ldc: distances of rows, in elements.
        batch: how many products, and the distances of their operands: (count, a, b, c).
        bias: one number a column, or None.
        rows: what the rows of `a` are: MATRIX, PIXELS or WINDOWS.
        vector: elements of `a` that are copied at once.
        table: elements of a window (WINDOWS).
        image: geometry (PIXELS, WINDOWS).
        half_sums: a block adds up in float16; several blocks' sums are added up in float32.
    """

    a: Tensor | Scratch
    b: Packed | Tensor | Scratch
    c: Tensor
    shape: tuple[int, int, int]
    lda: int
    ldb: int
    ldc: int
    batch: tuple[int, int, int, int] = (1, 0, 0, 0)
    bias: Tensor | Packed | None = None
    rows: int = MATRIX
    vector: int = 8
    table: Packed | None = None
    image: Members | None = None
    half_sums: bool = False

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.c.dtype

    @property
    def task(self) -> Task:
        """What `half_tiles` chooses for."""
        m, n, k = self.shape
        count = self.batch[0]
        read = self.a.size if isinstance(self.a, Tensor) else m * k
        traffic = 2 * (read + count * (m * n + n * k))
        return Task(m, n, k, count, self.rows != MATRIX, self.rows == WINDOWS, traffic)

    @property
    def vector_c(self) -> int:
        """Results that are stored at once."""
        return 8 if all(n % 8 == 0 for n in (self.shape[1], self.ldc, self.batch[3])) else 1

    def pitched(self, tail: Tail) -> tuple[Tensor, ...]:
        """Return the operands of a convolution that may be slices; see `Launch.pitched`."""
        if self.rows == MATRIX:
            return ()
        image = (self.a,) if isinstance(self.a, Tensor) else ()
        return (*image, self.c, *tail.along)


def multiply_halves(
    product: HalfProduct,
    tail: Tail,
    target: Target,
    used: int = 0,
    way: tuple[HalfTile, int] | None = None,
) -> tuple[Launch, ...]:
    """Return the launches of a product.

    Args:
        product: what is multiplied.
        tail: applied to every result.
        target: the GPU.
        used: bytes of the workspace that are taken.
        way: tile and number of splits; chosen by `half_tiles` where None.
    """
    tile, splits = way or choose(product.task, target, wgmma=not product.half_sums)
    if splits == 1:
        return (_tiles(product, tail, tile),)
    if target.has_clusters:
        return (_tiles(product, tail, tile, CLUSTER, splits),)
    partial_sums = Scratch(ceil_div(used, 256) * 256)
    first = _tiles(product, tail, tile, PARTIAL, splits, partial_sums)
    return first, _sum_of_splits(product, tail, splits, partial_sums)


def expected(product: HalfProduct, target: Target, tail: Tail | None = None) -> float:
    """Return the microseconds that a product should take, with what its tail reads."""
    task = product.task
    way = choose(task, target)
    if tail is not None:
        task = replace(task, traffic=task.traffic + 2 * product.c.size * len(tail.along))
    return estimate(task, *way, target)


def _tiles(
    p: HalfProduct,
    tail: Tail,
    tile: HalfTile,
    split: int = WHOLE,
    splits: int = 1,
    partial_sums: Scratch | None = None,
) -> Launch:
    (m, n, k), (count, batch_a, batch_b, batch_c) = p.shape, p.batch
    tiles_n = ceil_div(n, tile.bn)
    steps = ceil_div(ceil_div(k, STEP), splits)
    return Launch(
        "mma.cu",
        "mma",
        grid=(ceil_div(m, tile.bm) * tiles_n, 1, count * splits),
        block=tile.threads,
        args={
            **{"a": p.a, "b": p.b, "c": partial_sums or p.c, "table": p.table, "bias": p.bias},
            **{**tail.args, "m": m, "n": n, "k": k, "lda": p.lda, "ldb": p.ldb, "ldc": p.ldc},
            **{"tiles_n": tiles_n, "batch_a": batch_a, "batch_b": batch_b, "batch_c": batch_c},
            **{"splits": splits, "image": p.image},
        },
        types=(("T", p.dtype),),
        constants=(
            *tile.constants,
            *(("ROWS", p.rows), ("VECTOR", p.vector), ("VECTOR_C", p.vector_c)),
            *(("SPLIT", split), ("HALF_SUMS", p.half_sums), *epilogue_flags(p.bias, tail)),
        ),
        code="\n".join((_instructions(p, tile), tail.code)),
        shared=tile.shared(steps),
        scratch=partial_sums.offset + 4 * splits * count * m * n if partial_sums else 0,
        cluster=(1, 1, splits if split == CLUSTER else 1),
        early=isinstance(p.b, Packed),  # it is read before the kernel in front has ended
        note=f"{tile.title}{f' split {splits}' if splits > 1 else ''} {tail.title}".strip(),
        pitched=p.pitched(tail),
    )


def _instructions(p: HalfProduct, tile: HalfTile) -> str:
    """Return the instructions for this tile's width."""
    if p.half_sums:
        return F16_SUMS.code()
    return atom_of(p.dtype).code(tile.bn // tile.warps_n if tile.wgmma else 0)


def _sum_of_splits(p: HalfProduct, tail: Tail, splits: int, partial_sums: Scratch) -> Launch:
    (m, n, _), (count, _, _, batch_c) = p.shape, p.batch
    return Launch(
        "mma_reduce.cu",
        "mma_reduce",
        grid=(ceil_div(m * ceil_div(n, 8), 256), count, 1),
        block=256,
        args={
            **{"partial": partial_sums, "c": p.c, "bias": p.bias, **tail.args},
            **{"m": m, "n": n, "ldc": p.ldc, "batch_c": batch_c, "splits": splits},
        },
        types=(("T", p.dtype),),
        constants=(
            *(("VECTOR_C", p.vector_c), ("GROUPS", p.rows != MATRIX)),
            *epilogue_flags(p.bias, tail),
        ),
        code=tail.code,
        note=tail.title,
        pitched=p.pitched(tail),
    )


# ── matrix products ──────────────────────────────────────────────────────────────────────────────


def half_linear(
    y: Tensor,
    a: Tensor,
    b: Tensor,
    shape: tuple[int, int, int],
    form: tuple[float, bool],
    bias: Tensor | Packed | None,
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Return alpha * a @ b + bias for constant `b`.

    Args:
        y: the result.
        a: of any rank, m rows of k.
        b: [k, n], or [n, k] where form[1] says transposed.
        shape: (m, n, k).
        form: (alpha, transposed).
        bias: [n] or None.
        tail: applied to every result.
        setting: the GPU.
    """
    m, n, k = shape
    alpha, transposed = form
    if b.data is None or k % 2:
        return f"16-bit floats: {'an odd number of terms' if k % 2 else 'b is no constant'}"
    ldb = ceil_div(k, 8) * 8
    pack = partial(pack_columns, alpha=alpha, transposed=transposed)
    columns = Packed((b.value,), ("half columns", *form), pack)
    product = HalfProduct(
        a=a,
        b=columns,
        c=y,
        shape=(m, n, k),
        lda=k,
        ldb=ldb,
        ldc=n,
        bias=bias,
        vector=next(v for v in (8, 4, 2) if k % v == 0),
    )
    if setting.way == HALF_SUMS:
        return multiply_halves(replace(product, half_sums=True), tail, setting.target)
    return _fed(product, columns, tail, setting.target) or multiply_halves(
        product, tail, setting.target
    )


def _fed(p: HalfProduct, columns: Packed, tail: Tail, target: Target) -> Launch | None:
    """Return the launch of a product that Hopper's copy engine feeds, if it should be faster."""
    if p.shape[2] % 8 or not target.has_wgmma or not isinstance(p.a, Tensor):
        return None
    linear = Linear(p.c, p.a, columns, p.shape, p.lda, p.ldc, p.bias)
    found = linear_if_faster(linear, p, tail, target)
    if found is not None or tail.reads_along:
        return found
    rows = matrix_product(p.c, p.a, columns, p.shape, p.bias)
    way = choose_bulk(rows, target)
    if way is not None and way[0] < MARGIN * expected(p, target):
        return bulk_product(rows, tail, *way[1:], target)
    return None


def linear_if_faster(
    linear: Linear, product: HalfProduct, tail: Tail, target: Target, turning: float = 0.0
) -> Launch | None:
    """Return the launch of `mma_linear.cu` if it should be faster than `mma.cu`.

    Args:
        linear: the product.
        product: the same, as `mma.cu` does it.
        tail: applied to every result.
        target: the GPU.
        turning: microseconds that `mma.cu` needs besides.
    """
    way = choose_linear(linear, tail, target)
    if way is None or way[0] >= MARGIN * (expected(product, target, tail) + turning):
        return None
    return linear_product(linear, tail, way[1], target)


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_columns(b: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b as [n, k], in rows of eights."""
    rows = b if transposed else b.reshape(b.shape[0], -1).T
    if alpha != 1:
        rows = (rows * np.float32(alpha)).astype(b.dtype)
    return in_eights(rows)


def in_eights(rows: Array) -> Array:
    """Return rows with zeros behind them up to a multiple of eight."""
    *outer, count = rows.shape
    padded = np.zeros((*outer, ceil_div(count, 8) * 8), rows.dtype)
    padded[..., :count] = rows
    return padded
