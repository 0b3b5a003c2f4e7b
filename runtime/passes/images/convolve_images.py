"""Lets convolutions of heads that are images read them as columns of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim
from ...ops.conv import Conv
from ...ops.cuts import axis_of, is_along_last, part_of
from ...ops.movement import Concat, Slice, Transpose
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.shape import Reshape
from ..attention.columns import heads_of
from ..editing import Builder, drop, shape_of, static_dims, static_size

#: The order of axes that exchanges those of positions and heads.
_EXCHANGED = (0, 2, 1, 3)
#: The order of axes in which the elements of heads come before their positions.
_PIXELS_LAST = (0, 1, 3, 2)


@record
class _Image:
    """A depthwise convolution whose samples are heads.

    Attributes:
        conv: the convolution.
        heads: [b, h, m, d], whose positions are the pixels of the image.
        result: [b, h, n, d], the heads that it computes.
        count: b.
        number, width: h and d.
        length: n.
        pixels: sizes of the axes of the image.
    """

    conv: Node
    heads: Value
    result: Value
    count: Dim
    number: int
    width: int
    length: int
    pixels: tuple[int, ...]


def convolve_images(graph: Graph) -> Iterator[str]:
    """Replace a depthwise convolution of images whose samples are heads by one of their columns.

    Where attention pools queries, keys and values (MViT), all heads have the same filters. With one
    filter for each column, the image is the rows that heads are cut from, and has its channels
    last. A class token beside the image is a row, and each head of a row is normalized there.
    """
    for node in list(graph.nodes):
        found = _found(graph, node) if node in graph else None
        if found is None:
            continue
        value, rows = _joined(graph, found.result, _convolved(graph, found))
        rows = _split(graph, found, value, rows)
        last, rows = _normalized(graph, value, rows)
        reader = last.producer
        assert reader is not None
        add = Builder(graph, reader, f"{reader.name}.heads", (reader,))
        name = node.name
        _cut(graph, last, rows)
        graph.redirect(last, add(Transpose(perm=_EXCHANGED), rows))
        drop(graph, reader)
        yield f"Conv '{name}' of {found.number} heads reads images of all of their columns"


def _found(graph: Graph, node: Node) -> _Image | None:
    """Return what a convolution is if its samples are heads, and it computes such; or None."""
    if not isinstance(node.op, Conv) or node.op.auto_pad != "NOTSET":
        return None
    x, w, *bias = node.operands
    view, after = x.producer, graph.sole_consumer(node.output)
    if any(v.data is None for v in (w, *bias)) or view is None or after is None:
        return None
    if not isinstance(view.op, Reshape) or not isinstance(after.op, Reshape):
        return None
    turn, back = view.operands[0].producer, graph.sole_consumer(after.output)
    if turn is None or back is None or {turn.op, back.op} != {Transpose(perm=_PIXELS_LAST)}:
        return None
    count, *heads = shape_of(turn.operands[0]) or (None,)
    number, length, width = static_dims((shape_of(back.output) or ())[1:]) or (0, 0, 0)
    places, *pixels = static_dims((shape_of(x) or ())[1:]) or (0,)
    if heads != [number, static_size(pixels), width] or not places == width == node.op.group:
        return None
    if w.tensor.dims[:2] != (width, 1) or graph.sole_consumer(x) is not node:
        return None
    source, sizes = turn.operands[0], tuple(pixels)
    return _Image(node, source, back.output, count, number, width, length, sizes)


def _convolved(graph: Graph, found: _Image) -> Value:
    """Return [b, n, h * d], the convolution of the rows of heads."""
    conv, channels, rank = found.conv, found.number * found.width, len(found.pixels)
    assert isinstance(conv.op, Conv)
    add = Builder(graph, conv, conv.name, (conv,))
    pixels = add.shaped(_rows(add, found.heads), (found.count, *found.pixels, channels))
    image = add(Transpose(perm=(0, rank + 1, *range(1, rank + 1))), pixels)
    weights = [_repeated(graph, v, found.number) for v in conv.operands[1:]]
    image = add(replace(conv.op, group=channels), image, *weights)
    pixels = add(Transpose(perm=(0, *range(2, rank + 2), 1)), image)
    return add.shaped(pixels, (found.count, found.length, channels))


def _rows(add: Builder, heads: Value) -> Value:
    """Return [b, m, h * d] of heads [b, h, m, d].

    Where these are a part of the columns, and of the rows, of a layer, its rows are cut first: that
    part is the same for queries, keys and values, and columns of it are read where they are.
    """
    part, start, stop = part_of(heads), 0, 0
    if part is not None and part.axis == 2 and part.places.step == 1:
        heads, start, stop = part.source, part.places.start, part.places.stop
    columns = heads_of(heads)
    first = None if columns is None or columns.is_image else columns.first
    whole = None if columns is None else (*columns.counts, columns.width)
    if columns is None or first is None or shape_of(columns.source) != whole:
        count, number, length, width = shape_of(heads) or (None,) * 4
        turned = add(Transpose(perm=_EXCHANGED), heads)
        rows = add.shaped(turned, (count, length, static_size((number, width))))
        return add.slice(rows, 1, start, stop) if stop else rows
    rows, size = columns.source, columns.columns.size
    if stop:
        rows = add.slice(rows, 1, start, stop)
    return add.slice(rows, -1, first, first + size) if size < columns.width else rows


def _joined(graph: Graph, value: Value, rows: Value) -> tuple[Value, Value]:
    """Return what joins other heads, such as a class token, to a value, and the rows of both."""
    node = graph.sole_consumer(value)
    if node is None or not isinstance(node.op, Concat) or axis_of(node) != 2:
        return value, rows
    if any(static_size((shape_of(v) or (None,))[1:]) is None for v in node.operands):
        return value, rows
    add = Builder(graph, node, node.name, (node,))
    parts = [rows if each is value else _rows(add, each) for each in node.operands]
    return node.output, add(Concat(axis=1), *parts)


def _split(graph: Graph, found: _Image, heads: Value, rows: Value) -> Value:
    """Return [b, n, h, d] of rows with all columns of heads [b, h, n, d]."""
    node, maker, dims = heads.producer, rows.producer, shape_of(heads) or (None,) * 4
    assert node is not None
    assert maker is not None
    add = Builder(graph, node, maker.name, (node,))
    return add.shaped(rows, (found.count, dims[2], found.number, found.width))


def _normalized(graph: Graph, value: Value, rows: Value) -> tuple[Value, Value]:
    """Return the norm of each head that alone reads a value, and the rows of that."""
    node = graph.sole_consumer(value)
    if node is None or not isinstance(node.op, (LayerNormalization, RMSNormalization)):
        return value, rows
    ranks = [len(shape_of(v) or ()) for v in node.operands[1:]]
    if not is_along_last(node) or len(node.outputs) > 1 or max(ranks, default=0) > 1:
        return value, rows
    add = Builder(graph, node, node.name, (node,))
    return node.output, add(node.op, rows, *node.inputs[1:])


def _cut(graph: Graph, heads: Value, rows: Value) -> None:
    """Cut rows instead of heads, such as those of the image without its class token."""
    for reader in list(heads.consumers):
        part = part_of(reader.output) if isinstance(reader.op, Slice) else None
        if part is None or part.axis != 2 or part.places.step != 1:
            continue
        add = Builder(graph, reader, reader.name, (reader,))
        piece = add.slice(rows, 1, part.places.start, part.places.stop)
        graph.replace(reader, [add(Transpose(perm=_EXCHANGED), piece)])


def _repeated(graph: Graph, value: Value, heads: int) -> Value:
    """Return filters, or biases, of a head for all heads."""
    data = value.data
    assert data is not None
    if heads == 1:
        return value
    return graph.constant(np.concatenate([data] * heads), f"{value.name}.repeated")
