"""Rewrites a sum or a mean over an axis of a few branches as a sum of these branches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ops.cuts import axis_of
from ...ops.elementwise import Add, Mul, Relu, Sigmoid, Sub, Swish
from ...ops.movement import Concat
from ...ops.reduce import ReduceMean, ReduceSum
from ...ops.shape import Reshape, Squeeze, Unsqueeze
from ..driver import Context
from ..editing import Builder, drop, dtype_of, shape_of, size_of

#: Maximum number of branches that are cut from the channels of an image.
MAX_CUT = 4
#: Maximum number of tensors that a Concat stacks.
MAX_STACKED = 8
#: Elementwise operators that are computed for each branch.
_EACH = (Add, Mul, Sub, Relu, Sigmoid, Swish)

_Cut = dict[tuple[Value, "_Axis"], tuple[Value, ...]]


@record
class _Axis:
    """The axis of branches, counted from the front, and how many there are."""

    axis: int
    count: int

    def without(self, shape: tuple[object, ...]) -> tuple[object, ...]:
        """Return a shape of several branches as one of each."""
        return (*shape[: self.axis], *shape[self.axis + 1 :])


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ReduceSum and ReduceMean over an axis of branches by Add.

    Split attention (ResNeSt) and selective kernels (SKNet) split the channels of an image into
    branches, or stack images, and compute their weighted sum. The parts of an image are slices,
    which need no copies, and the multiplication by weights is fused with the sum. The results of
    kernels of several sizes (TimesNet) are stacked for their mean: as additions, they become one
    kernel.
    """
    cut: _Cut = {}
    for node in list(graph.nodes):
        along = _reduced(node) if node in graph else None
        x = node.inputs[0] if along else None
        if x is None or along is None or not _has_branches(x, along):
            continue
        parts = _Branches(graph, node, along, cut)
        total = parts.of(x, 0)
        for i in range(1, along.count):
            add = Builder(graph, node, node.name, (node,))
            total = add(Add(), total, parts.of(x, i))
        if isinstance(node.op, ReduceMean):
            add = Builder(graph, node, node.name, (node,))
            part = np.array(1 / along.count, dtype_of(node.output))
            total = add(Mul(), total, add.constant(part))
        graph.redirect(node.output, total)
        name, kind = node.name, node.kind
        drop(graph, node)
        yield f"{kind} '{name}' adds {along.count} branches"


def _reduced(node: Node) -> _Axis | None:
    """Return the axis that a ReduceSum or a ReduceMean removes; None for other nodes."""
    sums = isinstance(node.op, (ReduceSum, ReduceMean))
    shape = shape_of(node.inputs[0]) if sums else None
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if shape is None or axes is None or axes.data is None or axes.data.size != 1:
        return None
    axis = int(axes.data.reshape(-1)[0]) % len(shape)
    count = shape[axis]
    if getattr(node.op, "keepdims", 1) or dtype_of(node.output) not in FLOATS:
        return None
    return _Axis(axis, count) if isinstance(count, int) and 1 < count <= MAX_STACKED else None


def _has_branches(value: Value, along: _Axis) -> bool:
    """Whether a tensor consists of branches already."""
    shape = shape_of(value) or ()
    seen, waiting = {value}, [value]
    while waiting:
        node = waiting.pop().producer
        if node is None:
            continue
        if _image_of(node, along) is not None or _stacked(node, along) is not None:
            return True
        if not isinstance(node.op, _EACH) or along.axis != 1 or len(shape) < 4:
            continue  # weights of other tensors than images would be cut, and cuts copied
        reads = [v for v in node.distinct_reads if shape_of(v) == shape and v not in seen]
        waiting += reads
        seen.update(reads)
    return False


def _image_of(node: Node, along: _Axis) -> Value | None:
    """Return the image whose channels a Reshape splits into branches."""
    if not isinstance(node.op, Reshape):
        return None
    shape, source = shape_of(node.output) or (), node.inputs[0]
    before = shape_of(source)
    if source is None or before is None or len(shape) < 4:
        return None
    if along.axis != 1 or along.count > MAX_CUT:
        return None
    n, _, channels, *rest = shape
    if not isinstance(channels, int) or before != (n, along.count * channels, *rest):
        return None
    return source if all(isinstance(size, int) for size in rest) else None


def _stacked(node: Node, along: _Axis) -> list[Value] | None:
    """Return the tensors that a Concat stacks."""
    if not isinstance(node.op, Concat) or len(node.inputs) != along.count:
        return None
    if axis_of(node) != along.axis:
        return None
    found: list[Value] = []
    for value in node.inputs:
        made, shape = value.producer if value else None, shape_of(value) or ()
        source = made.inputs[0] if made and isinstance(made.op, (Unsqueeze, Reshape)) else None
        if source is None or shape[along.axis : along.axis + 1] != (1,):
            return None
        if shape_of(source) != along.without(shape):
            return None
        found.append(source)
    return found


class _Branches:
    """The branches of values, each created once.

    Args:
        graph: the graph.
        before: the node that new ones are inserted before.
        along: the axis of branches.
        cut: results of Splits before that node, by their input and number of parts.
    """

    def __init__(self, graph: Graph, before: Node, along: _Axis, cut: _Cut) -> None:
        self._graph = graph
        self._before = before
        self._along = along
        self._cut = cut
        self._made: dict[Value, list[Value]] = {}

    def of(self, value: Value, i: int) -> Value:
        """Return branch `i` of a value, without the axis of branches."""
        if value not in self._made:
            self._made[value] = self._parts(value)
        return self._made[value][i]

    def _parts(self, value: Value) -> list[Value]:
        node, add = value.producer, Builder(self._graph, self._before, f"{value.name}.branch")
        axis, count = self._along.axis, self._along.count
        if value.data is not None:
            data = [np.ascontiguousarray(part) for part in np.moveaxis(value.data, axis, 0)]
            found = [add.constant(part, value.name) for part in data]
            return found * (count // len(found))
        if size_of(value, axis) == 1:
            return [add(Squeeze(), value, add.integers([axis]))] * count
        if node is not None:
            image = _image_of(node, self._along)
            if image is not None:
                return list(self._split(add, image))
            stacked = _stacked(node, self._along)
            if stacked is not None:
                return stacked
            if isinstance(node.op, _EACH) and self._aligned(node):
                reads = node.inputs
                return [add(node.op, *(v and self.of(v, i) for v in reads)) for i in range(count)]
        return [add(Squeeze(), part, add.integers([axis])) for part in self._split(add, value)]

    def _split(self, add: Builder, value: Value) -> tuple[Value, ...]:
        """Return the parts of a value along the axis of branches."""
        if (value, self._along) not in self._cut:
            parts = add.split(value, self._along.axis, self._along.count)
            self._cut[value, self._along] = parts
        return self._cut[value, self._along]

    def _aligned(self, node: Node) -> bool:
        """Whether all operands of a node have branches, or one for all of them."""
        rank = len(shape_of(node.output) or ())
        shapes = [shape_of(value) or () for value in node.distinct_reads]
        sizes = (1, self._along.count)
        return all(len(s) == rank and s[self._along.axis] in sizes for s in shapes)
