"""Expresses images made of rows, and rows made of images, by a Transpose of all their axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim, TensorType
from ...ops.conv import Conv, ConvTranspose
from ...ops.matmul import MatMul
from ...ops.movement import Slice, Split, Transpose
from ...ops.shape import RESHAPES, Reshape
from ..editing import Builder, drop, shape_of, static_dims, static_size
from ..pointwise import by_place

Order = tuple[int, ...]

#: NHWC to NCHW: a tensor in either order may be stored as the other one requires.
TO_CHANNELS_FIRST = (0, 3, 1, 2)
TO_CHANNELS_LAST = (0, 2, 3, 1)
#: Ranks of images of pixels in a plane, or of planes.
IMAGES = (4, 5)


def transpose_images(graph: Graph) -> Iterator[str]:
    """Rewrite ``transpose(reshape(image))`` to rows of pixels, and its inverse, with all axes."""
    for node in list(graph.nodes):
        if node not in graph:
            continue
        source = node.inputs[0].producer if node.inputs and node.inputs[0] else None
        if source is None or not source.inputs or source.inputs[0] is None:
            continue
        before, between, after = map(shape_of, (source.inputs[0], node.inputs[0], node.output))
        if not before or not between or not after or 0 in (*before, *between, *after):
            continue
        add = Builder(graph, node, node.name, (node,))
        if (heads := _heads(add, node, source)) is not None:
            value = heads
        elif _swaps_last(node) and isinstance(source.op, RESHAPES) and len(before) in IMAGES:
            *outer, channels, _ = between
            same = tuple(outer) == before[:1] or static_size(outer) == before[0]
            if not same or None in outer or channels != before[1] or channels is None:
                continue
            if not isinstance(channels, int):
                continue
            transposed = add(Transpose(perm=to_channels_last(len(before))), source.inputs[0])
            counts = (0,) if len(outer) == 1 else (n for n in outer if isinstance(n, int))
            sizes = add.integers((*counts, -1, channels), f"{node.name}.shape")
            value = add(Reshape(), transposed, sizes)
        elif isinstance(node.op, RESHAPES) and _swaps_last(source) and len(after) in IMAGES:
            sizes = [size if isinstance(size, int) else -1 for size in after[2:]]
            *outer, channels, _ = between
            same = len(between) == 3 and outer[0] is not None and outer[0] == after[0]
            if not same and (static_size(outer) is None or static_size(outer) != after[0]):
                continue
            if channels != after[1] or sizes.count(-1) > 1 or not isinstance(channels, int):
                continue
            if any(_multiplies_rows(reader, node.output) for reader in node.output.consumers):
                continue
            images = 0 if same else static_size(outer)
            shape = add.integers((images or 0, *sizes, channels), f"{node.name}.shape")
            transpose = Transpose(perm=to_channels_first(len(after)))
            value = add(transpose, add(Reshape(), source.inputs[0], shape))
        elif (windows := _windows(add, node, source)) is not None:
            value = windows
        elif (moved := _pixels_moved(add, node, source)) is not None:
            value = moved
        else:
            continue
        name = node.name
        graph.redirect(node.output, value)
        drop(graph, node)
        yield f"'{name}' makes rows of an image, or an image of rows, with a Transpose of all axes"


def _multiplies_rows(node: Node, value: Value) -> bool:
    """Whether a product reads a value by rows of its last axis, as no image is read."""
    return isinstance(node.op, MatMul) and node.operands[0] is value


def to_channels_first(rank: int) -> Order:
    """Return the permutation of an image with channels last to one with channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def to_channels_last(rank: int) -> Order:
    """Return the permutation of an image with channels first to one with channels last."""
    return (0, *range(2, rank), 1)


def _windows(add: Builder, node: Node, source: Node) -> Value | None:
    """Return windows of an image with channels last, or an image of such windows, by way of rows.

    The axes of an image [n, c, height, width] are split, and c moves from the second axis to the
    last; or c comes from the last axis, and the others are merged.
    """
    x = source.inputs[0]
    before, between, after = map(shape_of, (x, node.inputs[0], node.output))
    if x is None or not before or not between or not after:
        return None
    rank = len(between)
    if static_dims((*before, *between, *after)) is None or rank < 5:
        return None
    inner = range(2, rank)
    first, second = order_of(source), order_of(node)
    if second and isinstance(source.op, RESHAPES) and len(before) == 4:
        cut = between[:2] == before[:2] and second[0] == 0 and second[-1] == 1
        if not cut or set(second[1:-1]) != set(inner):
            return None
        rows = add(Transpose(perm=TO_CHANNELS_LAST), x)
        rows = add(Reshape(), rows, add.integers((*_ints(between, 0, *inner, 1),), "windows"))
        return add(Transpose(perm=(0, *(axis - 1 for axis in second[1:-1]), rank - 1)), rows)
    if first and isinstance(node.op, RESHAPES) and len(after) == 4:
        joined = between[:2] == after[:2] and first[:2] == (0, rank - 1)
        if not joined or set(first[2:]) != set(range(1, rank - 1)):
            return None
        rows = add(Transpose(perm=(0, *first[2:], rank - 1)), x)
        rows = add(Reshape(), rows, add.integers((*_ints(after, 0, 2, 3, 1),), "rows"))
        return add(Transpose(perm=TO_CHANNELS_FIRST), rows)
    return None


