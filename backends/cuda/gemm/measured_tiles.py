"""Products of more than a few rows, before or behind a normalization: `measured_tiles.cuh`."""

from __future__ import annotations

from dataclasses import replace

from ....runtime.ir.graph import Node, Value
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Setting
from ..codegen.epilogue import Epilogue, epilogue_of
from ..recipe.launch import Launch
from ..recipe.operands import Tensor
from ..recipe.pattern import Operand
from . import f16
from .between import Between, Measured
from .few_rows import FewRows
from .gated import gemm_of_pair, tiled_layer
from .packed import PackedLinear, gemm_of, packed_linear, unpacking_in_registers
from .problem import GemmArguments
from .schedules.swap_ab import SwapAb

#: Microseconds that the normalization takes as a kernel of its own.
SAVED = 0.7
SLOWER = "estimated to be slower than products that exchange nothing"


def some_rows(
    found: FewRows,
    y: Tensor,
    operand: Operand,
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
    epilogue = epilogue_of(found.epilogue, y, *(node.output for node in found.products))
    if isinstance(epilogue, str):
        return epilogue
    nodes = (*found.products, *([found.norm] if found.norm else ()))
    if any(setting.for_node(node).asked or setting.for_node(node).choices for node in nodes):
        return "an algorithm that was asked for, or is measured"
    if epilogue.stored != y.dtype or epilogue.stored.itemsize != 2:
        return f"results of {epilogue.stored.name}"
    between = Between(measured, left)

    def not_normalized(value: Value) -> Tensor:
        if found.norm is not None and value is found.norm.output:
            return operand(found.norm.operands[0])
        return operand(value)

    products = found.products
    first, *others = products
    if any(isinstance(node.op, MatMulNBits) for node in products):
        return _packed(products, y, not_normalized, epilogue, setting, between)
    if others:
        gemm = gemm_of_pair(products, y, not_normalized, setting)
    else:
        layer = tiled_layer(first, not_normalized, setting)
        gemm = layer if isinstance(layer, str) else replace(f16.gemm_of(layer), c=y)
    if isinstance(gemm, str):
        return gemm
    product = SwapAb(_of_rows(gemm, between), products=len(products), between=between)
    few = f16.swapped(product, epilogue, setting)
    return few or SLOWER


def _of_rows(gemm: GemmArguments, between: Between) -> GemmArguments:
    """Return a product of the rows that the one in front has left."""
    if between.measured is None:
        return gemm
    return replace(gemm, a=replace(gemm.a, data=between.measured.rows))


def _packed(
    products: tuple[Node, ...],
    y: Tensor,
    operand: Operand,
    epilogue: Epilogue,
    setting: Setting,
    between: Between,
) -> Launch | str:
    """Return the launch of products with weights of a few bits, or why there is none."""
    layers: list[PackedLinear] = []
    for node in products:
        assert isinstance(node.op, MatMulNBits)
        inputs = [value and operand(value) for value in node.inputs]
        layer = packed_linear(node.op, y, inputs, setting.for_node(node))
        if isinstance(layer, str):
            return layer
        layers.append(layer)
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
