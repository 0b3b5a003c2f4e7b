"""Moves of whole rows: how chains of views, slices and concatenations reorder rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...base.record import record
from ...ir.chains import chain_behind
from ...ir.constraints import takes
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import axes_of
from ...ops.gather import Gather
from ...ops.movement import Concat, Slice, Split, Transpose
from ...ops.shape import RESHAPES
from ..editing import Builder, dims_of, shape_of
from ..moved_places import MovedPlaces

_COPIES = (Transpose, Slice, Split, Concat, Gather)
#: Minimum number of elements per row for which an 8-byte index is cheap.
_WIDTH = 8
#: Maximum number of rows; each is traced through a move.
_COUNT = 1 << 22
#: Maximum number of nodes of one move.
_REACH = 32


@record
class Rows:
    """Number and length of a tensor's rows; the last axis is one row."""

    count: int
    width: int

    @property
    def is_worth(self) -> bool:
        """Whether one index per row is cheap compared to the rows, which are not too many."""
        return 0 < self.count <= _COUNT and self.width >= _WIDTH

    @classmethod
    def of(cls, value: Value | None) -> Rows | None:
        """Return the rows of a tensor of known shape with at least one axis."""
        sizes = dims_of(value)
        return cls(prod(sizes[:-1]), sizes[-1]) if sizes else None


@record
class Move:
    """``top[i] = source[index[i]]``, row by row.

    Attributes:
        source: the tensor that is moved.
        top: the result, with rows of the same length.
        index: int64, a row of the source for each row of the result.
        nodes: the nodes in between; no other node reads their values.
    """

    source: Value
    top: Value
    index: Array
    nodes: frozenset[Node]

    @property
    def copies(self) -> int:
        """Number of nodes that copy; 0 if all are views or contiguous cuts."""
        cuts = sum(isinstance(node.op, (Slice, Split)) for node in self.nodes)
        others = sum(isinstance(node.op, (Transpose, Concat, Gather)) for node in self.nodes)
        return cuts + others if others else 0

    @property
    def keeps_all(self) -> bool:
        """Whether each row of the source occurs exactly once in the result."""
        rows = Rows.of(self.source)
        counts = np.bincount(self.index, minlength=0 if rows is None else rows.count)
        return bool((counts == 1).all())

    @property
    def last(self) -> Node:
        """The node that computes the result."""
        node = self.top.producer
        if node is None:
            raise TypeError(f"no node computes '{self.top.name}'")
        return node


def moves_rows(node: Node) -> bool:
    """Whether a node moves whole rows by constants: only axes other than the last."""
    op, first = node.op, shape_of(node.inputs[0] if node.inputs else None)
    if not first or not isinstance(op, (*RESHAPES, *_COPIES)):
        return False
    rank = len(first)
    data = node.inputs if isinstance(op, Concat) else node.inputs[:1]
    settings = () if isinstance(op, Concat) else node.inputs[1:]
    if any(v is None or v.data is not None for v in data):
        return False
    if not isinstance(op, RESHAPES) and any(v and v.data is None for v in settings):
        return False
    rows = [Rows.of(v) for v in (*data, *node.outputs)]
    if any(row is None or row.width != first[-1] or not row.is_worth for row in rows):
        return False
    if not all(takes(Gather, value.tensor.dtype) for value in node.outputs):
        return False
    if isinstance(op, Transpose):
        return op.order(rank)[-1] == rank - 1
    axes = axes_of(node) if isinstance(op, Split | Slice | Concat | Gather) else ()
    return axes is not None and rank - 1 not in axes


def move_to(graph: Graph, node: Node, places: MovedPlaces) -> Move | None:
    """Return the longest move from one tensor that ends in the result of a node."""
    if len(node.outputs) != 1:
        return None
    nodes, sources = {node}, dict.fromkeys(node.distinct_reads)
    grown = True
    while grown and len(nodes) < _REACH:
        grown = False
        for value in list(sources):
            maker = value.producer
            if maker is None or maker in nodes or not moves_rows(maker):
                continue
            if any(graph.is_read_outside(v, nodes) for v in maker.outputs):
                continue
            nodes.add(maker)
            grown = True
        made = {v for each in nodes for v in each.outputs}
        sources = {
            v: None for each in nodes for v in _moved(each) if v not in made and v.data is None
        }
    if len(sources) != 1:
        return None
    (source,) = sources
    index = _index(source, node, places)
    return None if index is None else Move(source, node.output, index, frozenset(nodes))


def reshaped(graph: Graph, move: Move) -> Move:
    """Return a move extended by views of the same rows that are the only readers of its result."""
    top, nodes = move.top, set(move.nodes)
    for view in chain_behind(graph, top):
        if not isinstance(view.op, RESHAPES) or not moves_rows(view):
            break
        top = view.output
        nodes.add(view)
    return Move(move.source, top, move.index, frozenset(nodes))


def _moved(node: Node) -> Sequence[Value]:
    """Return the operands whose rows a node moves."""
    data = node.inputs if isinstance(node.op, Concat) else node.inputs[:1]
    return [value for value in data if value is not None]


def _index(source: Value, last: Node, places: MovedPlaces) -> Array | None:
    """Return the source row of each result row, by moving row numbers."""
    rows, shape = Rows.of(source), shape_of(source)
    if rows is None or shape is None:
        return None
    numbers: dict[Value, Array] = {source: _column(np.arange(rows.count), source)}
    todo = [last]
    while todo:
        node = todo[-1]
        missing = [v for v in _moved(node) if v not in numbers]
        if missing:
            todo += [v.producer for v in missing if v.producer is not None]
            continue
        todo.pop()
        moved = [numbers[v] for v in _moved(node)]
        if isinstance(node.op, RESHAPES):
            results = [_column(moved[0], node.output)]
        else:
            found = places.of(node, [each.shape for each in moved])
            if found is None:
                return None
            before = np.concatenate([each.reshape(-1) for each in moved])
            results = [before[each] for each in found]
        numbers.update(zip(node.outputs, results, strict=True))
    return numbers[last.output].reshape(-1)


def _column(numbers: Array, value: Value) -> Array:
    """Return row numbers in the shape of a tensor with rows of one element."""
    shape = shape_of(value) or ()
    return numbers.reshape(*(size for size in shape[:-1] if isinstance(size, int)), 1)


# ── writing them ─────────────────────────────────────────────────────────────────────────────────


def as_shape(add: Builder, value: Value, shape: Sequence[int]) -> Value:
    """Return a value reshaped."""
    if shape_of(value) == tuple(shape):
        return value
    return add.shaped(value, shape)


def moved(add: Builder, source: Value, index: Array, shape: Sequence[int]) -> Value:
    """Return rows of a tensor in a shape: one Gather between two views.

    Rows at equal distances are columns of longer rows, which are read where they are.
    """
    rows = Rows.of(source)
    if rows is None:
        raise ValueError(f"'{source.name}' has no rows of known size")
    step, rest = divmod(rows.count, len(index)) if len(index) else (0, 0)
    first = int(index[0]) if step > 1 and not rest else step
    if first < step and (index == np.arange(first, rows.count, step)).all():
        wide = as_shape(add, source, (len(index), step * rows.width))
        part = add.slice(wide, 1, first * rows.width, (first + 1) * rows.width)
        return as_shape(add, part, shape)
    flat = as_shape(add, source, (rows.count, rows.width))
    if len(index) != rows.count or (index != np.arange(rows.count)).any():
        flat = add(Gather(axis=0), flat, add.constant(index, "rows"))
    return as_shape(add, flat, shape)
