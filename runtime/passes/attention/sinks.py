"""Attention with a sink per head: a score that counts in the Softmax, but has no value.

Decoders append it to the scores as the last key, and drop the weight that it gets:
``softmax([scores, sink])[..., :-1] @ v`` (gpt-oss). That is ``softmax(scores) @ v *
sigmoid(log of the sum of the scores' exponentials - sink)``, as others have it, and as the importer
writes the sinks of com.microsoft.
"""

from __future__ import annotations

import numpy as np

from ...base.record import record
from ...ir.chains import chain_behind
from ...ir.dtypes import float32
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array, Shape
from ...ops.cuts import axes_of, axis_of, part_of, reduced_axes
from ...ops.elementwise import Cast, Mul, Sigmoid, Sub
from ...ops.movement import Concat, Expand, Slice
from ...ops.reduce import ReduceLogSumExp
from ..editing import Builder, number, shape_of, size_of


@record
class Sinks:
    """The sinks of a Softmax, and the nodes that account for them.

    Attributes:
        data: float32 [1, heads, 1, 1].
        scores: those without sinks, [batch, heads, rows, keys].
        top: the node whose result is as if each softmax had a sink.
        nodes: all nodes.
    """

    data: Array
    scores: Value
    top: Node
    nodes: frozenset[Node]


def appended_sinks(graph: Graph, softmax: Node) -> Sinks | None:
    """Return the sinks that a Softmax over the last of four axes has as its last key.

    Its weights are the result of `top`.
    """
    x = softmax.operands[0]
    joined, cut = x.producer, graph.sole_consumer(softmax.output)
    if joined is None or not isinstance(joined.op, Concat) or len(joined.inputs) != 2:
        return None
    if cut is None or not isinstance(cut.op, Slice) or axis_of(joined) != 3:
        return None
    scores, last = joined.operands
    if isinstance(last.producer, Node) and isinstance(last.producer.op, Expand):
        last = last.producer.operands[0]
    data = _per_head(last.data, shape_of(scores))
    if data is None or not _drops_last(cut, x):
        return None
    return Sinks(data, scores, cut, frozenset({joined, cut}))


def multiplied_sinks(graph: Graph, scores: Value, product: Node) -> Sinks | None:
    """Return the sinks of which a product of weights and values is multiplied by the effect.

    Its result is that of `top`.
    """
    shape = shape_of(scores)
    readers = (node for node in scores.consumers if isinstance(node.op, ReduceLogSumExp))
    total, top = next(readers, None), graph.sole_consumer(product.output)
    if total is None or top is None or not isinstance(top.op, Mul) or not _is_over_keys(total):
        return None
    found = [total]
    for kind in (Sub, Sigmoid):
        node = _behind(graph, found)
        if node is None or not isinstance(node.op, kind):
            return None
        found.append(node)
    less = next(node for node in found if isinstance(node.op, Sub))
    data = less.operands[1].data
    if data is not None and not getattr(total.op, "keepdims", 1):
        data = data[..., None]
    sinks = _per_head(data, shape)
    column = shape_of(next(value for value in top.operands if value is not product.output))
    if sinks is None or shape is None or less.operands[1] in found[0].outputs:
        return None
    if _behind(graph, found) is not top or column != (*shape[:3], 1):
        return None
    return Sinks(sinks, scores, top, frozenset({*found, top}))


def _behind(graph: Graph, found: list[Node]) -> Node | None:
    """Return the next node that computes, after adding views and Casts before it."""
    for node in chain_behind(graph, found[-1].output):
        if not node.op.view and not isinstance(node.op, Cast):
            return node
        found.append(node)
    return None


def _is_over_keys(node: Node) -> bool:
    """Whether a reduction is over the last of four axes."""
    return reduced_axes(node) == (3,)


def _per_head(data: Array | None, scores: Shape | None) -> Array | None:
    """Return constants [1, heads, 1, 1] from those that are repeated for samples and rows."""
    if data is None or scores is None or len(scores) != 4 or data.ndim > 4 or not data.size:
        return None
    full = data.reshape((1,) * (4 - data.ndim) + data.shape)
    one = full[:1, :, :1]
    if one.shape != (1, scores[1], 1, 1) or not (full == one).all():
        return None
    return one.astype(np.float32)


def _drops_last(cut: Node, x: Value) -> bool:
    """Whether a Slice takes all but the last place of the last axis."""
    keys, axes = size_of(x, -1), axes_of(cut)
    if isinstance(keys, int):
        return part_of(cut.output) == (cut.inputs[0], 3, range(keys - 1))
    starts, ends, *_ = given = [number(value, 1) for value in cut.inputs[1:]]
    return axes == (3,) and (starts, ends) == (0, -1) and given[3:] in ([], [1])


def softened(add: Builder, y: Value, scores: Value, sinks: Array) -> tuple[Value, Value]:
    """Return a result [batch, heads, rows, size] and the factor that gives it sinks."""
    dtype = y.tensor.dtype
    wide = scores if dtype == float32 else add(Cast(to=float32), scores)
    total = add(ReduceLogSumExp(keepdims=1), wide, add.integers([3], "axes"))
    share = add(Sigmoid(), add(Sub(), total, add.constant(sinks, "sinks")))
    return y, share if dtype == float32 else add(Cast(to=dtype), share)
