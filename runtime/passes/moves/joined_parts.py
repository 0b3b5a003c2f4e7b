"""Parts of a tensor that are joined along another axis: views with a Transpose between them."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim, Shape
from ...ops.cuts import Part, axis_of, joint_of, part_of
from ...ops.gather import Gather
from ...ops.movement import Concat, Slice, Split, Transpose
from ..editing import Builder, drop, shape_of, size_of


@record
class _Part:
    """A part of a tensor, as it is joined.

    Attributes:
        cut: what it is cut from, and where.
        shape: of the part in the source; an axis of one place stays.
        nodes: from what cuts it to what is joined.
    """

    cut: Part
    shape: Shape
    nodes: tuple[Node, ...]


def transpose_joined(graph: Graph) -> Iterator[str]:
    """Replace all equal parts of a tensor, which a Concat joins along another axis, by views.

    Part i of axis a comes i-th along axis b: the axis is cut in two, the number of the part moves
    in front of b, and is merged with it. Heads are written so, as ``cat(x.split(d, 2), 0)`` or
    ``stack(x.split(d, 2))``, and back as ``cat(x.unbind(0), 2)``.
    """
    for node in list(graph.nodes):
        parts = _parts_of(node) if node in graph else None
        if parts is None:
            continue
        before, after = parts[0].shape, shape_of(node.operands[0]) or ()
        a, b, count = parts[0].cut.axis, axis_of(node), len(parts)
        if b is None or not _is_another(before, after, a, b):
            continue
        add = Builder(graph, node, node.name, (node,))
        # The number of the part is an axis in front of what the part consists of, then before b.
        x = add.shaped(parts[0].cut.source, (*before[:a], count, *before[a:]), "cut")
        if before == after:
            x = add(Transpose(perm=_moved(len(before), a, b)), x)
        else:
            x = add(Transpose(perm=_moved(len(before), a, 0)), x) if a else x
            x = add.shaped(x, (count, *after), "parts")
            x = add(Transpose(perm=_moved(len(after), 0, b)), x) if b else x
        whole = (*after[:b], _times(after[b], count), *after[b + 1 :])
        made = add.shaped(x, whole, "joined")
        source = parts[0].nodes[0].name
        graph.replace(node, [made])
        for part in parts:
            drop(graph, part.nodes[-1])
        yield f"Transpose '{made.name}' joins the {count} parts of '{source}'"


def _parts_of(join: Node) -> list[_Part] | None:
    """Return the parts that a Concat joins, if these are all of a tensor, equal and in order."""
    if not isinstance(join.op, Concat) or len(join.inputs) < 2:
        return None
    parts = [part for value in join.operands if (part := _part(value)) is not None]
    if len(parts) < len(join.inputs) or len(set(map(shape_of, join.operands))) != 1:
        return None
    whole = joint_of([part.cut for part in parts])
    is_all = whole is not None and len(whole.places) == size_of(whole.source, whole.axis)
    return parts if is_all else None


def _part(value: Value) -> _Part | None:
    """Return which part of a tensor a value is, up to views."""
    nodes: list[Node] = []
    while (node := value.producer) is not None and node.op.view:
        nodes.insert(0, node)
        value = node.operands[0]
    if node is None or not isinstance(node.op, Split | Slice | Gather):
        return None
    found, shape = part_of(value), shape_of(node.operands[0])
    if found is None or not shape:
        return None
    own = (*shape[: found.axis], len(found.places), *shape[found.axis + 1 :])
    return _Part(found, own, (node, *nodes))


def _is_another(before: Shape, after: Shape, a: int, b: int) -> bool:
    """Whether parts are joined along another axis than they are cut, and all sizes are known.

    One size may be unknown if it is not along these axes.
    """
    unknown = [sum(not isinstance(size, int) for size in shape) for shape in (before, after)]
    if max(unknown) > 1 or not isinstance(before[a], int) or not isinstance(after[b], int):
        return False
    return before != after or a != b


def _moved(rank: int, source: int, place: int) -> tuple[int, ...]:
    """Return the order of one more axis than `rank` in which one has another place."""
    kept = [i for i in range(rank + 1) if i != source]
    kept.insert(place, source)
    return tuple(kept)


def _times(size: Dim, count: int) -> Dim:
    return size * count if isinstance(size, int) else size
