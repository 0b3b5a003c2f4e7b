"""Rewrites a GatherND of adjacent rows as a view or Slice of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array, TensorType
from ..ops.gather import GatherND
from ..ops.movement import Slice
from ..ops.shape import Reshape
from .driver import Context
from .editing import Builder, drop, shape_of

#: Maximum number of indices examined.
MAX_INDICES = 1 << 20


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace GatherND by Reshape and Slice if its indices count up by one.

    Exporters write ``x[i, j]`` with index arrays in this form: masks visible to every position, or
    one of the parts of a product.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, GatherND) or node.op.batch_dims:
            continue
        start = _start(node)
        x, shape, result = node.inputs[0], shape_of(node.inputs[0]), shape_of(node.output)
        if start is None or x is None or shape is None or result is None:
            continue
        depth = _depth(node)
        sizes = [size for size in (*shape, *result) if isinstance(size, int)]
        if len(sizes) < len(shape) + len(result) or 0 in sizes:
            continue
        rest, wanted = sizes[depth : len(shape)], sizes[len(shape) :]
        count = prod(wanted[: len(wanted) - len(rest)])
        rows = prod(sizes[:depth])
        add = Builder(graph, node, node.name, (node,))
        if count < rows:
            x = _shaped(add, x, [rows, *rest])
            x = add(Slice(), x, *(add.integers([n]) for n in (start, start + count, 0)))
        graph.redirect(node.output, _shaped(add, x, wanted))
        name = node.name
        drop(graph, node)
        yield f"GatherND '{name}' takes {count} adjacent rows"


def _shaped(add: Builder, x: Value, sizes: Sequence[int]) -> Value:
    return x if shape_of(x) == tuple(sizes) else add(Reshape(), x, add.integers(sizes))


def _indices(node: Node) -> Array | None:
    value = node.inputs[1]
    if value is None or not isinstance(value.type, TensorType):
        return None
    return value.data if value.data is not None else value.type.known


def _depth(node: Node) -> int:
    found = _indices(node)
    return 0 if found is None else found.shape[-1]


def _start(node: Node) -> int | None:
    """Return the first row if the rows are adjacent; None otherwise."""
    found, shape = _indices(node), shape_of(node.inputs[0])
    if found is None or shape is None or not 0 < found.size <= MAX_INDICES:
        return None
    outer = [size for size in shape[: found.shape[-1]] if isinstance(size, int)]
    flat: Array = found.reshape(-1, found.shape[-1])
    if len(outer) < flat.shape[1] or 0 in outer:
        return None
    sizes = np.array(outer, np.int64)
    wrapped = np.where(flat < 0, flat + sizes, flat)
    if (wrapped < 0).any() or (wrapped >= sizes).any():
        return None
    rows = wrapped @ np.array([prod(outer[i + 1 :]) for i in range(len(outer))], np.int64)
    start = int(rows[0])
    return start if (rows == np.arange(start, start + rows.size)).all() else None
