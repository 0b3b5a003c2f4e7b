"""Recurrent layers with what moves their inputs and results: batches first, directions in rows.

A sequence's steps are read and written where they are: frameworks whose tensors have the batch
first, and those that join the states of both directions, write Transpose nodes for it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise, starmap
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.movement import Transpose
from ..algorithms.registry import Answer, Setting
from ..codegen.moves import movement
from ..gemm.strided import moved_behind
from ..gemm.strided_factors import factor_of, single_stride
from ..recipe.operands import Ints, Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Stored
from .recurrent import launches, operands_of
from .recurrent_layer import Layer


@record
class MovedLayer(Whole):
    """A recurrent layer, and what moves its input and its result.

    Attributes:
        layer: the node.
        before: nodes that move the input, in order.
        rows: from one sequence and from one step to the next, in rows of what these read.
        behind: nodes that move the result, in order.
        results: from one direction, sequence and step to the next, in states of what these write.
        read: which results of the layer something reads.
    """

    layer: Node
    before: tuple[Node, ...]
    rows: tuple[int, int] | None
    behind: tuple[Node, ...]
    results: tuple[int, int, int] | None
    read: frozenset[Value]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((self.layer, *self.before, *self.behind))

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        op = self.layer.op
        inputs = [None if v is None else operand(v) for v in self.layer.inputs]
        results = [operand(v) if v in self.read else None for v in self.layer.outputs]
        given = operands_of(op, inputs, results)
        if isinstance(given, str):
            return given
        if self.rows is not None:
            x, places = self.before[0].operands[0], replace(given.places, rows=self.rows)
            given = replace(given, x=operand(x), places=places)
        if self.results is not None:
            places = replace(given.places, results=self.results)
            given = replace(given, y=operand(self.behind[-1].output), places=places)
        return launches(op, given, setting.for_node(self.layer))


def moved_layer_at(graph: Graph, node: Node, free: Set[Node]) -> MovedLayer | None:
    """Return the recurrent layer that a node is, if its input or its result is only moved."""
    op, x = node.op, node.operands[0]
    if not isinstance(op, Layer) or node not in free or not node.output.tensor.size:
        return None
    read = frozenset(v for v in node.outputs if v.consumers or graph.is_output(v))
    before, rows = _before(graph, node, op, x, free)
    behind, results = _behind(graph, node, op, free)
    if rows is None and results is None:
        return None
    return MovedLayer(node, before, rows, behind, results, read)


def _before(
    graph: Graph, node: Node, op: Layer, x: Value, free: Set[Node]
) -> tuple[tuple[Node, ...], tuple[int, int] | None]:
    """Return the nodes that only reorder the rows of the input, and where these are."""
    factor = factor_of(graph, node, x, free)
    found = factor.axes(Tensor(factor.x), len(x.tensor.dims)) if factor.movement else None
    size, given = x.tensor.dims[-1], factor.x.tensor
    if found is None or given.dims[-1] != size or given.size != x.tensor.size:
        return (), None
    if given.dtype != x.tensor.dtype:
        return (), None
    outer, inner, columns = map(single_stride, found[0])
    if outer is None or inner is None or columns != 1 or found[1] or outer % size or inner % size:
        return (), None
    t, n = (inner, outer) if op.layout else (outer, inner)
    return factor.nodes, (n // size, t // size)


def _behind(
    graph: Graph, node: Node, op: Layer, free: Set[Node]
) -> tuple[tuple[Node, ...], tuple[int, int, int] | None]:
    """Return the nodes that reorder the states of the result, and where these are."""
    nodes = moved_behind(graph, node, free, narrows=False)
    size = node.output.tensor.dims[-1]
    while nodes:
        steps = _steps(nodes, node.output)
        if steps is not None and all(step % size == 0 for step in steps[:-1]):
            first, second, third = (step // size for step in steps[:-1])
            # [time, direction, sequence], or [sequence, time, direction]
            return nodes, (third, first, second) if op.layout else (second, third, first)
        nodes = nodes[:-1]
        while nodes and not isinstance(nodes[-1].op, Transpose):
            nodes = nodes[:-1]
    return (), None


def _steps(nodes: Sequence[Node], y: Value) -> Ints | None:
    """Return the stride of each axis of a tensor in what nodes make of all its elements.

    None if an axis has none, or the last one's is not 1.
    """
    found = movement(nodes)
    if found is None or found.y.tensor.size != y.tensor.size:
        return None
    walk, sizes = found.walk(Tensor(y)), [n for axis in found.factors for n in axis]
    if walk.table is not None or walk.origin:
        return None
    later = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    steps: list[int] = []
    for size, stride in zip(y.tensor.dims, Tensor(y).strides, strict=True):
        # The factors within this axis, outermost first, must follow one another in both.
        within = [
            (own, n, step)
            for own, n, step in zip(walk.strides, sizes, later, strict=True)
            if n > 1 and stride <= own < stride * size
        ]
        within.sort(reverse=True)
        if prod(n for _, n, _ in within) != size or not all(starmap(_follows, pairwise(within))):
            return None
        steps.append(within[-1][2] if within else 0)
    return tuple(steps) if steps[-1] in (0, 1) else None


def _follows(outer: Ints, inner: Ints) -> bool:
    """Whether factors, as (stride, size, later stride), are neighbours in both tensors."""
    return outer[0] == inner[0] * inner[1] and outer[2] == inner[2] * inner[1]
