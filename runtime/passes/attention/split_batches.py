"""Gives heads that an attention has among its batches a separate axis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from ...base.record import record
from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Shape
from ...ops.attention import Attention
from ...ops.movement import Transpose
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, unviewed
from ..moves.compose_views import rewritten, views_to
from ..moves.factors import follow

_VIEWS = (*RESHAPES, Transpose)


@record
class _Batch:
    """What the batches of an attention consist of.

    Attributes:
        samples: how many.
        heads: of each sample.
        heads_first: whether all samples of a head are adjacent, not all heads of a sample.
    """

    samples: int
    heads: int
    heads_first: bool


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Reshape the operands [b * h, t, d] of an Attention of one head to [b, h, t, d], and back.

    Batched products of three axes need one axis for samples and heads (BoTNet). Heads may be in
    front of samples, in one axis with them or in a separate one (Set Transformer, AutoInt).
    With an axis for each, the views compose with those of the layers, which then are read in place.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Attention):
            continue
        batch = _batch(graph, node)
        if batch is not None:
            _rewrite(graph, node, batch)
            yield f"heads of Attention '{node.name}' have a separate axis"


def _batch(graph: Graph, node: Node) -> _Batch | None:
    """Return what the batches of an attention are if heads are among them, or in their place."""
    shape = shape_of(node.inputs[0])
    if shape is not None and len(shape) == 4:
        return _batch_of_heads(graph, node)
    samples = _samples(graph, node)
    count = shape[0] if shape is not None and len(shape) else None
    if samples is None or not isinstance(count, int):
        return None
    first = all(value.is_constant or _has_heads_first(value) for value in node.operands[:3])
    return _Batch(samples, count // samples, first)


def _batch_of_heads(graph: Graph, node: Node) -> _Batch | None:
    """Return the axes of an attention [h, b, t, d], whose heads are columns of rows in each."""
    assert isinstance(node.op, Attention)
    if node.op.q_num_heads is not None or any(node.inputs[4:]):
        return None
    if any(map(graph.is_read, node.outputs[1:])):
        return None
    mask = shape_of(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else ()
    if mask is None or any(size != 1 for size in mask[:-2]):
        return None
    shapes = [shape_of(value) for value in node.operands[:3]]
    if not all(
        shape and len(shape) == 4 and shape[:2] == (shapes[0] or ())[:2] for shape in shapes
    ):
        return None
    if not all(_has_heads_first(value) for value in node.operands[:3]):
        return None
    heads, samples, *_ = shapes[0] or (None, None)
    if not isinstance(heads, int) or not isinstance(samples, int):
        return None
    return _Batch(samples, heads, heads_first=True)


def _has_heads_first(value: Value) -> bool:
    """Whether a view [h * b, t, d] or [h, b, t, d] has parts of its source's columns in front."""
    made = value.producer
    chain = [] if made is None or not isinstance(made.op, _VIEWS) else views_to(made)
    found = follow(chain) if chain else None
    if found is None:
        return False
    given, _, axes = found
    front, columns = ([f for f in axis if f.size != 1] for axis in (axes[0], axes[-1]))
    source = [axis for axis in given if columns and columns[0] in axis]
    return bool(front) and bool(source) and front[0] in source[0]


def _samples(graph: Graph, node: Node) -> int | None:
    """Return how many samples the batches of an attention come from, if that many have heads."""
    assert isinstance(node.op, Attention)
    if node.op.q_num_heads != 1 or node.op.kv_num_heads != 1 or any(node.inputs[4:]):
        return None
    if any(map(graph.is_read, node.outputs[1:])):
        return None
    shapes: list[Shape] = [shape_of(value) or () for value in node.inputs[:3]]
    if any(len(shape) != 3 or None in shape for shape in shapes):
        return None
    # Constants (learned queries, multiplied in advance) are cut as the others are.
    sources = [_source(value) for value in node.operands[:3] if not value.is_constant]
    batches = {shape[0] for shape in shapes}
    counts = {source[0] if len(source) > 2 else None for source in sources}
    if len(batches) != 1 or len(counts) != 1:
        return None
    (batch,), (count,) = batches, counts
    if not isinstance(batch, int) or not isinstance(count, int) or not 0 < count < batch:
        return None
    for value, shape in zip(node.operands, shapes, strict=False):
        # The elements of a head are next to those of others, in a row or among channels.
        size, source = shape[-1], _source(value)
        if value.is_constant:
            continue
        wide = batch // count * size if isinstance(size, int) else None
        apart = len(source) == 4 and source[1] == batch // count and size in source[2:]
        apart |= len(source) > 3 and source[-2:] == (batch // count, size)
        if wide not in source[1:2] + source[-1:] and not apart:
            return None
    mask = shape_of(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else ()
    if mask is None or (len(mask) > 2 and (len(mask) != 4 or mask[1] != 1 or None in mask)):
        return None
    return count if batch % count == 0 and mask[:-3] in ((), (1,), (batch,)) else None


def _source(value: Value) -> Shape:
    """Return the shape of the tensor that a value is a view of; empty if it is unknown."""
    return shape_of(unviewed(value, _VIEWS)) or ()


def _rewrite(graph: Graph, node: Node, batch: _Batch) -> None:
    add = Builder(graph, node, f"{node.name}.heads", (node,))
    merged = rank_of(node.output) == 3

    def cut(value: Value) -> Value:
        """Return [b * h, ...], [h * b, ...] or [h, b, ...] as [b, h, ...]."""
        sizes = (shape_of(value) or ())[1 if merged else 2 :]
        lead = (batch.heads, batch.samples) if batch.heads_first else (batch.samples, batch.heads)
        y = add.view(value, (*lead, *sizes)) if merged else value
        return add(_exchange(y), y) if batch.heads_first else y

    operands = [_composed(graph, cut(value)) for value in node.operands[:3]]
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    of_mask = shape_of(mask) or ()
    if mask is not None and len(of_mask) == 4 and of_mask[0] != 1:
        mask = cut(add.view(mask, (of_mask[0], *of_mask[2:])))
    op = with_attributes(node.op, q_num_heads=None, kv_num_heads=None)
    new = Builder(graph, node, node.name, (node,)).node(op, *operands, mask)
    name, last, before = node.name, new.output, node.distinct_reads
    last = add(_exchange(last), last) if batch.heads_first else last
    last = add.view(last, shape_of(node.output) or ()) if merged else last
    graph.replace(node, (last,))
    graph.rename(new, name)
    for value in before:
        drop(graph, value.producer)
    for view in takewhile(lambda node: isinstance(node.op, _VIEWS), chain_behind(graph, last)):
        last = view.output
    _composed(graph, last)


def _exchange(value: Value) -> Transpose:
    """Return the Transpose that exchanges the first two axes."""
    return Transpose(perm=(1, 0, *range(2, len(shape_of(value) or ()))))


def _composed(graph: Graph, value: Value) -> Value:
    """Return the result of a chain of views as that of its shortest form."""
    made = value.producer
    chain = [] if made is None or not isinstance(made.op, _VIEWS) else views_to(made)
    return (rewritten(graph, chain, lambda ops: True) if len(chain) > 1 else None) or value
