"""Computes many small matrix products that one Concat joins as a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ..ir.graph import Graph, Node, Value
from ..ops.gather import Gather
from ..ops.matmul import MatMul
from ..ops.movement import Concat, Slice, Split, Transpose, bounds_of_slice
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from ..ops.shapes import normalize_axis
from .cut_before_turns import place_of
from .driver import Context
from .editing import Builder, drop, shape_of

_VIEWS = (Reshape, Flatten, Squeeze, Unsqueeze)
#: Minimum number of products, and maximum number of elements of an operand of each: below that, a
#: product takes no longer than its launch.
_COUNT, _SMALL = 8, 1 << 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace the products of a Concat by one of stacked operands.

    A state-space model that is unrolled over time (Mamba) multiplies the state after each step by
    a vector of its own, and stacks the results. What steps cut out of one tensor is its own stack.
    """
    for node in list(graph.nodes):
        products = _products(graph, node)
        if products:
            yield _stack(graph, node, products)


def _products(graph: Graph, node: Node) -> list[Node]:
    """Return the small products of equal sizes whose results a Concat joins, if all are such."""
    if not isinstance(node.op, Concat) or len(node.inputs) < _COUNT:
        return []
    found: list[Node] = []
    for value in node.operands:
        reader, made = node, value.producer
        while made is not None and graph.sole_consumer(value) is reader and _is_view(made):
            reader, value = made, made.operands[0]
            made = value.producer
        if made is None or not isinstance(made.op, MatMul):
            return []
        if graph.sole_consumer(value) is not reader:
            return []
        found.append(made)
    shapes = {tuple(shape_of(value) for value in each.operands) for each in found}
    parts = {shape_of(value) for value in node.operands}
    (first, *others), (part, *different) = shapes, parts
    if others or different or part is None:
        return []
    known = [size for shape in (*first, part) for size in shape or (None,)]
    sizes = [size for size in known if isinstance(size, int) and size]
    small = all(prod(n for n in shape or () if isinstance(n, int)) <= _SMALL for shape in first)
    computed = all(value.data is None for each in found for value in each.operands)
    matrices = all(len(shape or ()) >= 2 for shape in first)
    return found if len(sizes) == len(known) and small and computed and matrices else []


def _is_view(node: Node) -> bool:
    """Whether a node only gives its input another shape."""
    if isinstance(node.op, Gather):  # of the only place of an axis
        place = place_of(node)
        shape = shape_of(node.inputs[0])
        return place is not None and shape is not None and shape[place[0]] == 1
    return isinstance(node.op, _VIEWS)


def _stack(graph: Graph, node: Node, products: Sequence[Node]) -> str:
    """Replace a Concat of products."""
    add = Builder(graph, node, node.name, (*products, node))
    rank = max(len(value.tensor.dims) for value in products[0].operands)
    operands = [stacked(add, [each.operands[i] for each in products], rank) for i in range(2)]
    part, count = node.operands[0].tensor.dims, len(products)
    axis = normalize_axis(getattr(node.op, "axis", 0), len(part))
    y = add(Reshape(), add(MatMul(), *operands), add.integers((count, *part), "parts"))
    y = joined(add, y, axis)
    y = add(Reshape(), y, add.integers(node.output.tensor.dims, "joined"))
    name, old = node.name, list(node.operands)
    graph.redirect(node.output, y)
    graph.remove(node)
    for value in dict.fromkeys(old):
        drop(graph, value.producer)
    return f"{count} products that Concat '{name}' joins are one of stacked matrices"


def joined(add: Builder, stack: Value, axis: int) -> Value:
    """Return a stack [count, ...] with its first axis before another one of its parts."""
    rank = len(stack.tensor.dims)
    order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    return add(Transpose(perm=order), stack) if axis else stack


def stacked(add: Builder, values: Sequence[Value], rank: int) -> Value:
    """Return tensors of one shape as a stack of this rank and one more axis in front."""
    dims = values[0].tensor.dims
    dims = (*(1 for _ in range(rank - len(dims))), *dims)
    if len(set(values)) == 1:
        return add(Reshape(), values[0], add.integers((1, *dims), "alone"))
    whole = _whole(values)
    if whole is not None:
        source, axis = whole
        *outer, size = source.tensor.dims[: axis + 1]
        inner = source.tensor.dims[axis + 1 :]
        parts = (*outer, len(values), size // len(values), *inner)
        order = (axis, *(i for i in range(len(parts)) if i != axis))
        cut = add(Reshape(), source, add.integers(parts, "cut"))
        turned = add(Transpose(perm=order), cut)
        return add(Reshape(), turned, add.integers((len(values), *dims), "stack"))
    sizes = add.integers((1, *dims), "one")
    return add(Concat(axis=0), *(add(Reshape(), value, sizes) for value in values))


def _whole(values: Sequence[Value]) -> tuple[Value, int] | None:
    """Return a tensor and its axis if each value is the next equal part of it, and they are all."""
    source: Value | None = None
    along: int | None = None
    for i, value in enumerate(values):
        made = value.producer
        while made is not None and isinstance(made.op, _VIEWS):
            value = made.operands[0]
            made = value.producer
        found = None if made is None else _part(made, value)
        if made is None or found is None or found[1] != i * found[2]:
            return None
        if source is not None and (made.operands[0] is not source or found[0] != along):
            return None
        source, along = made.operands[0], found[0]
        if source.tensor.dims[along] != len(values) * found[2]:
            return None
    return None if source is None or along is None else (source, along)


def _part(node: Node, value: Value) -> tuple[int, int, int] | None:
    """Return axis, begin and size of the part of its input that a node returns."""
    place = place_of(node)
    if place is not None:
        return *place, 1
    dims, shape = shape_of(node.inputs[0]) or (), shape_of(value) or ()
    if len(dims) != len(shape) or not all(isinstance(size, int) for size in (*dims, *shape)):
        return None
    if isinstance(node.op, Split):
        axis = normalize_axis(node.op.axis, len(dims))
        before = node.outputs[: node.outputs.index(value)]
        begin = sum(each.tensor.dims[axis] for each in before)
    elif isinstance(node.op, Slice):
        data = [None if each is None else each.data for each in node.inputs[1:]]
        numbers = [int(each.flat[0]) for each in data if each is not None and each.size == 1]
        if len(numbers) != len(data) or len(numbers) < 3 or numbers[3:] not in ([], [1]):
            return None
        axis = normalize_axis(numbers[2], len(dims))
        begin, _ = bounds_of_slice(numbers[0], numbers[1], 1, node.operands[0].tensor.dims[axis])
    else:
        return None
    return axis, begin, value.tensor.dims[axis]
