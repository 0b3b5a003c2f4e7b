"""Rewrites a convolution with non-overlapping windows as a product, if rows are read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Shape
from ..ops.conv import Conv
from ..ops.elementwise import Add
from ..ops.matmul import MatMul
from ..ops.movement import Transpose
from ..ops.shape import Reshape
from .driver import Context
from .editing import Builder, shape_of, stand_in
from .fusion import obstacle

#: Minimum number of channels of images that stay images.
MAX_CHANNELS = 8


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace Conv, Reshape and Transpose to [n, h * w, c] by a product of patches.

    Vision transformers start with such a convolution. The image is rearranged to rows of patches
    instead of the result, which has at least as many elements. The convolution must be 2-D with
    constant weights and strides equal to its window, and cover every pixel of an image of few
    channels; many channels are adjacent in memory, and are read in place.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Conv):
            continue
        behind = _behind(graph, node)
        image = shape_of(node.inputs[0])
        if behind is None or image is None or not _fits(node, node.op, image):
            continue
        join, turn = behind
        new = _rewrite(graph, node, image, join, turn)
        yield f"MatMul '{new.name}' computes Conv '{node.name}' from rows of patches"


def _behind(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Return the Reshape and Transpose that make rows of the result."""
    join = graph.sole_consumer(node.output)
    turn = None if join is None else graph.sole_consumer(join.output)
    if join is None or turn is None or not isinstance(join.op, Reshape):
        return None
    if not isinstance(turn.op, Transpose) or obstacle(graph, {node, join, turn}, turn):
        return None
    image, rows = shape_of(node.output), shape_of(join.output)
    if image is None or rows is None or len(image) != 4 or len(rows) != 3:
        return None
    if turn.op.order(3) != (0, 2, 1) or None in rows or rows[:2] != image[:2]:
        return None
    return join, turn


def _fits(node: Node, op: Conv, image: Shape) -> bool:
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or weight.data is None or weight.data.ndim != 4 or op.group != 1:
        return False
    if bias is not None and bias.data is None:
        return False
    kernel = weight.data.shape[2:]
    if kernel == (1, 1) or tuple(op.strides or (1, 1)) != kernel or any(op.pads or ()):
        return False
    if op.auto_pad not in ("NOTSET", "VALID") or any(d != 1 for d in op.dilations or ()):
        return False
    if len(image) != 4 or None in image or image[1] != weight.data.shape[1]:
        return False
    if weight.data.shape[1] >= MAX_CHANNELS:
        return False
    return all(
        isinstance(size, int) and size % step == 0
        for size, step in zip(image[2:], kernel, strict=True)
    )


def _rewrite(graph: Graph, node: Node, image: Shape, join: Node, turn: Node) -> Node:
    x, weight = node.inputs[0], node.inputs[1]
    assert x is not None
    assert weight is not None
    assert weight.data is not None
    filters, channels, high, wide = weight.data.shape
    rows, columns = (
        size // step if isinstance(size, int) else 0
        for size, step in zip(image[2:], (high, wide), strict=True)
    )

    add = Builder(graph, node, f"{node.name}.patches")

    def sizes(*numbers: int) -> Value:
        return add.integers(numbers, f"{node.name}.sizes")

    cut = add(Reshape(), x, sizes(0, channels, rows, high, columns, wide))
    cut = add(Transpose(perm=(0, 2, 4, 1, 3, 5)), cut)
    patches = add(Reshape(), cut, sizes(0, rows * columns, channels * high * wide))
    turned = np.ascontiguousarray(weight.data.reshape(filters, -1).T)
    matrix = graph.constant(turned, f"{weight.name}.rows")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    nodes = {node, join, turn}
    if bias is None:
        return stand_in(graph, nodes, turn, MatMul(), (patches, matrix))
    product = add(MatMul(), patches, matrix)
    made = product.producer
    stand_in(graph, nodes, turn, Add(), (product, bias))
    assert made is not None
    return made
