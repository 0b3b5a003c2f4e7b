"""Rewrites a graph with growing sizes to fixed, padded sizes: a bucket.

A plan has fixed sizes, so a decoder whose cache grows by one position per token would be planned
once per token. In a bucket every growing axis has its full size from the start; valid elements are
at its front, and the padding after them must not affect results. `bucketed` rewrites a graph
accordingly: operators that combine elements along such an axis (sums, products, softmax, attention)
mask the padding first; elements appended to an axis are written at its actual end; computed shapes
become those of the bucket, and shapes read as data keep their actual values.
"""

from __future__ import annotations

from ...errors import UnsupportedError
from ...ir.dtypes import string
from ...ir.graph import Graph, Node, Value
from ...ir.types import TensorType
from . import attention, elements, movement, shapes
from .bucket import Bucket
from .registry import rule_of
from .writer import GraphWriter

#: The modules with the rules.
RULES = (attention, elements, movement, shapes)


def bucketed(graph: Graph, room: int) -> Bucket:
    """Rewrite a graph with growing sizes to a bucket, in place.

    Args:
        graph: specialised for inputs some of whose sizes are `Grown`.
        room: growth steps that the bucket has room for: see `GraphWriter`.

    Raises:
        UnsupportedError: an operator on a growing size has no rule; names the node.
    """
    inputs = {value.name: _tensor(value.name, value) for value in graph.inputs}
    outputs = {name: _tensor(name, value) for name, value in graph.outputs.items()}
    writer = GraphWriter(graph, room)
    for value in graph.inputs:
        value.type = value.tensor.with_shape(writer.shape(value.tensor.shape or ()))
    for node in list(graph.nodes):
        writer.node = node
        _rewrite(writer, node)
    known = [v for v in graph.outputs.values() if writer.is_known(v)]
    for value in known:
        found = writer.read(value)
        assert found is not None
        graph.redirect(value, found)
    graph.sweep()
    return Bucket(graph, writer.count.name, writer.most, writer.least, inputs, outputs)


def _tensor(name: str, value: Value) -> TensorType:
    """Return the type of an input or result, which must be a numeric tensor."""
    if not isinstance(value.type, TensorType) or value.type.dtype == string:
        what = value.type or "of unknown type"
        raise UnsupportedError(f"'{name}' is {what}; buckets hold only tensors of numbers")
    return value.type


def _rewrite(writer: GraphWriter, node: Node) -> None:
    if all(writer.is_known(value) for value in node.outputs):
        return  # its readers know its elements
    tensors = (*node.distinct_reads, *node.outputs)
    grows = any(writer.grown(v) or (v.data is None and writer.is_known(v)) for v in tensors)
    if not grows:
        return
    rule = rule_of(node.op)
    if rule is None:
        raise writer.error("no rule keeps the padding of its inputs out of its results")
    rule(writer, node)
    if node in writer.graph:
        writer.check()
