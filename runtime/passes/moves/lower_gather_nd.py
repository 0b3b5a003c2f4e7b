"""Rewrites a Gather or GatherND with known indices as a view, a Slice or a Gather of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import indices_of
from ...ops.gather import Gather, GatherND, counted
from ...ops.movement import Transpose
from ...ops.shape import RESHAPES, Squeeze
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, static_dims

#: Maximum number of indices examined.
MAX_INDICES = 1 << 20


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace GatherND by Reshape, and Slice if its indices count up by one, else Gather.

    Exporters write ``x[i, j]`` with index arrays in this form: masks visible to every position, one
    of the parts of a product, or a permutation. A Gather whose indices count up is a view or Slice,
    too, such as the one that PyTorch exports for `as_strided`; and one whose columns do so, as for
    `unfold` into blocks side by side, is also a Transpose. One of the only place along an axis
    drops that axis. Rows by computed indices whose count is then cut into axes (neighbours of each
    point) are those of indices with these axes, so that who reads the rows may choose them itself.
    """
    for node in list(graph.nodes):
        text = (_as_slice(graph, node) or _as_gather(graph, node)) if node in graph else ""
        if text:
            yield text
        if node not in graph or not isinstance(node.op, GatherND) or node.op.batch_dims:
            continue
        index = _rows(node)
        x, shape, result = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.output)
        if index is None or x is None or shape is None or result is None:
            continue
        depth = _depth(node)
        sizes = static_dims((*shape, *result))
        if sizes is None or 0 in sizes:
            continue
        rest, wanted = sizes[depth : len(shape)], sizes[len(shape) :]
        rows, count, start = prod(sizes[:depth]), index.size, int(index.flat[0])
        are_adjacent = _count_up(index)
        add = Builder(graph, node, node.name, (node,))
        if not are_adjacent:
            x = add(Gather(), _shaped(add, x, [rows, *rest]), add.constant(index, "rows"))
        elif count < rows:
            x = _shaped(add, x, [rows, *rest])
            x = add.slice(x, 0, start, start + count)
        graph.redirect(node.output, _shaped(add, x, wanted))
        name = node.name
        drop(graph, node)
        yield f"GatherND '{name}' takes {count} {'adjacent ' if are_adjacent else ''}rows"
    for node in [node for node in graph.nodes if isinstance(node.op, Gather)]:
        if node in graph and (text := _by_axes(graph, node)):
            yield text


def _as_slice(graph: Graph, node: Node) -> str:
    """Rewrite a Gather of adjacent places along an axis; return a sentence about it."""
    if not isinstance(node.op, Gather):
        return ""
    x, index = node.inputs[0], indices_of(node)
    shape, result = shape_of(x), shape_of(node.output)
    if index is None or x is None or not shape or result is None:
        return ""
    axis = node.op.axis % len(shape)
    size, wanted = shape[axis], [n for n in result if isinstance(n, int)]
    if x.data is not None or not isinstance(size, int) or not 0 < index.size <= MAX_INDICES:
        return ""
    if not index.ndim and size == 1:
        return _as_view(graph, node, x, axis)
    start, end = int(index.flat[0]), int(index.flat[0]) + index.size
    is_row, is_transposed = index.ndim == 1, index.ndim == 2 and not _count_up(index)
    if is_transposed:
        index = index.T
    if not index.ndim or not _count_up(index) or end > size:
        return ""
    if not is_row and len(wanted) < len(result):
        return ""
    add = Builder(graph, node, node.name, (node,))
    if index.size < size:
        x = add.slice(x, axis, start, end)
    if is_transposed:
        order = [*range(axis), axis + 1, axis, *range(axis + 2, len(wanted))]
        x = _shaped(add, x, [wanted[place] for place in order])
        x = add(Transpose(perm=tuple(order)), x)
    graph.redirect(node.output, x if is_row or is_transposed else _shaped(add, x, wanted))
    name = node.name
    drop(graph, node)
    return f"Gather '{name}' takes {index.size} adjacent places"


def _as_view(graph: Graph, node: Node, x: Value, axis: int) -> str:
    """Rewrite a Gather of the only place along an axis (``x[..., 0]``); return a sentence."""
    add = Builder(graph, node, node.name, (node,))
    graph.redirect(node.output, add(Squeeze(), x, add.integers([axis], "axes")))
    name = node.name
    drop(graph, node)
    return f"Gather '{name}' takes the only place"


def _as_gather(graph: Graph, node: Node) -> str:
    """Rewrite a GatherND of computed places along the first axis; return a sentence about it."""
    if not isinstance(node.op, GatherND) or node.op.batch_dims:
        return ""
    x, places = node.operands
    shape = shape_of(places)
    if places.known is not None or not shape or shape[-1] != 1 or not shape_of(x):
        return ""
    add = Builder(graph, node, node.name, (node,))
    taken = add(Gather(), x, add(Squeeze(), places, add.integers([len(shape) - 1], "axes")))
    graph.redirect(node.output, taken)
    name = node.name
    drop(graph, node)
    return f"GatherND '{name}' takes computed rows"


def _by_axes(graph: Graph, node: Node) -> str:
    """Rewrite a Gather of rows that a Reshape then cuts into axes; return a sentence about it."""
    reader = graph.sole_consumer(node.output)
    if reader is None or not isinstance(node.op, Gather) or not isinstance(reader.op, RESHAPES):
        return ""
    x, indices = node.operands
    before, shape = shape_of(x), shape_of(reader.output)
    if not before or not shape or node.op.axis % len(before) or rank_of(indices) != 1:
        return ""
    axes, rest = shape[: 1 - len(before)] or shape, before[1:]
    known = static_dims(rest) is not None and sum(not isinstance(n, int) for n in axes) < 2
    is_cut = len(before) > 1 and shape[len(axes) :] == rest and 0 not in shape
    several = sum(size != 1 for size in axes) > 1
    if indices.data is not None or not known or not is_cut or not several:
        return ""
    add = Builder(graph, reader, node.name, (node, reader))
    graph.redirect(reader.output, add(node.op, x, add.view(indices, axes)))
    name = node.name
    drop(graph, reader)
    return f"Gather '{name}' takes rows by indices with {len(axes)} axes"


def _count_up(index: Array) -> bool:
    return bool((np.diff(index.reshape(-1)) == 1).all())


def _shaped(add: Builder, x: Value, sizes: Sequence[int]) -> Value:
    return x if shape_of(x) == tuple(sizes) else add.shaped(x, sizes)


def _depth(node: Node) -> int:
    found = node.operands[1].known
    return 0 if found is None else found.shape[-1]


def _rows(node: Node) -> Array | None:
    """Return the numbers of the rows that are taken; None if they are not known."""
    found, shape = node.operands[1].known, shape_of(node.inputs[0])
    if found is None or shape is None or not 0 < found.size <= MAX_INDICES:
        return None
    outer = static_dims(shape[: found.shape[-1]])
    if outer is None or 0 in outer:
        return None
    places = counted(found, *outer)
    if places is None:
        return None
    return places @ np.array([prod(outer[i + 1 :]) for i in range(len(outer))], np.int64)