def _heads(add: Builder, node: Node, source: Node) -> Value | None:
    """Return the pixels of an image by heads [n, heads, pixels, size], or an image of such rows.

    Channels are heads times their sizes; the rows in between have them together, as layers do.
    Linear attention cuts queries, keys and values from heads of an image, which it reads itself.
    Samples and heads may share an axis.
    """
    before, between, after = map(shape_of, (source.inputs[0], node.inputs[0], node.output))
    x = source.inputs[0]
    if x is None or not before or not between or not after or len(between) not in (3, 4):
        return None
    if static_dims((*before, *between, *after)) is None:
        return None
    image = before if isinstance(source.op, RESHAPES) else after
    (n,), (batch, *_, size, pixels) = _ints(image, 0), _ints(between, *range(len(between)))
    heads = batch // n if len(between) == 3 else _ints(between, 1)[0]
    if prod(_ints(between, *range(len(between) - 2))) != n * heads or heads == 1:
        return None
    if _swaps_last(node) and isinstance(source.op, RESHAPES) and len(before) in IMAGES:
        cut = any(isinstance(each.op, (Slice, Split)) for each in node.output.consumers)
        if _ints(before, 0, 1) != [n, heads * size] or cut:
            return None
        rows = add(Transpose(perm=to_channels_last(len(before))), x)
        rows = add(Reshape(), rows, add.integers((n, pixels, heads, size), "heads"))
        transposed = add(Transpose(perm=(0, 2, 1, 3)), rows)
        return transposed if len(after) == 4 else add.view(transposed, after)
    if isinstance(node.op, RESHAPES) and order_of(source) == (0, 2, 3, 1) and len(after) in IMAGES:
        if _ints(after, 0, 1) != [n, heads * size]:
            return None
        rows = add(Reshape(), x, add.integers(_ints(after, *to_channels_last(len(after))), "rows"))
        return add(Transpose(perm=to_channels_first(len(after))), rows)
    return None


def _pixels_moved(add: Builder, node: Node, source: Node) -> Value | None:
    """Return an image whose elements are in another order, by way of rows.

    The axes of an image [n, c, height, width] are split, permuted and merged to three again: its
    pixels are in another order (MobileViTv2), or those of a block are channels of one pixel
    (PixelUnshuffle) of what a convolution stores with channels last.
    """
    cut = source.inputs[0].producer if source.inputs[0] is not None else None
    if cut is None or not isinstance(cut.op, RESHAPES) or not isinstance(node.op, RESHAPES):
        return None
    image = cut.inputs[0]
    before, between, after = map(shape_of, (image, source.inputs[0], node.output))
    order = order_of(source)
    if image is None or not before or not between or not after or not order or order[0]:
        return None
    known = static_dims((*before, *between, *after))
    if known is None or len(before) != 4 or len(after) != 4 or len(between) < 5:
        return None
    if not before[0] == between[0] == after[0]:
        return None
    given = _runs(before[1:], between[1:], range(1, len(between)))
    wanted = _runs(after[1:], [between[axis] for axis in order[1:]], order[1:])
    if given is None or wanted is None or given[1:] == wanted[1:]:
        return None
    if given[0] != wanted[0] and not _is_convolved(image):
        return None
    axes, moved = ([0, *height, *width, *own] for own, height, width in (given, wanted))
    rows = add(Transpose(perm=TO_CHANNELS_LAST), image)
    rows = add(Reshape(), rows, add.integers((*_ints(between, *axes),), "cut"))
    rows = add(Transpose(perm=tuple(axes.index(axis) for axis in moved)), rows)
    rows = add(Reshape(), rows, add.integers((*_ints(after, 0, 2, 3, 1),), "rows"))
    return add(Transpose(perm=TO_CHANNELS_FIRST), rows)


def _runs(
    sizes: Sequence[Dim], parts: Sequence[Dim], axes: Sequence[int]
) -> list[list[int]] | None:
    """Return which axes, of these sizes, each axis of a tensor consists of; None if some differ."""
    found: list[list[int]] = []
    rest = list(zip(_ints(parts, *range(len(parts))), axes, strict=True))
    for size in _ints(sizes, *range(len(sizes))):
        run, product = list[int](), 1
        while rest and product < size:
            part, axis = rest.pop(0)
            run.append(axis)
            product *= part
        if product != size:
            return None
        found.append(run)
    return found if not rest else None


def _is_convolved(value: Value) -> bool:
    """Whether a convolution makes an image, or elementwise nodes behind one."""
    node = value.producer
    while node is not None and by_place(node):
        node = node.operands[0].producer
    return node is not None and isinstance(node.op, Conv | ConvTranspose)


def _ints(sizes: Sequence[Dim], *places: int) -> list[int]:
    return [size for place in places if isinstance(size := sizes[place], int)]


def order_of(node: Node) -> Order | None:
    """Return the order of a Transpose; None for other nodes or unknown rank."""
    if not isinstance(node.op, Transpose):
        return None
    type_ = node.output.type
    rank = type_.rank if isinstance(type_, TensorType) else None
    return None if rank is None else node.op.order(rank)


def _swaps_last(node: Node) -> bool:
    """Whether a Transpose swaps the last two axes."""
    order = order_of(node)
    return order is not None and order == (*range(len(order) - 2), len(order) - 1, len(order) - 2)
