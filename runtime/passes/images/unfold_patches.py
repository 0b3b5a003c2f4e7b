"""Rewrites a convolution with non-overlapping windows as a product, if rows are read."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.types import Shape
from ...ops.conv import Conv
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, shape_of, stand_in, static_size
from ..fusion import obstacle

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
        new = _rewrite(graph, node, image, behind)
        yield f"MatMul '{new.name}' computes Conv '{node.name}' from rows of patches"


def _behind(graph: Graph, node: Node) -> tuple[Node, ...] | None:
    """Return the nodes that make rows of the result: a Transpose after a Reshape, if any.

    The Reshape may give images several axes, as frames of videos have.
    """
    image = rows = shape_of(node.output)
    found = list[Node]()
    reader = graph.sole_consumer(node.output)
    if reader is not None and isinstance(reader.op, Reshape) and image is not None:
        found, rows = [reader], shape_of(reader.output)
        reader = graph.sole_consumer(reader.output)
    if reader is None or not isinstance(reader.op, Transpose):
        return None
    if obstacle(graph, {node, *found, reader}, reader):
        return None
    if image is None or rows is None or len(rows) < 3 or None in rows or rows[-2] != image[1]:
        return None
    outer, rank = rows[:-2], len(rows)
    if outer != image[:1] and (static_size(outer) or 0) != image[0]:
        return None
    order = (*range(rank - 2), rank - 1, rank - 2)
    return (*found, reader) if reader.op.order(rank) == order else None


def _fits(node: Node, op: Conv, image: Shape) -> bool:
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or weight.data is None or op.group != 1:
        return False
    rank = weight.data.ndim
    if not 3 <= rank <= 5:
        return False
    if bias is not None and bias.data is None:
        return False
    kernel = weight.data.shape[2:]
    if set(kernel) == {1} or tuple(op.strides or ()) != kernel or any(op.pads or ()):
        return False
    if op.auto_pad not in ("NOTSET", "VALID") or any(d != 1 for d in op.dilations or ()):
        return False
    if len(image) != rank or None in image or image[1] != weight.data.shape[1]:
        return False
    if weight.data.shape[1] >= MAX_CHANNELS:
        return False
    return all(
        isinstance(size, int) and size % step == 0
        for size, step in zip(image[2:], kernel, strict=True)
    )


def _rewrite(graph: Graph, node: Node, image: Shape, behind: tuple[Node, ...]) -> Node:
    x, weight, transpose = node.inputs[0], node.inputs[1], behind[-1]
    assert x is not None
    assert weight is not None
    assert weight.data is not None
    filters, channels, *kernel = weight.data.shape
    counts = [
        size // step if isinstance(size, int) else 0
        for size, step in zip(image[2:], kernel, strict=True)
    ]

    add = Builder(graph, node, f"{node.name}.patches")

    def sizes(*numbers: int) -> Value:
        return add.integers(numbers, f"{node.name}.sizes")

    pairs = (n for pair in zip(counts, kernel, strict=True) for n in pair)
    axes = range(2, 2 + 2 * len(kernel))
    cut = add(Reshape(), x, sizes(0, channels, *pairs))
    cut = add(Transpose(perm=(0, *axes[::2], 1, *axes[1::2])), cut)
    patches = add(Reshape(), cut, sizes(0, prod(counts), channels * prod(kernel)))
    transposed = np.ascontiguousarray(weight.data.reshape(filters, -1).T)
    matrix = graph.constant(transposed, f"{weight.name}.rows")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    nodes = {node, *behind}
    rows = shape_of(transpose.output) or ()
    is_plain = len(rows) == 3
    if bias is None and is_plain:
        return stand_in(graph, nodes, transpose, MatMul(), (patches, matrix))
    product = add(MatMul(), patches, matrix)
    made = product.producer
    assert made is not None
    if is_plain:
        stand_in(graph, nodes, transpose, Add(), (product, bias))
        return made
    value = product if bias is None else add(Add(), product, bias)
    shape = add.integers([size for size in rows if isinstance(size, int)], f"{node.name}.frames")
    stand_in(graph, nodes, transpose, Reshape(), (value, shape))
    return made
