"""Lets convolutions along a sequence read heads as columns of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv
from ...ops.elementwise import Add
from ...ops.movement import Transpose
from ..driver import Context
from ..editing import Builder, drop, shape_of
from .convolve_images import convolve_images

#: The order of axes that exchanges those of positions and heads, and that of rows and columns.
_EXCHANGED, _TURNED = (0, 2, 1, 3), (0, 2, 1)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a convolution of heads, each by a filter along the sequence, by one of columns.

    The skip connections of attention (Nyströmformer, YOSO) see heads as channels of an image of
    positions and elements. All elements of a head have one filter, so the columns of the rows are
    channels as well, and the rows an image of them that has its channels last.
    """
    yield from convolve_images(graph)
    for node in list(graph.nodes):
        sizes = _heads(node)
        if sizes is None or not isinstance(node.op, Conv):
            continue
        heads, width = sizes
        add = Builder(graph, node, node.name, (node,))
        rows = _rows(add, node.operands[0], heads * width)
        weights, *bias = (_repeated(graph, v, width) for v in node.operands[1:])
        image = add(
            _along_rows(node.op, heads * width), add(Transpose(perm=_TURNED), rows), weights, *bias
        )
        made, last = add(Transpose(perm=_TURNED), image), node
        follower = graph.sole_consumer(node.output)
        if follower is not None and isinstance(follower.op, Add):
            other = next((v for v in follower.operands if v is not node.output), None)
            if other is not None and shape_of(other) == shape_of(node.output):
                add, last = Builder(graph, follower, follower.name, (follower,)), follower
                made = add(Add(), _rows(add, other, heads * width), made)
        count, _, length, _ = shape_of(node.output) or (None,) * 4
        result = add(Transpose(perm=_EXCHANGED), add.view(made, (count, length, heads, width)))
        name = node.name
        graph.redirect(last.output, result)
        drop(graph, last)
        yield f"Conv '{name}' of {heads} heads reads {heads * width} columns of rows"


def _heads(node: Node) -> tuple[int, int] | None:
    """Return number and width of the heads that a node convolves along the sequence, or None."""
    if not isinstance(node.op, Conv) or node.op.auto_pad != "NOTSET":
        return None
    x, w, *bias = node.operands
    dims, maker = shape_of(x) or (), x.producer
    if len(dims) != 4 or any(v.data is None for v in (w, *bias)) or maker is None:
        return None
    heads, width, filters = dims[1], dims[3], w.tensor.dims
    if not isinstance(heads, int) or not isinstance(width, int) or heads != node.op.group:
        return None
    is_along = filters[:2] == (heads, 1) and filters[3] == 1 and filters[2] > 1
    pads, strides = node.op.pads or (0,) * 4, node.op.strides or (1, 1)
    is_same = strides == (1, 1) and pads[1::2] == (0, 0) and shape_of(node.output) == dims
    transposed = isinstance(maker.op, Transpose) and maker.op.perm == _EXCHANGED
    return (heads, width) if is_along and is_same and transposed else None


def _along_rows(op: Conv, channels: int) -> Conv:
    """Return the convolution of one axis that a convolution of rows of single pixels is."""
    first = {
        name: None if value is None else value[:1]
        for name, value in (("dilations", op.dilations), ("kernel_shape", op.kernel_shape))
    }
    pads = None if op.pads is None else op.pads[::2]
    return replace(op, group=channels, pads=pads, strides=None, **first)


def _repeated(graph: Graph, value: Value, width: int) -> Value:
    """Return filters, or biases, of heads for each of their columns."""
    data = value.data
    assert data is not None
    if data.ndim > 1:
        data = data[..., 0]
    return graph.constant(np.repeat(data, width, axis=0), f"{value.name}.repeated")


def _rows(add: Builder, heads: Value, columns: int) -> Value:
    """Return the rows of which heads are columns."""
    count, _, length, _ = shape_of(heads) or (None,) * 4
    return add.view(add(Transpose(perm=_EXCHANGED), heads), (count, length, columns))
