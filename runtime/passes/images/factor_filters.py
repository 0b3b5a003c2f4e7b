"""Convolutions by constant filters that computed factors scale: images are scaled instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.conv import Conv, ConvTranspose
from ...ops.cuts import reduced_axes
from ...ops.elementwise import Mul, Pow
from ...ops.matmul import MatMul
from ...ops.movement import Transpose
from ...ops.reduce import ReduceSum
from ...ops.shape import Reshape
from ..driver import Context, Reason
from ..editing import Builder, dims_of, drop, number, unviewed
from ..fusion import refusal
from ..rounding import Unfit, rounded_bias

#: A float32 constant, and what is multiplied by it, with as many axes.
_Scaled = tuple[Array, Value]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace each Conv and ConvTranspose by filters of each image with one by constant filters.

    A style scales the channels that filters read, and a norm of the scaled filters what they give
    (StyleGAN 2 and 3): w[o, c] s[n, c] d[n, o] of image n. These factors scale the image before,
    and the result behind. The sum of squares that the norm takes is a product of s² and the sums of
    w², which need no filters of each image, either.
    """
    for node in list(graph.nodes):
        found = _factors(node) if node in graph else None
        if found is not None:
            yield _scale_images(graph, node, found)
    for node in list(graph.nodes):
        scaled = _squares(node)
        if scaled is None:
            continue
        try:
            yield _multiply_squares(graph, node, *scaled)
        except Unfit as error:
            context.refused.append(refusal(graph, {node}, Reason.NUMBERS, str(error)))


@record
class _Factors:
    """Filters of each image, in factors.

    Attributes:
        filters: the constant ones, [o, c, *kernel]; [c, o, *kernel] of a ConvTranspose.
        before: what scales images, and by how many channels, 1 or c.
        behind: what scales results, and by how many channels, 1 or o.
    """

    filters: Array
    before: list[tuple[Value, int]]
    behind: list[tuple[Value, int]]


def _factors(conv: Node) -> _Factors | None:
    """Return the factors of a convolution's filters; None if they have others."""
    if not isinstance(conv.op, Conv | ConvTranspose) or len(conv.operands) != 2:
        return None
    x, weights = conv.operands
    image, of_filters, result = (_known(value) for value in (x, weights, conv.output))
    if weights.is_constant or image is None or of_filters is None or result is None:
        return None
    images = conv.op.group
    if images > 1 and image[0] != 1:
        return None
    sizes = of_filters[0] // images, *of_filters[1:]
    first_is_input = stored = isinstance(conv.op, ConvTranspose)
    before, behind = list[tuple[Value, int]](), list[tuple[Value, int]]()
    value = unviewed(weights)
    while value.data is None:
        node, dims = value.producer, _known(value)
        if node is None or dims is None or dims[-len(sizes) :] != sizes:
            return None
        if prod(dims) != prod(of_filters):
            return None
        if isinstance(node.op, Transpose):
            if node.op.order(len(dims)) != _swapped(len(dims), len(sizes)):
                return None
            first_is_input, sizes = not first_is_input, (sizes[1], sizes[0], *sizes[2:])
            value = unviewed(node.operands[0])
            continue
        rest, factor = _parted(node, dims) if isinstance(node.op, Mul) else (None, value)
        channels = _channels(factor, len(dims), len(sizes), images)
        if rest is None or channels is None:
            return None
        inputs, outputs = channels if first_is_input else channels[::-1]
        (behind if inputs == 1 else before).append((factor, max(inputs, outputs)))
        value = unviewed(rest) if rest.data is None else rest
    known = _known(value)
    if known is None or prod(known) != prod(sizes) or known[-len(sizes) :] != sizes:
        return None
    filters = value.data.reshape(sizes)
    if first_is_input != stored:
        filters = filters.swapaxes(0, 1)
    return _Factors(filters, before, behind) if before + behind else None


def _channels(factor: Value, rank: int, axes: int, images: int) -> tuple[int, int] | None:
    """Return for how many channels a factor has elements, on the first two of some last axes.

    None if it has elements for pairs of channels, for taps, or for other images.
    """
    dims = _known(factor)
    if dims is None:
        return None
    dims = (1,) * (rank - len(dims)) + dims
    a, b, *kernel = dims[-axes:]
    fits = prod(kernel) == 1 and min(a, b) == 1 and prod(dims[:-axes]) in (1, images)
    return (a, b) if fits else None


