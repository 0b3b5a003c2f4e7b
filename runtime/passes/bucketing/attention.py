"""Attention in buckets: the number of valid keys is data, and new keys follow the past."""

from __future__ import annotations

from dataclasses import replace

from ...ir.graph import Node, Value
from ...ir.grown import Grown
from ...ir.infer import infer_node
from ...ir.types import Dim
from ...ops.attention import Attention
from ...ops.movement import Transpose
from ...ops.shape import (
    Reshape,
)
from .movement import appended
from .registry import rule
from .writer import GraphWriter, fill_of


@rule(Attention)
def attention(writer: GraphWriter, node: Node) -> None:
    """The number of valid keys is data; new keys are written after the past."""
    op = node.op
    assert isinstance(op, Attention)
    q, k, v, mask, past_k, past_v, lengths = (*node.inputs, *(None,) * (7 - len(node.inputs)))
    rows, count = (_length(writer, x) for x in (q, k))
    windows = op.is_causal or max(op.left_window_size, op.right_window_size) >= 0
    if isinstance(rows, Grown) and (windows or past_k is not None or lengths is not None):
        raise writer.error("queries grow, and their positions are counted from the end of the keys")
    batch, *_ = writer.shape(writer.dims(q))
    if past_k is not None and past_v is not None:
        past = writer.dims(past_k)[2]
        if isinstance(past, Grown):
            if not isinstance(count, int) or (windows and rows != count):
                raise writer.error("its new keys grow, or have other positions than its queries")
            _append_past(writer, node, writer.added(past, count))
            return
    elif lengths is None and isinstance(count, Grown):
        if windows:
            raise writer.error("keys grow, and its window is counted from their front")
        lengths = writer.vector(count, batch)
    shown = _mask(writer, mask, count)
    read = [writer.read(value) for value in (q, k, v)]
    writer.set_inputs([*read, shown, *map(writer.read, (past_k, past_v, lengths))])


def _mask(writer: GraphWriter, mask: Value | None, keys: Dim) -> Value | None:
    """Return a mask that hides padded keys; a mask that is too short hides the remaining ones."""
    if mask is None:
        return None
    last = len(writer.dims(mask)) - 1
    if last not in writer.grown(mask) or writer.dims(mask)[last] == keys:
        return writer.read(mask)
    return writer.hidden(mask, [last], fill_of(mask.tensor.dtype, -1))


def _length(writer: GraphWriter, x: Value | None) -> Dim:
    """Return the number of positions of [batch, heads, length, size] or [batch, length, …]."""
    return writer.dims(x)[-2]


def _append_past(writer: GraphWriter, node: Node, total: Dim) -> None:
    """Replace an Attention with a growing past by one whose keys include the new ones."""
    op = node.op
    assert isinstance(op, Attention)
    q, k, v, _, *past = (writer.read(value) for value in node.inputs[:6])
    assert q is not None
    joined, (first, *_), count = q.tensor.rank == 3, node.outputs, len(node.outputs)
    heads = op.kv_num_heads
    ends = [writer.dims(value)[2] for value in node.inputs[4:6]]
    rows = [_split_heads(writer, x, heads) for x in (k, v)]
    caches: list[Value] = []
    for old, new, end in zip(past, rows, ends, strict=True):
        assert old is not None
        assert isinstance(end, Grown)
        caches.append(appended(writer, old, new, 2, end))
    lengths = writer.vector(total, q.tensor.dims[0])
    query = _split_heads(writer, q, op.q_num_heads)
    inputs = [query, *caches, _mask(writer, node.inputs[3], total), None, None, lengths]
    made = writer.graph.insert(
        replace(op, q_num_heads=None, kv_num_heads=None),
        *(inputs, 1 if count < 4 else count),
        name=node.name,
        before=node,
        origin=(node,),
    )
    infer_node(made)
    y = made.outputs[0]
    if joined:
        y = writer.add(Transpose(perm=(0, 2, 1, 3)), y)
        shape = writer.constant(writer.shape(writer.dims(first)))
        y = writer.add(Reshape(), y, shape)
    writer.replace(*[y, *caches, *made.outputs[3:]][:count])


def _split_heads(writer: GraphWriter, x: Value | None, heads: int | None) -> Value:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    assert x is not None
    if x.tensor.rank == 4 or heads is None:
        return x
    batch, length, hidden = x.tensor.dims
    shape = writer.constant([batch, length, heads, hidden // heads])
    return writer.add(Transpose(perm=(0, 2, 1, 3)), writer.add(Reshape(), x, shape))
