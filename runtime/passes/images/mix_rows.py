"""Lets products that mix the rows of an image read it with channels last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array, Dim
from ...ops.conv import Conv, ConvTranspose
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.norm import BatchNormalization
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, shape_of, size_of
from ..moves.transpose_images import TO_CHANNELS_FIRST, TO_CHANNELS_LAST
from ..pointwise import is_elementwise

#: From how many channels on convolutions store images with channels last.
MIN_CHANNELS = 8
#: The order of [n, parts, channels, rows, columns] in front of a product over parts and columns.
_PARTS_BEHIND = (0, 2, 3, 1, 4)
#: Maximum number of nodes between a product and the convolution whose image it reads.
MAX_STEPS = 12


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``matrix @ image`` by ``matrix @ rows``, where rows have all columns and channels.

    Graph convolutions of traffic (Graph WaveNet, STGCN) mix the nodes of a graph, the rows of an
    image, by one matrix for all samples and channels. What is left of a sample's channel is a thin
    matrix, and many of them; with channels last, as convolutions store images, there is a wide one
    for each sample. Those of skeletons (ST-GCN) mix the columns of each row, by a matrix for each
    part of the channels, and add up the parts: with channels last, these are the terms of one
    product.
    """
    for node in list(graph.nodes):
        parts = _parts(graph, node)
        if parts is not None:
            _rewrite_parts(graph, node, parts)
            yield f"MatMul '{node.name}' mixes pixels of {parts.channels} channels"
            continue
        sizes = _mixed(node)
        if sizes is None or not _is_image(node.operands[1]):
            continue
        mixed, count, channels, rows, columns = sizes
        matrix, image = node.operands
        wide = columns * channels
        add = Builder(graph, node, node.name, (node,))
        transposed = add(Transpose(perm=TO_CHANNELS_LAST), image)
        flat = add.shaped(transposed, (count, rows, wide))
        made = add.shaped(add(MatMul(), matrix, flat), (count, mixed, columns, channels))
        graph.redirect(node.output, add(Transpose(perm=TO_CHANNELS_FIRST), made))
        name = node.name
        drop(graph, node)
        yield f"MatMul '{name}' mixes rows of {wide} elements"


@record
class _Parts:
    """A sum of products of each part of an image's channels.

    Attributes:
        image: [n, parts * channels, rows, columns].
        matrices: [parts, columns, results].
        count: n.
        channels: of a part.
    """

    image: Value
    matrices: Array
    count: Dim
    channels: int


def _parts(graph: Graph, node: Node) -> _Parts | None:
    """Return what a product sums over parts of an image's channels, and over its columns."""
    weights = node.operands[1].data if isinstance(node.op, MatMul) else None
    join = node.operands[0].producer if weights is not None and weights.ndim == 2 else None
    move = join.operands[0].producer if join is not None and isinstance(join.op, Reshape) else None
    if weights is None or move is None or not isinstance(move.op, Transpose):
        return None
    cut = move.operands[0].producer
    if cut is None or not isinstance(cut.op, Reshape) or move.op.perm != _PARTS_BEHIND:
        return None
    image, parts = cut.operands[0], shape_of(cut.output) or ()
    joined, shape = shape_of(node.operands[0]) or (), shape_of(image) or ()
    known = [size for size in parts[1:] if isinstance(size, int)]
    if len(known) != 4 or len(joined) != 4 or len(shape) != 4 or not _is_image(image):
        return None
    number, channels, rows, columns = known
    fits = joined[1:] == (channels, rows, number * columns)
    fits = fits and shape[1:] == (number * channels, rows, columns)
    alone = all(graph.sole_consumer(v) is not None for v in (cut.output, move.output))
    if not fits or not alone or channels < MIN_CHANNELS:
        return None
    matrices = weights.reshape(number, columns, weights.shape[1])
    return _Parts(image, matrices, shape[0], channels)


def _rewrite_parts(graph: Graph, node: Node, parts: _Parts) -> None:
    add = Builder(graph, node, node.name, (node,))
    number, columns, results = parts.matrices.shape
    rows = size_of(parts.image, 2)
    assert isinstance(rows, int)
    pixels = add(Transpose(perm=TO_CHANNELS_LAST), parts.image)
    terms = add.shaped(pixels, (parts.count, rows, columns * number, parts.channels))
    matrix = parts.matrices.transpose(2, 1, 0).reshape(results, columns * number)
    left = add.constant(np.ascontiguousarray(matrix), f"{node.name}.parts")
    made = add(MatMul(), left, terms)
    graph.redirect(node.output, add(Transpose(perm=TO_CHANNELS_FIRST), made))
    drop(graph, node)


def _mixed(node: Node) -> tuple[int, Dim, int, int, int] | None:
    """Return the rows of a matrix, and the sizes of the image that it mixes; None for others."""
    if not isinstance(node.op, MatMul):
        return None
    matrix, shape = shape_of(node.operands[0]) or (), shape_of(node.operands[1]) or ()
    if len(matrix) != 2 or len(shape) != 4:
        return None
    mixed, (count, *sizes) = matrix[0], shape
    known = [size for size in (mixed, *sizes) if isinstance(size, int)]
    if len(known) != 4 or known[1] < MIN_CHANNELS:
        return None
    return known[0], count, known[1], known[2], known[3]


def _is_image(value: Value) -> bool:
    """Whether a tensor comes from convolutions, through nodes that keep its layout."""
    todo, seen = [value], set[Node]()
    while todo and len(seen) < MAX_STEPS:
        node = todo.pop().producer
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node.op, (Conv, ConvTranspose)):
            return True
        if isinstance(node.op, Transpose) and node.op.perm == TO_CHANNELS_FIRST:
            return True
        if is_elementwise(node.op) or isinstance(node.op, BatchNormalization):
            todo += [v for v in node.distinct_reads if shape_of(v) == shape_of(value)]
    return False
