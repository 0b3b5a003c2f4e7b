"""Convolves what all pixels of an image share before it is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..ir.dtypes import FLOATS, float16
from ..ir.graph import Graph, Node, Value
from ..ops.conv import Conv
from ..ops.cuts import axis_of
from ..ops.elementwise import Add
from ..ops.movement import Concat, Expand
from ..ops.resize import Resize
from .driver import Context
from .editing import Builder, drop, dtype_of, shape_of, size_of

#: How many filters there are at most for a channel that is repeated: their sums are added to all.
_FILTERS = 2


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``conv(concat(x, expand(c)))`` by ``conv(x) + conv(c)`` for single pixels.

    Statistics beside each frame (attentive pooling of ECAPA-TDNN), features of a whole cloud beside
    those of each point (PointNet), or of a whole image (DeepLab) are convolved once. Not in
    float16, which may lack a term of a sum that it has; see `multiply_early`.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Conv):
            continue
        concat = node.operands[0].producer
        if concat is None or not isinstance(concat.op, Concat) or not _fits(graph, node, concat):
            continue
        sources = [_source(value) for value in concat.operands]
        widths = [_channels(value) for value in concat.operands]
        early = sum(width for width, source in zip(widths, sources, strict=True) if source)
        filters = size_of(node.output, 1)
        few = isinstance(filters, int) and filters <= _FILTERS * early
        if all(widths) and early and not all(sources) and few:
            _rewrite(graph, node, concat, sources, widths)
            yield f"{early} channels of the image of '{node.name}' are convolved early"


def _fits(graph: Graph, node: Node, concat: Node) -> bool:
    """Whether a convolution of single pixels alone reads channels that are joined."""
    assert isinstance(node.op, Conv)
    assert isinstance(concat.op, Concat)
    weights, *bias = node.operands[1:]
    rank = len(shape_of(concat.output) or ())
    if weights.data is None or any(each.data is None for each in bias) or rank < 3:
        return False
    if set(weights.data.shape[2:]) != {1} or node.op.group != 1 or any(node.op.pads or ()):
        return False
    steps = set(node.op.strides or (1,))
    alone = graph.sole_consumer(concat.output) is node
    known = dtype_of(concat.output) in FLOATS - {float16}
    return alone and known and steps == {1} and axis_of(concat) == 1


def _source(value: Value) -> Value | None:
    """Return the single pixel that is repeated to an image, computed; None if there is none."""
    node = value.producer
    if node is None or not isinstance(node.op, Expand | Resize):
        return None
    x = node.operands[0]
    before, after = shape_of(x) or (), shape_of(value) or ()
    if x.data is not None or len(before) != len(after) or before[:2] != after[:2]:
        return None
    if isinstance(node.op, Resize):
        crops = node.op.coordinate_transformation_mode == "tf_crop_and_resize"
        if crops or node.op.mode == "cubic" or dtype_of(x) not in FLOATS:
            return None
    return x if set(before[2:]) == {1} else None


def _channels(value: Value) -> int:
    width = size_of(value, 1)
    return width if isinstance(width, int) else 0


def _rewrite(
    graph: Graph,
    node: Node,
    concat: Node,
    sources: list[Value | None],
    widths: list[int],
) -> None:
    weights, *bias = node.operands[1:]
    filters = weights.data
    assert filters is not None
    add = Builder(graph, node, node.name, (node,))
    ends = [0, *np.cumsum(widths).tolist()]
    parts = list(zip(concat.operands, sources, pairwise(ends), strict=True))

    def convolved(chosen: list[tuple[Value, tuple[int, int]]], *rest: Value) -> Value:
        values = [value for value, _ in chosen]
        x = values[0] if len(values) == 1 else add(Concat(axis=1), *values)
        data = np.concatenate([filters[:, first:last] for _, (first, last) in chosen], 1)
        return add(node.op, x, add.constant(data, f"{weights.name}.early"), *rest)

    pixel = convolved([(source, ends) for _, source, ends in parts if source is not None])
    image = convolved([(value, ends) for value, source, ends in parts if source is None], *bias)
    total = add(Add(), image, pixel)
    made = total.producer
    assert made is not None
    graph.replace(node, [total])
    drop(graph, concat)
    graph.rename(made, node.name)
