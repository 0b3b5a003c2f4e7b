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
from ..recipe.pattern import Operand, Pattern, Rest, Whole
from ..recipe.setting import Setting, Stored
from .atoms import HALVES
from .between import Measured
from .few_rows import PRODUCTS, FewRows, few_rows, few_rows_at, has_few_rows, norm_of_rows
from .findings import is_finite
from .gated import GatedProducts, gated_products_at, has_many_rows
from .gemv import MAX_ROWS
from .measured_tiles import some_rows
from .normalized import ALIGNED, product_of

#: Results whose squares are added up by the kernel in front, and such sums that the one behind
#: reads at a time; see `measured_rows.cuh`.
OF_PART, WORD = 8, 4
#: The same of more than a few rows, see `measured_tiles.cuh`, and the most of these rows.
OF_PART_OF_MORE, MOST_ROWS = 32, 64


@record
class MeasuredProducts(Whole):
    """Products of rows that another one has computed, normalized in between.

    Attributes:
        first: the product in front.
        tail: the elementwise nodes behind it, in topological order.
        behind: the products behind, with the normalization.
        apart: what is tried for these instead.
        stores_rows: whether something else reads the rows as they are.
    """

    first: Node
    tail: tuple[Node, ...]
    behind: FewRows
    apart: tuple[Pattern | Rest, ...]
    stores_rows: bool

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((self.first, *self.tail)) | self.behind.nodes

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return measured_products(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return the products apart from the one in front; see `Pattern`."""
        return Rest(frozenset((self.first, *self.tail))), *self.apart


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
    found = _behind(graph, product, free, tail, meeting)
    norm = found.norm or norm_of_rows(graph, found.products)
    if norm is None or norm not in free or not isinstance(norm.op, RMSNormalization):
        return None
    apart: tuple[Pattern | Rest, ...] = (found,)
    if found.norm is None:
        without = Rest(found.nodes) if len(found.products) == 1 else _gated(found)
        apart = (Rest(frozenset({norm})), without)
    x = norm.operands[0]
    first = product_of(x)
    if first is None or first not in free - found.nodes or not _has_some_rows(first):
        return None
    before = tail(graph, first, free - found.nodes)
    if (first, *before)[-1].output is not x:
        return None
    behind = replace(found, norm=norm)
    made = {node.output for node in behind.nodes}
    others = {v for node in behind.epilogue for v in node.distinct_reads} - made
    if not all(v.is_constant for v in others):  # they might wait for what reads x elsewhere
        return None
    stores = len(x.consumers) > 1 or graph.is_output(x)
    return MeasuredProducts(first, before, behind, apart, stores)


def _has_some_rows(product: Node) -> bool:
    """Whether a node is a product of at most `MOST_ROWS` rows of 16-bit floats by constants."""
    if not isinstance(product.op, PRODUCTS) or product.operands[0].tensor.dtype not in HALVES:
        return False
    some = prod(product.operands[0].tensor.dims[:-1]) <= MOST_ROWS
    return some and (has_few_rows(product) or has_many_rows(product))


def _divides(product: Node) -> bool:
    """Whether a kernel multiplies its results by the inverse root mean square of its rows.

    That of few rows and packed weights normalizes rows instead. If it did not, a step of 1B with 4
    bits would take 1 % more on an H200 with one sequence and with 8.
    """
    return not (has_few_rows(product) and isinstance(product.op, MatMulNBits))


def _behind(graph: Graph, product: Node, free: Set[Node], tail: Tail, meeting: Meeting) -> FewRows:
    """Return a product, with another one if a kernel computes both, and with what it normalizes."""
    found = few_rows_at(graph, product, free, tail, meeting)
    if found is None and (pair := gated_products_at(graph, product, free, meeting)):
        found = FewRows(pair.products, pair.epilogue)
    return found or FewRows((product,), tail(graph, product, free))


def _gated(found: FewRows) -> Pattern:
    """Return two products without a normalization."""
    if has_few_rows(found.products[0]):
        return found
    one, other = found.products
    return GatedProducts((one, other), found.epilogue)


def measured_products(
    found: MeasuredProducts, y: Tensor, operand: Operand, setting: Setting
) -> Answer:
    """Return the launches, or why the rows are normalized by a kernel.

    The workspace has the squares, the rows times their factors, and the rows as they are if nothing
    else reads these.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    norm = found.behind.norm
    assert norm is not None
    x, scale = (operand(value) for value in norm.operands[:2])
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
    front = FewRows((found.first,), found.tail)
    first = make(front, x, operand, setting, left=measured)
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
