"""Computes elementwise nodes of pairs of a few tensors as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...ir.dtypes import DType
from ...ir.graph import Graph, Node, Value
from ...ops.gather import Gather
from ...ops.movement import Concat
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, dtype_of, shape_of
from ..pointwise import is_elementwise

#: Minimum number of nodes.
_MANY = 6


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a Concat of equal elementwise nodes of few operands by one node of gathered operands.

    Recommenders multiply the vectors of all pairs of fields (FiBiNET, PNN): 190 products of 20
    vectors are one of the rows that two Gathers pick.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Concat) or len(node.inputs) < _MANY:
            continue
        pairs = _pairs(graph, node)
        if pairs is not None:
            made = _rewrite(graph, node, pairs)
            yield f"{type(made.op).__name__} '{made.name}' computes {len(pairs)} nodes of pairs"


def _pairs(graph: Graph, concat: Node) -> list[Node] | None:
    """Return the nodes that a Concat joins if they are equal and share their operands."""
    found: list[Node] = []
    first = concat.operands[0]
    shape, axis = shape_of(first), getattr(concat.op, "axis", 0)
    if not shape or not all(isinstance(size, int) for size in shape[axis % len(shape) :]):
        return None
    for value in concat.operands:
        node = value.producer
        if node is None or graph.sole_consumer(value) is not concat:
            return None
        if not is_elementwise(node.op) or dtype_of(value) != dtype_of(first):
            return None
        if any(shape_of(each) != shape for each in (*node.operands, value)):
            return None
        found.append(node)
        if node.op != found[0].op or _dtypes(node) != _dtypes(found[0]):
            return None
    read = [{node.operands[i] for node in found} for i in range(len(found[0].operands))]
    return found if 2 * max(map(len, read)) <= len(found) else None


def _dtypes(node: Node) -> list[DType | None]:
    return [dtype_of(value) for value in node.operands]


def _rewrite(graph: Graph, concat: Node, nodes: Sequence[Node]) -> Node:
    add = Builder(graph, concat, nodes[0].name, (*nodes, concat))
    operands = [
        _joined(add, concat, [node.operands[place] for node in nodes])
        for place in range(len(nodes[0].operands))
    ]
    made = add.node(nodes[0].op, *operands)
    name = concat.name
    graph.replace(concat, [made.output])
    for node in nodes:
        drop(graph, node)
    graph.rename(made, name)
    return made


def _joined(add: Builder, concat: Node, values: Sequence[Value]) -> Value:
    """Return the Concat of values, each of which is stored once."""
    distinct = list(dict.fromkeys(values))
    shape = shape_of(values[0]) or ()
    assert isinstance(concat.op, Concat)
    axis = normalize_axis(concat.op.axis, len(shape))
    whole = add(Concat(axis=axis), *distinct) if len(distinct) > 1 else distinct[0]
    before, size, behind = shape[:axis], shape[axis], shape[axis + 1 :]
    assert isinstance(size, int)
    apart = add.view(whole, (*before, len(distinct), size, *behind))
    places = np.array([distinct.index(value) for value in values], np.int64)
    picked = add(Gather(axis=axis), apart, add.constant(places, "places"))
    return add.view(picked, (*before, len(values) * size, *behind))
