"""Reads relative positions as rows that are shifted, each by one place more than the one before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..base.record import record
from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node
from ..ir.types import Array
from ..ops.gather import GatherElements
from ..ops.matmul import MatMul
from ..ops.shapes import normalize_axis
from .driver import Context
from .editing import Builder, drop, dtype_of, rank_of, shape_of, static_dims

#: Columns are padded to a multiple of this, so that rows are whole words.
WORD = 8


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace columns of a product that indices choose for each place by shifted rows.

    Scores of relative positions (DeBERTa) are ``(q @ p)[i, f(j - i)]`` for a constant p: of the
    columns of p, in the order of j - i, element j of row i is the one that is i places further to
    the left, so that rows of one element less begin with it. Columns that nothing chooses are not
    computed, and nothing reads indices.
    """
    for node in list(graph.nodes):
        found = _relative(graph, node) if node in graph else None
        if found is not None:
            width = _rewrite(graph, found)
            yield f"rows of {width} relative positions of '{node.name}' are shifted"


@record
class Relative:
    """A GatherElements of columns of a product by constants.

    Attributes:
        node: the GatherElements.
        product: the product.
        order: the columns, from j - i = 1 - rows on.
        sizes: the rows, and the places that each chooses.
    """

    node: Node
    product: Node
    order: Array
    sizes: tuple[int, int]


def _relative(graph: Graph, node: Node) -> Relative | None:
    """Return what a node chooses of a product, if that depends on j - i alone."""
    if not isinstance(node.op, GatherElements):
        return None
    data, indices = node.operands
    product, rank = data.producer, rank_of(data)
    if rank is None or rank < 2 or normalize_axis(node.op.axis, rank) != rank - 1:
        return None
    if product is None or not isinstance(product.op, MatMul) or indices.data is None:
        return None
    weights = product.operands[1].data
    if weights is None or weights.ndim < 2 or graph.sole_consumer(data) is not node:
        return None
    whole = static_dims(shape_of(data))
    if whole is None or whole[:-1] != indices.data.shape[:-1] or dtype_of(data) not in FLOATS:
        return None
    rows, places = indices.data.shape[-2:]
    order = _diagonals(indices.data.reshape(-1, rows, places)) if rows > 1 and places > 1 else None
    if order is None:
        return None
    order = np.where(order < 0, order + whole[-1], order)
    return Relative(node, product, order, (rows, places))


def _diagonals(indices: Array) -> Array | None:
    """Return the element of each diagonal of equal matrices, if each has one."""
    first = indices[0]
    if not (indices == first).all() or not (first[1:, 1:] == first[:-1, :-1]).all():
        return None
    return np.concatenate([first[::-1, 0], first[0, 1:]])


def _rewrite(graph: Graph, found: Relative) -> int:
    """Write the product of columns in order, and its shifted rows; return the number of columns."""
    x, weights = found.product.operands
    data, (rows, places) = weights.data, found.sizes
    wanted, whole = (static_dims(shape_of(v)) for v in (found.node.output, x))
    assert data is not None
    assert wanted is not None
    add = Builder(graph, found.node, found.node.name, (found.product, found.node))
    period = _period(data)
    if period < len(data) and whole is not None and len(whole) == data.ndim == 3:
        x, data = add.shaped(x, (len(data) // period, period, *whole[1:])), data[:period]
    count = -(-len(found.order) // WORD) * WORD
    columns = np.zeros((*data.shape[:-1], count), data.dtype)
    columns[..., : len(found.order)] = data[..., found.order]
    scores = add(MatMul(), x, add.constant(columns, f"{weights.name}.diagonals"))
    *outer, _, _ = static_dims(shape_of(scores)) or (1, 1)
    begin, axis = rows - 1, len(outer)
    line = add.shaped(scores, (*outer, rows * count))
    line = add.slice(line, axis, begin, begin + rows * (count - 1))
    shifted = add.slice(add.shaped(line, (*outer, rows, count - 1)), axis + 1, 0, places)
    result = shifted if axis + 2 == len(wanted) else add.shaped(shifted, wanted)
    name, made = found.node.name, result.producer
    assert made is not None
    graph.redirect(found.node.output, result)
    drop(graph, found.node)
    graph.rename(made, name)
    return count


def _period(data: Array) -> int:
    """Return the number of matrices of a stack after which these are repeated; all if never.

    Heads of all samples multiply the same constants, which exporters repeat.
    """
    count = len(data)
    equal = (k for k in range(1, count) if count % k == 0 and (data[k] == data[0]).all())
    return next((k for k in equal if (data[k:] == data[:-k]).all()), count)
