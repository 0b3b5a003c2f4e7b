"""Multiplies positions by a matrix for each place of one of their axes where they are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, shape_of, static_dims, static_size

#: The order of axes that exchanges those of heads and positions.
_EXCHANGED = (0, 2, 1, 3)
#: Minimum rows of each product: fewer fill no tile.
_ROWS = 32


@record
class _Places:
    """A product [p, m, d] @ [p, d, k] of heads [b, h, x, y, …, d], where p is one of x, y, ….

    Attributes:
        product: the product.
        rows: [b, x * y * …, h, d], the memory of the heads.
        sizes: those of x, y, …, and of the heads, in the order of memory.
        axis: which of them p is.
        order: of the axes b, h, x, y, … in the operand, in front of d.
    """

    product: Node
    rows: Value
    sizes: tuple[int, ...]
    axis: int
    order: tuple[int, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Let products of heads with a matrix for each row, or column, of pixels read rows in place.

    Relative positions along each axis (MViT) have a matrix for each place of that axis. An Einsum
    brings this axis to the front, and heads are in front of positions, but in memory they are
    behind. With all axes in the order of memory, those in front of the axis are a stack of products
    with the same matrices, or, where few are behind it, rows at equal distances.
    """
    for node in list(graph.nodes):
        found = _found(graph, node) if node in graph else None
        made = None if found is None else _multiplied(graph, found)
        if made is not None:
            name = node.name
            graph.redirect(node.output, made)
            drop(graph, node)
            yield f"MatMul '{name}' reads positions in the order of memory"


def _found(graph: Graph, node: Node) -> _Places | None:
    """Return what a product is of; None if it is of something else."""
    if not isinstance(node.op, MatMul):
        return None
    a, b = node.operands
    merge = a.producer
    if b.data is None or b.data.ndim != 3 or merge is None or not isinstance(merge.op, Reshape):
        return None
    turn = merge.operands[0].producer
    if turn is None or not isinstance(turn.op, Transpose):
        return None
    view, dims = turn.operands[0].producer, shape_of(turn.operands[0]) or ()
    if view is None or not isinstance(view.op, Reshape) or len(dims) < 5:
        return None
    before = view.operands[0].producer
    if before is None:
        return None
    perm, rows = turn.op.order(len(dims)), before.operands[0]
    known, sizes = static_dims((shape_of(rows) or ())[1:]), static_dims(dims[1:])
    if before.op != Transpose(perm=_EXCHANGED) or not known or not sizes or len(known) != 3:
        return None
    heads, *pixels, width = sizes
    fits = known == (prod(pixels), heads, width) and perm[-1] == len(dims) - 1
    is_first = perm[0] > 1 and b.data.shape[:2] == (dims[perm[0]], width)
    merged = (shape_of(a) or ())[::2] == b.data.shape[:2] and len(shape_of(a) or ()) == 3
    if not fits or not is_first or not merged:
        return None
    return _Places(node, rows, (*pixels, heads), perm[0] - 2, perm[:-1])


def _multiplied(graph: Graph, found: _Places) -> Value | None:
    """Return the product [p, m, k]; None if it has too few rows."""
    node, sizes, axis = found.product, found.sizes, found.axis
    count = (shape_of(found.rows) or (None,))[0]
    width, columns = (shape_of(found.rows) or ())[-1:], (shape_of(node.output) or ())[-1:]
    weights = node.operands[1].data
    assert weights is not None
    outer, places, inner = prod(sizes[:axis]), sizes[axis], prod(sizes[axis + 1 :])
    add = Builder(graph, node, node.name, (node,))
    if inner >= _ROWS:
        stack: tuple[Dim, ...] = (count, outer) if outer > 1 else (count,)
        rows = add.shaped(found.rows, (*stack, places, inner, *width))
        made = add(MatMul(), rows, node.operands[1])
    elif outer >= _ROWS:
        rows = add.shaped(found.rows, (_times(count, outer), places * inner, *width))
        repeated = add.constant(np.repeat(weights, inner, axis=0), f"{node.name}.places")
        turned = add(MatMul(), add(Transpose(perm=(1, 0, 2)), rows), repeated)
        made = add(Transpose(perm=(1, 0, 2)), turned)
    else:
        return None
    whole = add.shaped(made, (count, *sizes, *columns))
    rank = len(sizes) + 1
    # In memory, heads are behind pixels; axes of the operand count them in front.
    behind = [0 if axis == 0 else rank - 1 if axis == 1 else axis - 1 for axis in found.order]
    turned = add(Transpose(perm=(*behind, rank)), whole)
    return add.shaped(turned, (places, _merged(node), *columns))


def _times(count: Dim, size: int) -> Dim:
    return static_size((count, size))


def _merged(node: Node) -> Dim:
    """Return the number of rows of each product, as it is."""
    return (shape_of(node.output) or (None,) * 3)[1]
