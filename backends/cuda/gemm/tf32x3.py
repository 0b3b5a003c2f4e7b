"""Products and convolutions of float32 on tensor cores, with each number as a sum of two tf32."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from math import inf

from ....runtime.ir.types import Array
from ....runtime.plan.backend import Format
from ..algorithms.registry import Answer, Setting
from ..algorithms.selection import Formats
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, behind, sharing
from ..recipe.operands import Operand, Scratch, ceil_div
from ..recipe.targets import Target
from .atoms import TF32, TF32X3
from .convolution import ConvProblem
from .pack import STEP, in_parts
from .problem import (
    MAX_EXTENT,
    Batch,
    Form,
    GemmArguments,
    Linear,
    Matrix,
    Problem,
    RowKind,
    Shape,
    image_source,
    packed_filters,
    packed_matrix,
    padded_channels,
    widest,
)
from .schedules import multistage, wgmma_rs
from .tables.tf32 import MULTISTAGE, WGMMA_RS
from .tile import (
    CACHE,
    LAUNCH,
    MEMORY,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    estimate,
    overlapped,
    ranked,
    suited,
    with_splits,
)

#: Microseconds for packing a small matrix at run time.
PACKING = 2.5
#: Kernels compute pixel addresses with 31 bits.
MAX_ELEMENTS = 2**30
TILES = (*MULTISTAGE, *WGMMA_RS)


def parts_of(setting: Setting) -> int:
    """Return how many tf32 numbers represent one float32 number."""
    return 1 if setting.options.precision == "tf32" else 2


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


def problem_of(shape: Shape, count: int, rows: RowKind, parts: int) -> Problem:
    """Return the problem for which to choose a tile."""
    m, n, k = shape
    read = m * k // (9 if rows is RowKind.WINDOWS else 1)  # windows overlap
    return Problem(m, n, k, count, rows, 4 * count * (read + m * n + parts * n * k))


def shared(tile: CtaTile, parts: int) -> int:
    """Return the shared memory per block in bytes, for numbers of this many parts."""
    if tile.wgmma:
        return wgmma_rs.shared(tile, parts)
    return multistage.shared(tile, tile.stages, parts)


def expected(problem: Problem, config: Config, parts: int, target: Target) -> float:
    """Return the estimate for a configuration in microseconds."""
    tile, splits = config.tile, config.splits
    blocks = tile.blocks(problem) * splits
    steps = ceil_div(ceil_div(problem.k, tile.bk), splits)
    cached = blocks * steps * (tile.bm + parts * tile.bn) * tile.bk * 4 / CACHE
    work = BlockWork(blocks, steps, tile.resident, target.processors, cached, problem.traffic)
    time = overlapped(estimate(tile.cost, work, windows=problem.windows), work, target)
    return LAUNCH + time + (tile.cost.split if splits > 1 else 0)


@cache
def ways_of(problem: Problem, parts: int, target: Target) -> tuple[TimedConfig, ...]:
    """Return all configurations with their estimates, fastest first."""
    usable = [
        tile
        for tile in TILES
        if tile.wgmma == target.has_wgmma and shared(tile, parts) <= target.shared
    ]
    tiles = suited(usable, problem)
    configs = with_splits(tiles, problem, target, clusters=target.has_wgmma)
    return tuple(ranked(configs, lambda config: expected(problem, config, parts, target)))


def choose(problem: Problem, parts: int, target: Target) -> TimedConfig:
    """Return the configuration with the lowest estimate."""
    return ways_of(problem, parts, target)[0]


def tried(problem: Problem, parts: int, target: Target) -> tuple[str, ...]:
    """Return the tiles with the splits worth trying."""
    ways = ways_of(problem, parts, target)
    return tuple(str(w.config) for w in ways if w.microseconds < 1.7 * ways[0].microseconds)


def time_of(shape: Shape, count: int, constant: bool, setting: Setting) -> float:
    """Return the estimate of `linear`; infinite if it does not apply.

    Args:
        shape: M, N and K of one product.
        count: number of products.
        constant: whether the right operands are constant.
        setting: the GPU.
    """
    if not setting.target.has_tf32:
        return inf
    _, n, k = shape
    packing = 0.0 if constant else PACKING + 12 * count * n * k / MEMORY
    parts = parts_of(setting)
    problem = problem_of(shape, count, RowKind.MATRIX, parts)
    return packing + choose(problem, parts, setting.target).microseconds


def rows_of_part(n: int) -> int:
    """Return the rows per part of a step in the order of `in_parts`, for n rows."""
    return ceil_div(n, 8) * 8


def size_in_parts(n: int, k: int, parts: int) -> int:
    """Return the number of elements of a matrix [n, k] in the order of `in_parts`."""
    return ceil_div(k, STEP) * parts * rows_of_part(n) * STEP


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def multiply(
    gemm: GemmArguments,
    epilogue: Epilogue,
    setting: Setting,
    used: int = 0,
    config: Config | None = None,
) -> tuple[Launch, ...]:
    """Return the launches of a product.

    Args:
        gemm: the product; `b` is packed by `in_parts`, regardless of `ldb` and `batch.b`.
        epilogue: applied to every result.
        setting: the GPU, and the precision.
        used: bytes of the workspace already in use.
        config: tile and splits; None to choose.
    """
    parts, target = parts_of(setting), setting.target
    if config is None:
        problem = problem_of(gemm.shape, gemm.batch.count, gemm.a.rows, parts)
        config = choose(problem, parts, target).config
    (_, n, k), atom = gemm.shape, TF32X3 if parts == 2 else TF32
    of_b = size_in_parts(n, k, parts) if gemm.batch.count > 1 else 0
    gemm = replace(gemm, ldb=rows_of_part(n), batch=replace(gemm.batch, b=of_b))
    if config.tile.wgmma:
        return (wgmma_rs.multiply(gemm, epilogue, config, atom, target),)
    return multistage.multiply(gemm, epilogue, config, atom, target, used)


def packed_product(
    packing: tuple[Launch, ...],
    gemm: GemmArguments,
    epilogue: Epilogue,
    setting: Setting,
    form: str,
) -> tuple[Launch, ...]:
    """Return the launches that pack an operand and multiply, in the requested variant."""
    used = max((launch.scratch for launch in packing), default=0)
    config = Config.parse(form, TILES) if form else None
    return sharing(*packing, *multiply(gemm, epilogue, setting, used, config))


def linear(layer: Linear, epilogue: Epilogue, setting: Setting) -> tuple[Launch, ...]:
    """Return alpha * a @ b + bias, with `epilogue` applied to every result."""
    b, batch, (_, n, k) = layer.b, layer.batch, layer.shape
    parts = parts_of(setting)
    packing = () if b.data is not None else (_packed_matrices(b, batch, n, k, layer.form, parts),)
    packed = packed_matrix(b, layer.form, f"in {parts} parts", one_in(parts))
    gemm = GemmArguments(
        a=Matrix(layer.a, k, widest((4, 2), k, batch.a)),
        b=Scratch(0) if packing else packed,
        c=layer.y,
        shape=layer.shape,
        ldb=0,
        ldc=n,
        batch=batch,
        bias=layer.bias,
    )
    return packed_product(packing, gemm, epilogue, setting, setting.form)


def from_workspace(
    gemm: GemmArguments, epilogue: Epilogue, setting: Setting
) -> tuple[tuple[Launch, ...], Scratch] | str:
    """Return the product with a matrix [n, ldb] in the workspace; see `f16.from_workspace`."""
    _, n, k = gemm.shape
    if not setting.target.has_tf32:
        return f"{setting.target.arch} has no tensor cores for float32"
    packing = _packed_matrices(gemm.b, gemm.batch, n, k, (1.0, True), parts_of(setting))
    launches = packed_product((packing,), gemm, epilogue, setting, "")
    there = Scratch(behind(launches))
    reading = {**packing.args, "b": there, "of_row": gemm.ldb}
    return (replace(launches[0], args=reading), *launches[1:]), there


def one_in(parts: int) -> partial[Array]:
    """Return the packed form of one matrix [n, k]; see `in_parts`."""
    return partial(_one_in, parts=parts)


def _one_in(rows: Array, parts: int) -> Array:
    return in_parts(rows[None], parts)


def _packed_matrices(b: Operand, batch: Batch, n: int, k: int, form: Form, parts: int) -> Launch:
    """Return the launches that pack computed matrices in the workspace; see `in_parts`."""
    rows, steps = rows_of_part(n), ceil_div(k, STEP)
    of_row, of_term = (k, 1) if form[1] else (1, n)
    return Launch(
        "gemm/pack_tf32x3.cu",
        "split_pack",
        grid=(ceil_div(rows, 32) * steps, 1, batch.count),
        block=256,
        args={
            **{"b": b, "packed": Scratch(0), "n": n, "k": k, "rows": rows},
            **{"of_matrix": batch.b, "of_row": of_row, "of_term": of_term},
        },
        constants=(("PARTS", parts), ("ACROSS", not form[1])),
        scratch=4 * batch.count * size_in_parts(n, k, parts),
    )


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────


def formats_of(conv: ConvProblem) -> Formats | str:
    """Return the formats of input and result, or why tensor cores do not apply."""
    refused = conv.need_float32() or conv.need_plane() or conv.need_constants()
    if refused:
        return refused
    if not conv.setting.target.has_tf32:
        return f"{conv.setting.target.arch} has no tensor cores for float32"
    if not conv.x.size or not conv.y.size:
        return "no elements"
    if max(conv.x.size, conv.y.size) >= MAX_ELEMENTS:
        return f"{max(conv.x.size, conv.y.size)} elements, not fewer than 2^30"
    if max(conv.x.dims[2:]) > MAX_EXTENT:
        return f"an extent of {max(conv.x.dims[2:])}"
    if conv.channels % 4 and conv.group > 1:
        return f"{conv.channels} channels per group, not a multiple of 4"
    whole = conv.channels % 4 == 0
    return (Format.CHANNELS_LAST if whole else Format.CONTIGUOUS), Format.CHANNELS_LAST


def convolution(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the convolution of tensors in the formats of `formats_of`.

    An image whose channels are not a multiple of four, as in the first layer, is packed first.
    """
    y, setting, parts = conv.y, conv.setting, parts_of(conv.setting)
    image, packing = image_source(conv.x, conv.w, conv.view, y.dims[2:], (4,))
    order = f"in {parts} parts"
    arrange = partial(in_parts, parts=parts)
    gemm = GemmArguments(
        a=image,
        b=packed_filters(conv.w, conv.group, image.channels, order, arrange),
        c=y,
        shape=(conv.pixels, conv.filters, image.terms),
        ldb=0,
        ldc=y.row,
        batch=Batch(conv.group, image.channels, 0, conv.filters),
        bias=conv.b,
    )
    return packed_product(packing, gemm, conv.epilogue, setting, variant)


def convolution_time(conv: ConvProblem) -> float:
    """Return the estimate of `convolution`."""
    parts = parts_of(conv.setting)
    packing = 0.0 if conv.channels % 4 == 0 else 1.5 + 4 * 2.5 * conv.x.size / 3e6
    return packing + choose(_problem(conv), parts, conv.setting.target).microseconds


def variants(conv: ConvProblem) -> tuple[str, ...]:
    """Return the tiles with the K splits worth trying."""
    return tried(_problem(conv), parts_of(conv.setting), conv.setting.target)


def _problem(conv: ConvProblem) -> Problem:
    channels = conv.channels if conv.channels % 4 == 0 else padded_channels(conv.channels)
    rows = RowKind.PIXELS if conv.is_pointwise else RowKind.WINDOWS
    shape = (conv.pixels, conv.filters, conv.taps * channels)
    return problem_of(shape, conv.group, rows, parts_of(conv.setting))
