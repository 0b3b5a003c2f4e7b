"""Averages windows of an image after its channels are reduced, rather than before that."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node
from ...ops.conv import convolves_pixels
from ...ops.elementwise import Add
from ...ops.pool import AveragePool
from ..driver import Context
from ..editing import Builder, are_finite, drop, rank_of, shape_of, size_of


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
        late = bool(bias) and node.op.counts_padding
        add = Builder(graph, conv, conv.name, (node, conv))
        result = add(node.op, add(conv.op, node.operands[0], weight, *([] if late else bias)))
        if late:
            data = bias[0].data
            assert data is not None
            shift = data.reshape(-1, *[1] * ((rank_of(result) or 2) - 2))
            result = add(Add(), result, add.constant(shift, f"{conv.name}.bias"))
        graph.replace(conv, [result])
        drop(graph, node)
        yield f"'{node.name}' averages what '{conv.name}' computes"


def _convolution(graph: Graph, mean: Node) -> Node | None:
    """Return the convolution of the means that a node computes, if it is better to do so first."""
    if not isinstance(mean.op, AveragePool):
        return None
    before, after = (shape_of(value) or () for value in (mean.operands[0], mean.output))
    if not before or before[2:] != after[2:]:
        return None
    conv = graph.sole_consumer(mean.output)
    if conv is None or not convolves_pixels(conv) or conv.operands[0] is not mean.output:
        return None
    if not are_finite(conv.operands[1:]):
        return None  # infinite weights make NaN of a pixel that is zero, not of a mean
    channels, filters = (size_of(value, 1) for value in (mean.operands[0], conv.output))
    if not isinstance(channels, int) or not isinstance(filters, int):
        return None
    return conv if filters < channels else None
