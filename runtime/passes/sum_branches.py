"""Rewrites a sum over an axis of a few branches as a sum of these branches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ops.elementwise import Add, Mul, Relu, Sigmoid, Sub, Swish
from ..ops.movement import Concat, Split
from ..ops.reduce import ReduceSum
from ..ops.shape import Reshape, Squeeze, Unsqueeze
from .driver import Context
from .editing import Builder, drop, shape_of

#: Maximum number of branches.
MAX_BRANCHES = 4
#: Elementwise operators that are computed for each branch.
_EACH = (Add, Mul, Sub, Relu, Sigmoid, Swish)

_Cut = dict[tuple[Value, int], tuple[Value, ...]]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ReduceSum over the second axis of [n, branch, channel, ...] by Add.

    Split attention (ResNeSt) and selective kernels (SKNet) split the channels of an image into
    branches, or stack images, and compute their weighted sum. The parts of an image are slices,
    which need no copies, and the multiplication by weights is fused with the sum.
    """
    cut: _Cut = {}
    for node in list(graph.nodes):
        count = _count(node) if node in graph else None
        x = node.inputs[0] if count else None
        if x is None or count is None or not _has_branches(x, count):
            continue
        parts = _Branches(graph, node, count, cut)
        total = parts.of(x, 0)
        for i in range(1, count):
            add = Builder(graph, node, node.name, (node,))
            total = add(Add(), total, parts.of(x, i))
        graph.redirect(node.output, total)
        name = node.name
        drop(graph, node)
        yield f"ReduceSum '{name}' adds {count} branches"


def _count(node: Node) -> int | None:
    """Return the number of branches that a ReduceSum adds; None for other nodes."""
    shape = shape_of(node.inputs[0]) if isinstance(node.op, ReduceSum) else None
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if shape is None or len(shape) < 4 or axes is None or axes.data is None:
        return None
    count = shape[1]
    if getattr(node.op, "keepdims", 1) or axes.data.reshape(-1).tolist() not in (
        [1],
        [1 - len(shape)],
    ):
        return None
    known = all(isinstance(size, int) for size in shape[1:])
    return count if isinstance(count, int) and known and 1 < count <= MAX_BRANCHES else None


def _has_branches(value: Value, count: int) -> bool:
    """Whether a tensor consists of images that are branches already."""
    node = value.producer
    if node is None:
        return False
    if _image_of(node, count) is not None or _stacked(node, count) is not None:
        return True
    same = [v for v in node.distinct_reads if shape_of(v) == shape_of(value)]
    return isinstance(node.op, _EACH) and any(_has_branches(v, count) for v in same)


def _image_of(node: Node, count: int) -> Value | None:
    """Return the image whose channels a Reshape splits into branches."""
    shape, source = shape_of(node.output) or (), node.inputs[0]
    before = shape_of(source)
    if not isinstance(node.op, Reshape) or source is None or before is None or len(shape) < 4:
        return None
    n, _, channels, *rest = shape
    if not isinstance(channels, int) or before != (n, count * channels, *rest):
        return None
    return source


def _stacked(node: Node, count: int) -> list[Value] | None:
    """Return the images that a Concat stacks."""
    if not isinstance(node.op, Concat) or len(node.inputs) != count:
        return None
    if node.op.axis not in (1, 1 - len(shape_of(node.output) or ())):
        return None
    found: list[Value] = []
    for value in node.distinct_reads:
        made, shape = value.producer, shape_of(value) or ()
        source = made.inputs[0] if made and isinstance(made.op, (Unsqueeze, Reshape)) else None
        if source is None or shape_of(source) != (*shape[:1], *shape[2:]) or shape[1:2] != (1,):
            return None
        found.append(source)
    return found if len(found) == count else None


class _Branches:
    """The branches of values, each created once.

    Args:
        graph: the graph.
        before: the node that new ones are inserted before.
        count: the number of branches.
        cut: results of Splits before that node, by their input and number of parts.
    """

    def __init__(self, graph: Graph, before: Node, count: int, cut: _Cut) -> None:
        self._graph = graph
        self._before = before
        self._count = count
        self._cut = cut
        self._made: dict[Value, list[Value]] = {}

    def of(self, value: Value, i: int) -> Value:
        """Return branch `i` of [n, branch, ...] as [n, ...]."""
        if value not in self._made:
            self._made[value] = self._parts(value)
        return self._made[value][i]

    def _parts(self, value: Value) -> list[Value]:
        node, add = value.producer, Builder(self._graph, self._before, f"{value.name}.branch")
        if value.data is not None:
            data = [np.ascontiguousarray(part) for part in np.moveaxis(value.data, 1, 0)]
            found = [add.constant(part, value.name) for part in data]
            return found * (self._count // len(found))
        if (shape_of(value) or (0, 0))[1] == 1:
            return [add(Squeeze(), value, add.integers([1]))] * self._count
        if node is not None:
            image = _image_of(node, self._count)
            if image is not None:
                return list(self._split(add, image))
            stacked = _stacked(node, self._count)
            if stacked is not None:
                return stacked
            if isinstance(node.op, _EACH) and self._aligned(node):
                reads = node.inputs
                return [
                    add(node.op, *(v and self.of(v, i) for v in reads)) for i in range(self._count)
                ]
        return [add(Squeeze(), part, add.integers([1])) for part in self._split(add, value)]

    def _split(self, add: Builder, value: Value) -> tuple[Value, ...]:
        """Return the parts of a value along its second axis."""
        if (value, self._count) not in self._cut:
            op = Split(axis=1, num_outputs=self._count)
            self._cut[value, self._count] = add.node(op, value, outputs=self._count).outputs
        return self._cut[value, self._count]

    def _aligned(self, node: Node) -> bool:
        """Whether all operands of a node have branches, or one for all of them."""
        rank = len(shape_of(node.output) or ())
        shapes = [shape_of(value) or () for value in node.distinct_reads]
        return all(len(s) == rank and s[1:2] in ((1,), (self._count,)) for s in shapes)
