"""Pads the smallest of joined tensors, where a layer would read an odd number of channels.

Networks of points join three coordinates to the features of each of them, and a neural ODE the
time. Kernels read channels in words: an image of 131 channels would be copied to one of 136 before
every convolution of it, and products would read such rows one by one. On an H200, 65536 rows of 3 +
128 float16 numbers take 125 µs to join and to multiply by 128 columns, of 8 + 128 take 40; in
float32 199 and 54. Features of queries and keys that are joined alike (Based: 1, x and its square)
are padded in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...ir.chains import chain_before, chain_behind
from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv
from ...ops.cuts import axis_of
from ...ops.matmul import MatMul
from ...ops.movement import Concat, Pad, Transpose
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of

#: Channels of a word of 16-bit floats.
WORD = 8
#: Minimum number of channels: kernels of first layers pack images of fewer themselves.
LEAST = 17


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Append zeros to the channels of the smallest part, and to the weights that read it."""
    for node in list(graph.nodes):
        if not isinstance(node.op, Concat):
            continue
        sizes = _sizes(node, node.op)
        path = _to_layer(graph, node, node.op) if sizes else []
        count = sum(sizes)
        if path and count >= LEAST and count % 2:
            *moves, layer = path
            _pad(graph, node, node.op, moves, layer, sizes)
            yield _said(layer, count)
    for node in list(graph.nodes):
        if isinstance(node.op, MatMul):
            yield from _pad_both(graph, node)


def _pad_both(graph: Graph, product: Node) -> Iterator[str]:
    """Append zeros to the terms of a product of two tensors whose rows and columns are joined."""
    paths = [_from_join(graph, product, side) for side in range(2)]
    joins = [(path[0], path[0].op) for path in paths if path]
    first, *others = [_sizes(node, op) for node, op in joins if isinstance(op, Concat)] or [[]]
    count = sum(first)
    if others != [first] or not count % 2 or count < LEAST:
        return
    inputs, place = [*product.operands], first.index(min(first))
    for side, (join, *moves) in enumerate(paths):
        assert isinstance(join.op, Concat)
        add = Builder(graph, join, join.name, (join,))
        inputs[side] = _padded(add, join, join.op, place, -count % WORD)
        for move in moves:
            inputs[side] = Builder(graph, move, move.name, (move,))(move.op, inputs[side])
    graph.set_inputs(product, inputs)
    for path in paths:
        drop(graph, path[-1])
    yield _said(product, count)


def _from_join(graph: Graph, product: Node, place: int) -> list[Node]:
    """Return the Concat of a factor's terms, and the transposes of it that alone are read."""
    value, found = product.operands[place], list[Node]()
    axis = (rank_of(value) or 0) - 1 - place
    for node in chain_before(graph, value):
        rank = rank_of(node.output)
        if rank is None:
            break
        found.insert(0, node)
        if isinstance(node.op, Concat):
            fits = rank > 1 and axis_of(node) == axis
            return found if fits else []
        if not isinstance(node.op, Transpose):
            break
        axis = node.op.order(rank)[axis]
    return []


def _said(reader: Node, count: int) -> str:
    more = count + -count % WORD
    return f"{reader.kind} '{reader.name}' reads {more} joined channels instead of {count}"


def _sizes(node: Node, op: Concat) -> list[int]:
    """Return the sizes of joined parts; none if one of them is unknown."""
    shapes = [shape_of(value) for value in node.inputs]
    known = [shape[op.axis] for shape in shapes if shape is not None]
    sizes = [size for size in known if isinstance(size, int)]
    return sizes if len(sizes) == len(node.inputs) else []


def _to_layer(graph: Graph, node: Node, op: Concat) -> list[Node]:
    """Return the transposes of joined channels and the layer that alone reads them.

    Nothing if there are other readers, or the weights are computed.
    """
    axis, found = normalize_axis(op.axis, rank_of(node.output) or 1), list[Node]()
    reader = None
    for reader in chain_behind(graph, node.output):
        found.append(reader)
        if not isinstance(reader.op, Transpose):
            break
        axis = reader.op.order(rank_of(reader.output) or 1).index(axis)
    if reader is None or not isinstance(reader.op, Conv | MatMul):
        return []
    x, w = reader.operands[:2]
    if isinstance(reader.op, Conv):
        fits = reader.op.group == 1 and axis == 1
    else:
        fits = axis == (rank_of(x) or 1) - 1 and rank_of(w) == 2
    return found if fits and w.data is not None else []


def _pad(
    graph: Graph, node: Node, op: Concat, moves: Sequence[Node], layer: Node, sizes: Sequence[int]
) -> None:
    more, place = -sum(sizes) % WORD, sizes.index(min(sizes))
    value = _padded(Builder(graph, layer, node.name, (node,)), node, op, place, more)
    for move in moves:
        value = Builder(graph, layer, move.name, (move,))(move.op, value)
    w = layer.operands[1]
    assert w.data is not None
    axis = 1 if isinstance(layer.op, Conv) else 0
    data = np.insert(w.data, [sum(sizes[: place + 1])] * more, 0, axis=axis)
    filters = graph.constant(data, f"{w.name}.padded")
    graph.set_inputs(layer, [value, filters, *layer.inputs[2:]])
    drop(graph, (node, *moves)[-1])


def _padded(add: Builder, node: Node, op: Concat, place: int, more: int) -> Value:
    """Return what is joined with zeros behind one part."""
    ends = np.zeros((2, rank_of(node.output) or 1), np.int64)
    ends[1, op.axis] = more
    parts = [*node.operands]
    parts[place] = add(Pad(), parts[place], add.integers(ends.ravel().tolist()))
    return add(op, *parts)
