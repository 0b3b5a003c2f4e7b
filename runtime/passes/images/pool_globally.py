"""Poolings whose one window is the whole image become poolings of all pixels."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node
from ...ops.pool import AveragePool, GlobalAveragePool
from ...ops.window import window
from ..driver import Context
from ..editing import Builder, shape_of


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace an AveragePool of one window, which has all pixels, by a GlobalAveragePool.

    So older classifiers end (ResNet and GoogLeNet of Caffe2, pytorchcv), and so begin their gates.
    """
    for node in list(graph.nodes):
        if not _averages_all(node):
            continue
        add = Builder(graph, node, node.name, (node,))
        graph.replace(node, [add(GlobalAveragePool(), node.operands[0])])
        yield f"'{node.name}' averages whole images"


def _averages_all(node: Node) -> bool:
    """Whether a node averages all pixels of images of a known size, and no padding."""
    op, shape = node.op, shape_of(node.operands[0]) if node.operands else None
    if not isinstance(op, AveragePool) or shape is None or op.counts_padding:
        return False
    spatial = tuple(size for size in shape[2:] if isinstance(size, int))
    if len(spatial) < len(shape) - 2 or 0 in spatial:
        return False
    view = window(op, spatial, op.kernel_shape)
    if view.is_dilated or set(view.output) != {1}:
        return False
    sides = zip(view.kernel, view.pads_begin, spatial, strict=True)
    return all(size <= kernel - begin for kernel, begin, size in sides)
