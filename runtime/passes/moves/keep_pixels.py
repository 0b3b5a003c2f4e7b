"""Lets transposes around windows of images copy whole pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ops.conv import Conv
from ...ops.movement import Slice, Split, Transpose
from ...ops.norm import BatchNormalization
from ...ops.pool import AveragePool, MaxPool
from ...ops.shape import RESHAPES
from ..editing import Builder, drop, shape_of, size_of
from ..pointwise import is_activation
from .compose_views import rewritten, views_to
from .transpose_images import IMAGES, order_of, to_channels_first, to_channels_last

#: Operators that read and store images with channels last, and from how many channels on.
_OF_WINDOWS, _CHANNELS = (Conv, MaxPool, AveragePool), 8


def keep_pixels(graph: Graph) -> Iterator[str]:
    """Split moves of images into one of whole pixels and a Transpose that is free.

    Convolutions and poolings read and store images with channels last. Where each head of an
    attention is an image (MViT), heads are swapped with the axes of pixels before and
    behind them: with channels last in between, that copies rows instead of single elements. So it
    does where attention in blocks (HaloNet) cuts heads from the channels of pixels.
    """
    for node in list(graph.nodes):
        if not isinstance(node.op, _OF_WINDOWS):
            continue
        if _read_pixels(graph, node):
            yield f"what {node.kind} '{node.name}' reads is moved in whole pixels"
        for transpose in list(_transposes_of(node.output)):
            if _store_pixels(graph, node, transpose):
                yield f"what {node.kind} '{node.name}' stores is moved in whole pixels"


def _read_pixels(graph: Graph, node: Node) -> bool:
    """Make the image that windows read of rows of pixels, if these are moved as they are."""
    image = _behind_views(node.operands[0])
    made, readers, rank = image.producer, list(image.consumers), _rank_of(image)
    if rank is None or made is None or not isinstance(made.op, (Transpose, *RESHAPES)):
        return False
    first, chain = to_channels_first(rank), views_to(made)
    if order_of(made) == first or not any(isinstance(each.op, Transpose) for each in chain):
        return False
    if not all(isinstance(each.op, _OF_WINDOWS) or _follows(each) for each in readers):
        return False
    first_reader = min(readers, key=lambda each: each.position)
    add = Builder(graph, first_reader, made.name, (made,))
    transpose = add.node(Transpose(perm=to_channels_last(rank)), image)
    chain = views_to(transpose)
    parts = [chain[start:] for start in range(len(chain) - 1)]
    parts = [part for part in parts if _holds_pixels(part[0].operands[0], image, part)]
    rows = next((v for part in parts if (v := rewritten(graph, part, _keep_rows))), None)
    if rows is None:
        graph.remove(transpose)
        return False
    transposed = add(Transpose(perm=first), rows)
    for reader in readers:
        graph.set_inputs(
            reader, [transposed if value is image else value for value in reader.inputs]
        )
    drop(graph, made)
    return True


def _store_pixels(graph: Graph, node: Node, transpose: Sequence[Node]) -> bool:
    """Make what a Transpose gives of rows of pixels, if these are moved as they are.

    Linear attention cuts queries, keys and values from heads of an image, which it reads itself.
    """
    rank = _rank_of(node.output)
    if rank is None or (len(transpose) == 1 and order_of(transpose[0]) == to_channels_last(rank)):
        return False
    cut = any(isinstance(each.op, (Slice, Split)) for each in transpose[-1].output.consumers)
    if cut or not _holds_pixels(transpose[-1].output, node.output, transpose):
        return False
    add = Builder(graph, transpose[0], transpose[-1].name, tuple(transpose))
    rows = add(Transpose(perm=to_channels_last(rank)), node.output)
    back = add.node(Transpose(perm=to_channels_first(rank)), rows)
    made = rewritten(graph, [back, *transpose], _keep_rows)
    drop(graph, back)
    return made is not None


def _behind_views(image: Value) -> Value:
    """Return the image that nodes of any order make another one of, one after the other."""
    while (node := image.producer) is not None and _follows(node) and len(image.consumers) == 1:
        image = node.operands[0]
    return image


def _follows(node: Node) -> bool:
    """Whether a node treats the elements of one image alone, in whichever order they are."""
    return is_activation(node) or isinstance(node.op, BatchNormalization)


def _transposes_of(image: Value) -> Iterator[list[Node]]:
    """Yield the transposes of an image, and of views of it, each with the views before."""
    for reader in image.consumers:
        if isinstance(reader.op, Transpose):
            yield [reader]
        elif isinstance(reader.op, RESHAPES):
            yield from ([reader, each] for each in reader.output.consumers if order_of(each))


def _rank_of(image: Value) -> int | None:
    """Return the rank of an image with enough channels to have them last in memory."""
    shape = shape_of(image)
    if shape is None or len(shape) not in IMAGES or not isinstance(shape[1], int):
        return None
    return len(shape) if shape[1] >= _CHANNELS else None


def _holds_pixels(rows: Value, image: Value, moves: Sequence[Node]) -> bool:
    """Whether the last axis consists of whole pixels, or of heads of pixels that move in blocks.

    Heads that are only swapped with all pixels are read by kernels of attention as they are.
    """
    last, channels = size_of(rows, -1), size_of(image, 1)
    if not isinstance(last, int) or not isinstance(channels, int):
        return False
    in_blocks = any(len(order_of(each) or ()) > max(IMAGES) for each in moves)
    return last % channels == 0 or (in_blocks and last >= _CHANNELS and channels % last == 0)


def _keep_rows(ops: Sequence[Op]) -> bool:
    """Whether transposes leave the last axis where it is."""
    perms = [op.perm for op in ops if isinstance(op, Transpose)]
    return all(perm and perm[-1] == len(perm) - 1 for perm in perms)
