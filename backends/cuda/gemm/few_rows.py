"""Products of few rows, fused with a second product, an epilogue and a normalization.

A decoder step reads the weights of its gate and of the gated projection once each; one kernel for
both, whose epilogue combines the results, has twice as many bytes in flight. Meanwhile, every block
has time to normalize a single row itself.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.norm import LayerNormalization, RMSNormalization
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Answer, Setting
from ..codegen.epilogue import Meeting, Tail
from ..recipe.launch import Launch
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Stored
from .between import Measured
from .fused_products import (
    PRODUCTS,
    Products,
    layers_of,
    norm_of_rows,
    packed_layers_of,
    pair_at,
)
from .gemv import MAX_ROWS, RowNorm, multiply_rows
from .packed import multiply_packed_rows

#: Maximum bytes of a row that a block normalizes. With one row, a decoder step takes 6 to 8 %
#: less time on an H200 than with kernels that normalize; with two rows it takes 5 % more, with
#: eight 50 %. Weights of a few bits are multiplied by several rows that are not normalized yet; see
#: `scaled_rows.cuh`.
MAX_NORMALIZED = 1 << 15


@record
class FewRows(Products, Whole):
    """Products with a common input, fused with the nodes around them."""

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return few_rows(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return two products without the normalization, or each separately; see `Pattern`."""
        if self.norm is None or len(self.products) == 1:
            return (Rest(self.nodes),)
        return Rest(frozenset({self.norm})), replace(self, norm=None)


def has_few_rows(node: Node) -> bool:
    """Whether a node is a product with constant weights that kernels for few rows may compute."""
    x, *weights = node.inputs
    if not isinstance(node.op, PRODUCTS) or x is None or x.is_constant:
        return False
    few = 0 < prod(x.tensor.dims[:-1]) <= MAX_ROWS
    return few and all(w is None or w.is_constant for w in weights)


def _norm_before(graph: Graph, products: Sequence[Node], free: Set[Node]) -> Node | None:
    """Return the normalization whose only readers are products of few rows, if it can be fused."""
    norm = norm_of_rows(graph, products)
    if norm is None or norm not in free:
        return None
    y = norm.output.tensor
    few = y.size == y.dims[-1] or isinstance(products[0].op, MatMulNBits)
    return norm if few and y.dims[-1] <= MAX_NORMALIZED // y.dtype.itemsize else None


def few_rows_at(
    graph: Graph, product: Node, free: Set[Node], tail: Tail, meeting: Meeting
) -> FewRows | None:
    """Return a product of few rows, with the nodes fused into its kernel.

    These are another product of the same input, combined with it elementwise, the normalization of
    the input, or both.

    Args:
        graph: the graph.
        product: the product.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
        meeting: returns what combines two products.
    """
    if product not in free or not has_few_rows(product):
        return None
    pair = pair_at(graph, product, free, meeting, has_few_rows)
    norm = _norm_before(graph, pair.products if pair else (product,), free)
    if pair is None:
        return norm and FewRows((product,), tail(graph, product, free), norm)
    return FewRows(pair.products, pair.epilogue, norm)


def few_rows(
    found: Products,
    y: Tensor,
    operand: OperandOf,
    setting: Setting,
    *,
    measured: Measured | None = None,
    left: Measured | None = None,
) -> Launch | str:
    """Return the launch of fused products, or why they are computed separately.

    Args:
        found: the products and the fused nodes.
        y: the last result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        measured: what the product in front has left of the rows to normalize; None if nothing.
        left: what is stored for a product behind; None if nothing.
    """
    epilogue = found.epilogue_to(y, operand)
    if isinstance(epilogue, str):
        return epilogue
    if found.norm is not None and setting.for_node(found.norm).asked:
        return f"algorithm '{setting.for_node(found.norm).asked[0]}'"
    norm = None if found.norm is None else _row_norm(found.norm, operand, measured)
    if isinstance(found.products[0].op, MatMulNBits):
        packed = packed_layers_of(found, y, operand, setting)
        if isinstance(packed, str):
            return packed
        return multiply_packed_rows(packed, epilogue, setting.target, norm, left)
    layers = layers_of(found, y, operand, setting, epilogue, "gemv")
    if isinstance(layers, str):
        return layers
    return multiply_rows(layers, epilogue, setting.target, norm, left)


def _row_norm(norm: Node, operand: OperandOf, measured: Measured | None) -> RowNorm:
    """Return a normalization of rows as kernels take it."""
    _, scale, *shift = (operand(value) for value in norm.operands)
    assert isinstance(norm.op, LayerNormalization | RMSNormalization)
    centred = isinstance(norm.op, LayerNormalization)
    by, epsilon = shift[0] if shift else None, norm.op.epsilon
    return RowNorm(scale, by, epsilon, centred, norm.kind, measured)
