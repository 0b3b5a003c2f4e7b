"""Joins and cuts of rows in their normal forms, which read rows in place or are moves of rows."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.graph import Graph, Node, Value
from ...ops.cuts import is_along_last, place_of
from ...ops.movement import Concat, Slice
from ...ops.shape import Squeeze
from ..editing import Builder, shape_of
from .row_moves import as_shape, moves_rows

#: Parts of rows that are read in place begin and end at multiples of this many bytes.
_WORD = 16


def known_sizes(value: Value) -> tuple[int, ...]:
    """Return the sizes of a tensor that are integers; all if its shape is known."""
    return tuple(size for size in shape_of(value) or () if isinstance(size, int))


def stack_rows(graph: Graph) -> Iterator[str]:
    """Rewrite rows of one tensor joined end to end as rows joined along an axis before the last."""
    for node in list(graph.nodes):
        text = _as_stack(graph, node)
        if text:
            yield text


def slice_places(graph: Graph) -> Iterator[str]:
    """Rewrite what takes one place of an axis as a Slice: of the first axis, or of the end of rows.

    The result is part of its input then, and readers that find rows of a slice need no copy. Parts
    of rows are of whole words; images keep their channels.
    """
    for node in list(graph.nodes):
        text = _as_slice(graph, node) if node in graph else ""
        if text:
            yield text


def _as_stack(graph: Graph, node: Node) -> str:
    if not isinstance(node.op, Concat) or len(node.inputs) < 2:
        return ""
    parts = [value for value in node.inputs if value is not None]
    sources = {_moved_from(graph, value, node) for value in parts}
    sizes, result = known_sizes(parts[0]), shape_of(node.output)
    rank = len(sizes)
    if len(sources) != 1 or None in sources or rank < 2 or result is None:
        return ""
    alike = all(shape_of(value) == sizes for value in parts)
    if not alike or not is_along_last(node) or len(known_sizes(node.output)) != rank:
        return ""
    add = Builder(graph, node, node.name, (node,))
    rows = [as_shape(add, value, (*sizes[:-1], 1, sizes[-1])) for value in parts]
    value = as_shape(add, add(Concat(axis=rank - 1), *rows), known_sizes(node.output))
    name = node.name
    graph.replace(node, [value])
    return f"Concat '{name}' joins {len(parts)} rows"


def _moved_from(graph: Graph, value: Value, reader: Node) -> Value | None:
    """Return the tensor whose rows are moved to a value with one reader; None if there is none."""
    node, last = value.producer, value
    if graph.sole_consumer(value) is not reader:
        return None
    while node is not None and moves_rows(node) and not isinstance(node.op, Concat):
        first = node.inputs[0]
        if first is None:
            return None
        last, node = first, first.producer
    return None if last is value else last


def _as_slice(graph: Graph, node: Node) -> str:
    found, source = place_of(node), node.inputs[0] if node.inputs else None
    if found is None or source is None:
        return ""
    shape, result = known_sizes(source), known_sizes(node.output)
    known = len(shape) == len(shape_of(source) or ()), result == shape_of(node.output)
    if not all(known) or len(shape) < 2:
        return ""
    axis, place = found
    outer, inner = shape[:axis], prod(shape[axis + 1 :])
    is_slice, is_first = isinstance(node.op, Slice), prod(outer) == 1
    has_words = inner > 1 and inner * source.tensor.dtype.itemsize % _WORD == 0
    is_image = len(shape) == 4 and (axis == 1 or is_slice)
    if (is_first and is_slice) or (not is_first and (is_image or not has_words)):
        return ""
    add = Builder(graph, node, node.name, (node,))
    if is_first:
        value = add(Squeeze(), add.slice(source, axis, place, place + 1), add.integers([axis]))
    else:
        rows = as_shape(add, source, (*outer, shape[axis] * inner))
        part = add.slice(rows, axis, place * inner, (place + 1) * inner)
        value = as_shape(add, part, result)
    kind, name = node.kind, node.name
    graph.replace(node, [value])
    return f"{kind} '{name}' of one place is a Slice"
