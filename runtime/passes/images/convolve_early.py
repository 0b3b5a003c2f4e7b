"""Convolves what pixels of an image share before it is repeated, and images before they grow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS, float16
from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv
from ...ops.cuts import axis_of
from ...ops.elementwise import Add
from ...ops.movement import Concat, Expand
from ...ops.resize import Resize
from ..driver import Context
from ..editing import Builder, drop, dtype_of, shape_of, size_of, static_dims, static_size
from .channels import rescales

#: How many filters there are at most for a channel that is repeated: their sums are added to all.
_FILTERS = 2
#: Minimum elements of resized images for convolutions before: to store and to read fewer takes less
#: time than another launch.
_LARGE = 1 << 20


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``conv(concat(x, expand(c)))`` by ``conv(x) + conv(c)`` for single pixels.

    Statistics beside each frame (attentive pooling of ECAPA-TDNN), features of a whole cloud beside
    those of each point (PointNet), or of a whole image (DeepLab) are convolved once. Likewise,
    ``conv(concat(x, resize(z)))`` is ``conv(x) + resize(conv(z))`` where z has fewer pixels and no
    fewer channels than there are filters (heads of SegFormer and HRNet, DPT): a resize weighs
    positions, a convolution of single pixels weighs channels, in either order. Not in float16,
    which may lack a term of a sum that it has; see `multiply_early`.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Conv):
            continue
        parts = _parts(graph, node)
        kinds = {type(part) for part in parts}
        if Repeated in kinds and not _pays(node, parts):
            parts = [Part(part.value) if isinstance(part, Repeated) else part for part in parts]
            kinds = {type(part) for part in parts}
        if kinds & {Repeated, Resized} and kinds != {Repeated}:
            early = sum(part.channels for part in parts if type(part) is not Part)
            _rewrite(graph, node, parts)
            yield f"{early} channels of the image of '{node.name}' are convolved early"


@record
class Part:
    """Channels of an image that are convolved as they are."""

    value: Value

    @property
    def channels(self) -> int:
        """How many there are."""
        width = size_of(self.value, 1)
        return width if isinstance(width, int) else 0


@record
class Repeated(Part):
    """Channels that one computed pixel has for all others.

    Attributes:
        source: the pixel.
    """

    source: Value


@record
class Resized(Part):
    """Channels of an image that had fewer pixels.

    Attributes:
        source: that image.
        op: the Resize, along the axes of positions only.
        scales: by axis; none where sizes are given.
    """

    source: Value
    op: Resize
    scales: tuple[float, ...]

    @property
    def how(self) -> tuple[object, ...]:
        """What images that are resized alike have in common."""
        sizes = (tuple((shape_of(value) or ())[2:]) for value in (self.source, self.value))
        return self.op, self.scales, *sizes

    def resized(self, add: Builder, image: Value) -> Value:
        """Return an image of other channels, resized in the same way."""
        if self.scales:
            scales = add.constant(np.array(self.scales, np.float32), "scales")
            return add(self.op, image, None, scales)
        sizes = static_dims((shape_of(self.value) or ())[2:]) or ()
        return add(self.op, image, None, None, add.integers(sizes, "sizes"))


def _parts(graph: Graph, conv: Node) -> list[Part]:
    """Return what a convolution of single pixels alone reads, part by part; [] of others."""
    x = conv.operands[0]
    if not _fits(conv) or graph.sole_consumer(x) is not conv or dtype_of(x) in (None, float16):
        return []
    made = x.producer
    joined = made is not None and isinstance(made.op, Concat) and axis_of(made) == 1
    values = made.operands if made is not None and joined else (x,)
    parts = [_part(graph, value) for value in values]
    groups = _groups(parts)
    filters = size_of(conv.output, 1)
    for group in groups:
        elements = sum(_elements(part.value) for part in group)
        few = isinstance(filters, int) and filters <= sum(part.channels for part in group)
        if not few or elements < _LARGE:
            parts = [Part(part.value) if part in group else part for part in parts]
    return parts if all(part.channels for part in parts) else []


def _fits(conv: Node) -> bool:
    """Whether a convolution is one of single pixels by constant filters."""
    assert isinstance(conv.op, Conv)
    weights, *bias = conv.operands[1:]
    if weights.data is None or weights.data.ndim < 3 or any(each.data is None for each in bias):
        return False
    if set(weights.data.shape[2:]) != {1} or conv.op.group != 1 or any(conv.op.pads or ()):
        return False
    return set(conv.op.strides or (1,)) == {1} and dtype_of(conv.operands[0]) in FLOATS


def _part(graph: Graph, value: Value) -> Part:
    """Return channels of an image with what they are made of."""
    node = value.producer
    if node is None or not isinstance(node.op, Expand | Resize):
        return Part(value)
    x = node.operands[0]
    before, after = shape_of(x) or (), shape_of(value) or ()
    if x.data is not None or before[:2] != after[:2] or len(before) != len(after):
        return Part(value)
    if isinstance(node.op, Expand):
        return Repeated(value, x) if set(before[2:]) == {1} else Part(value)
    crops = node.op.coordinate_transformation_mode == "tf_crop_and_resize"
    if crops or node.op.mode == "cubic" or dtype_of(x) not in FLOATS or rescales(node, 0, 1):
        return Part(value)
    if set(before[2:]) == {1}:
        return Repeated(value, x)
    return _resized(graph, value, node) or Part(value)


def _resized(graph: Graph, value: Value, node: Node) -> Resized | None:
    """Return an image that a Resize to more pixels makes for one node, along all their axes."""
    op, (x, *_) = node.op, node.operands
    assert isinstance(op, Resize)
    old, new = (static_dims((shape_of(each) or ())[2:]) for each in (x, value))
    if not old or not new or old == new or graph.sole_consumer(value) is None:
        return None
    if any(a > b for a, b in zip(old, new, strict=True)):
        return None
    rank = len(old) + 2
    axes = tuple(range(rank)) if op.axes is None else tuple(axis % rank for axis in op.axes)
    scales, own = (*node.inputs, None, None)[2], tuple(range(2, rank))
    if scales is None or not scales.tensor.size:
        alike = op.keep_aspect_ratio_policy == "stretch"
        return Resized(value, x, replace(op, axes=own), ()) if alike else None
    if scales.data is None or not set(axes) >= set(own):
        return None
    factors = tuple(float(scales.data[axes.index(axis)]) for axis in own)
    return Resized(value, x, replace(op, axes=own), factors)


def _elements(value: Value) -> int:
    """Return how many elements an image has; of one sample if their number is unknown."""
    dims = shape_of(value) or ()
    return static_size(dims) or static_size(dims[1:]) or 0


def _groups(parts: Sequence[Part]) -> Iterable[list[Resized]]:
    """Return parts that are resized alike, which are convolved as one image."""
    groups = dict[tuple[object, ...], list[Resized]]()
    for part in parts:
        if isinstance(part, Resized):
            groups.setdefault(part.how, []).append(part)
    return groups.values()


def _pays(conv: Node, parts: Sequence[Part]) -> bool:
    """Whether sums of single pixels' filters cost less than their channels would."""
    early = sum(part.channels for part in parts if isinstance(part, Repeated))
    filters = size_of(conv.output, 1)
    return isinstance(filters, int) and filters <= _FILTERS * early


