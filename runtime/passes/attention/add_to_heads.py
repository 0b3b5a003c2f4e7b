"""Lets a layer add what is added to the heads that it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.movement import Split, Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, size_of, static_dims, static_size
from ..pattern import pairs, without_addend

#: Maximum number of sums for which columns are computed: each costs as many as the heads have.
MAX_SUMS = 3


@record
class _Part:
    """Adjacent columns of a layer's result.

    Attributes:
        value: their value.
        views: the Reshape that cuts the last axis into heads, and a Transpose, if any.
        sums: what is added to the heads, and nothing else reads them, by the nodes that add it:
            an addend for each column.
    """

    value: Value
    views: tuple[Node, ...]
    sums: tuple[tuple[Node, Array], ...]

    @property
    def width(self) -> int:
        """The number of columns."""
        size = size_of(self.value, -1)
        return size if isinstance(size, int) else 0


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Compute sums of heads and constants as columns of the layer that computes the heads.

    Attention with relative positions (Transformer-XL, Conformer) adds one constant to queries
    before their product with keys, and another one before that with positions. Each sum becomes
    the layer with another bias, whose heads need no copy.
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, MatMul):
            yield from _rewrite(graph, node)


def _rewrite(graph: Graph, product: Node) -> Iterator[str]:
    x, weight = product.operands[:2]
    if weight.data is None or weight.data.ndim != 2:
        return
    result = _biased(graph, product)
    last = result.producer
    _, bias = without_addend(graph, result)
    if last is None or (bias is not None and bias.shape != weight.data.shape[1:]):
        return
    cut, values = _parts(graph, result)
    parts = [_part(graph, value) for value in values]
    if not any(part.sums for part in parts) or not all(part.width for part in parts):
        return
    own = np.zeros(weight.data.shape[1:], weight.data.dtype) if bias is None else bias
    columns, addends = list[Array](), list[Array]()
    ends = np.cumsum([part.width for part in parts])
    for part, end in zip(parts, ends, strict=True):
        place = slice(end - part.width, end)
        for _, addend in part.sums or ((None, np.zeros(1, own.dtype)),):
            columns.append(weight.data[:, place])
            addends.append(own[place] + addend.astype(own.dtype))
    names = [node.name for part in parts for node, _ in part.sums]
    origin = (product,) if last is product else (product, last)
    add = Builder(graph, last, product.name, origin)
    matrix = add.constant(np.concatenate(columns, 1), f"{weight.name}.heads")
    made = add.node(MatMul(), x, matrix)
    shift = add.constant(np.concatenate(addends), f"{product.name}.addends")
    layer = add(Add(), made.output, shift, name=f"{product.name}.sum")
    pieces: Sequence[Value] = [layer]
    if len(columns) > 1:
        name = f"{product.name}.parts" if cut is None else cut.name
        pieces = add.split(layer, -1, (each.shape[1] for each in columns), name)
    left = iter(pieces)
    for part in parts:
        for node, _ in part.sums:
            graph.redirect(node.output, _heads(graph, node, part.views, next(left)))
            drop(graph, node)
        if not part.sums:
            graph.redirect(part.value, next(left))
    drop(graph, cut)
    drop(graph, last)
    yield f"layer '{product.name}' adds {len(names)} constants of its heads ({', '.join(names)})"


def _biased(graph: Graph, product: Node) -> Value:
    """Return a product, or its only reader, which adds a constant."""
    reader = graph.sole_consumer(product.output)
    if reader is not None and isinstance(reader.op, Add):
        value, bias = without_addend(graph, reader.output)
        if value is product.output and bias is not None and bias.ndim == 1:
            return reader.output
    return product.output


def _parts(graph: Graph, result: Value) -> tuple[Node | None, Sequence[Value]]:
    """Return the Split that cuts a layer's columns, or None, and its parts."""
    reader = graph.sole_consumer(result)
    if reader is None or not isinstance(reader.op, Split) or not is_along_last(reader):
        return None, [result]
    return reader, reader.outputs


def _part(graph: Graph, value: Value) -> _Part:
    cut = graph.sole_consumer(value)
    plain = _Part(value, (), ())
    width, shape = plain.width, shape_of(cut.output) if cut is not None else None
    if cut is None or not isinstance(cut.op, Reshape) or shape is None or not width:
        return plain
    count = next((n for n in range(1, len(shape)) if static_size(shape[-n:]) == width), 0)
    if not count:
        return plain
    views, heads, axes = (cut,), cut.output, list(range(len(shape)))
    transpose = graph.sole_consumer(heads)
    if transpose is not None and isinstance(transpose.op, Transpose):
        views, heads, axes = (
            (cut, transpose),
            transpose.output,
            list(transpose.op.order(len(shape))),
        )
    if graph.is_output(heads) or not 1 <= len(heads.consumers) <= MAX_SUMS:
        return plain
    sizes = static_dims(shape[-count:]) or ()
    places = [axes.index(axis) for axis in range(len(shape) - count, len(shape))]
    sums = list[tuple[Node, Array]]()
    for reader in heads.consumers:
        addend = _addend(reader, heads, places, sizes)
        if addend is None:
            return plain
        sums.append((reader, addend))
    return _Part(value, views, tuple(sums))


def _addend(node: Node, heads: Value, places: Sequence[int], sizes: Sequence[int]) -> Array | None:
    """Return what a node adds to each column, if it adds a constant of columns to heads.

    Args:
        node: a reader of the heads.
        heads: their value.
        places: of the axes of columns among those of heads, outermost first.
        sizes: of these axes.
    """
    rank = rank_of(heads) or 0
    for one, other in pairs(node) if isinstance(node.op, Add) else ():
        data = one.data
        if other is not heads or data is None or data.ndim > rank:
            continue
        wide = data.reshape((1,) * (rank - data.ndim) + data.shape)
        outside = [size for axis, size in enumerate(wide.shape) if axis not in places]
        own = tuple(wide.shape[axis] for axis in places)
        if any(n != 1 for n in outside) or any(
            n not in (1, size) for n, size in zip(own, sizes, strict=True)
        ):
            continue
        order = [axis for axis in range(rank) if axis not in places]
        transposed = wide.transpose(*order, *places).reshape(own)
        return np.broadcast_to(transposed, tuple(sizes)).reshape(-1)
    return None


def _heads(graph: Graph, node: Node, views: Sequence[Node], value: Value) -> Value:
    """Return columns as the heads that other columns became."""
    for view in views:
        add = Builder(graph, node, view.name, (view,))
        value = add(view.op, value, *view.inputs[1:])
    return value
