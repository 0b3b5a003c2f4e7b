"""Convolutions by constant filters that computed factors scale: images are scaled instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array
from ..ops.conv import Conv
from ..ops.elementwise import Mul, Pow
from ..ops.matmul import MatMul
from ..ops.reduce import ReduceSum
from ..ops.shape import Reshape, Squeeze, Unsqueeze
from ..ops.shapes import normalize_axes
from .driver import Context, Reason
from .editing import Builder, drop, number, shape_of, static_dims
from .fusion import refusal
from .rounding import Unfit, rounded_bias

_VIEWS = Reshape | Squeeze | Unsqueeze
#: A float32 constant, and what is multiplied by it, with as many axes.
_Scaled = tuple[Array, Value]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace each Conv by filters of each image with one by constant filters.

    A style scales the channels that filters read, and a norm of the scaled filters what they give
    (StyleGAN 2 and 3): w[o, c] s[n, c] d[n, o] of image n. These factors scale the image before,
    and the result behind. The sum of squares that the norm takes is a product of s² and the sums of
    w², which need no filters of each image, either.
    """
    for node in list(graph.nodes):
        found = _factors(graph, node) if node in graph else None
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


@dataclass(frozen=True, slots=True)
class _Factors:
    """Filters of each image, in factors.

    Attributes:
        filters: the constant ones, [o, c, *kernel].
        before: what scales images, and by how many channels, 1 or c.
        behind: what scales results, and by how many channels, 1 or o.
        source: the images.
        last: the last node that is replaced.
    """

    filters: Value
    before: list[tuple[Value, int]]
    behind: list[tuple[Value, int]]
    source: Value
    last: Node


def _factors(graph: Graph, conv: Node) -> _Factors | None:
    """Return the factors of a convolution's filters; None if they have others."""
    if not isinstance(conv.op, Conv) or len(conv.operands) != 2 or conv.operands[1].is_constant:
        return None
    x, weights = conv.operands
    image, of_filters, result = (_known(value) for value in (x, weights, conv.output))
    if image is None or of_filters is None or result is None:
        return None
    images = conv.op.group
    outputs, channels = of_filters[0] // images, of_filters[1]
    before, behind = list[tuple[Value, int]](), list[tuple[Value, int]]()
    value = _source(weights)
    while value.data is None:
        node, dims = value.producer, _known(value)
        if node is None or not isinstance(node.op, Mul) or dims is None:
            return None
        if dims[-len(of_filters) :] != (outputs, *of_filters[1:]) or prod(dims) != prod(of_filters):
            return None
        rest, factor = _parted(node, dims)
        of_factor = _known(factor)
        if rest is None or of_factor is None:
            return None
        of_factor = (1,) * (len(dims) - len(of_factor)) + of_factor
        outer, (o, c, *kernel) = of_factor[: -len(of_filters)], of_factor[-len(of_filters) :]
        if prod(kernel) > 1 or min(o, c) > 1 or prod(outer) not in (1, images):
            return None
        (behind if c == 1 else before).append((factor, max(o, c)))
        value = _source(rest) if rest.data is None else rest
    known = _known(value)
    if known is None or prod(known) != prod(of_filters) // images or not before + behind:
        return None
    if known[-len(of_filters) :] != (outputs, *of_filters[1:]):
        return None
    if images == 1:
        return _Factors(value, before, behind, x, conv)
    made, reader = x.producer, graph.sole_consumer(conv.output)
    if made is None or reader is None or not isinstance(made.op, Reshape):
        return None
    apart = (images, channels, *image[2:]), (images, outputs, *result[2:])
    source = made.operands[0]
    views = isinstance(reader.op, Reshape) and (_known(source), _known(reader.output)) == apart
    return _Factors(value, before, behind, source, reader) if views else None


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
    """Replace a convolution."""
    add, name = Builder(graph, found.last, conv.name, (conv,)), conv.name
    outputs, *window = conv.operands[1].tensor.dims
    outputs //= conv.op.group if isinstance(conv.op, Conv) else 1
    ones = (1,) * len(window[1:])
    data = found.filters.data
    assert data is not None
    assert isinstance(conv.op, Conv)
    y = found.source
    for factor, channels in found.before:
        y = add(Mul(), y, add(Reshape(), factor, add.integers((-1, channels, *ones))))
    filters = add.constant(data.reshape(outputs, *window), f"{name}.filters")
    y = add(replace(conv.op, group=1), y, filters)
    for factor, channels in found.behind:
        y = add(Mul(), y, add(Reshape(), factor, add.integers((-1, channels, *ones))))
    graph.redirect(found.last.output, y)
    drop(graph, found.last)
    return f"Conv '{name}' has constant filters, and scales images"


def _squares(node: Node) -> _Scaled | None:
    """Return constant and factor of filters of which a node adds up the squares."""
    square = node.operands[0].producer if isinstance(node.op, ReduceSum) else None
    if square is None or len(node.inputs) < 2 or node.operands[1].data is None:
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
        axes = normalize_axes([int(n) for n in node.operands[1].data], rank)
        # [1, o, c, *kernel] and [n, 1, c, 1, ...], added up over c and the kernel.
        fits = rank >= 3 and sorted(axes) == list(range(2, rank)) and padded[0][0] == 1
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


def _source(value: Value) -> Value:
    """Return a value without the views of it."""
    while value.producer is not None and isinstance(value.producer.op, _VIEWS):
        value = value.producer.operands[0]
    return value


def _known(value: Value) -> tuple[int, ...] | None:
    """Return the shape of a tensor if all sizes are known."""
    return static_dims(shape_of(value))
