"""Matrix products: `gemv.cu` for a few rows, which memory bounds, `gemm.cu` for more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from ...runtime.dtypes import float32
from ...runtime.ops.matmul import Gemm
from ...runtime.types import Array
from .bounds import MOST_BLOCKS
from .gemm.atoms import HALVES
from .half import half_linear
from .half_product import half_product
from .launch import Launch, Recipe
from .layout import ceil_div
from .operands import Members, Packed, Scratch, Tensor
from .registry import Answer, Setting, need_dtypes
from .split import linear_time, split_linear
from .tail import NO_TAIL, Tail
from .tiles import Tile, choose, estimate, tile_named

MATRIX, PIXELS, WINDOWS = range(3)
TILED = frozenset({float32}) | HALVES
MOST_GEMV_ROWS = 8
GEMV_WARPS = 4


@dataclass(frozen=True, slots=True)
class Product:
    """One launch of `gemm.cu`, split or not.

    Attributes:
        a, b, c: the operands; b is [k, n] in memory, columns padded to `ldb`.
        m, n, k: rows, columns and terms of one product.
        lda, ldb, ldc: distances of rows, in elements.
        batch: how many products, and the distances of their operands: (count, a, b, c).
        bias: one number a column, or None.
        rows: what the rows of `a` are: MATRIX, PIXELS or WINDOWS.
        vector_a: elements of `a` that are copied at once.
        across: whether threads load along the rows of `a`.
        table: elements of a window (WINDOWS).
        image: geometry (PIXELS, WINDOWS).
    """

    a: Tensor | Scratch
    b: Tensor | Packed
    c: Tensor | Scratch
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    batch: tuple[int, int, int, int] = (1, 0, 0, 0)
    bias: Tensor | Packed | None = None
    rows: int = MATRIX
    vector_a: int = 1
    across: bool = False
    table: Packed | None = None
    image: Members | None = None

    @property
    def vector_b(self) -> int:
        """Elements of `b` that can be copied at once."""
        return 4 if self.ldb % 4 == 0 and self.batch[2] % 4 == 0 else 1

    @property
    def vector_c(self) -> int:
        """Results that can be stored at once."""
        return 4 if all(n % 4 == 0 for n in (self.n, self.ldc, self.batch[3])) else 1

    def pitched(self, tail: Tail) -> tuple[Tensor, ...]:
        """Return the operands of a convolution that may be slices; see `Launch.pitched`."""
        if self.rows == MATRIX:
            return ()
        images = (self.a, self.c, *tail.along)
        return tuple(image for image in images if isinstance(image, Tensor))


def multiply(
    product: Product, tail: Tail, setting: Setting, way: tuple[Tile, int] | None = None
) -> Recipe:
    """Return the launches of a product of matrices.

    Args:
        product: what is multiplied.
        tail: applied to every result.
        setting: the GPU.
        way: tile and number of splits; chosen by `tiles` where None.
    """
    count = product.batch[0]
    if way is None and setting.form:
        way = tile_named(setting.form)
    tile, splits = way or choose(product.m, product.n, product.k, count, setting.target)
    if splits == 1:
        return _tiles(product, tail, tile)
    return _tiles(product, NO_TAIL, tile, splits), _sum_of_splits(product, tail, splits)


def _tiles(p: Product, tail: Tail, tile: Tile, splits: int = 1) -> Launch:
    """Return the launch of gemm.cu; several splits leave partial sums in the workspace."""
    count, batch_a, batch_b, batch_c = p.batch
    split = splits > 1
    ends = {"bias": None, **NO_TAIL.args} if split else {"bias": p.bias, **tail.args}
    rows, columns = ceil_div(p.m, tile.bm), ceil_div(p.n, tile.bn)
    wide = columns > MOST_BLOCKS[1]
    return Launch(
        "gemm.cu",
        "gemm",
        grid=(rows * columns if wide else rows, 1 if wide else columns, count * splits),
        block=tile.threads,
        args={
            **{"a": p.a, "b": p.b, "c": Scratch(0) if split else p.c, "table": p.table, **ends},
            **{"m": p.m, "n": p.n, "k": p.k, "lda": p.lda, "ldb": p.ldb, "ldc": p.ldc},
            **{"batch_a": batch_a, "batch_b": batch_b, "batch_c": batch_c},
            **{"splits": splits, "image": p.image},
        },
        types=(("T", float32),),
        constants=(
            *tile.constants,
            *(("VECTOR_A", p.vector_a), ("VECTOR_B", p.vector_b), ("VECTOR_C", p.vector_c)),
            *(("ROWS", p.rows), ("ACROSS", p.across)),
            *(("BIAS", p.bias is not None and not split), ("SPLIT", split), ("WIDE", wide)),
        ),
        code=tail.code,
        shared=tile.shared,
        scratch=4 * count * splits * p.m * p.n if split else 0,
        note=f"{tile.title} split {splits}" if split else f"{tile.title} {tail.title}".strip(),
        pitched=p.pitched(tail),
    )


def _sum_of_splits(p: Product, tail: Tail, splits: int) -> Launch:
    """Return the second pass: the sum of the partial sums, finished."""
    count, _, _, batch_c = p.batch
    return Launch(
        "gemm_reduce.cu",
        "gemm_reduce",
        grid=(ceil_div(p.m * ceil_div(p.n, 4), 256), count, 1),
        block=256,
        args={
            **{"partial": Scratch(0), "c": p.c, "bias": p.bias, **tail.args},
            **{"m": p.m, "n": p.n, "ldc": p.ldc, "batch_c": batch_c, "splits": splits},
        },
        types=(("T", float32),),
        constants=(
            *(("VECTOR_C", p.vector_c), ("BIAS", p.bias is not None)),
            ("GROUPS", p.rows != MATRIX),
        ),
        code=tail.code,
        note=tail.title,
        pitched=p.pitched(tail),
    )


def multiply_rows(
    w: Tensor | Packed,
    x: Tensor,
    y: Tensor,
    shape: tuple[int, int, int],
    bias: Tensor | Packed | None,
    tail: Tail,
    setting: Setting,
) -> Launch:
    """Return the launch of y = x @ w' for at most `MOST_GEMV_ROWS` rows.

    Args:
        w: [n, k].
        x: [m, k].
        y: [m, n].
        shape: (m, n, k).
        bias: [n] or None.
        tail: applied to every result.
        setting: the GPU.
    """
    m, n, k = shape
    parts, words = 1, 16 // y.dtype.itemsize
    while parts < GEMV_WARPS and n * parts < 32 * setting.target.processors and k >= 512 * parts:
        parts *= 2
    constant = isinstance(w, Packed) or w.data is not None
    return Launch(
        "gemv.cu",
        "gemv",
        grid=(ceil_div(n * parts, GEMV_WARPS), 1, 1),
        block=32 * GEMV_WARPS,
        args={"w": w, "x": x, "y": y, "bias": bias, **tail.args, "n": n, "k": k},
        types=(("T", y.dtype),),
        constants=(
            *(("M", m), ("PARTS", parts), ("VECTOR", words if k % words == 0 else 1)),
            *(("BIAS", bias is not None), ("CONSTANT", constant)),
        ),
        code=tail.code,
        early=True,
        note=f"{m} rows {tail.title}".strip(),
    )


# ── operators ────────────────────────────────────────────────────────────────────────────────────


def tiled_matmul(y: Tensor, a: Tensor, b: Tensor, tail: Tail, setting: Setting) -> Answer:
    """Multiply a matrix, or a stack of them, with a matrix or a stack, as `Setting.way` says."""
    refused = need_dtypes(TILED, y, a, b)
    if refused:
        return refused
    if b.rank <= 2:
        n = b.dims[1] if b.rank == 2 else 1
        k = b.dims[0]
        return _product(
            y, a, b, (prod(a.dims) // max(k, 1), n, k), (1.0, False), None, tail, setting
        )
    if a.rank < 2 or setting.way == "gemv":
        return "a stack of matrices on the right"
    if y.dtype != float32:
        return half_product(y, a, b, tail, setting)
    return _stacked(y, a, b, tail, setting)


def tiled_gemm(
    op: Gemm, y: Tensor, a: Tensor, b: Tensor, c: Tensor | None, tail: Tail, setting: Setting
) -> Answer:
    """Multiply two matrices, scale, and add constants, as `Setting.way` says."""
    refused = need_dtypes(TILED, y, a, b, c)
    if refused:
        return refused
    if op.transA:
        return "transA=1"
    if b.data is None and (op.alpha != 1 or (op.transB and y.dtype == float32)):
        return f"alpha={op.alpha}, transB={op.transB} with a second operand of run time"
    m, n = y.dims
    bias: Tensor | Packed | None = None
    if c is not None and op.beta != 0:
        if c.data is None or c.size not in (1, n) or (c.size == n and c.dims[-1] != n):
            return f"c of {c.value.tensor}, not one constant a column"
        bias = Packed((c.value,), ("bias", n, op.beta), partial(pack_bias, n=n, beta=op.beta))
    return _product(y, a, b, (m, n, a.dims[1]), (op.alpha, bool(op.transB)), bias, tail, setting)


def _product(
    y: Tensor,
    a: Tensor,
    b: Tensor,
    shape: tuple[int, int, int],
    form: tuple[float, bool],
    bias: Tensor | Packed | None,
    tail: Tail,
    setting: Setting,
) -> Answer:
    """Return a @ b with `a` of any rank and `b` [k, n], or [n, k] where form[1] says transposed."""
    m, n, k = shape
    alpha, transposed = form
    if k == 0 or y.size >= 2**31 or a.size >= 2**31:
        return f"{m} x {n} x {k} elements"
    if setting.takes("gemv") and b.data is not None and m <= MOST_GEMV_ROWS:
        plain = transposed and alpha == 1
        w = (
            b
            if plain
            else Packed(
                (b.value,), ("rows", *form), partial(pack_rows, alpha=alpha, transposed=transposed)
            )
        )
        return multiply_rows(w, a, y, shape, bias, tail, setting)
    if setting.way == "gemv":
        return f"{m} rows, more than {MOST_GEMV_ROWS}"
    if y.dtype != float32:
        if b.data is None:
            return half_product(y, a, b, tail, setting, transposed=form[1], bias=bias)
        return half_linear(y, a, b, shape, form, bias, tail, setting)
    if split_pays(shape, 1, b, setting):
        return split_linear(y, a, b, shape, form, bias, tail, setting)
    ldb = n
    columns: Tensor | Packed = b
    if b.data is not None:
        ldb = ceil_div(n, 4) * 4
        if form != (1.0, False) or ldb != n:
            columns = Packed(
                (b.value,),
                ("columns", *form),
                partial(pack_columns, alpha=alpha, transposed=transposed),
            )
    return multiply(
        Product(a, columns, y, m, n, k, k, ldb, n, bias=bias, vector_a=vector_of(k)), tail, setting
    )


def _stacked(y: Tensor, a: Tensor, b: Tensor, tail: Tail, setting: Setting) -> Answer:
    """Return a stack of products; all stacks as long as the result's, or a single matrix."""
    (m, k), n = a.dims[-2:], b.dims[-1]
    count = prod(y.dims[:-2])
    if (tail.operands and count != 1) or k == 0:
        return "a stack with an operand behind it"
    stacks = [prod(operand.dims[:-2]) for operand in (a, b)]
    if any(stack not in (1, count) for stack in stacks):
        return f"stacks of {a.value.tensor} and {b.value.tensor} are broadcast"
    if count > 65535:
        return f"a stack of {count}"
    of_a, of_b = m * k if stacks[0] == count else 0, k * n if stacks[1] == count else 0
    batch = (count, of_a, of_b, m * n)
    if setting.way == "tensor_cores" and not of_b:
        return "a stack times one matrix of run time"
    if of_b and split_pays((m, n, k), count, b, setting):
        form = (1.0, False)
        return split_linear(y, a, b, (m, n, k), form, None, tail, setting, batch)
    return multiply(Product(a, b, y, m, n, k, k, n, n, batch, vector_a=vector_of(k)), tail, setting)


