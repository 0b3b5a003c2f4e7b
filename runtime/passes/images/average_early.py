"""Averages the pixels of an image before its channels are mixed, rather than behind that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...ir.graph import Graph, Node
from ...ops.conv import convolves_pixels
from ...ops.cuts import reduced_axes
from ...ops.pool import GlobalAveragePool
from ...ops.reduce import ReduceMean
from ...ops.shape import Squeeze
from ..driver import Context
from ..editing import Builder, are_finite, drop, rank_of, size_of


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``mean(conv(x))`` by ``conv(mean(x))`` for convolutions of single pixels.

    The mean weighs positions, such a convolution weighs channels, in either order. Where the image
    has fewer channels than the result (squeeze-and-excite at the end of a residual unit: SE-ResNet,
    NFNet), less is read, and the gate is known before the convolution ends, which multiplies by it
    as it stores. Where nothing else reads the result, one pixel is convolved.
    """
    for node in list(graph.nodes):
        conv = _convolution(graph, node)
        if conv is None:
            continue
        image, *constants = conv.operands
        add = Builder(graph, node, node.name, (conv, node))
        op = replace(node.op, keepdims=1) if isinstance(node.op, ReduceMean) else node.op
        result = add(conv.op, add(op, image, *node.inputs[1:]), *constants)
        if rank_of(node.output) != rank_of(result):
            axes = range(2, rank_of(result) or 2)
            result = add(Squeeze(), result, add.integers(axes, "axes"))
        made = result.producer
        assert made is not None
        graph.replace(node, [result])
        drop(graph, conv)
        graph.rename(made, node.name)
        yield f"'{node.name}' averages the image of '{conv.name}'"


def _convolution(graph: Graph, mean: Node) -> Node | None:
    """Return the convolution whose pixels a node averages, if it is better to do so before."""
    if not isinstance(mean.op, GlobalAveragePool | ReduceMean):
        return None
    conv, rank = mean.operands[0].producer, rank_of(mean.operands[0])
    if conv is None or rank is None or not convolves_pixels(conv):
        return None
    if isinstance(mean.op, ReduceMean) and reduced_axes(mean) != tuple(range(2, rank)):
        return None
    if not are_finite(conv.operands[1:]):
        return None  # infinite weights make NaN of a pixel that is zero, not of a mean
    if graph.sole_consumer(conv.output) is mean:
        return conv
    channels, filters = (size_of(value, 1) for value in (conv.operands[0], conv.output))
    if not isinstance(channels, int) or not isinstance(filters, int):
        return None
    return conv if channels < filters else None
