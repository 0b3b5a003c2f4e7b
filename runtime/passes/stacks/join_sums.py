"""Adds what a Concat joins of two series of tensors once, instead of part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Add
from ...ops.movement import Concat
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of
from .stack_products import COUNT, joined, made_by, stacked, whole_of


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``[a1 + b1, a2 + b2, …]`` by ``[a1, a2, …] + [b1, b2, …]``.

    Linear attention adds, for each chunk, what its queries find in the state before it to what they
    find in the chunk, which is a part of a tensor that is computed for all chunks, or a product as
    well. Joined, parts are that tensor, and products are one of stacked matrices.
    """
    waiting = [node for node in graph.nodes if isinstance(node.op, Concat)]
    while waiting:
        node = waiting.pop()
        sums = _sums(graph, node)
        if not sums:
            continue
        add = Builder(graph, node, node.name, (*sums, node))
        series = _series(graph, sums)
        made = [_join(add, node, values) for values in series]
        waiting += [y.producer for y in made if y.producer and isinstance(y.producer.op, Concat)]
        graph.redirect(node.output, add(Add(), *made))
        name, old = node.name, list(node.operands)
        graph.remove(node)
        for value in dict.fromkeys(old):
            drop(graph, value.producer)
        yield f"{len(sums)} sums that Concat '{name}' joins are one"


def _sums(graph: Graph, node: Node) -> list[Node]:
    """Return the Adds whose results a Concat joins, if their terms are products or parts."""
    if len(node.inputs) < COUNT or len({shape_of(value) for value in node.operands}) > 1:
        return []
    found = [made_by(graph, value, Add) for value in node.operands]
    sums = [each for each in found if each is not None]
    dims = {shape_of(value) for each in sums for value in (*each.operands, each.output)}
    sizes = [size for shape in dims for size in shape or (None,)]
    if len(sums) < len(found) or len(dims) > 1 or not all(isinstance(n, int) for n in sizes):
        return []
    if any(each.output in each.operands or len(set(each.operands)) < 2 for each in sums):
        return []
    kinds = [_kind(graph, values) for values in _series(graph, sums)]
    return sums if all(kinds) and "products" in kinds else []


def _series(graph: Graph, sums: Sequence[Node]) -> tuple[list[Value], list[Value]]:
    """Return the terms of sums, those that are products last."""
    pairs = [sorted(each.operands, key=lambda v: made_by(graph, v) is not None) for each in sums]
    return [first for first, _ in pairs], [second for _, second in pairs]


def _kind(graph: Graph, values: Sequence[Value]) -> str:
    """Return what the same term of all sums is; empty if to join it takes a copy."""
    if all(made_by(graph, value) is not None for value in values):
        return "products"
    whole = whole_of(values)
    return "" if whole is None else "parts"


def _join(add: Builder, node: Node, values: Sequence[Value]) -> Value:
    """Return what a Concat would join if each operand were one of these values."""
    part = node.operands[0].tensor.dims
    axis = normalize_axis(getattr(node.op, "axis", 0), len(part))
    if whole_of(values) is None:
        shapes = [v if shape_of(v) == part else add.shaped(v, part, "part") for v in values]
        return add(Concat(axis=axis), *shapes)
    stack = add.shaped(stacked(add, values, rank_of(values[0]) or 0), (len(values), *part), "parts")
    count = len(values) * part[axis]
    return add.shaped(joined(add, stack, axis), (*part[:axis], count, *part[axis + 1 :]), "joined")
