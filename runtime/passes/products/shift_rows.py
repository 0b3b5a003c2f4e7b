"""Reads relative positions as rows that are shifted, each by one place more than the one before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.gather import GatherElements, counted
from ...ops.matmul import MatMul
from ...ops.movement import Tile, Transpose
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, dtype_of, rank_of, shape_of, size_of, static_dims

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
        weights: the constants, each matrix of a stack once if all are repeated.
        order: the columns, from j - i = 1 - rows on.
        sizes: the rows, and the places that each chooses.
    """

    node: Node
    product: Node
    weights: Array
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
    weights = _factors(product)
    if weights is None or weights.ndim < 2 or graph.sole_consumer(data) is not node:
        return None
    whole = static_dims(shape_of(data))
    if whole is None or whole[:-1] != indices.data.shape[:-1] or dtype_of(data) not in FLOATS:
        return None
    rows, places = indices.data.shape[-2:]
    many = rows > 1 and places > 1 and indices.data.size
    chosen = _diagonals(indices.data.reshape(-1, rows, places)) if many else None
    order = None if chosen is None else counted(chosen, whole[-1])
    if order is None:
        return None
    return Relative(node, product, weights, order, (rows, places))


def _diagonals(indices: Array) -> Array | None:
    """Return the element of each diagonal of equal matrices, if each has one."""
    first = indices[0]
    if not (indices == first).all() or not (first[1:, 1:] == first[:-1, :-1]).all():
        return None
    return np.concatenate([first[::-1, 0], first[0, 1:]])


def _rewrite(graph: Graph, found: Relative) -> int:
    """Write the product of columns in order, and its shifted rows; return the number of columns."""
    (x, weights), data, (rows, places) = found.product.operands, found.weights, found.sizes
    wanted, whole = (static_dims(shape_of(v)) or () for v in (found.node.output, x))
    add = Builder(graph, found.node, found.node.name, (found.product, found.node))
    if (count := size_of(weights, 0)) != len(data) and isinstance(count, int):
        x = add.shaped(x, (count // len(data), len(data), *whole[1:]))
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


def _factors(product: Node) -> Array | None:
    """Return the constants of a product; a repeated stack once, if rows come as a stack as well."""
    x, weights = product.operands
    once, count = _once(weights), size_of(weights, 0)
    if once is None or len(once) == count:
        return once
    left = static_dims(shape_of(x)) or ()
    return once if left[:-2] == (count,) else weights.data


def _once(value: Value) -> Array | None:
    """Return constants; of a stack of matrices that is repeated, the matrices once.

    Heads of all samples multiply the same ones.
    """
    node, rank = value.producer, rank_of(value)
    if value.data is not None:
        return value.data[: _period(value.data)] if rank == 3 else value.data
    if node is None or rank != 3:
        return None
    if isinstance(node.op, Transpose) and node.op.order(3) == (0, 2, 1):
        data = _once(node.operands[0])
        return None if data is None else data.swapaxes(1, 2)
    if isinstance(node.op, Tile) and node.operands[1].data is not None:
        data = _once(node.operands[0])
        return data if data is not None and (node.operands[1].data[1:] == 1).all() else None
    return None


def _period(data: Array) -> int:
    """Return the number of matrices of a stack after which these are repeated; all if never."""
    count = len(data)
    equal = (k for k in range(1, count) if count % k == 0 and (data[k] == data[0]).all())
    return next((k for k in equal if (data[k:] == data[:-k]).all()), count)
