"""Gives heads that an attention has among its batches an axis of their own."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph, Node, Value
from ..ir.op import with_attributes
from ..ir.types import Shape
from ..ops.attention import Attention
from ..ops.movement import Transpose
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from .compose_views import rewritten, views_to
from .driver import Context
from .editing import Builder, shape_of

_VIEWS = (Reshape, Flatten, Squeeze, Unsqueeze, Transpose)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Reshape the operands [b * h, t, d] of an Attention of one head to [b, h, t, d], and back.

    Batched products of three axes need one axis for samples and heads (BoTNet).
    With an axis for each, the views compose with those of the layers, which then are read in place.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Attention):
            continue
        batch = _samples(graph, node)
        if batch is not None:
            _rewrite(graph, node, batch)
            yield f"heads of Attention '{node.name}' are no batches of their own"


def _samples(graph: Graph, node: Node) -> int | None:
    """Return how many samples the batches of an attention come from, if that many have heads."""
    assert isinstance(node.op, Attention)
    if node.op.q_num_heads != 1 or node.op.kv_num_heads != 1 or any(node.inputs[4:]):
        return None
    if any(value.consumers or graph.is_output(value) for value in node.outputs[1:]):
        return None
    shapes: list[Shape] = [shape_of(value) or () for value in node.inputs[:3]]
    if any(len(shape) != 3 or None in shape for shape in shapes):
        return None
    sources = [_source(value) for value in node.operands[:3]]
    batches = {shape[0] for shape in shapes}
    counts = {source[0] if len(source) > 2 else None for source in sources}
    if len(batches) != 1 or len(counts) != 1:
        return None
    (batch,), (count,) = batches, counts
    if not isinstance(batch, int) or not isinstance(count, int) or not 0 < count < batch:
        return None
    for source, shape in zip(sources, shapes, strict=True):
        # The elements of a head are beside those of others, in a row or among channels.
        size = shape[-1]
        wide = batch // count * size if isinstance(size, int) else None
        if wide not in (source[1], source[-1]):
            return None
    mask = shape_of(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else ()
    if mask is None or (len(mask) > 2 and (len(mask) != 4 or mask[1] != 1 or None in mask)):
        return None
    return count if batch % count == 0 and mask[:-3] in ((), (1,), (batch,)) else None


def _source(value: Value) -> Shape:
    """Return the shape of the tensor that a value is a view of; empty if it is unknown."""
    while (made := value.producer) is not None and isinstance(made.op, _VIEWS):
        value = made.operands[0]
    return shape_of(value) or ()


def _rewrite(graph: Graph, node: Node, count: int) -> None:
    add = Builder(graph, node, f"{node.name}.heads", (node,))

    def cut(value: Value) -> Value:
        """Return [b * h, ...] as [b, h, ...]."""
        batch, *sizes = shape_of(value) or (0,)
        heads = batch // count if isinstance(batch, int) else 0
        return add.view(value, (count, heads, *sizes))

    operands = [_composed(graph, cut(value)) for value in node.operands[:3]]
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    of_mask = shape_of(mask) or ()
    if mask is not None and len(of_mask) == 4 and of_mask[0] != 1:
        mask = cut(add.view(mask, (of_mask[0], *of_mask[2:])))
    op = with_attributes(node.op, q_num_heads=None, kv_num_heads=None)
    new = Builder(graph, node, node.name, (node,)).node(op, *operands, mask)
    name, last = node.name, add.view(new.output, shape_of(node.output) or ())
    graph.replace(node, (last,))
    graph.rename(new, name)
    while (view := graph.sole_consumer(last)) is not None and isinstance(view.op, _VIEWS):
        last = view.output
    _composed(graph, last)


def _composed(graph: Graph, value: Value) -> Value:
    """Return the result of a chain of views as that of its shortest form."""
    made = value.producer
    chain = [] if made is None or not isinstance(made.op, _VIEWS) else views_to(made)
    return (rewritten(graph, chain, lambda ops: True) if len(chain) > 1 else None) or value