def _rewrite(graph: Graph, node: Node, parts: Sequence[Part]) -> None:
    x, weights, *bias = node.operands
    filters = weights.data
    assert filters is not None
    add = Builder(graph, node, node.name, (node,))
    ends = [0, *np.cumsum([part.channels for part in parts]).tolist()]
    places = dict(zip(map(id, parts), pairwise(ends), strict=True))

    def convolved(chosen: Sequence[Part], rest: Sequence[Value]) -> Value:
        values = [
            part.source if isinstance(part, Repeated | Resized) else part.value for part in chosen
        ]
        image = values[0] if len(values) == 1 else add(Concat(axis=1), *values)
        spans = [places[id(part)] for part in chosen]
        data = np.concatenate([filters[:, first:last] for first, last in spans], 1)
        return add(node.op, image, add.constant(data, f"{weights.name}.early"), *rest)

    def plus(total: Value | None, more: Value | None) -> Value | None:
        return add(Add(), total, more) if total and more else total or more

    repeated, whole = ([part for part in parts if type(part) is kind] for kind in (Repeated, Part))
    pixel = convolved(repeated, [] if whole else bias) if repeated else None
    total = plus(convolved(whole, bias) if whole else None, pixel)
    for group in _groups(parts):
        image = convolved(group, bias if total is None else [])
        total = plus(total, group[0].resized(add, image))
    assert total is not None
    made = total.producer
    assert made is not None
    graph.replace(node, [total])
    drop(graph, x.producer)
    graph.rename(made, node.name)
