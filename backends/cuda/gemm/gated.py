"""Two products of one input whose results are combined elementwise, as one product of many rows.

In SwiGLU and its kin neither result is stored: their columns take turns in one right operand, so
that a thread has the sums of both.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Answer, Setting
from ..codegen.epilogue import Epilogue, Meeting, no_epilogue
from ..codegen.epilogue_operands import ALONG
from ..recipe.operands import Packed, Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Stored
from . import f16
from .atoms import HALVES
from .fused_products import PRODUCTS, Products, layers_of, packed_layers_of, pair_at
from .gemv import MAX_ROWS
from .interleaved import INTERLEAVE, interleaved, interleaved_biases
from .pack import rows_of
from .packed import multiply_packed_pair
from .problem import GemmArguments, Linear, Matrix
from .schedules import tma_persistent
from .schedules.swap_ab import SwapAb


@record
class GatedProducts(Products, Whole):
    """Two products with a common input, and what combines them."""

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return gated_products(self, y, operand, setting)


def has_many_rows(node: Node) -> bool:
    """Whether a node is a product of many rows with constant weights in 16-bit floats."""
    x, *weights = node.inputs
    if not isinstance(node.op, PRODUCTS) or x is None or x.tensor.dtype not in HALVES:
        return False
    constant = all(w is None or w.is_constant for w in weights)
    return constant and prod(x.tensor.dims[:-1]) > MAX_ROWS


def gated_products_at(
    graph: Graph, product: Node, free: Set[Node], meeting: Meeting
) -> GatedProducts | None:
    """Return a product of many rows and another one of its input, combined elementwise.

    Args:
        graph: the graph.
        product: the product.
        free: nodes that may be taken.
        meeting: returns what combines two products.
    """
    if product not in free or not has_many_rows(product):
        return None
    pair = pair_at(graph, product, free, meeting, has_many_rows)
    return pair and GatedProducts(pair.products, pair.epilogue)


def gated_products(found: Products, y: Tensor, operand: OperandOf, setting: Setting) -> Answer:
    """Return the launch of both products, or why they are computed separately.

    Args:
        found: the products and what combines them.
        y: the last result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    epilogue = found.epilogue_to(y, operand)
    if isinstance(epilogue, str):
        return epilogue
    if epilogue.stored.itemsize != 2 or epilogue.reads_along or epilogue.reads_rows:
        return "operands or results that no kernel of two products has"
    if any(own.asked for own in found.settings(setting)):
        return "an algorithm that was asked for"
    target = setting.target
    if isinstance(found.products[0].op, MatMulNBits):
        packed = packed_layers_of(found, y, operand, setting)
        return packed if isinstance(packed, str) else multiply_packed_pair(packed, epilogue, target)
    gemm = gemm_of_pair(found, y, operand, setting, epilogue)
    if isinstance(gemm, str):
        return gemm
    if few := f16.swapped(SwapAb(gemm, products=2), epilogue, setting):
        return few
    best = tma_persistent.choose(gemm, epilogue, target, 2)
    (m, both, k), plain = gemm.shape, no_epilogue(gemm.dtype)
    one = replace(gemm, shape=(m, both // 2, k))
    along = replace(plain, operands=(y,), kinds=(ALONG,), is_cheap=epilogue.is_cheap)
    apart = sum(f16.time_from_workspace(one, each, target) for each in (plain, along))
    if best is None or best.microseconds >= apart:
        return "estimated to take as long as two products"
    return tma_persistent.multiply(gemm, epilogue, best.tile, target, 2)


def gemm_of_pair(
    found: Products, y: Tensor, operand: OperandOf, setting: Setting, epilogue: Epilogue
) -> GemmArguments | str:
    """Return two products as one with the columns of both in turns, or why there is none.

    Args:
        found: the products, with weights of floats.
        y: what their epilogue stores.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        epilogue: what combines the results.
    """
    layers = layers_of(found, y, operand, setting, epilogue, "tensor_cores")
    if isinstance(layers, str):
        return layers
    first = layers[0]
    m, n, k = first.shape
    if k % INTERLEAVE or n % INTERLEAVE:
        return f"{n} columns of {k} terms, not multiples of {INTERLEAVE}"
    return GemmArguments(
        a=Matrix(first.a, k, INTERLEAVE),
        b=interleaved(*(_rows(layer) for layer in layers)),
        c=y,
        shape=(m, 2 * n, k),
        ldb=k,
        ldc=n,
        bias=interleaved_biases([layer.bias for layer in layers], n, first.a.dtype),
        dtype=first.a.dtype,
    )


def _rows(layer: Linear) -> Packed:
    """Return the right operand of a product in rows, [n, k]."""
    alpha, transposed = layer.form
    pack = partial(rows_of, alpha=alpha, transposed=transposed)
    return Packed((layer.b.value,), ("rows", *layer.form), pack)
