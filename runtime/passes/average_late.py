"""Averages windows of an image after its channels are reduced, rather than before that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Node
from ..ops.conv import convolves_pixels
from ..ops.elementwise import Add
from ..ops.pool import AveragePool
from .driver import Context
from .editing import Builder, drop, rank_of, size_of


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``conv(mean(x))`` by ``mean(conv(x))`` for convolutions of single pixels.

    The mean weighs positions, such a convolution weighs channels, in either order. Where there is a
    window around each pixel and the convolution has fewer filters than the image has channels (the
    branch of an Inception module that averages), less is read and written. The bias is added last
    where windows count the padding, whose pixels have none.
    """
    for node in list(graph.nodes):
        conv = _convolution(graph, node)
        if conv is None:
            continue
        assert isinstance(node.op, AveragePool)
        weight, *bias = conv.operands[1:]
        add = Builder(graph, conv, conv.name, (node, conv))
        padded = node.op.count_include_pad == 1
        result = add(node.op, add(conv.op, node.operands[0], weight, *([] if padded else bias)))
        if padded and bias:
            data = bias[0].data
            assert data is not None
            shift = data.reshape(-1, *[1] * ((rank_of(result) or 2) - 2))
            result = add(Add(), result, add.constant(shift, f"{conv.name}.bias"))
        graph.replace(conv, [result])
        drop(graph, node)
        yield f"'{node.name}' averages what '{conv.name}' computes"


def _convolution(graph: Graph, mean: Node) -> Node | None:
    """Return the convolution of the means that a node computes, if it is better to do so first."""
    if not isinstance(mean.op, AveragePool) or not _around_each(mean.op):
        return None
    conv = graph.sole_consumer(mean.output)
    if conv is None or not convolves_pixels(conv) or conv.operands[0] is not mean.output:
        return None
    constants = [value.data for value in conv.operands[1:]]
    if any(data is None or not np.isfinite(data).all() for data in constants):
        return None  # infinite weights make NaN of a pixel that is zero, not of a mean
    channels, filters = (size_of(value, 1) for value in (mean.operands[0], conv.output))
    if not isinstance(channels, int) or not isinstance(filters, int):
        return None
    return conv if filters < channels else None


def _around_each(op: AveragePool) -> bool:
    """Whether there are as many windows as pixels."""
    if set(op.strides or ()) - {1}:
        return False
    if op.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return True
    axes = len(op.kernel_shape)
    pads, dilations = op.pads or (0,) * (2 * axes), op.dilations or (1,) * axes
    grown = (begin + end for begin, end in zip(pads[:axes], pads[axes:], strict=True))
    extents = ((k - 1) * d for k, d in zip(op.kernel_shape, dilations, strict=True))
    return all(more == extent for more, extent in zip(grown, extents, strict=True))
