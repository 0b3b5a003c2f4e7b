"""Parts of a tensor that are joined along another axis: views with a Transpose between them."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.record import record
from ..ir.graph import Graph, Node, Value
from ..ir.types import Dim, Shape
from ..ops.cuts import part_of
from ..ops.gather import Gather
from ..ops.movement import Concat, Slice, Split, Transpose
from ..ops.shape import Reshape, Squeeze, Unsqueeze
from ..ops.shapes import normalize_axis
from .editing import Builder, drop, shape_of, size_of

_VIEWS = (Reshape, Squeeze, Unsqueeze)


@record
class _Part:
    """A part of a tensor, as it is joined.

    Attributes:
        source: what it is cut from.
        axis: along which, in the source's shape.
        begin, size: where.
        shape: of the part in the source; an axis of one place stays.
        nodes: from what cuts it to what is joined.
    """

    source: Value
    axis: int
    begin: int
    size: int
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
        a, b, count = parts[0].axis, normalize_axis(_axis(node), len(after)), len(parts)
        if not _is_another(before, after, a, b):
            continue
        add = Builder(graph, node, node.name, (node,))
        # The number of the part is an axis in front of what the part consists of, then before b.
        x = add.shaped(parts[0].source, _sizes((*before[:a], count, *before[a:])), "cut")
        if before == after:
            x = add(Transpose(perm=_moved(len(before), a, b)), x)
        else:
            x = add(Transpose(perm=_moved(len(before), a, 0)), x) if a else x
            x = add.shaped(x, _sizes((count, *after)), "parts")
            x = add(Transpose(perm=_moved(len(after), 0, b)), x) if b else x
        made = add.shaped(
            x, _sizes((*after[:b], _times(after[b], count), *after[b + 1 :])), "joined"
        )
        source = parts[0].nodes[0].name
        graph.replace(node, [made])
        for part in parts:
            drop(graph, part.nodes[-1])
        yield f"Transpose '{made.name}' joins the {count} parts of '{source}'"


def _parts_of(join: Node) -> list[_Part] | None:
    """Return the parts that a Concat joins, if these are all of a tensor, equal and in order."""
    if not isinstance(join.op, Concat) or len(join.inputs) < 2:
        return None
    first = _part(join.operands[0])
    if first is None or first.begin:
        return None
    whole = size_of(first.source, first.axis)
    if whole != first.size * len(join.inputs):
        return None
    parts = [first]
    for value in join.operands[1:]:
        part = _part(value)
        if part is None or part.begin != first.size * len(parts):
            return None
        same = (part.source, part.axis, part.size) == (first.source, first.axis, first.size)
        if not same or shape_of(value) != shape_of(join.operands[0]):
            return None
        parts.append(part)
    return parts


def _part(value: Value) -> _Part | None:
    """Return which part of a tensor a value is, up to views."""
    nodes: list[Node] = []
    while (node := value.producer) is not None and isinstance(node.op, _VIEWS):
        nodes.insert(0, node)
        value = node.operands[0]
    if node is None or not isinstance(node.op, Split | Slice | Gather):
        return None
    found, shape = part_of(value), shape_of(node.operands[0])
    if found is None or not shape:
        return None
    source, axis, places = found
    own = (*shape[:axis], len(places), *shape[axis + 1 :])
    return _Part(source, axis, places.start, len(places), own, (node, *nodes))


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


def _axis(join: Node) -> int:
    return join.op.axis if isinstance(join.op, Concat) else 0


def _times(size: Dim, count: int) -> Dim:
    return size * count if isinstance(size, int) else size


def _sizes(shape: Shape) -> list[int]:
    """Return the sizes for a Reshape, of which one may be unknown."""
    return [size if isinstance(size, int) else -1 for size in shape]
