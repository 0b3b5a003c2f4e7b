"""Cuts what a Concat joins before it joins it, where that undoes other Concats."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Shape
from ...ops.cuts import axis_of, part_of
from ...ops.movement import Concat, Slice, Split
from ...ops.shape import Reshape
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, size_of


@record
class _Joined:
    """What a Concat joined along the axis that is cut.

    Attributes:
        parts: what it joined.
        ends: where each part ends along the axis.
        shape: of the result, which may be a view of the Concat's.
        is_view: whether it is one; all axes up to the one that is cut are the same.
    """

    parts: tuple[Value, ...]
    ends: tuple[int, ...]
    shape: Shape
    is_view: bool


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Join parts along one axis where parts joined along another are joined, and cut again.

    ``cat([cat([a, b], 1), cat([c, d], 1)], 2).split(...)`` is ``cat([a, c], 2)`` and
    ``cat([b, d], 2)``: boxes and classes of all levels of a detector (YOLO 8 to 11).
    """
    for node in list(graph.nodes):
        readers = _cuts(graph, node) if node in graph and isinstance(node.op, Concat) else None
        if not readers:
            continue
        axis = readers[0][1]
        joined = [_joined(graph, value, axis) for value in node.operands]
        bounds = {n for _, _, begin, size in readers for n in (begin, begin + size)} - {0}
        known = [each for each in joined if each is not None and bounds.issubset(each.ends)]
        if len(known) < len(joined):
            continue
        for value, _, begin, size in readers:
            reader = value.producer
            assert reader is not None
            add = Builder(graph, reader, value.name, (reader, node))
            parts = [_part(add, each, axis, begin, size) for each in known]
            graph.redirect(value, add(node.op, *parts))
        for reader in list(node.output.consumers):
            drop(graph, reader)
        yield f"{len(known)} tensors of which Concat '{node.name}' was cut are joined part by part"


def _cuts(graph: Graph, join: Node) -> list[tuple[Value, int, int, int]] | None:
    """Return the parts that are all that is read of a Concat: axis, first place and size of each.

    None if something else reads it, or if parts are cut along the axis that it joins, or several,
    or have no places.
    """
    if graph.is_output(join.output) or len(join.inputs) < 2:
        return None
    found: list[tuple[Value, int, int, int]] = []
    for reader in join.output.consumers:
        if not isinstance(reader.op, Split | Slice) or reader.operands[0] is not join.output:
            return None
        for value in reader.outputs:
            part = part_of(value)
            if part is None:
                return None
            found.append((value, part.axis, part.places.start, len(part.places)))
    own, rank = join.op.axis if isinstance(join.op, Concat) else 0, rank_of(join.output)
    along = {axis for _, axis, _, _ in found}
    crossed = rank is not None and len(along) == 1 and normalize_axis(own, rank) not in along
    return found if crossed else None


def _joined(graph: Graph, value: Value, axis: int) -> _Joined | None:
    """Return what a Concat, which nothing else reads, joined along an axis; else None."""
    shape, node = shape_of(value), graph.made_for_one(value)
    if shape is None or node is None:
        return None
    is_view = isinstance(node.op, Reshape)
    if is_view:
        inner = node.operands[0]
        same = (shape_of(inner) or ())[: axis + 1] == shape[: axis + 1]
        node = graph.made_for_one(inner) if same else None
    if node is None or not isinstance(node.op, Concat):
        return None
    sizes = [size_of(part, axis) for part in node.operands]
    known = [size for size in sizes if isinstance(size, int)]
    if axis_of(node) != axis or len(known) < len(sizes):
        return None
    return _Joined(tuple(node.operands), tuple(accumulate(known)), shape, is_view)


def _part(add: Builder, joined: _Joined, axis: int, begin: int, size: int) -> Value:
    """Return some adjacent parts of what was joined, in its shape."""
    starts = (0, *joined.ends)
    inside = [
        part
        for part, start in zip(joined.parts, starts, strict=False)
        if begin <= start < begin + size
    ]
    value = inside[0] if len(inside) == 1 else add(Concat(axis=axis), *inside)
    if not joined.is_view:
        return value
    shape = joined.shape
    return add.view(value, (*shape[:axis], size, *shape[axis + 1 :]))
