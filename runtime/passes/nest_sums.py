"""Merges sums of sums: of weighted squares of distances of points, summed over points."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node
from ..ir.types import Array
from ..ops.elementwise import Mul
from ..ops.reduce import ReduceSum
from .driver import Context
from .editing import Builder, drop, dtype_of, is_elementwise, shape_of, static_dims
from .pattern import pairs

#: Maximum number of elements of the weights of all addends.
_WEIGHTS = 1 << 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``sum(w * sum(x))`` over the last axes by one sum of ``w * x``.

    The inner sums are not stored, and adjacent addends of both are added by the same threads
    (invariant point attention). The weights are constants, which are repeated for all addends.
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, ReduceSum):
            text = _merge(graph, node)
            if text:
                yield text


def _merge(graph: Graph, outer: Node) -> str:
    """Merge a sum with the one that it reads; return a sentence about it, or nothing."""
    value, weights = outer.operands[0], None
    product = value.producer
    if product is not None and isinstance(product.op, Mul):
        found = ((a, b.data) for a, b in pairs(product) if b.data is not None)
        value, weights = next(found, (value, None))
    inner = value.producer
    if inner is None or not isinstance(inner.op, ReduceSum) or dtype_of(value) not in FLOATS:
        return ""
    if any(graph.sole_consumer(each) is None for each in (value, outer.operands[0])):
        return ""
    x = inner.operands[0]
    dims, maker = static_dims(shape_of(x)), x.producer
    few, many = _axes(inner), _axes(outer)
    if dims is None or few is None or many is None or maker is None:
        return ""
    rank, last = len(dims) - len(few), dims[len(dims) - len(few) :]
    if few != tuple(range(rank, len(dims))) or many[-1:] != (rank - 1,):
        return ""
    if not is_elementwise(maker.op) or graph.sole_consumer(x) is not inner:
        return ""
    add = Builder(graph, outer, outer.name, (inner, outer))
    if weights is not None:
        if weights.size * prod(last) > _WEIGHTS or weights.ndim > rank:
            return ""
        x = add(Mul(), x, add.constant(_repeated(weights, last), "weights"))
    total = add(ReduceSum(keepdims=0), x, add.integers((*many, *few), "axes"))
    name, read = outer.name, outer.operands[0].producer
    graph.replace(outer, [total])
    drop(graph, read)
    return f"ReduceSum '{name}' adds what '{inner.name}' has added of {prod(last)} each"


def _repeated(weights: Array, last: tuple[int, ...]) -> Array:
    """Return weights for each element of further axes."""
    shape = (*weights.shape, *[1] * len(last))
    return np.ascontiguousarray(np.broadcast_to(weights.reshape(shape), (*weights.shape, *last)))


def _axes(node: Node) -> tuple[int, ...] | None:
    """Return the axes of a sum that does not keep them, in order, if they are known."""
    op, (x, *given) = node.op, node.operands
    rank = len(shape_of(x) or ())
    if not isinstance(op, ReduceSum) or op.keepdims or any(v.data is None for v in given):
        return None
    asked = tuple(int(axis) for v in given if v.data is not None for axis in v.data.flat)
    return tuple(sorted(op.axes(asked if given else None, rank)))
