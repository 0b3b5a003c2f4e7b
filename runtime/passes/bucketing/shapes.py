"""Operators in buckets that change shapes, or create tensors of a given shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from ...ir.graph import Node, Value
from ...ir.grown import Grown
from ...ir.types import Array, Dim
from ...ops.elementwise import (
    Add,
    Clip,
    Div,
    Mod,
    Mul,
)
from ...ops.gather import Gather
from ...ops.movement import Expand, Tile
from ...ops.shape import (
    ConstantOfShape,
    Flatten,
    Range,
    Reshape,
    Squeeze,
)
from ...ops.shapes import product
from .registry import rule
from .writer import GraphWriter, operand


@rule(Reshape, Flatten, Squeeze)
def reshape(writer: GraphWriter, node: Node) -> None:
    """Valid elements stay at the front if the growing axis is the outermost of those merged.

    Otherwise padding would come between valid elements, which are then gathered one by one.
    """
    x, wanted = operand(node, 0), writer.dims(node.output)
    if _keeps_fronts(writer, writer.dims(x), wanted):
        value = x
    else:
        flat = writer.add(Reshape(), x, writer.constant([-1]))
        value = writer.add(Gather(), flat, _sources(writer, writer.dims(x), wanted))
    shape = writer.constant(writer.shape(wanted))
    writer.replace(writer.add(Reshape(allowzero=1), value, shape))


def _keeps_fronts(writer: GraphWriter, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether elements at the front of each axis of one shape are at the front in another."""
    if 0 in a or 0 in b:
        return True
    rest = [list(writer.shape(a)), list(writer.shape(b))]
    sizes = [list(a), list(b)]
    while sizes[0] or sizes[1]:
        groups: list[list[Dim]] = [[], []]
        counts = [1, 1]
        while not (groups[0] or groups[1]) or counts[0] != counts[1]:
            side = 0 if (counts[0] <= counts[1] and sizes[0]) or not sizes[1] else 1
            if not sizes[side]:
                return False
            groups[side].append(sizes[side].pop(0))
            counts[side] *= rest[side].pop(0)
        for group in groups:
            grown = [i for i, size in enumerate(group) if isinstance(size, Grown)]
            if len(grown) > 1 or any(group[i] != 1 for i in range(grown[0] if grown else 0)):
                return False
        if product(groups[0]) != product(groups[1]):
            return False
    return True


def _sources(writer: GraphWriter, a: Sequence[Dim], b: Sequence[Dim]) -> Value:
    """Return where each element of one shape is in the flat elements of another: int64."""
    old, new = (_parted(writer, dims) for dims in (a, b))
    places: Array = np.arange(new.before * new.room * new.behind).reshape(-1, new.room, new.behind)
    outer, rest = np.divmod(places.reshape(-1), new.room * new.behind)
    size = writer.true_sizes((new.size,))
    at = writer.add(Mul(), size, writer.constant(outer * new.behind))
    at = writer.add(Add(), at, writer.constant(rest))
    inner = writer.constant([old.behind])
    row, last = writer.add(Div(), at, inner), writer.add(Mod(), at, inner)
    length = writer.true_sizes((old.size,))
    group, index = writer.add(Div(), row, length), writer.add(Mod(), row, length)
    found = writer.add(Mul(), group, writer.constant([old.room]))
    found = writer.add(Mul(), writer.add(Add(), found, index), inner)
    found = writer.add(Add(), found, last)
    count = old.before * old.room * old.behind
    return writer.add(Clip(), found, None, writer.constant(count - 1))


class _Parted(NamedTuple):
    """A shape with one growing axis.

    Attributes:
        before: elements along the axes before it.
        size: its size.
        room: its size in the bucket.
        behind: elements along the axes after it.
    """

    before: int
    size: Grown
    room: int
    behind: int


def _parted(writer: GraphWriter, dims: Sequence[Dim]) -> _Parted:
    axes = [(i, size) for i, size in enumerate(dims) if isinstance(size, Grown)]
    if len(axes) != 1:
        raise writer.error(f"{len(axes)} of the axes that it merges or splits grow")
    ((axis, size),) = axes
    fixed = writer.shape(dims)
    return _Parted(prod(fixed[:axis]), size, fixed[axis], prod(fixed[axis + 1 :]))


@rule(Expand)
def expand(writer: GraphWriter, node: Node) -> None:
    """The shape is the bucket's; broadcast elements are valid wherever they are read."""
    x = writer.read(node.inputs[0])
    writer.set_inputs([x, writer.constant(writer.shape(writer.dims(node.output)))])


@rule(ConstantOfShape)
def constant_of_shape(writer: GraphWriter, node: Node) -> None:
    """All elements are equal."""
    writer.set_inputs([writer.constant(writer.shape(writer.dims(node.output)))])


@rule(Tile)
def tile(writer: GraphWriter, node: Node) -> None:
    """Copies are adjacent, which copies of a growing axis would not be."""
    x, counts = operand(node, 0), writer.known(node.inputs[1])
    if counts is None:
        raise writer.error("its repeats are not known")
    if any(counts[axis] != 1 for axis in writer.grown(x)):
        raise writer.error("it repeats an axis that grows")
    writer.set_inputs([writer.read(x), writer.constant(writer.shape(counts))])


@rule(Range)
def range_(writer: GraphWriter, node: Node) -> None:
    """The first number may be data; the count is the bucket's."""
    start, _, step = (operand(node, i) for i in range(3))
    by = writer.numbers(step)
    (size,) = writer.dims(node.output)
    if by is None:
        raise writer.error("its step is not known")
    dtype = node.output.tensor.dtype
    numbers = writer.constant(np.arange(writer.fixed(size)) * by[0], dtype)
    found = writer.add(Add(), writer.read(start), numbers)
    if by == (1,) and (first := writer.numbers(start)) is not None:
        writer.counted[found] = first[0], writer.added(first[0], size)
    writer.replace(found)