def split_pays(shape: tuple[int, int, int], count: int, b: Tensor, setting: Setting) -> bool:
    """Whether tensor cores are wanted, or expected to be the faster ones."""
    if setting.way:
        return setting.way == "tensor_cores"
    tile, splits = choose(*shape, count, setting.target)
    plain = estimate(*shape, count, tile, splits, setting.target.processors)
    return linear_time(shape, count, b.data is not None, setting) < plain


def vector_of(*steps: int) -> int:
    """Return how many elements can be copied at once if rows begin at multiples of `steps`."""
    return next(v for v in (4, 2, 1) if all(step % v == 0 for step in steps))


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_rows(b: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b as [n, k]."""
    rows = b if transposed else b.reshape(b.shape[0], -1).T
    return np.ascontiguousarray(rows if alpha == 1 else (rows * np.float32(alpha)).astype(b.dtype))


def pack_columns(b: Array, alpha: float, transposed: bool) -> Array:
    """Return alpha * b as [k, n], with zeros behind the columns up to a multiple of four."""
    columns = b.T if transposed else b.reshape(b.shape[0], -1)
    k, n = columns.shape
    packed = np.zeros((k, ceil_div(n, 4) * 4), b.dtype)
    np.multiply(columns, np.float32(alpha), out=packed[:, :n])
    return packed


def pack_bias(c: Array, n: int, beta: float) -> Array:
    """Return beta * c as [n]."""
    return np.broadcast_to(c.ravel() * np.float32(beta), (n,)).astype(c.dtype)
