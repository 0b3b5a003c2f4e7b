"""Tensors that are parts of one, or are computed alike of such parts, as one tensor."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import Part, joint_of, part_of
from ...ops.matmul import Einsum
from ...ops.shape import RESHAPES
from ..editing import Builder, drop, shape_of, size_of
from ..pointwise import is_by_place, is_elementwise
from ..products.product_terms import Term, collect


@record
class Stack:
    """Tensors along an axis of one.

    Attributes:
        value: the tensor.
        axis: that tells them apart.
        merged: whether each has more than one place of it.
    """

    value: Value
    axis: int
    merged: bool


@record
class _Place:
    """Which part of a tensor another one is.

    Attributes:
        cut: the tensor, and where.
        single: whether the part lacks the axis.
    """

    cut: Part
    single: bool


def _part(value: Value) -> _Place | None:
    """Return what a value is a part of; a part of one place may have lost the axis."""
    own, node = part_of(value), value.producer
    is_view = own is None and node is not None and isinstance(node.op, RESHAPES)
    part = part_of(node.operands[0]) if is_view and node is not None else own
    shape = None if part is None else shape_of(part.source)
    if part is None or shape is None:
        return None
    rest = (*shape[: part.axis], *shape[part.axis + 1 :])
    if shape_of(value) == rest and len(part.places) == 1:
        return _Place(part, single=True)
    return None if own is None else _Place(own, single=False)


def place_in(value: Value) -> int:
    """Return the first place of a part, or of what elementwise nodes compute of one; else 0."""
    while True:
        part, node = _part(value), value.producer
        if part is not None:
            return part.cut.places.start
        if node is None or not is_elementwise(node.op):
            return 0
        computed = [each for each in node.distinct_reads if each.data is None]
        if len(computed) != 1:
            return 0
        (value,) = computed


def stacked(
    graph: Graph, add: Builder, xs: Sequence[Value], readers: Set[Node], axis: int
) -> Stack | None:
    """Return tensors as one, if they are all parts of one, or computed alike of such parts.

    Args:
        graph: the graph.
        add: where new nodes go.
        xs: the tensors, in the order of their places.
        readers: the only nodes that may read what is computed.
        axis: in front of which products of one tensor are stacked.
    """
    levels: list[_Level] = []
    while any(_part(x) is None for x in xs):
        level = _level(graph, xs, readers)
        if level is None:
            break
        levels.append(level)
        xs, readers = level.values, level.nodes
    stack = _stack_of_parts(xs) or _multiplied(graph, add, xs, readers, axis)
    for level in reversed(levels):
        if stack is not None:
            stack = _computed(graph, add, level, stack)
    return stack


def _stack_of_parts(xs: Sequence[Value]) -> Stack | None:
    """Return tensors that are all places of an axis of one, in order."""
    parts = [part for x in xs if (part := _part(x)) is not None]
    if len(parts) < len(xs) or len({part.single for part in parts}) > 1:
        return None
    whole = joint_of([part.cut for part in parts])
    if whole is None or len(whole.places) != size_of(whole.source, whole.axis):
        return None
    return Stack(whole.source, whole.axis, merged=not parts[0].single)


def _multiplied(
    graph: Graph, add: Builder, xs: Sequence[Value], readers: Set[Node], axis: int
) -> Stack | None:
    """Return products of one tensor as one."""
    terms: list[Term] = []
    constants: list[Array] = []
    for x in xs:
        if graph.is_output(x) or not {*x.consumers} <= readers:
            return None
        if not collect(graph, x, 1, terms, constants, x.producer):
            return None
    first = terms[0]
    alike = {(term.letters, term.x, term.weight.shape, term.weight.dtype.name) for term in terms}
    if constants or len(terms) != len(xs) or len(alike) > 1 or first.conv is not None:
        return None
    of_x, of_w, result = first.letters
    equation = f"{of_x},Y{of_w}->{result[:axis]}Y{result[axis:]}"
    weights = add.constant(np.stack([term.signed for term in terms]), "weights")
    return Stack(add(Einsum(equation=equation), first.x, weights), axis, merged=False)


@record
class _Level:
    """What equal elementwise nodes compute.

    Attributes:
        xs: the tensors.
        nodes: that compute them.
        inputs: theirs: for each operand, those of all nodes.
        place: of the only operand that is not constant.
    """

    xs: Sequence[Value]
    nodes: Set[Node]
    inputs: Sequence[Sequence[Value | None]]
    place: int

    @property
    def values(self) -> list[Value]:
        """What the nodes read beside constants."""
        return [value for value in self.inputs[self.place] if value is not None]


def _level(graph: Graph, xs: Sequence[Value], readers: Set[Node]) -> _Level | None:
    """Return tensors that elementwise nodes compute alike; None if they do not."""
    nodes = [x.producer for x in xs]
    first, *others = nodes
    if first is None or not is_elementwise(first.op) or len(first.outputs) != 1:
        return None
    if any(graph.is_output(x) or not {*x.consumers} <= readers for x in xs):
        return None
    if any(node is None or node.op != first.op for node in others):
        return None
    inputs = list(zip(*(node.inputs for node in nodes if node is not None), strict=False))
    computed = [i for i, each in enumerate(inputs) if any(v and v.data is None for v in each)]
    if len(computed) != 1 or len(inputs) != len(first.inputs):
        return None
    (place,) = computed
    values = [value for value in inputs[place] if value is not None]
    shapes = {shape_of(value) for value in (*values, *xs)}
    if len(values) < len(xs) or len(shapes) > 1 or not is_by_place(first.op, place):
        return None
    return _Level(xs, {node for node in nodes if node is not None}, inputs, place)


def _computed(graph: Graph, add: Builder, level: _Level, stack: Stack) -> Stack | None:
    """Return what the nodes compute of a stack; None, without it, if constants do not fit."""
    place, xs = level.place, level.xs
    first = xs[0].producer
    assert first is not None
    given: list[Value | None] = []
    for i, each in enumerate(level.inputs):
        constant = stack.value
        if i != place and is_by_place(first.op, i):
            constant = _constant(add, each, xs[0], stack)
        elif i != place:
            constant = each[0] if _are_equal(each) else None
        if constant is None and any(each):
            drop(graph, stack.value.producer)
            return None
        given.append(constant)
    return replace(stack, value=add(first.op, *given))


def _are_equal(values: Sequence[Value | None]) -> bool:
    """Whether constants have equal elements, as limits of elementwise nodes have to."""
    found = [value.data for value in values if value is not None and value.data is not None]
    return len(found) == len(values) and all(np.array_equal(each, found[0]) for each in found)


def _constant(add: Builder, values: Sequence[Value | None], x: Value, stack: Stack) -> Value | None:
    """Return constants of tensors like `x` as one of their stack; None if there is none."""
    found = [value.data for value in values if value is not None and value.data is not None]
    shape = shape_of(x)
    if len(found) < len(values) or shape is None:
        return None
    if found[0].size == 1 and _are_equal(values):
        return values[0]
    if any(data.ndim > len(shape) for data in found):
        return None
    found = [data.reshape(*[1] * (len(shape) - data.ndim), *data.shape) for data in found]
    if not stack.merged:
        return add.constant(np.stack(np.broadcast_arrays(*found), stack.axis))
    width = shape[stack.axis]
    if not isinstance(width, int):
        return None
    ones = np.ones([width if i == stack.axis else 1 for i in range(len(shape))], found[0].dtype)
    found = np.broadcast_arrays(*(data * ones for data in found))
    return add.constant(np.concatenate(found, stack.axis))
