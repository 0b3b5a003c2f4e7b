"""Finds sums of every place along axes, one by one, as exporters spell them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ops.cuts import axis_of, indices_of
from ...ops.elementwise import Add
from ...ops.gather import Gather
from ...ops.reduce import ReduceSum
from ..driver import Context
from ..editing import Builder, drop, dtype_of, shape_of

#: Minimum number of places: fewer are parts of something, such as real and imaginary ones.
FEWEST = 4
#: Axes of a tensor, and where along them a part of it is.
Places = dict[int, int]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``x[..., 0] + x[..., 1] + … + x[..., n - 1]`` by a sum along the axis.

    PyTorch exports an adaptive pooling whose windows have different sizes so (PSPNet's bins of an
    image that they do not divide): it gathers windows, hides what is beyond their ends, and adds up
    each row and column.
    """
    for root in list(graph.nodes):
        if root not in graph or not isinstance(root.op, Add) or _is_inside(graph, root):
            continue
        terms = _terms(graph, root)
        if len(terms) < FEWEST or dtype_of(root.output) not in FLOATS:
            continue
        found = _whole(terms)
        if found is None:
            continue
        x, axes, taken = found
        add = Builder(graph, root, root.name, (root,))
        total = add(ReduceSum(keepdims=0), x, add.integers(axes, "axes"))
        for term in terms:
            if term not in taken:
                total = add(Add(), total, term)
        name = root.name
        graph.redirect(root.output, total)
        drop(graph, root)
        yield f"'{name}' is the sum of {len(taken)} places"


def _is_inside(graph: Graph, node: Node) -> bool:
    """Whether the result of a sum is only a term of another sum of this size."""
    reader = graph.sole_consumer(node.output)
    if reader is None or not isinstance(reader.op, Add) or graph.is_output(node.output):
        return False
    return shape_of(reader.output) == shape_of(node.output)


def _terms(graph: Graph, root: Node) -> list[Value]:
    """Return what is added up, if nothing is broadcast; else nothing."""
    terms, todo = list[Value](), list(reversed(root.operands))
    shape = shape_of(root.output)
    while todo:
        value = todo.pop()
        if shape is None or shape_of(value) != shape:
            return []
        maker = value.producer
        if maker is not None and isinstance(maker.op, Add) and _is_inside(graph, maker):
            todo += reversed(maker.operands)
        else:
            terms.append(value)
    return terms


def _whole(terms: Sequence[Value]) -> tuple[Value, list[int], set[Value]] | None:
    """Return a tensor, axes of it, and the terms that are its parts at every place along these."""
    parts: dict[tuple[Value, tuple[int, ...]], dict[Value, tuple[int, ...]]] = {}
    for term in terms:
        for source, places in _sources(term):
            axes = tuple(sorted(places))
            parts.setdefault((source, axes), {})[term] = tuple(places[axis] for axis in axes)
    for (source, axes), found in sorted(parts.items(), key=lambda item: -len(item[0][1])):
        sizes = [(shape_of(source) or ())[axis] for axis in axes]
        if not all(isinstance(size, int) for size in sizes):
            continue
        count = prod(size for size in sizes if isinstance(size, int))
        once = len(set(found.values())) == len(found) == count and len(set(terms)) == len(terms)
        if once and count >= FEWEST:
            return source, list(axes), set(found)
    return None


def _sources(part: Value) -> Iterator[tuple[Value, Places]]:
    """Yield the tensors of which a value is one place, and which, along ever more axes."""
    places: Places = {}
    while (node := part.producer) is not None and isinstance(node.op, Gather):
        x, index, axis = node.operands[0], indices_of(node), axis_of(node)
        if index is None or index.ndim or axis is None:
            return
        places = {a + (a >= axis): place for a, place in places.items()} | {axis: int(index)}
        part = x
        yield part, dict(places)