def _swapped(rank: int, axes: int) -> tuple[int, ...]:
    """Return the axes of a tensor of which the first two of the last few change places."""
    first = rank - axes
    return (*range(first), first + 1, first, *range(first + 2, rank))


def _parted(node: Node, dims: tuple[int, ...]) -> tuple[Value | None, Value]:
    """Return the filters that a Mul scales, and their factor, which has fewer elements."""
    a, b = node.operands
    sizes = [prod(_known(value) or dims) for value in (a, b)]
    if a.data is not None or b.data is not None:
        return (a, b) if a.data is not None else (b, a)
    if sizes[0] == sizes[1]:
        return None, b
    return (a, b) if sizes[0] > sizes[1] else (b, a)


def _scale_images(graph: Graph, conv: Node, found: _Factors) -> str:
    """Replace a convolution; images that are groups of channels become images."""
    add, name = Builder(graph, conv, conv.name, (conv,)), conv.name
    assert isinstance(conv.op, Conv | ConvTranspose)
    images, (y, _), result = conv.op.group, conv.operands, conv.output.tensor.dims
    ones = (1,) * (len(result) - 2)

    def scaled(y: Value, factors: list[tuple[Value, int]]) -> Value:
        for factor, channels in factors:
            y = add(Mul(), y, add(Reshape(), factor, add.integers((-1, channels, *ones))))
        return y

    if images > 1:
        _, channels, *size = y.tensor.dims
        y = add.shaped(y, (images, channels // images, *size))
    filters = add.constant(found.filters, f"{name}.filters")
    y = add(replace(conv.op, group=1), scaled(y, found.before), filters)
    y = scaled(y, found.behind)
    graph.redirect(conv.output, add.shaped(y, result) if images > 1 else y)
    drop(graph, conv)
    return f"{conv.kind} '{name}' has constant filters, and scales images"


def _squares(node: Node) -> _Scaled | None:
    """Return constant and factor of filters of which a node adds up the squares."""
    square = node.operands[0].producer if isinstance(node.op, ReduceSum) else None
    if square is None:
        return None
    value = square.operands[0] if square.operands else None
    is_square = isinstance(square.op, Pow) and number(square.inputs[1]) == 2
    is_square = is_square or (isinstance(square.op, Mul) and square.operands[1] is value)
    product = value.producer if value is not None and is_square else None
    if product is None or not isinstance(product.op, Mul):
        return None
    for one, other in (product.operands, product.operands[::-1]):
        dims, of_factor = _known(one), _known(other)
        if one.data is None or other.data is not None or dims is None or of_factor is None:
            continue
        rank = max(len(dims), len(of_factor))
        padded = (1,) * (rank - len(dims)) + dims, (1,) * (rank - len(of_factor)) + of_factor
        # [1, o, c, *kernel] and [n, 1, c, 1, ...], added up over c and the kernel.
        fits = rank >= 3 and reduced_axes(node, rank) == (*range(2, rank),) and padded[0][0] == 1
        if fits and padded[1][1:] == (1, padded[0][2], *(1,) * (rank - 3)):
            return one.data.reshape(padded[0]), other
    return None


def _multiply_squares(graph: Graph, node: Node, filters: Array, factor: Value) -> str:
    """Replace a sum of squares of scaled filters; raises Unfit if the type cannot hold it."""
    add, name = Builder(graph, node, node.name, (node,)), node.name
    channels = filters.shape[2]
    with np.errstate(over="ignore", under="ignore"):
        sums = np.square(filters[0].astype(np.float64)).reshape(*filters.shape[1:3], -1).sum(-1)
    rounded = rounded_bias(sums, filters.dtype)
    rows = add.shaped(factor, (prod(factor.tensor.dims) // channels, channels))
    total = add(MatMul(), add(Mul(), rows, rows), add.constant(rounded.T.copy(), f"{name}.squares"))
    shaped = add.shaped(total, node.output.tensor.dims)
    graph.redirect(node.output, shaped)
    drop(graph, node)
    return f"the squares that {node.kind} '{name}' adds up are a product"


def _known(value: Value) -> tuple[int, ...] | None:
    """Return the shape of a tensor if all sizes are known."""
    return dims_of(value)
