"""Replaces assignments that add to a part of a tensor by one sum with zeros around the addend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node, Value
from ..ops.elementwise import Add, Where
from ..ops.gather import ScatterND
from ..ops.movement import Pad, Slice, Transpose
from .driver import Context
from .editing import Builder, drop, dtype_of, is_elementwise, shape_of
from .join_written import rows_of
from .pattern import pairs

Order = tuple[int, ...]


class _Part(NamedTuple):
    """Part of a tensor: places `first` to `first + size` of an axis."""

    source: Value
    axis: int
    first: int
    size: int


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``x[:, a:b] += r`` by ``x + pad(r)``, and what writes a part of x back by x.

    torch.onnx writes such assignments as ScatterNDs of rows between Transposes that bring the axis
    to the front, one in another for each axis (relative positions behind a class token).
    """
    yield from _add_to_parts(graph)
    for node in list(graph.nodes):
        hidden = _hidden(graph, node)
        if hidden is not None:
            name = node.name
            graph.replace(node, (hidden,))
            yield f"Pad '{name}' puts a part back where it was, and so replaces the rest by zeros"


def _add_to_parts(graph: Graph) -> Iterator[str]:
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, ScatterND):
            continue
        rows, shape = rows_of(node), shape_of(node.output)
        if rows is None or not shape or not isinstance(shape[0], int):
            continue
        data = node.operands[0]
        turn = data.producer
        order = tuple(range(len(shape)))
        if turn is not None and isinstance(turn.op, Transpose):
            order, data = turn.op.order(len(shape)), turn.operands[0]
        updates = _unturned(rows.updates, order)
        part = _Part(data, order[0], rows.first, rows.size)
        if updates is None or dtype_of(data) not in FLOATS:
            continue
        add = Builder(graph, node, node.name, (node,))
        if _cut(updates) == part:
            result = data
        else:
            addend = _addend(updates, part)
            if addend is None:
                continue
            before, after = [0] * len(shape), [0] * len(shape)
            before[part.axis] = part.first
            after[part.axis] = shape[0] - part.first - part.size
            padded = add(Pad(), addend, add.integers((*before, *after), f"{node.name}.pads"))
            result = add(Add(), data, padded)
        if order != tuple(range(len(shape))):
            result = add(Transpose(perm=order), result)
        name, read = node.name, [rows.updates.producer, node.operands[0].producer]
        graph.replace(node, [result])
        for each in read:  # a product that they read, too, would not become part of an attention
            drop(graph, each)
        yield f"ScatterND '{name}' adds to {part.size} places of axis {part.axis}, zeros to others"


def _hidden(graph: Graph, node: Node) -> Value | None:
    """Return zeros around part of a tensor, in its place, as a Where of all of it.

    Elementwise nodes that read it choose for themselves, without a copy.
    """
    if not isinstance(node.op, Pad) or node.op.mode != "constant" or len(node.inputs) > 2:
        return None
    part, pads = _cut(node.operands[0]), node.operands[1].data
    shape, dtype = shape_of(node.output), dtype_of(node.output)
    if part is None or pads is None or shape is None or dtype is None:
        return None
    rank, size = len(shape), shape[part.axis]
    before, after = pads.reshape(2, -1).tolist()
    around = [before[part.axis], after[part.axis]]
    elsewhere = sum(map(abs, (*before, *after))) - sum(map(abs, around))
    readers = node.output.consumers
    if elsewhere or not isinstance(size, int) or not readers or shape_of(part.source) != shape:
        return None
    if around != [part.first, size - part.first - part.size]:
        return None
    if not all(is_elementwise(each.op) for each in readers):
        return None
    places = np.arange(size)
    shown = (places >= part.first) & (places < part.first + part.size)
    add = Builder(graph, node, node.name, (node,))
    condition = add.constant(shown.reshape(-1, *[1] * (rank - 1 - part.axis)), f"{node.name}.part")
    zero = add.constant(np.zeros((), dtype), f"{node.name}.zero")
    return add(Where(), condition, part.source, zero)


def _unturned(value: Value, order: Order) -> Value | None:
    """Return the first value of which Transposes in a row make another one in this order."""
    found, source, best = tuple(range(len(order))), value, None
    while True:
        best = source if found == order else best
        node = source.producer
        if node is None or not isinstance(node.op, Transpose):
            return best
        inner = node.op.order(len(order))
        found, source = tuple(inner[axis] for axis in found), node.operands[0]


def _cut(value: Value) -> _Part | None:
    """Return of what a Slice along one axis is a part."""
    node = value.producer
    if node is None or not isinstance(node.op, Slice) or len(node.inputs) < 4:
        return None
    numbers = [None if each is None else each.data for each in node.inputs[1:]]
    if any(data is None or data.size != 1 for data in numbers):
        return None
    first, _, axis, *step = (int(data.reshape(-1)[0]) for data in numbers if data is not None)
    dims, taken = shape_of(node.inputs[0]) or (), shape_of(value) or ()
    if not dims or step not in ([], [1]):
        return None
    size, count = dims[axis], taken[axis]
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    first = max(first + size, 0) if first < 0 else min(first, size)
    return _Part(node.operands[0], axis % len(dims), first, count)


def _addend(value: Value, part: _Part) -> Value | None:
    """Return what is added to a part, of the same shape."""
    node = value.producer
    if node is None or not isinstance(node.op, Add):
        return None
    for one, other in pairs(node):
        if _cut(one) == part and shape_of(other) == shape_of(value):
            return other
    return None
