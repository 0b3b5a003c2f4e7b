"""Computes constant rows beside those of a product in the product, as sums of zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import axis_of
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.movement import Concat, Expand, Pad, Transpose
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, are_finite, rank_of, shape_of, stand_in

#: At most one constant row for so many of the product.
SHARE = 8


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Add the rows of a class token to those of the product of patches in front of a Concat.

    ``concat(t, p @ w + b)`` is ``pad(p) @ w + concat(t, b)``, where padded rows are zero. What
    transposes p, and so copies it, writes zeros as well, and the product stores what the Concat
    would copy.
    """
    for node in list(graph.nodes):
        found = _found(graph, node) if node in graph else None
        if found is None:
            continue
        _rewrite(graph, node, found)
        yield f"rows of MatMul '{found.product.name}' are those of Concat '{node.name}' as well"


@record
class _Found:
    """A product and the constants beside its rows.

    Attributes:
        product: the MatMul.
        sums: the nodes behind it that add constants.
        addend: what is added to all rows of the Concat: three axes, the first of size 1.
        before, behind: numbers of constant rows.
    """

    product: Node
    sums: tuple[Node, ...]
    addend: Array
    before: int
    behind: int


def _found(graph: Graph, node: Node) -> _Found | None:
    if not isinstance(node.op, Concat) or axis_of(node) != 1 or rank_of(node.output) != 3:
        return None
    computed = [i for i, value in enumerate(node.operands) if _constant(value) is None]
    if len(computed) != 1 or len(node.operands) < 2:
        return None
    (place,) = computed
    value, sums, addends = node.operands[place], list[Node](), list[Array]()
    shape = shape_of(value)
    rows, columns = (None, None) if shape is None else shape[1:]
    while (made := graph.made_for_one(value)) is not None and isinstance(made.op, Add):
        read = [v for v in made.operands if v.data is None]
        if len(read) != 1 or shape_of(read[0]) != shape:
            return None
        sums.append(made)
        addends += (v.data for v in made.operands if v.data is not None)
        (value,) = read
    if made is None or not isinstance(rows, int) or not isinstance(columns, int):
        return None
    if not _is_of_moved(graph, made):
        return None
    fixed = [_constant(part) for part in node.operands]
    before = sum(t.shape[1] for t in fixed[:place] if t is not None)
    behind = sum(t.shape[1] for t in fixed[place + 1 :] if t is not None)
    if not 0 < (before + behind) * SHARE <= rows:
        return None
    added = _sum(addends, (1, rows, columns), made.output.tensor.dtype)
    if added is None:
        return None
    parts = [added if t is None else t for t in fixed]
    return _Found(made, tuple(sums), np.concatenate(parts, 1), before, behind)


def _constant(value: Value) -> Array | None:
    """Return the constant of one sample that a value is for all samples; None if there is none."""
    node = value.producer
    if node is not None and isinstance(node.op, Expand):
        source, shape = node.operands[0].data, shape_of(value)
        if source is None or shape is None or source.ndim != 3 or source.shape[1:] != shape[1:]:
            return None
        return source if len(source) == 1 else None
    data = value.data
    if data is None or data.ndim != 3 or not len(data) or (data != data[:1]).any():
        return None
    return data[:1]


def _is_of_moved(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies rows that a Transpose copies first by finite weights."""
    if not isinstance(node.op, MatMul) or node.output.tensor.dtype not in FLOATS:
        return False
    left, right = node.operands
    if rank_of(left) != 3 or rank_of(right) != 2 or not are_finite((right,)):
        return False
    maker = graph.made_for_one(left)
    while maker is not None and isinstance(maker.op, RESHAPES):
        maker = graph.made_for_one(maker.operands[0])
    return maker is not None and isinstance(maker.op, Transpose)


def _sum(addends: Sequence[Array], shape: tuple[int, int, int], dtype: np.dtype) -> Array | None:
    """Return the sum of constants, broadcast; None if it has other axes or is not finite."""
    total = np.zeros(shape)
    for addend in addends:
        if np.broadcast_shapes(addend.shape, shape) != shape:
            return None
        total += addend.astype(np.float64)
    with np.errstate(over="ignore"):
        rounded: Array = total.astype(dtype)
    return rounded if np.isfinite(rounded.astype(np.float64)).all() else None


def _rewrite(graph: Graph, node: Node, found: _Found) -> None:
    left, right = found.product.operands
    add = Builder(graph, found.product, found.product.name, (found.product,))
    pads, axes = add.integers((found.before, found.behind), "pads"), add.integers((1,), "axes")
    padded = add(Pad(), left, pads, None, axes)
    product = add(MatMul(), padded, right)
    addend = add.constant(found.addend, f"{node.name}.rows")
    nodes = {node, found.product, *found.sums}
    stand_in(graph, nodes, node, Add(), (product, addend))
