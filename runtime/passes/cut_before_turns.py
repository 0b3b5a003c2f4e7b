"""Cuts a tensor before its axes are split, or change places, where parts are columns of rows."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ..ir.graph import Graph, Node, Value
from ..ops.gather import Gather
from ..ops.movement import Slice, Split, Transpose
from ..ops.shape import Reshape
from ..ops.shapes import normalize_axis
from .editing import Builder, drop, shape_of

#: Parts of rows are read in place if they consist of words of 16 bytes: so many 16-bit floats.
_WORD = 8


def cut_before_turns(graph: Graph) -> Iterator[str]:
    """Cut the source of a Transpose all of whose readers take one place of the same axis.

    Queries, keys and values of a single head: behind the axis that tells them apart, all others
    are in order, so that each part is a slice of rows.
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, Transpose) and not graph.is_output(node.output):
            text = _cut(graph, node, node.op)
            if text:
                yield text


def cut_columns(graph: Graph) -> Iterator[str]:
    """Split rows instead of the first of the axes that a Reshape makes of their columns.

    Queries, keys and values that onnxruntime's optimiser cuts before it moves heads: parts of
    adjacent columns, which layers and attention read in place.
    """
    for node in list(graph.nodes):
        view = node.inputs[0].producer if node.inputs and node.inputs[0] else None
        if view is None or not isinstance(view.op, Reshape) or not isinstance(node.op, Split):
            continue
        before, after = shape_of(view.inputs[0]), shape_of(view.output)
        sizes = [None if (dims := shape_of(v)) is None else dims for v in node.outputs]
        if not before or not after or len(after) < len(before) + 1:
            continue
        axis = len(before) - 1
        inner = [size for size in after[axis + 1 :] if isinstance(size, int)]
        if before[:-1] != after[:axis] or None in before or len(inner) < len(after) - axis - 1:
            continue
        counts = [dims[axis] for dims in sizes if dims and isinstance(dims[axis], int)]
        if normalize_axis(node.op.axis, len(after)) != axis or len(counts) < len(sizes):
            continue
        add = Builder(graph, node, node.name, (node, view))
        widths = [count * prod(inner) for count in counts if isinstance(count, int)]
        op = Split(axis=axis)
        parts = add.node(op, view.inputs[0], add.integers(widths, "widths"), outputs=len(widths))
        shapes = [(*(0 for _ in before[:-1]), count, *inner) for count in counts]
        made = [
            add(Reshape(), part, add.integers((n for n in shape if isinstance(n, int)), "shape"))
            for part, shape in zip(parts.outputs, shapes, strict=True)
        ]
        name = node.name
        graph.replace(node, made)
        drop(graph, view)
        yield f"Split '{name}' cuts rows, of which {len(made)} parts are split into axes"


def _cut(graph: Graph, node: Node, op: Transpose) -> str:
    source, dims = node.inputs[0], shape_of(node.inputs[0])
    readers = list(node.output.consumers)
    if source is None or source.is_constant or not dims or len(readers) < 2:
        return ""
    perm = op.order(len(dims))
    places = [place_of(reader) if reader.inputs[0] is node.output else None for reader in readers]
    axes = {place[0] for place in places if place is not None}
    if None in places or len(axes) != 1:
        return ""
    (axis,) = axes
    cut = perm[axis]
    kept = [place for place in perm if place != cut and dims[place] != 1]
    width = 1
    for size in dims[cut + 1 :]:
        if not isinstance(size, int):
            return ""
        width *= size
    if kept != sorted(kept) or perm[-1] == cut or width % _WORD:
        return ""
    for reader in readers:
        _cut_first(graph, reader, source, (cut, perm))
    name = node.name
    drop(graph, node)
    return f"Transpose '{name}' only led to {len(readers)} parts, which are cut before it"


def place_of(reader: Node) -> tuple[int, int] | None:
    """Return axis and place if a Gather or Slice takes one place of an axis."""
    if not isinstance(reader.op, (Gather, Slice)):
        return None
    dims = shape_of(reader.inputs[0]) or ()
    numbers = [None if value is None else value.data for value in reader.inputs[1:]]
    if not dims or any(data is None or data.size != 1 for data in numbers):
        return None
    found = [int(data.flat[0]) for data in numbers if data is not None]
    if isinstance(reader.op, Gather):
        data, axis = numbers[0], reader.op.axis % len(dims)
        if data is None or data.ndim:
            return None
    elif len(found) < 3 or found[3:] not in ([], [1]):
        return None
    else:
        axis = found[2] % len(dims)
    size, taken = dims[axis], shape_of(reader.output)
    is_one = isinstance(reader.op, Gather) or (taken is not None and taken[axis] == 1 != size)
    return (axis, found[0] % size) if is_one and isinstance(size, int) else None


def _cut_first(
    graph: Graph, reader: Node, source: Value, turn: tuple[int, tuple[int, ...]]
) -> None:
    """Replace the part of a turned tensor by the turned part of it."""
    cut, perm = turn
    add = Builder(graph, reader, reader.name, (reader,))
    if isinstance(reader.op, Gather):
        part = add(Gather(axis=cut), source, reader.inputs[1])
        rest = [place - (place > cut) for place in perm if place != cut]
    else:
        starts, ends, _, *steps = reader.inputs[1:]
        part = add(Slice(), source, starts, ends, add.integers([cut]), *steps)
        rest = list(perm)
    turned = part if rest == sorted(rest) else add(Transpose(perm=tuple(rest)), part)
    graph.redirect(reader.output, turned)
    graph.remove(reader)
