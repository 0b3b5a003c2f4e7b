"""Products of more than a few rows, before or behind a normalization: `measured_tiles.cuh`."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Setting
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf
from ..recipe.setting import DECIDED
from . import f16
from .between import Between, Measured
from .fused_products import Products, layers_of, packed_layers_of
from .gated import gemm_of_pair
from .packed import PackedLinear, gemm_of, unpacking_in_registers
from .problem import GemmArguments
from .schedules.swap_ab import SwapAb

#: Microseconds that the normalization takes as a kernel of its own.
SAVED = 0.7
SLOWER = "estimated to be slower than products that exchange nothing"


def some_rows(
    found: Products,
    y: Tensor,
    operand: OperandOf,
    setting: Setting,
    *,
    measured: Measured | None = None,
    left: Measured | None = None,
) -> Launch | str:
    """Return the launch of products, or why there is none that exchanges what is asked for.

    Args:
        found: the products, with the normalization of their rows, if any.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        measured: what the product in front has left of the rows; None if nothing.
        left: what is stored for a product behind; None if nothing.
    """
    epilogue = found.epilogue_to(y, operand)
    if isinstance(epilogue, str):
        return epilogue
    if any(own.is_decided for own in found.settings(setting)):
        return DECIDED
    if epilogue.stored != y.dtype or epilogue.stored.itemsize != 2:
        return f"results of {epilogue.stored.name}"
    between = Between(measured, left)
    if isinstance(found.products[0].op, MatMulNBits):
        packed = packed_layers_of(found, y, operand, setting)
        return packed if isinstance(packed, str) else _packed(packed, epilogue, setting, between)
    gemm = _gemm_of(found, y, operand, setting, epilogue)
    if isinstance(gemm, str):
        return gemm
    product = SwapAb(_of_rows(gemm, between), products=len(found.products), between=between)
    return f16.swapped(product, epilogue, setting) or SLOWER


def _gemm_of(
    found: Products, y: Tensor, operand: OperandOf, setting: Setting, epilogue: Epilogue
) -> GemmArguments | str:
    """Return one or two products as one, or why there is none."""
    if len(found.products) > 1:
        return gemm_of_pair(found, y, operand, setting, epilogue)
    layers = layers_of(found, y, operand, setting, epilogue, "tensor_cores")
    return layers if isinstance(layers, str) else f16.gemm_of(layers[0])


def _of_rows(gemm: GemmArguments, between: Between) -> GemmArguments:
    """Return a product of the rows that the one in front has left."""
    if between.measured is None:
        return gemm
    return replace(gemm, a=replace(gemm.a, data=between.measured.rows))


def _packed(
    layers: tuple[PackedLinear, ...], epilogue: Epilogue, setting: Setting, between: Between
) -> Launch | str:
    """Return the launch of products with weights of a few bits, or why there is none."""
    product, count, target = gemm_of(layers), len(layers), setting.target
    if isinstance(product, str):
        return product
    gemm, weights = product
    alone = unpacking_in_registers(gemm, weights, epilogue, target, count)
    gemm = _of_rows(gemm, between)
    way = unpacking_in_registers(gemm, weights, epilogue, target, count, between)
    if way is None or alone is None or way[0] > alone[0] + SAVED:
        return SLOWER
    first, *others = way[1]
    return f"{len(others)} more launches" if others else first
