"""Rewrites channel shuffles as a selection of channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd, prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ops.cuts import axis_of, indices_of, sliced_places
from ...ops.gather import Gather
from ...ops.movement import Slice, Transpose
from ..driver import Context
from ..editing import Builder, drop, first_input, is_static

#: Maximum number of nodes from a tensor to its shuffled channels.
DEPTH = 6


@record
class _Walk:
    """The element of `source` for each element of a tensor.

    Attributes:
        source: a tensor of static shape.
        factors: size and stride in `source` of the factors of the tensor's axes, outermost first;
            an axis may have several, sizes of 1 are dropped.
        offset: index in `source` of the first element.
        moved: whether one of the nodes in between moves elements.
    """

    source: Value
    factors: tuple[tuple[int, int], ...]
    offset: int = 0
    moved: bool = False

    def axes(self, dims: Sequence[int]) -> list[list[tuple[int, int]]] | None:
        """Return the factors of each axis; None if an axis ends inside a factor."""
        rest = list(reversed(self.factors))
        found: list[list[tuple[int, int]]] = []
        for size in dims:
            own: list[tuple[int, int]] = []
            while size > 1:
                if not rest:
                    return None
                factor, step = rest.pop()
                part = gcd(factor, size)
                if part == 1 or part < min(factor, size):
                    return None
                own.append((part, factor // part * step))
                if factor > part:
                    rest.append((factor // part, step))
                size //= part
            found.append(own)
        return None if rest else found


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace Reshape, Transpose and Reshape by a Slice or Gather of channels.

    Exporters write ShuffleNet's shuffle in this form, and the halves extracted from it with a
    Gather, or a Slice of one place. Images may then keep their memory format, channels first or
    last.
    """
    for node in list(graph.nodes):
        if node not in graph or not _may_end(graph, node):
            continue
        walk = _walk(node.output, DEPTH)
        if walk is None or not walk.moved or walk.source is node.operands[0]:
            continue
        picked = _channels(walk, node.output.tensor.dims)
        if picked is None:
            continue
        value, path = _chosen(graph, node, walk.source, picked), _path(walk.source, node)
        new = value.producer
        assert new is not None
        graph.replace(node, [value])
        drop(graph, path[0])
        gone = [each for each in reversed(path) if each not in graph]
        new.origin = tuple(name for each in (*gone, node) for name in each.origin)
        yield f"{new.kind} '{new.name}' selects channels of '{walk.source.name}'"


def _may_end(graph: Graph, node: Node) -> bool:
    """Whether a node is the last of those that only rename axes."""
    if not is_static(node.output) or len(node.output.tensor.dims) < 3:
        return False
    readers = node.output.consumers
    return _renames(node) and not (readers and all(_renames(reader) for reader in readers))


def _renames(node: Node) -> bool:
    return node.op.view or isinstance(node.op, Transpose) or _place(node) is not None


def _place(node: Node) -> tuple[int, int, int] | None:
    """Return the axis of which a Gather or a Slice takes one of equal parts; else None.

    Behind it, the number of parts and which one it is.
    """
    source = first_input(node)
    if not isinstance(node.op, Gather | Slice) or not is_static(source) or source is None:
        return None
    dims = source.tensor.dims
    if isinstance(node.op, Gather):
        at, axis = indices_of(node), axis_of(node)
        return None if at is None or at.ndim or axis is None else (axis, dims[axis], int(at))
    places = sliced_places(node) or {}
    if len(places) != 1:
        return None
    ((axis, taken),) = places.items()
    if not taken:
        return None
    count, size = dims[axis], len(taken)
    if taken.step != 1 or count % size or taken[0] % size:
        return None
    return axis, count // size, taken[0] // size


def _walk(value: Value, depth: int) -> _Walk | None:
    """Return the element of an earlier tensor for each element of this one."""
    node = value.producer
    source = first_input(node)
    if not is_static(value) or 0 in value.tensor.dims:
        return None
    if node is None or source is None or not depth or not _renames(node) or not is_static(source):
        dims = value.tensor.dims
        steps = (prod(dims[axis + 1 :]) for axis in range(len(dims)))
        pairs = zip(dims, steps, strict=True)
        return _Walk(value, tuple((size, step) for size, step in pairs if size > 1))
    walk = _walk(source, depth - 1)
    if walk is None or node.op.view:
        return walk
    dims, place = source.tensor.dims, _place(node)
    if place is not None:
        axis, count, _ = place
        dims = (*dims[:axis], count, dims[axis] // count, *dims[axis + 1 :])
    axes = walk.axes(dims)
    if axes is None:
        return None
    if isinstance(node.op, Transpose):
        perm = [axis for axis in node.op.order(len(axes)) if axes[axis]]
        factors = tuple(f for axis in perm for f in axes[axis])
        return replace(walk, factors=factors, moved=walk.moved or perm != sorted(perm))
    return None if place is None else _picked(walk, axes, place[0], place[2])


def _picked(walk: _Walk, axes: list[list[tuple[int, int]]], axis: int, index: int) -> _Walk:
    """Return the walk after one place of an axis was taken."""
    offset = walk.offset
    for size, step in reversed(axes[axis]):
        offset += index % size * step
        index //= size
    left = axes[:axis] + axes[axis + 1 :]
    factors = tuple(f for axis in left for f in axis)
    return replace(walk, factors=factors, offset=offset, moved=True)


def _channels(walk: _Walk, dims: tuple[int, ...]) -> list[int] | None:
    """Return the source channel of each channel; None if other axes differ, too."""
    source = walk.source.tensor.dims
    axes = walk.axes(dims)
    if axes is None or len(dims) != len(source) or dims[2:] != source[2:] or dims[0] != source[0]:
        return None
    pixels = prod(source[2:])
    for axis, factors in enumerate(axes):
        if axis == 1:
            continue
        step = prod(source[axis + 1 :])
        for size, own in reversed(factors):
            if own != step:
                return None
            step *= size
    places = np.full(1, walk.offset)
    for size, step in axes[1]:
        places = (places[:, None] + np.arange(size) * step).reshape(-1)
    if (places % pixels).any() or places.min() < 0 or places.max() >= source[1] * pixels:
        return None
    return [int(place) for place in places // pixels]


def _path(source: Value, node: Node) -> list[Node]:
    """Return the nodes between a tensor that `_walk` found and `node`, the last one first."""
    found: list[Node] = []
    value = first_input(node)
    while value is not None and value is not source and value.producer is not None:
        found.append(value.producer)
        value = first_input(value.producer)
    return found


def _chosen(graph: Graph, node: Node, source: Value, channels: list[int]) -> Value:
    """Insert the selection of `channels` of `source`, before the node that it replaces."""
    first, step = channels[0], channels[1] - channels[0] if len(channels) > 1 else 1
    add = Builder(graph, node, node.name, (node,))
    if step > 0 and channels == list(range(first, first + step * len(channels), step)):
        return add.slice(source, 1, first, channels[-1] + 1, step)
    return add(Gather(axis=1), source, add.integers(channels, "channels"))
