"""Lets products of an image's channels with weights of its pixels read the pixels as rows."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.graph import Graph, Node, Value
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ..driver import Context
from ..editing import Builder, dims_of, drop, shape_of, static_dims, unviewed


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``image[channels, pixels] @ weights[pixels, 1]`` by ``weights' @ image'``.

    The context of a global-context block is such a mean of pixels. A convolution in front of it has
    its channels last, so that the transposed image is the one in memory.
    """
    for node in list(graph.nodes):
        image = _image(node)
        if image is None:
            continue
        (count, channels, *_), wanted = image.tensor.dims, node.output.tensor.dims
        pixels, weights = node.operands[0].tensor.dims[-1], node.operands[1]
        add = Builder(graph, node, node.name, (node,))
        transposed = add(Transpose(perm=(0, 2, 3, 1)), image)
        rows = add.shaped(transposed, (count, pixels, channels))
        row = add.shaped(weights, (count, 1, pixels))
        result = add(MatMul(), row, rows)
        graph.redirect(node.output, add.shaped(result, wanted))
        name = node.name
        drop(graph, node)
        yield f"MatMul '{name}' weighs {pixels} rows of pixels"


def _image(node: Node) -> Value | None:
    """Return the image whose channels a node multiplies by one weight per pixel."""
    if not isinstance(node.op, MatMul):
        return None
    left, right = node.operands
    shapes = [shape_of(value) or () for value in (left, right, node.output)]
    of_left, of_right, of_result = map(static_dims, shapes)
    if of_left is None or of_right is None or of_result is None:
        return None
    if len(of_left) < 3 or len(of_left) != len(of_right) or of_right[-1] != 1:
        return None
    source = unviewed(left)
    dims = dims_of(source) or ()
    if len(dims) != 4 or source.is_constant or right.is_constant:
        return None
    is_image = [prod(of_left[:-2]), *of_left[-2:]] == [*dims[:2], prod(dims[2:])]
    return source if is_image and of_left[:-2] == of_right[:-2] else None
