"""Products of float32 on tensor cores, with each number as a sum of two others.

These are float16 numbers on Hopper if the right operand is constant and its range allows it, and
TF32 numbers otherwise; `precision="tf32"` takes the first of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from math import inf

from ....runtime.base.record import record
from ..algorithms.registry import Setting
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch, behind, sharing
from ..recipe.operands import Operand, Packed, Scratch, Tensor, ceil_div
from ..recipe.targets import Target
from .atoms import F16X3, TF32, TF32X3, Atom
from .f16x3 import filter_refusal, in_halves, matrix_refusal, scales_of
from .f32_tiles import choose, choose_blocks, tiles_of, ways_of
from .pack import STEP, InParts, rows_of_part, size_in_parts
from .problem import (
    Batch,
    Form,
    GemmArguments,
    Linear,
    Matrix,
    Order,
    Problem,
    packed_matrix,
    widest,
)
from .schedules import multistage, swap_f16x3, wgmma_rs, wgmma_rs_tma
from .tables import f16x3
from .tile import MAX_KEPT, MEMORY, Config

#: Microseconds for packing a small matrix at run time.
PACKING = 2.5
#: Factor by which float16 products must be estimated to be faster than TF32 products, as estimates
#: are inexact. ResNet-50 at batch 1, where most are within 5 % of each other, took 5 % longer on an
#: H200 without it (and with other splits).
MARGIN = 0.95
#: The same for products of at most `SHORT` blocks of TF32 per multiprocessor, whose weights, twice
#: as large, come from memory. Within networks at batch 1 on an H100, ResNeXt-50 takes 6 % less time
#: with it, ResNet-50, GoogLeNet, DLA-60 and RegNetY 2 to 3 %, seven others the same; GoogLeNet with
#: 32 images 1 % more if it applies to all products.
SHORT_MARGIN, SHORT = 1.1, 2


# ── which instructions ───────────────────────────────────────────────────────────────────────────


@record
class Arithmetic:
    """How float32 numbers are multiplied.

    Attributes:
        atom: the instruction, and how many of its numbers represent one.
        reason: why these are not float16 numbers on a GPU where they could be.
    """

    atom: Atom
    reason: str = ""

    def packed(self, make: Callable[[str, Order], Packed]) -> tuple[Packed, Packed | None]:
        """Return constants in the order of kernels, and the factors of their rows, if any.

        Args:
            make: packs them in an order of this name.
        """
        if self.atom is F16X3:
            return make("in halves", in_halves), make("scales", scales_of)
        parts = self.atom.parts
        return make(f"in {parts} parts", InParts(parts)), None


def fastest(problem: Problem, constant: bool, setting: Setting) -> Atom:
    """Return the instruction that is estimated to be the fastest.

    Args:
        problem: the sizes.
        constant: whether the right operands are constant.
        setting: the GPU, and the precision.
    """
    if setting.options.precision == "tf32":
        return TF32
    if not constant or not setting.target.has_wgmma:
        return TF32X3
    return _fastest_by_constants(problem, setting.target)


@lru_cache(MAX_KEPT)
def _fastest_by_constants(problem: Problem, target: Target) -> Atom:
    """Return `fastest` of a product by constants, with wgmma."""
    halves, words = (choose(problem, atom, target) for atom in (F16X3, TF32X3))
    blocks = words.tile.blocks(problem) * words.config.splits
    margin = SHORT_MARGIN if blocks <= SHORT * target.processors else MARGIN
    least = min(halves.microseconds, wgmma_rs_tma.time_of(problem, target))
    return F16X3 if least < margin * words.microseconds else TF32X3


def arithmetic_of(
    setting: Setting, problem: Problem, refusal: Callable[[], str] | None = None
) -> Arithmetic:
    """Return how a product is computed: by the fastest instruction that is precise enough.

    Args:
        setting: the GPU, and the precision.
        problem: the sizes.
        refusal: returns why the right operand cannot be in halves, which takes reading it; empty if
            it can. None if it is computed.
    """
    atom = fastest(problem, refusal is not None, setting)
    reason = refusal() if refusal is not None and atom is F16X3 else ""
    return Arithmetic(TF32X3, reason) if reason else Arithmetic(atom)


def matrix_arithmetic(setting: Setting, problem: Problem, b: Tensor, form: Form) -> Arithmetic:
    """Return how a product by a matrix is computed; see `Linear`."""
    refusal = None if b.data is None else partial(matrix_refusal, b.data, *form)
    return arithmetic_of(setting, problem, refusal)


def filter_arithmetic(setting: Setting, problem: Problem, w: Tensor, groups: int = 1) -> Arithmetic:
    """Return how a product by weights [m, c, *kernel], or by transforms of them, is computed."""
    refusal = None if w.data is None else partial(filter_refusal, w.data, groups)
    return arithmetic_of(setting, problem, refusal)


def tried(problem: Problem, atom: Atom, target: Target) -> tuple[str, ...]:
    """Return the tiles with the splits worth trying."""
    ways = ways_of(problem, atom, target)
    others = f16x3.WGMMA_RS_TMA if atom is F16X3 and not problem.windows else ()
    large = (str(t) for t in others if t.count(problem.m, problem.n) >= target.processors)
    few = swap_f16x3.tried(problem, target) if atom is F16X3 else ()
    found = (str(w.config) for w in ways if w.microseconds < 1.7 * ways[0].microseconds)
    return *found, *large, *few


def time_of(problem: Problem, constant: bool, setting: Setting) -> float:
    """Return the estimate of a product, without packing; see `fastest`.

    It is infinite if there are no such tensor cores, and does not depend on what constants are.
    """
    if not setting.target.has_tf32:
        return inf
    atom = fastest(problem, constant, setting)
    atoms = (F16X3, TF32X3) if atom is F16X3 else (atom,)  # whose estimates are too high alone
    return min(choose(problem, each, setting.target).microseconds for each in atoms)


def linear_time(problem: Problem, constant: bool, setting: Setting) -> float:
    """Return the estimate of `linear`, with packing of what is computed; see `time_of`."""
    packing = PACKING + 12 * problem.batch * problem.n * problem.k / MEMORY
    return time_of(problem, constant, setting) + (0.0 if constant else packing)


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def multiply(
    gemm: GemmArguments,
    epilogue: Epilogue,
    setting: Setting,
    arithmetic: Arithmetic,
    used: int = 0,
    config: Config | None = None,
) -> tuple[Launch, ...]:
    """Return the launches of a product.

    Args:
        gemm: the product; `b` is packed by `Arithmetic.packed`, regardless of `ldb` and `batch.b`.
        epilogue: applied to every result.
        setting: the GPU.
        arithmetic: how it is computed.
        used: bytes of the workspace already in use.
        config: tile and splits; None to choose.
    """
    atom, target = arithmetic.atom, setting.target
    if config is None:
        problem = Problem(*gemm.shape, gemm.batch.count, gemm.a.rows)
        pick = choose_blocks if epilogue.halves else choose
        config = pick(problem, atom, target).config
    _, n, k = gemm.shape
    of_b = size_in_parts(n, k, atom.words) if gemm.batch.count > 1 else 0
    gemm = replace(gemm, ldb=rows_of_part(n), batch=replace(gemm.batch, b=of_b))
    if config.tile.epilogues:
        return (wgmma_rs_tma.multiply(gemm, epilogue, config.tile, target),)
    if config.tile.wgmma:
        launch = wgmma_rs.multiply(
            gemm, epilogue, config, atom, target, concurrent=setting.concurrent
        )
        refused = f", not {F16X3.title}: {arithmetic.reason}" if arithmetic.reason else ""
        return (launch.noted(note=launch.note + refused) if refused else launch,)
    return multistage.multiply(gemm, epilogue, config, atom, target, used)


def form_of(
    gemm: GemmArguments, epilogue: Epilogue, problem: Problem, atom: Atom, target: Target
) -> str:
    """Return the tile that is estimated to be the fastest, of either schedule, with its splits."""
    pick = choose_blocks if epilogue.halves else choose
    best = pick(problem, atom, target)
    other = wgmma_rs_tma.choose(gemm, epilogue, target)
    if other and other.microseconds < best.microseconds + wgmma_rs_tma.exposed(gemm, epilogue):
        best = other
    swapped = None
    if atom is F16X3:
        swapped = swap_f16x3.choose(gemm, target, concurrent=problem.concurrent)
    if swapped and swapped.microseconds < swap_f16x3.most_of(best.microseconds):
        return f"{swap_f16x3.PREFIX}{swapped.config}"
    return str(best.config)


def packed_product(
    packing: tuple[Launch, ...],
    gemm: GemmArguments,
    epilogue: Epilogue,
    setting: Setting,
    arithmetic: Arithmetic,
    form: str = "",
) -> tuple[Launch, ...]:
    """Return the launches that pack an operand and multiply, in the requested variant.

    A variant of other instructions is ignored: problems of equal sizes share measurements.
    """
    used = max((launch.scratch for launch in packing), default=0)
    tiles = tiles_of(arithmetic.atom, setting.target)
    if not wgmma_rs_tma.refusal(gemm, epilogue):
        tiles += f16x3.WGMMA_RS_TMA
    swapped = swap_f16x3.named(form, gemm, setting.target) if arithmetic.atom is F16X3 else None
    if swapped is not None:
        return (swap_f16x3.launch(gemm, epilogue, swapped, setting.target),)
    named = form and form.partition(" split ")[0] in map(str, tiles)
    config = Config.parse(form, tiles) if named else None
    return sharing(*packing, *multiply(gemm, epilogue, setting, arithmetic, used, config))


def halves_refusal(layer: Linear, setting: Setting) -> str:
    """Return why results of `linear` cannot be in halves; empty if they can."""
    if setting.options.precision == "tf32" or not setting.target.has_wgmma or layer.b.data is None:
        return "no float16 products"
    return matrix_refusal(layer.b.data, *layer.form)


def linear(layer: Linear, epilogue: Epilogue, setting: Setting) -> tuple[Launch, ...]:
    """Return alpha * a @ b + bias, with `epilogue` applied to every result.

    If that stores results in halves, nothing of `halves_refusal` is true.
    """
    b, batch, (_, n, k) = layer.b, layer.batch, layer.shape
    problem = Problem(*layer.shape, batch.count)
    arithmetic = Arithmetic(F16X3)
    if not epilogue.halves or b.data is None:
        arithmetic = matrix_arithmetic(setting, problem, b, layer.form)
    packing, scales, packed = (), None, Scratch(0)
    if b.data is None:
        packing = (_packed_matrices(b, batch, n, k, layer.form, arithmetic.atom.parts),)
    else:
        packed, scales = arithmetic.packed(partial(packed_matrix, b, layer.form))
    gemm = GemmArguments(
        a=Matrix(layer.a, k, widest((4, 2), k, batch.a)),
        b=packed,
        c=layer.y,
        shape=layer.shape,
        ldb=0,
        ldc=n,
        batch=batch,
        bias=layer.bias,
        scales=scales,
    )
    form = setting.form or form_of(gemm, epilogue, problem, arithmetic.atom, setting.target)
    return packed_product(packing, gemm, epilogue, setting, arithmetic, form)


def from_workspace(
    gemm: GemmArguments, epilogue: Epilogue, setting: Setting
) -> tuple[tuple[Launch, ...], Scratch] | str:
    """Return the product with a matrix [n, ldb] in the workspace; see `f16.from_workspace`."""
    _, n, k = gemm.shape
    if not setting.target.has_tf32:
        return f"{setting.target.arch} has no tensor cores for float32"
    arithmetic = arithmetic_of(setting, Problem(*gemm.shape, gemm.batch.count))
    packing = _packed_matrices(gemm.b, gemm.batch, n, k, (1.0, True), arithmetic.atom.parts)
    launches = packed_product((packing,), gemm, epilogue, setting, arithmetic)
    there = Scratch(behind(launches))
    reading = {**packing.args, "b": there, "of_row": gemm.ldb}
    return (replace(launches[0], args=reading), *launches[1:]), there


def _packed_matrices(b: Operand, batch: Batch, n: int, k: int, form: Form, parts: int) -> Launch:
    """Return the launches that pack computed matrices in the workspace; see `pack.in_parts`."""
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
