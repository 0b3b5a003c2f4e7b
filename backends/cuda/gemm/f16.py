"""Products of 16-bit floats: selection of the schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from ..algorithms.registry import Answer, Setting
from ..codegen.copies import transposition
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Packed, Scratch, Tensor, ceil_div, words_of
from ..recipe.targets import Target
from .forms import (
    Form,
    Source,
    by_multistage,
    by_persistent,
    by_tma,
    named,
    tma_tile,
    worth_measuring,
)
from .multiplication import stack_of, stacks
from .pack import EIGHTS
from .problem import Batch, GemmArguments, Linear, Matrix, packed_matrix, widest
from .schedules import multistage, swap_ab, tma_persistent, tma_staging
from .tile import LAUNCH, MARGIN, TimedConfig
from .tma_choice import computed, fed_by_tma, persistent

#: For `swap_ab.cu`, which reads weights once and rows of A often: the factor by which estimates of
#: other kernels are below their times for few rows of A and large weights; see `swap_ab.FEW_ROWS`.
#: On an H100, a decoding step of 16 sequences takes 18 % less time with it (Llama 1B and 8B), of 32
#: sequences 4 and 12 %. Maximum rows for more blocks than run at once, two per multiprocessor: the
#: scores of 32 rows (128256 by 2048 weights) take 3 % less time on an H100, 25 % on an H200.
SWAP_MARGIN, ROWS_OF_PAIRS = 1.2, 32
#: Maximum rows of A for `swap_ab.cu` where these are more than few: its blocks have up to 128, so
#: that products of many terms can be split more often. On an H200 at batch 1, ViT-B takes 3 % less
#: time with it, layers 1024 wide with 160 and 197 rows 22 and 13 %, 2048 wide with 128 rows 7 %;
#: with normalizations in products transformers 768 and 1024 wide take 22 and 27 % less with 257
#: rows, 768 wide 14 % with 394.
MORE_ROWS = 512
#: The algorithm with float16 accumulators.
HALF_SUMS = "half_sums"
#: Elements of A per copy.
VECTORS = (8, 4, 2)
#: Maximum number of blocks along other grid axes than the first.
MAX_STACKED = 65535
#: Throughput of `transpose.cu` on an H200 in bytes per microsecond.
TRANSPOSED = 1.7e6


def linear(layer: Linear, epilogue: Epilogue, setting: Setting) -> Answer:
    """Return alpha * a @ b + bias for constant `b`, with `epilogue` applied to every result."""
    if layer.b.data is None:
        return "b is not constant"
    if setting.form:
        return named(linear_forms(layer, epilogue, setting.target), setting.form)
    gemm = gemm_of(layer)
    target, half_sums = setting.target, setting.algorithm == HALF_SUMS
    few = None if half_sums else swapped(swap_ab.SwapAb(gemm), epilogue, setting)
    fed = few or (None if half_sums else fed_by_tma(gemm, epilogue, setting))
    return fed or multistage.multiply_halves(gemm, epilogue, target, half_sums=half_sums)


def linear_forms(layer: Linear, epilogue: Epilogue, target: Target) -> tuple[Form, ...]:
    """Return the forms of `linear` that are worth measuring; `b` is constant."""
    gemm = gemm_of(layer)
    kernels = [by_multistage(Source(gemm), epilogue, target)]
    if gemm.shape[2] % 8 == 0 and target.has_wgmma:
        kernels.append(by_persistent(gemm, epilogue, target))
        if not epilogue.reads_along:
            kernels.append(by_tma([(tma_staging.TmaProduct(gemm), ())], epilogue, target))
    return worth_measuring(*kernels)


def gemm_of(layer: Linear) -> GemmArguments:
    """Return the product of a linear layer with packed weights."""
    a, b, (_, n, k) = layer.a, layer.b, layer.shape
    return GemmArguments(
        a=Matrix(a, k, widest(VECTORS, k)),
        b=packed_matrix(b, layer.form, "in eights", EIGHTS),
        c=layer.y,
        shape=layer.shape,
        ldb=ceil_div(k, 8) * 8,
        ldc=n,
        bias=layer.bias,
        dtype=a.dtype,
    )


def swapped(product: swap_ab.SwapAb, epilogue: Epilogue, setting: Setting) -> Launch | None:
    """Return the launch of `swap_ab.cu` for few rows, if estimated to be faster."""
    gemm, target = product.gemm, setting.target
    m, n, k = gemm.shape
    few = not product.more_rows
    if few and n * k * gemm.dtype.itemsize < swap_ab.LARGE_WEIGHTS:
        return None
    if not few and (m > MORE_ROWS or (product.products > 1 and m <= swap_ab.MAX_ROWS)):
        return None
    best = _best_swapped(product, setting)
    if best is None:
        return None
    many = best.tile.count(m, n) * best.config.splits > target.processors
    if many and (best.tile.resident == 1 or m > ROWS_OF_PAIRS):
        return None
    if few:  # the alternative to two products in one kernel are two kernels
        one = replace(gemm, shape=(m, n // product.products, k))
        others = SWAP_MARGIN * product.products * time_from_workspace(one, epilogue, target)
    else:
        others = MARGIN * _time_of_others(gemm, epilogue, setting)
    return product.launch(epilogue, best.config, target) if best.microseconds < others else None


def _best_swapped(product: swap_ab.SwapAb, setting: Setting) -> TimedConfig | None:
    """Return the best tile of `swap_ab.cu`."""
    gemm = product.gemm
    key = ("swap_ab", gemm.shape, gemm.ldb, gemm.a.vector, product.products)
    key = (*key, product.between.measured is None)
    if key not in setting.tiles:
        setting.tiles[key] = product.choose(setting.target)
    return setting.tiles[key]


def time_of_some_rows(gemm: GemmArguments, epilogue: Epilogue, setting: Setting) -> float:
    """Return the estimate of `linear` for more than a few rows."""
    others, some = _time_of_others(gemm, epilogue, setting), gemm.shape[0] <= MORE_ROWS
    best = _best_swapped(swap_ab.SwapAb(gemm), setting) if some else None
    return others if best is None else min(others, best.microseconds)


def _time_of_others(gemm: GemmArguments, epilogue: Epilogue, setting: Setting) -> float:
    """Return the estimate of `linear` without `swap_ab.cu`."""
    found = time_from_workspace(gemm, epilogue, setting.target)
    if epilogue.reads_along or gemm.shape[2] % 8:
        return found
    fed = tma_tile([tma_staging.TmaProduct(gemm)], setting, "product", gemm.shape)
    return found if fed is None else min(found, fed[1].microseconds)


def product(
    y: Tensor,
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue,
    setting: Setting,
    *,
    transposed: bool = False,
    bias: Packed | Tensor | None = None,
) -> Answer:
    """Return a @ b of (stacked) matrices.

    If its rows are terms, `b` is packed if it is constant, else read as it is, or transposed first
    where that is estimated to be faster.

    Args:
        y: [..., m, n].
        a: [..., m, k].
        b: [..., k, n], or [n, k] if `transposed`; one matrix, or as many as in a.
        epilogue: applied to every result.
        setting: the GPU.
        transposed: the layout of b.
        bias: [n] or None.
    """
    if a.rank < 2 or b.rank < 2:
        return "a vector"
    k, n = a.dims[-1], y.dims[-1]
    if not k:
        return "no terms"
    count, m = stacks(y, a, b)
    stack = stack_of(y, a, b)
    if stack is None or (count > 1 and not any(stack[2])):
        return f"stacks of {a.value.tensor} and {b.value.tensor} are broadcast"
    sizes, of_a, of_b = stack
    heads = sizes[1] if len(sizes) > 1 else 1
    batch = Batch(
        *(count, of_a[0] * m * k, of_b[0] * n * k, m * n),
        *((heads, of_a[1] * m * k, of_b[1] * n * k) if heads > 1 else ()),
    )
    if max(y.size, a.size, b.size) >= 2**31 or count > MAX_STACKED:
        return f"a stack of {count}"
    if transposed and k % 8:
        return f"16-bit floats: {k} terms, not a multiple of 8"
    target, half_sums = setting.target, setting.algorithm == HALF_SUMS
    gemm = GemmArguments(
        a=Matrix(a, k, widest(VECTORS, k, batch.a, batch.head_a)),
        b=b,
        c=y,
        shape=(m, n, k),
        ldb=k if transposed else n,
        ldc=n,
        batch=batch,
        bias=bias,
        across=not transposed,
        dtype=a.dtype,
    )
    ldb = ceil_div(k, 8) * 8
    apart, each = prod(b.dims[:-2]), n * ldb
    used = apart * each * a.dtype.itemsize
    batch = replace(batch, b=of_b[0] * each, head_b=of_b[1] * each if heads > 1 else 0)
    row_major = replace(gemm, b=Scratch(0), ldb=ldb, batch=batch, across=False)
    if b.data is not None and not transposed:
        packed = replace(row_major, b=packed_matrix(b, (1.0, False), "in eights", EIGHTS))
        return multistage.multiply_halves(packed, epilogue, target, half_sums=half_sums)
    time, first = multistage.time_of(gemm, target, epilogue), ()
    transposing = LAUNCH + 2 * used / TRANSPOSED + multistage.time_of(row_major, target, epilogue)
    if not transposed and transposing < time:
        time, first = transposing, (_transposed(b, (apart, k, n, ldb), used),)
    if not half_sums:
        found = computed(gemm, epilogue, target, time)
        if found is not None:
            return found
    last = partial(multistage.multiply_halves, epilogue=epilogue, target=target)
    if first:
        return *first, *last(row_major, used=used, half_sums=half_sums)
    return last(gemm, half_sums=half_sums)


def from_workspace(
    gemm: GemmArguments, epilogue: Epilogue, setting: Setting
) -> tuple[tuple[Launch, ...], Scratch] | str:
    """Return the product by a matrix [n, ldb] that a previous launch writes to the workspace.

    Args:
        gemm: the product; `b` is at the start of the workspace.
        epilogue: applied to every result.
        setting: the GPU.

    Returns:
        The launches, and the address of the matrix; or why there are none.
    """
    (_, n, k), target = gemm.shape, setting.target
    if k % 8 == 0:
        time = multistage.time_of(gemm, target, epilogue)
        found = persistent(gemm, epilogue, target, time)
        if found is not None:
            return (found,), Scratch(0)
    used = n * gemm.ldb * gemm.dtype.itemsize
    return multistage.multiply_halves(gemm, epilogue, target, used), Scratch(0)


def time_from_workspace(gemm: GemmArguments, epilogue: Epilogue, target: Target) -> float:
    """Return the estimate of `from_workspace`."""
    k = gemm.shape[2]
    time = multistage.time_of(gemm, target, epilogue)
    fed = tma_persistent.choose(gemm, epilogue, target) if k % 8 == 0 else None
    return time if fed is None else min(time, fed.microseconds)


def _transposed(b: Tensor, sizes: Ints, nbytes: int) -> Launch:
    """Return the launch that writes the transposes of [count, k, n] to the workspace."""
    count, k, n, ldb = sizes
    launch = transposition(count, k, n, (n, ldb), words_of(b.dtype), ldb)
    return replace(launch, args={**launch.args, "x": b, "y": Scratch(0)}, scratch=nbytes)
