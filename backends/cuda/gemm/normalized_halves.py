"""Two products of float32 with a normalization of rows in between, as two kernels: `swap_f16x3.cu`.

The first one stores its results in halves and their moments, and the second one normalizes rows as
it multiplies them; see `normalized_halves.cuh`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ....runtime.base.record import record
from ....runtime.ir.graph import Value
from ....runtime.plan.format import HALVES_BLOCK, Format
from ..algorithms.registry import Answer, Setting
from ..codegen.epilogue import Epilogue
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from ..recipe.pattern import OperandOf
from ..recipe.setting import Stored
from ..recipe.targets import Target
from . import in_halves
from .f16x3 import in_halves as cut_rows
from .f16x3 import scaled_refusal, scales_of
from .findings import is_finite
from .fused_products import InTurn, Products
from .normalized import ALIGNED, both_layers, norm_of, task_of
from .pack_rows import MatrixPacking, Order, SumPacking
from .problem import Form, GemmArguments, Linear, Problem
from .schedules import swap_f16x3
from .schedules.swap_ab import MOMENTS, RowsNorm
from .tile import TimedConfig

#: Microseconds that the normalization takes more, as a kernel of its own, than what replaces it.
SAVED = 1.0
#: Maximum fours of normalized rows that a thread stores, which wait in registers.
MAX_FOURS = 2


@record
class _Layer:
    """One of the products.

    Attributes:
        gemm: its arguments as a product of its own.
        layer: its matrices.
        epilogue: what is applied to its results.
        way: tile and splits, with the estimate.
        alone: the estimate of the fastest kernel for it, in microseconds.
    """

    gemm: GemmArguments
    layer: Linear
    epilogue: Epilogue
    way: TimedConfig
    alone: float


def normalized_halves(
    found: InTurn, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
) -> Answer:
    """Return the launches of both products, or why the normalization is a kernel of its own.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        stored: how the result is stored.
    """
    (first_product,) = found.front.products
    if operand(first_product.operands[0]).format is not Format.HALVES:
        return "rows that are not in halves"
    halves = Tensor(found.norm.operands[0], Format.HALVES)
    ways = {
        found.front: Stored(True, found.stores_rows or found.keeps_rows),
        found.behind: stored,
    }

    def layer(each: Products, y: Tensor, operand: OperandOf, setting: Setting) -> _Layer | str:
        return _layer(each, y, operand, setting, ways[each])

    layers = both_layers(found, y, operand, setting, layer)
    if isinstance(layers, str):
        return layers
    first, second = layers
    together = first.way.microseconds + second.way.microseconds
    apart = first.alone + second.alone + SAVED
    if together > apart:
        return f"estimated to take {together:.1f} us, and {apart:.1f} apart"
    norm = _norm_of(found, second.layer, operand)
    if isinstance(norm, str):
        return norm
    fours = swap_f16x3.kept_fours(second.gemm.shape, second.way.config)
    if norm.kept is not None and fours > MAX_FOURS:
        return f"{fours} words of normalized rows for each thread"
    return _launches(first, second, norm, halves, setting.target, stores=found.stores_rows)


def _layer(
    found: Products, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
) -> _Layer | str:
    """Return a product and its epilogue, if it may read rows in halves."""
    matrices = task_of(found, y, operand, setting, stored)
    if isinstance(matrices, str):
        return matrices
    task, layer = matrices
    if refused := in_halves.refusal(task):
        return refused
    m, n, k = layer.shape
    ways = swap_f16x3.ways_of((m, n, k), setting.target, ready=True)
    if not ways or m > swap_f16x3.MAX_ROWS:
        return f"{m} rows of {k} terms"
    others = in_halves.ways_of(Problem(m, n, k), setting.target)
    alone = min(ways[0].microseconds, others[0].microseconds)
    return _Layer(in_halves.arguments_of(layer), layer, task.epilogue, ways[0], alone)


def _norm_of(found: InTurn, behind: Linear, operand: OperandOf) -> RowsNorm | str:
    """Return the normalization as the kernel of the product behind it takes it."""
    constants, form = [operand(value) for value in found.norm.operands[1:]], behind.form
    if not all(each.data is not None and is_finite(each.data) for each in constants):
        return "infinities or NaNs among scales or shifts"
    assert behind.b.data is not None
    assert constants[0].data is not None
    if refused := scaled_refusal(behind.b.data, *form, constants[0].data):  # of infinite weights
        return refused
    values = tuple(each.value for each in (behind.b, *constants))
    weights = _packed(values[:2], form, "scaled columns in halves", cut_rows)
    columns = Packed(values, ("columns of rows in halves", *form), SumPacking(*form))
    return norm_of(found, operand, weights, columns)


def _launches(
    first: _Layer, second: _Layer, norm: RowsNorm, halves: Tensor, target: Target, *, stores: bool
) -> Answer:
    """Return the launches: the workspace has moments, rows in halves, and those to normalize."""
    (m, n, _), x = first.gemm.shape, halves.value.tensor
    rows = Scratch(ceil_div(m * n // HALVES_BLOCK * MOMENTS, ALIGNED) * ALIGNED)
    scratch = rows.offset + halves.format.nbytes(x)
    one = first.gemm
    if norm.kept is not None and not stores:
        plain = Scratch(ceil_div(scratch, ALIGNED) * ALIGNED)
        one, scratch = replace(one, c=plain), plain.offset + x.nbytes
    scales = _packed(norm.weights.sources, second.layer.form, "scales of scaled columns", scales_of)
    behind = replace(second.gemm, b=norm.weights, scales=scales)
    behind = replace(behind, a=replace(behind.a, data=rows))
    norm = replace(norm, rows=one.c if norm.kept is not None else None)
    multiply = partial(swap_f16x3.launch, target=target, ready=True, moments=Scratch(0))
    launch = multiply(one, first.epilogue, first.way.config)
    launch = replace(launch, args={**launch.args, "halves": rows}, scratch=scratch)
    return launch, multiply(behind, second.epilogue, second.way.config, norm=norm)


def _packed(values: tuple[Value, ...], form: Form, order: str, arrange: Order) -> Packed:
    """Return weights in rows, times the scale of their terms, in an order."""
    return Packed(values, (order, *form), MatrixPacking(*form, arrange))
