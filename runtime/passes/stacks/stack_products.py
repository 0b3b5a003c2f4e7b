"""Computes many small matrix products that one Concat joins as a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ...ir.chains import chain_before
from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ops.cuts import Part, joint_of, part_of, place_of
from ...ops.gather import Gather
from ...ops.matmul import MatMul
from ...ops.movement import Concat, Transpose
from ...ops.shape import RESHAPES
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, unviewed
from ..pointwise import is_elementwise

#: Minimum number of products, and maximum number of elements of an operand of each that is copied:
#: below that, a product takes no longer than its launch.
COUNT, _SMALL = 4, 1 << 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace the products of a Concat by one of stacked operands.

    A state-space model that is unrolled over time (Mamba) multiplies the state after each step by
    a different vector, and stacks the results; linear attention multiplies that after each chunk
    by its queries, behind zeros for the first one. What steps cut out of one tensor is its own
    stack.
    """
    for node in list(graph.nodes):
        first, products = _products(graph, node)
        if products:
            yield _stack(graph, node, first, products)


def _products(graph: Graph, node: Node) -> tuple[int, list[Node]]:
    """Return small products of equal sizes whose results a Concat joins, and the first one's place.

    What is joined before and after them is of any kind.
    """
    if not isinstance(node.op, Concat) or len(node.inputs) < COUNT:
        return 0, []
    made = [made_by(graph, value) for value in node.operands]
    places = [i for i, product in enumerate(made) if product is not None]
    if not places:
        return 0, []
    first, end = places[0], places[-1] + 1
    found = [product for product in made[first:end] if product is not None]
    if len(found) < max(COUNT, end - first):
        return 0, []
    shapes = {tuple(shape_of(value) for value in each.operands) for each in found}
    parts = {shape_of(value) for value in node.operands[first:end]}
    (shape, *others), (part, *different) = shapes, parts
    if others or different or part is None:
        return 0, []
    known = [size for dims in (*shape, part) for size in dims or (None,)]
    sizes = [size for size in known if isinstance(size, int) and size]
    operands = list(zip(*(each.operands for each in found), strict=True))
    small = all(_is_small(values) or _is_free(values) for values in operands)
    constants = [sum(value.data is not None for value in values) for values in operands]
    matrices = all(len(dims or ()) >= 2 for dims in shape)
    computed = max(constants) < 2  # the first state may be known
    return first, found if len(sizes) == len(known) and small and computed and matrices else []


def _is_small(values: Sequence[Value]) -> bool:
    return prod(n for n in shape_of(values[0]) or () if isinstance(n, int)) <= _SMALL


def _is_free(values: Sequence[Value]) -> bool:
    """Whether tensors need not be copied to a stack: parts of one, or computed where they belong.

    The first state of a recurrence may be a part of another tensor.
    """
    makers = [unviewed(value).producer for value in values[1:]]
    computed = all(m is not None and is_elementwise(m.op) for m in makers)
    return computed or whole_of(values) is not None


def made_by(graph: Graph, value: Value, kind: type[Op] = MatMul) -> Node | None:
    """Return the node of a kind that makes a value, seen through views, if it has one reader."""
    made = next((each for each in chain_before(graph, value) if not is_view(each)), None)
    return made if made is not None and isinstance(made.op, kind) else None


def is_view(node: Node) -> bool:
    """Whether a node only gives its input another shape."""
    if isinstance(node.op, Gather):  # of the only place of an axis
        place = place_of(node)
        shape = shape_of(node.inputs[0])
        return place is not None and shape is not None and shape[place[0]] == 1
    return isinstance(node.op, RESHAPES)


def _stack(graph: Graph, node: Node, first: int, products: Sequence[Node]) -> str:
    """Replace the products of a Concat, of which the first has this place."""
    add = Builder(graph, node, node.name, (*products, node))
    rank = max(len(value.tensor.dims) for value in products[0].operands)
    operands = [stacked(add, [each.operands[i] for each in products], rank) for i in range(2)]
    part, count = node.operands[first].tensor.dims, len(products)
    axis = normalize_axis(getattr(node.op, "axis", 0), len(part))
    y = add.shaped(add(MatMul(), *operands), (count, *part), "parts")
    y = joined(add, y, axis)
    whole = (*part[:axis], count * part[axis], *part[axis + 1 :])
    y = add.shaped(y, whole, "joined")
    name, old = node.name, list(node.operands)
    before, behind = old[:first], old[first + count :]
    if before or behind:
        y = add(Concat(axis=axis), *before, y, *behind)
    graph.replace(node, [y])
    for value in dict.fromkeys(old[first : first + count]):
        drop(graph, value.producer)
    return f"{count} products that Concat '{name}' joins are one of stacked matrices"


def joined(add: Builder, stack: Value, axis: int) -> Value:
    """Return a stack [count, ...] with its first axis before another one of its parts."""
    rank = rank_of(stack) or 0
    order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    return add(Transpose(perm=order), stack) if axis else stack


def stacked(add: Builder, values: Sequence[Value], rank: int) -> Value:
    """Return tensors of one shape as a stack of this rank and one more axis in front."""
    shape = shape_of(values[0]) or ()
    shape = (*(1 for _ in range(rank - len(shape))), *shape)
    if len(set(values)) == 1:
        return add.shaped(values[0], (1, *shape), "alone")
    whole = whole_of(values)
    if whole is not None:
        (source, axis, places), count = whole, len(values)
        of_source = shape_of(source) or ()
        if len(places) != of_source[axis]:
            source = add.slice(source, axis, places.start, places.stop)
        parts = (*of_source[:axis], count, len(places) // count, *of_source[axis + 1 :])
        order = (axis, *(i for i in range(len(parts)) if i != axis))
        transposed = add(Transpose(perm=order), add.shaped(source, parts, "cut"))
        return add.shaped(transposed, (len(values), *shape), "stack")
    return add(Concat(axis=0), *(add.shaped(value, (1, *shape), "one") for value in values))


def whole_of(values: Sequence[Value]) -> Part | None:
    """Return the part of a tensor that values, or what these are views of, are together."""
    return joint_of([part_of(unviewed(value)) for value in values])
