"""Lets products that mix the rows of an image read it with channels last."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph, Node, Value
from ..ir.types import Dim
from ..ops.conv import Conv, ConvTranspose
from ..ops.matmul import MatMul
from ..ops.movement import Transpose
from ..ops.norm import BatchNormalization
from .driver import Context
from .editing import Builder, drop, shape_of
from .pointwise import is_elementwise
from .transpose_images import TO_CHANNELS_FIRST, TO_CHANNELS_LAST

#: From how many channels on convolutions store images with channels last.
MIN_CHANNELS = 8
#: Maximum number of nodes between a product and the convolution whose image it reads.
MAX_STEPS = 12


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``matrix @ image`` by ``matrix @ rows``, where rows have all columns and channels.

    Graph convolutions of traffic (Graph WaveNet, STGCN) mix the nodes of a graph, the rows of an
    image, by one matrix for all samples and channels. What is left of a sample's channel is a thin
    matrix, and many of them; with channels last, as convolutions store images, there is a wide one
    for each sample.
    """
    for node in list(graph.nodes):
        sizes = _mixed(node)
        if sizes is None or not _is_image(node.operands[1]):
            continue
        mixed, count, channels, rows, columns = sizes
        matrix, image = node.operands
        wide = columns * channels
        batch = count if isinstance(count, int) else -1
        add = Builder(graph, node, node.name, (node,))
        transposed = add(Transpose(perm=TO_CHANNELS_LAST), image)
        flat = add.shaped(transposed, (batch, rows, wide))
        made = add.shaped(add(MatMul(), matrix, flat), (batch, mixed, columns, channels))
        graph.redirect(node.output, add(Transpose(perm=TO_CHANNELS_FIRST), made))
        name = node.name
        drop(graph, node)
        yield f"MatMul '{name}' mixes rows of {wide} elements"


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
