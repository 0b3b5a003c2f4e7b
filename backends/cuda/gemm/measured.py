"""Two products of few rows with a normalization in between, as two kernels.

The one in front stores its results times the factors of the normalization, and their squares; the
one behind multiplies these rows as they are, and its results by the inverse of their root mean
square. So no kernel normalizes, and no warp waits for the squares of a row.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node
from ....runtime.ir.types import Array
from ....runtime.ops.norm import RMSNormalization
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Answer
from ..codegen.epilogue import Meeting, Tail
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from ..recipe.pattern import OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Setting, Stored
from .atoms import HALVES
from .between import Measured
from .few_rows import few_rows, few_rows_at, has_few_rows
from .findings import is_finite
from .fused_products import PRODUCTS, InTurn, Products, in_turn, norm_of_rows
from .gated import gated_products_at, has_many_rows
from .gemv import MAX_ROWS
from .measured_tiles import some_rows
from .normalized import ALIGNED
from .packed import scales_rows

#: Results whose squares are added up by the kernel in front, and such sums that the one behind
#: reads at a time; see `measured_rows.cuh`.
OF_PART, WORD = 8, 4
#: The same of more than a few rows, see `measured_tiles.cuh`, and the most of these rows.
OF_PART_OF_MORE, MOST_ROWS = 32, 64


@record
class MeasuredProducts(Whole):
    """Products of rows that another one has computed, normalized in between.

    Attributes:
        found: the products.
        apart: what is tried for those behind, and the normalization, instead.
    """

    found: InTurn
    apart: tuple[Pattern | Rest, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return self.found.nodes

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return measured_products(self.found, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return the products apart from the one in front; see `Pattern`."""
        return Rest(self.found.front.nodes), *self.apart


def measured_products_at(
    graph: Graph, product: Node, free: Set[Node], tail: Tail, meeting: Meeting
) -> MeasuredProducts | None:
    """Return products of few rows with the normalization and the product in front of them.

    Args:
        graph: the graph.
        product: one of the products behind.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
        meeting: returns what combines two products.
    """
    if product not in free or not (_has_some_rows(product) and _divides(product)):
        return None
    alone = few_rows_at(graph, product, free, tail, meeting)
    alone = alone or gated_products_at(graph, product, free, meeting)
    behind: Products = alone or Products((product,), tail(graph, product, free))
    norm = behind.norm or norm_of_rows(graph, behind.products)
    if norm is None or not isinstance(norm.op, RMSNormalization):
        return None
    apart = (alone or Rest(behind.nodes),)
    if behind.norm is None:
        apart = Rest(frozenset({norm})), *apart
    behind = Products(behind.products, behind.epilogue, norm)
    found = in_turn(graph, behind, free, tail, _has_some_rows)
    return found and MeasuredProducts(found, apart)


def _has_some_rows(product: Node) -> bool:
    """Whether a node is a product of at most `MOST_ROWS` rows of 16-bit floats by constants."""
    if not isinstance(product.op, PRODUCTS) or product.operands[0].tensor.dtype not in HALVES:
        return False
    some = prod(product.operands[0].tensor.dims[:-1]) <= MOST_ROWS
    return some and (has_few_rows(product) or has_many_rows(product))


def _divides(product: Node) -> bool:
    """Whether a kernel multiplies its results by the inverse root mean square of its rows.

    That of few rows and packed weights normalizes a single row instead, and several where it can.
    If it did not, a step of 1B with 4 bits would take 1 % more on an H200 with one sequence and
    with 8.
    """
    if not has_few_rows(product) or not isinstance(product.op, MatMulNBits):
        return True
    return prod(product.operands[0].tensor.dims[:-1]) > 1 and not scales_rows(product.op)


def measured_products(found: InTurn, y: Tensor, operand: OperandOf, setting: Setting) -> Answer:
    """Return the launches, or why the rows are normalized by a kernel.

    The workspace has the squares, the rows times their factors, and the rows as they are if nothing
    else reads these.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    x, scale = (operand(value) for value in found.norm.operands[:2])
    m, n = prod(x.dims[:-1]), x.dims[-1]
    part, make = (OF_PART, few_rows) if m <= MAX_ROWS else (OF_PART_OF_MORE, some_rows)
    if n % (part * WORD) or x.row != n:
        return f"rows of {n} elements"
    if scale.data is None or not is_finite(scale.data):
        return "infinities or NaNs among the factors"
    rows = Scratch(ceil_div(m * n // part * 4, ALIGNED) * ALIGNED)
    end = rows.offset + ceil_div(m * n * x.dtype.itemsize, ALIGNED) * ALIGNED
    exponent = _exponent(scale.data)
    factors = Packed((scale.value,), ("factors of at most one",), _factors)
    measured = Measured(rows, Scratch(0), factors, 2.0**exponent)
    first = make(found.front, x, operand, setting, left=measured)
    second = make(found.behind, y, operand, setting, measured=measured)
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else str(second)
    if not found.stores_rows:
        (name,) = first.args.keys() & {"y", "c"}
        first = replace(first, args={**first.args, name: Scratch(end)})
        end += m * n * x.dtype.itemsize
    return replace(first, scratch=end), second


def _exponent(scale: Array | None) -> int:
    """Return the exponent of the least power of two that no factor exceeds."""
    return 0 if scale is None else int(np.frexp(np.abs(scale.astype(np.float32)).max())[1])


def _factors(scale: Array) -> Array:
    """Return factors of at most one."""
    by = np.float32(2.0 ** -_exponent(scale))
    return (scale.astype(np.float32) * by).astype(scale.dtype).reshape(-1)
