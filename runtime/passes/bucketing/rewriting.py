"""Sizes that grow get room for many runs at once: a bucket, whose true size is data.

A plan has fixed sizes, so a decoder whose cache grows by one position per token would be planned
once per token. In a bucket every axis that grows has all its room from the start; what is there is
at the front, and after it lies padding that nobody may see. `bucketed` rewrites a graph so: what
computes from elements of such an axis together (sums, products, softmax, attention) hides the
padding first; what joins something to its end writes it where the end is; shapes that are computed
become the numbers of the bucket, and the same shapes read as data become what they truly are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import UnsupportedError
from ...ir.dtypes import string
from ...ir.graph import Graph, Node, Value
from ...ir.types import TensorType
from . import attention, elements, movement, shapes
from .registry import rule_of
from .writer import Writer

#: Where the rules are.
RULES = (attention, elements, movement, shapes)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A graph of fixed sizes that stands for one whose sizes grow.

    Attributes:
        graph: its inputs and results have room along the axes that grow.
        count: name of the input, int64 [1], that says how often sizes have grown.
        most: the largest such number that there is room for.
        inputs: types of the other inputs, with the sizes that grow.
        outputs: types of the results, likewise.
    """

    graph: Graph
    count: str
    most: int
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]


def bucketed(graph: Graph, room: int) -> Bucket:
    """Rewrite a graph, in place, whose sizes grow.

    Args:
        graph: specialised for inputs some of whose sizes are `Grown`.
        room: of the bucket: see `Writer`.

    Raises:
        UnsupportedError: an operator works on such a size in a way that has no rule; names the
            node.
    """
    inputs = {value.name: _tensor(value.name, value) for value in graph.inputs}
    outputs = {name: _tensor(name, value) for name, value in graph.outputs.items()}
    writer = Writer(graph, room)
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
    return Bucket(graph, writer.count.name, writer.most, inputs, outputs)


def _tensor(name: str, value: Value) -> TensorType:
    """Return the type of an input or a result, which must be a tensor of numbers."""
    if not isinstance(value.type, TensorType) or value.type.dtype == string:
        what = value.type or "of unknown type"
        raise UnsupportedError(f"'{name}' is {what}; buckets hold tensors of numbers alone")
    return value.type


def _rewrite(writer: Writer, node: Node) -> None:
    if all(writer.is_known(value) for value in node.outputs):
        return  # whoever reads them has their elements without it
    tensors = (*node.reads, *node.outputs)
    grows = any(writer.grown(v) or (v.data is None and writer.is_known(v)) for v in tensors)
    if not grows:
        return
    rule = rule_of(node.op)
    if rule is None:
        raise writer.error("nobody says what it does behind the end of an axis")
    rule(writer, node)
    if node in writer.graph:
        writer.check()
