"""Matrix products of float32 on tensor cores, each number as the sum of two of tf32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from ...runtime.dtypes import float32
from ...runtime.types import Array
from .compile import Target
from .gemm.atoms import TF32
from .gemm.epilogue import epilogue_flags
from .half_tiles import Task
from .launch import Launch
from .layout import ceil_div
from .operands import Members, Packed, Scratch, Tensor
from .registry import Setting
from .split_tiles import MEMORY, STEP, SplitTile, choose, estimate, tile_named, title_of
from .tail import NO_TAIL, Tail

#: What the rows of `a` are in `rows.cuh`; and how a split sum comes together.
MATRIX, PIXELS, WINDOWS = range(3)
WHOLE, PARTIAL, CLUSTER = range(3)
#: Bits of a float32 number that tf32 lacks.
LACKING = 13
#: Microseconds of packing a small matrix at run time.
PACKING = 2.5


# ── products ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SplitProduct:
    """One product c = a @ b' by `split_wgmma.cu` or `split_mma.cu`.

    Attributes:
        a, c: the operands; `a` may be in the workspace.
        b: [batch][n][k] in the order of `pack_parts`.
        shape: rows, columns and terms of one product.
        lda, ldc: distances of rows, in elements.
        batch: how many products, and the distances of their operands: (count, a, c).
        parts: of a number: 2, or 1 for the precision of tf32.
        bias: one number a column, or None.
        rows: what the rows of `a` are: MATRIX, PIXELS or WINDOWS.
        vector: elements of `a` that are copied at once.
        table: elements of a window (WINDOWS).
        image: geometry (PIXELS, WINDOWS).
    """

    a: Tensor | Scratch
    b: Packed | Scratch
    c: Tensor | Scratch
    shape: tuple[int, int, int]
    lda: int
    ldc: int
    batch: tuple[int, int, int] = (1, 0, 0)
    parts: int = 2
    bias: Tensor | Packed | None = None
    rows: int = MATRIX
    vector: int = 4
    table: Packed | None = None
    image: Members | None = None

    @property
    def task(self) -> Task:
        """What `split_tiles` chooses for."""
        return task_of(self.shape, self.batch[0], self.rows == WINDOWS, self.parts)

    @property
    def vector_c(self) -> int:
        """Results that can be stored at once."""
        return next(
            v
            for v in (4, 2, 1)
            if all(n % v == 0 for n in (self.shape[1], self.ldc, self.batch[2]))
        )

    def pitched(self, tail: Tail) -> tuple[Tensor, ...]:
        """Return the operands of a convolution that may be slices; see `Launch.pitched`."""
        if self.rows == MATRIX:
            return ()
        images = (self.a, self.c, *tail.along)
        return tuple(image for image in images if isinstance(image, Tensor))


def task_of(shape: tuple[int, int, int], count: int, windows: bool, parts: int) -> Task:
    """Return what `split_tiles` chooses for."""
    m, n, k = shape
    read = m * k // (9 if windows else 1)  # windows share most of their elements
    traffic = 4 * count * (read + m * n + parts * n * k)
    return Task(m, n, k, count, windows=windows, traffic=traffic)


def time_of(task: Task, parts: int, target: Target) -> float:
    """Return the microseconds that a product is expected to take."""
    tile, splits = choose(task, parts, target)
    return estimate(task, tile, splits, parts, target)


def multiply_split(
    product: SplitProduct,
    tail: Tail,
    target: Target,
    used: int = 0,
    way: tuple[SplitTile, int] | None = None,
) -> tuple[Launch, ...]:
    """Return the launches of a product.

    Args:
        product: what is multiplied.
        tail: applied to every result.
        target: the GPU.
        used: bytes of the workspace that are taken.
        way: tile and number of splits; chosen by `split_tiles` where None.
    """
    tile, splits = way or choose(product.task, product.parts, target)
    if tile.wgmma:
        return (_groups(product, tail, tile, splits, target),)
    if splits == 1:
        return (_warps(product, tail, tile, 1, None),)
    partial_sums = Scratch(ceil_div(used, 256) * 256)
    first = _warps(product, NO_TAIL, tile, splits, partial_sums)
    return first, _sum_of_splits(product, tail, splits, partial_sums)


def _constants(
    p: SplitProduct, tile: SplitTile, split: int, bias: bool, tail: Tail
) -> tuple[tuple[str, int], ...]:
    return (
        *tile.constants,
        *(("PARTS", p.parts), ("ROWS", p.rows), ("VECTOR", p.vector)),
        *(("VECTOR_C", p.vector_c), ("SPLIT", split)),
        *epilogue_flags(p.bias if bias else None, tail),
    )


def _groups(p: SplitProduct, tail: Tail, tile: SplitTile, splits: int, target: Target) -> Launch:
    """Return the launch of split_wgmma.cu."""
    (m, n, k), (count, batch_a, batch_c) = p.shape, p.batch
    tiles_n = ceil_div(n, tile.bn)
    tiles = ceil_div(m, tile.bm) * tiles_n
    items = tiles * count * splits
    work = {
        **{"m": m, "n": n, "k": k, "lda": p.lda, "tiles_n": tiles_n, "tiles": tiles},
        **{"items": items, "batch_a": batch_a, "batch_c": batch_c},
        **{"rows_b": ceil_div(n, 8) * 8, "splits": splits},
    }
    blocks = items if splits > 1 else min(items, tile.resident * target.processors)
    return Launch(
        "split_wgmma.cu",
        "split_wgmma",
        grid=(blocks, 1, 1),
        block=tile.threads,
        args={
            **{"a": p.a, "b": p.b, "c": p.c, "table": p.table, "bias": p.bias, **tail.args},
            **{"ldc": p.ldc, "work": work, "image": p.image},
        },
        types=(("T", float32),),
        constants=(
            *_constants(p, tile, CLUSTER if splits > 1 else WHOLE, True, tail),
            ("CONSTANT", isinstance(p.b, Packed)),
        ),
        code="\n".join((TF32.code(tile.bn, a_in_registers=True), tail.code)),
        shared=tile.shared(p.parts),
        cluster=(splits, 1, 1),
        early=True,
        note=_note(p, tile, splits, tail),
        pitched=p.pitched(tail),
    )


def _warps(
    p: SplitProduct, tail: Tail, tile: SplitTile, splits: int, partial_sums: Scratch | None
) -> Launch:
    """Return the launch of split_mma.cu."""
    (m, n, k), (count, batch_a, batch_c) = p.shape, p.batch
    tiles_n = ceil_div(n, tile.bn)
    whole = partial_sums is None
    return Launch(
        "split_mma.cu",
        "split_mma",
        grid=(ceil_div(m, tile.bm) * tiles_n, 1, count * splits),
        block=tile.threads,
        args={
            **{"a": p.a, "b": p.b, "c": partial_sums or p.c, "table": p.table},
            **{"bias": p.bias if whole else None, **tail.args, "m": m, "n": n, "k": k},
            **{"lda": p.lda, "ldc": p.ldc, "tiles_n": tiles_n, "batch_a": batch_a},
            **{"batch_c": batch_c, "rows_b": ceil_div(n, 8) * 8, "splits": splits},
            "image": p.image,
        },
        types=(("T", float32),),
        constants=_constants(p, tile, WHOLE if whole else PARTIAL, whole, tail),
        code="\n".join((TF32.code(), tail.code)),
        shared=tile.shared(p.parts),
        scratch=partial_sums.offset + 4 * splits * count * m * n if partial_sums else 0,
        early=True,
        note=_note(p, tile, splits, tail),
        pitched=p.pitched(tail),
    )


def _note(p: SplitProduct, tile: SplitTile, splits: int, tail: Tail) -> str:
    kind = "3xtf32" if p.parts == 2 else "tf32"
    return f"{kind} {title_of(tile, splits)} {tail.title}".strip()


def _sum_of_splits(p: SplitProduct, tail: Tail, splits: int, partial_sums: Scratch) -> Launch:
    (m, n, _), (count, _, batch_c) = p.shape, p.batch
    return Launch(
        "gemm_reduce.cu",
        "gemm_reduce",
        grid=(ceil_div(m * ceil_div(n, 4), 256), count, 1),
        block=256,
        args={
            **{"partial": partial_sums, "c": p.c, "bias": p.bias, **tail.args},
            **{"m": m, "n": n, "ldc": p.ldc, "batch_c": batch_c, "splits": splits},
        },
        types=(("T", float32),),
        constants=(
            *(("VECTOR_C", 4 if p.vector_c == 4 else 1), ("BIAS", p.bias is not None)),
            ("GROUPS", p.rows != MATRIX),
        ),
        code=tail.code,
        note=tail.title,
        pitched=p.pitched(tail),
    )


# ── matrix products ──────────────────────────────────────────────────────────────────────────────


def parts_of(setting: Setting) -> int:
    """Return how many numbers of tf32 stand for one of float32."""
    return 1 if setting.options.precision == "tf32" else 2


def linear_time(shape: tuple[int, int, int], count: int, constant: bool, setting: Setting) -> float:
    """Return the microseconds that `split_linear` is expected to take; infinite where it cannot.

    Args:
        shape: rows, columns and terms of one product.
        count: how many products.
        constant: whether the right operands are constants.
        setting: the GPU.
    """
    if not setting.target.has_tf32:
        return inf
    _, n, k = shape
    packing = 0.0 if constant else PACKING + 12 * count * n * k / MEMORY
    parts = parts_of(setting)
    return packing + time_of(task_of(shape, count, False, parts), parts, setting.target)


def split_linear(
    y: Tensor,
    a: Tensor,
    b: Tensor,
    shape: tuple[int, int, int],
    form: tuple[float, bool],
    bias: Tensor | Packed | None,
    tail: Tail,
    setting: Setting,
    batch: tuple[int, int, int, int] = (1, 0, 0, 0),
) -> tuple[Launch, ...]:
    """Return alpha * a @ b + bias, of one product or a stack of them.

    Args:
        y: the result.
        a: of any rank, m rows of k.
        b: [k, n], or [n, k] where form[1] says transposed; of run time only with alpha 1.
        shape: (m, n, k).
        form: (alpha, transposed).
        bias: [n] or None.
        tail: applied to every result.
        setting: the GPU.
        batch: how many products, and the distances of their operands: (count, a, b, c).
    """
    _, n, k = shape
    count, of_a, of_b, of_c = batch
    parts = parts_of(setting)
    packing = () if b.data is not None else (_packed_matrices(b, count, n, k, of_b, form, parts),)
    product = SplitProduct(
        a=a,
        b=Scratch(0) if packing else packed_columns(b, form, parts),
        c=y,
        shape=shape,
        lda=k,
        ldc=n,
        batch=(count, of_a, of_c),
        parts=parts,
        bias=bias,
        vector=next(v for v in (4, 2, 1) if k % v == 0 and of_a % v == 0),
    )
    used = max((launch.scratch for launch in packing), default=0)
    way = tile_named(setting.form) if setting.form else None
    launches = (*packing, *multiply_split(product, tail, setting.target, used, way))
    scratch = max(launch.scratch for launch in launches)
    return tuple(replace(launch, scratch=scratch) for launch in launches)


def _packed_matrices(
    b: Tensor, count: int, n: int, k: int, of_b: int, form: tuple[float, bool], parts: int
) -> Launch:
    """Return what brings matrices of run time into the workspace; see `pack_parts`."""
    rows, steps = ceil_div(n, 8) * 8, ceil_div(k, STEP)
    of_row, of_term = (k, 1) if form[1] else (1, n)
    return Launch(
        "split_pack.cu",
        "split_pack",
        grid=(ceil_div(rows, 32) * steps, 1, count),
        block=256,
        args={
            **{"b": b, "packed": Scratch(0), "n": n, "k": k, "rows": rows},
            **{"of_matrix": of_b, "of_row": of_row, "of_term": of_term},
        },
        constants=(("PARTS", parts), ("ACROSS", not form[1])),
        scratch=4 * count * steps * parts * rows * STEP,
        early=True,
    )


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_parts(rows: Array, parts: int) -> Array:
    """Return [batch, n, k] as the kernels want it: [batch, step, part, n, 32 terms].

    The rows of a step lie in the swizzled order of `tensor_cores.cuh`: chunk c of row r, which is
    four terms, at place c ^ (r % 8). Rows and terms are filled up with zeros.
    """
    count, n, k = rows.shape
    eights, steps = ceil_div(n, 8), ceil_div(k, STEP)
    padded = np.zeros((count, 8 * eights, STEP * steps), np.float32)
    padded[:, :n, :k] = rows
    chunks = padded.reshape(count, eights, 8, steps, 8, 4).transpose(0, 3, 1, 2, 4, 5)
    row, place = np.indices((8, 8))
    swizzled = chunks[:, :, :, row, place ^ row]
    packed = np.empty((count, steps, parts, *swizzled.shape[2:]), np.float32)
    for part, numbers in enumerate(cut(swizzled)[:parts]):
        packed[:, :, part] = numbers
    return packed.reshape(count, steps, parts, 8 * eights, STEP)


def cut(numbers: Array) -> tuple[Array, Array]:
    """Return tf32 numbers whose sums are float32 numbers, but for their last bits: high, low."""
    bits = numbers.view(np.uint32)
    mask, half = np.uint32(2**32 - 2**LACKING), np.uint32(2 ** (LACKING - 1))
    high = ((bits + half) & mask).view(np.float32)
    odd = ~np.isfinite(high) | ~np.isfinite(numbers)
    if odd.any():  # infinities and NaNs, and what would be rounded to infinity
        high[odd] = np.where(np.isnan(numbers), np.float32(np.nan), (bits & mask).view(np.float32))[
            odd
        ]
    with np.errstate(invalid="ignore"):
        low = numbers - high
    low[~np.isfinite(low)] = 0
    return high, ((low.view(np.uint32) + half) & mask).view(np.float32)


def pack_columns(b: Array, alpha: float, transposed: bool, parts: int) -> Array:
    """Return alpha * b, which is [k, n] or transposed, in the order of `pack_parts`."""
    rows = b if transposed else b.reshape(b.shape[0], -1).T
    return pack_parts((rows if alpha == 1 else rows * np.float32(alpha))[None], parts)


def packed_columns(b: Tensor, form: tuple[float, bool], parts: int) -> Packed:
    """Return constants alpha * b in the order of `pack_parts`; form is (alpha, transposed)."""
    alpha, transposed = form
    pack = partial(pack_columns, alpha=alpha, transposed=transposed, parts=parts)
    return Packed((b.value,), ("parts", parts, *form), pack)
