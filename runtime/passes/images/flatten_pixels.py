"""Lets layers read flattened images with channels last, as convolutions store them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Array
from ...ops.conv import Conv, ConvTranspose
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Concat, Transpose
from ...ops.pool import AveragePool, MaxPool
from ...ops.shape import Flatten, Reshape
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of
from ..moves.transpose_images import IMAGES, Order, to_channels_last
from ..pointwise import is_elementwise

#: Maximum number of weights that are permuted: with more, planning takes longer than runs gain.
MAX_WEIGHTS = 1 << 24
#: Operators that store images with channels last.
_STORING = Conv, ConvTranspose, MaxPool, AveragePool
#: Maximum number of nodes between a convolution and the view of its image.
_NEAR = 4


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Permute the weights of layers that read the channels and pixels of an image as one axis.

    Flatten puts channels before pixels (AlexNet), and so do acoustic models that read the channels
    and frequencies of each point in time. With channels last in memory, the image would be copied
    before such a layer; with the rows of its weights in that order, it is read in place. Images of
    float32 that are only flattened stay as they are: with channels first in memory, nothing is
    copied.
    """
    halves = context.options.precision in ("float16", "bfloat16")
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, MatMul | Gemm):
            continue
        if _rewrite(graph, node, as_it_is=halves):
            yield f"the weights of '{node.name}' are in the order of an image with channels last"


def _rewrite(graph: Graph, node: Node, *, as_it_is: bool) -> bool:
    """Permute the weights of a node; `as_it_is`: also if its image is not transposed."""
    x, weight = node.operands[:2]
    flat, data = x.producer, weight.data
    if data is None or data.ndim != 2 or data.size > MAX_WEIGHTS or getattr(node.op, "transA", 0):
        return False
    if flat is None or not isinstance(flat.op, Reshape | Flatten) or not _is_alone(graph, x):
        return False
    image, order = _transposed(graph, flat.operands[0])
    if not as_it_is and image is flat.operands[0]:
        return False
    shape, rows = shape_of(image), shape_of(x)
    if shape is None or rows is None or len(shape) not in IMAGES or not is_stored(image):
        return False
    places = _flattened(shape, order, rows[-1])
    wanted = to_channels_last(len(shape))
    if places is None or (*order[: -len(places)], *sorted(places - {1}), 1) != wanted:
        return False
    first = len(order) - len(places)
    sizes = [size for axis in order[first:] if isinstance(size := shape[axis], int)]
    transpose = [order[first:].index(axis) for axis in wanted[first:]]
    across = bool(getattr(node.op, "transB", 0))
    add = Builder(graph, flat, flat.name, (flat,))
    transposed = add(Transpose(perm=wanted), image)
    value = add(with_attributes(flat.op), transposed, *flat.inputs[1:])
    matrix = graph.constant(
        _permuted(data, sizes, transpose, across=across), f"{weight.name}.pixels"
    )
    graph.set_inputs(node, (value, matrix, *node.inputs[2:]))
    drop(graph, flat)
    return True


def _is_alone(graph: Graph, value: Value) -> bool:
    return graph.sole_consumer(value) is not None


def _transposed(graph: Graph, value: Value) -> tuple[Value, Order]:
    """Return the image that a value is, perhaps transposed, and the order of its axes."""
    made, rank = value.producer, rank_of(value) or 0
    if rank and made is not None and isinstance(made.op, Transpose) and _is_alone(graph, value):
        return made.operands[0], made.op.order(rank)
    return value, tuple(range(rank))


def _flattened(shape: tuple[object, ...], order: Order, width: object) -> set[int] | None:
    """Return which axes of an image, channels among them, a view joins to one of this size."""
    for count in range(2, len(order)):
        axes = order[-count:]
        sizes = [size for axis in axes if isinstance(size := shape[axis], int)]
        if len(sizes) == count and prod(sizes) == width and 0 not in axes:
            return set(axes) if 1 in axes and prod(sizes) != shape[1] else None
    return None


def is_stored(image: Value, near: int = _NEAR) -> bool:
    """Whether an image is computed by nodes that store channels last."""
    node = image.producer
    if node is None or not near:
        return False
    if isinstance(node.op, _STORING):
        return True
    if not isinstance(node.op, Concat) and not is_elementwise(node.op):
        return False
    computed = [value for value in node.distinct_reads if value.data is None]
    same = all(shape_of(value) is not None for value in computed)
    return same and all(is_stored(value, near - 1) for value in computed)


def _permuted(data: Array, sizes: list[int], transpose: list[int], *, across: bool) -> Array:
    """Return weights [k, n], or [n, k] if `across`, with the factors of K in another order."""
    rows, columns = (len(data), 1) if across else (1, data.shape[1])
    axes = 0, *(1 + axis for axis in transpose), 1 + len(sizes)
    return data.reshape(rows, *sizes, columns).transpose(axes).reshape(data.shape)
