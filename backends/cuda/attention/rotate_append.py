"""Rotary embedding of queries and keys, and the cache update, as one kernel.

Between its first product and its attention, a decoder step has four nodes with little work. They
are found from the attention, whose queries are rotated and whose keys and values were just
appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from math import gcd

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, int32, int64
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention, RotaryEmbedding
from ....runtime.ops.cuts import axis_of
from ....runtime.ops.gather import TensorScatter
from ..algorithms.registry import Answer, need_dtypes
from ..codegen.copies import copied_unless_same
from ..recipe.launch import Launch, each
from ..recipe.operands import Tensor, index_type
from ..recipe.pattern import Grouping, OperandOf, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.source import arithmetic
from .heads import HeadSource, by_head, source_of_heads

#: Maximum word size in bytes.
WORD = 8


@record
class RotateAppend(Whole):
    """Nodes that rotate queries and keys and append keys and values.

    Attributes:
        q, k: the rotations; only `keys` reads the rotated keys.
        keys, values: writes into the caches [batch, heads, room, size].
        sources: where the heads of queries, new keys and new values lie; empty for the inputs of
            the nodes.
    """

    q: Node
    k: Node
    keys: Node
    values: Node
    sources: tuple[HeadSource, ...] = ()

    reads_rows = True
    regrouped = Grouping.ALONE

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        views = (node for source in self.sources for node in source.nodes)
        return frozenset({self.q, self.k, self.keys, self.values, *views})

    @property
    def reads(self) -> tuple[tuple[Node, Value], ...]:
        """The queries, new keys and new values, each with the node that reads it."""
        given = ((self.q, 0), (self.k, 0), (self.values, 1))
        return tuple((node, value) for node, i in given if (value := node.inputs[i]) is not None)

    @property
    def in_place(self) -> tuple[tuple[Value, Value], ...]:
        """The updated caches, each with its previous value."""
        return updated((self.keys, self.values))

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return rotate_append(self, operand)


def rotate_append_at(
    graph: Graph, attention: Node, free: Set[Node], may_join: Callable[[Set[Node]], bool]
) -> RotateAppend | None:
    """Return the rotation and cache update before an attention, if there are any.

    Args:
        graph: the graph.
        attention: the attention.
        free: nodes that may be taken.
        may_join: whether nodes may be one kernel.
    """
    if not isinstance(attention.op, Attention):
        return None
    q, keys, values = (v and v.producer for v in attention.inputs[:3])
    if q is None or keys is None or values is None:
        return None
    k = keys.inputs[1].producer if isinstance(keys.op, TensorScatter) and keys.inputs[1] else None
    if k is None or graph.sole_consumer(k.output) is not keys:
        return None
    found = RotateAppend(q, k, keys, values)
    if len(found.nodes) < 4 or not found.nodes <= free or not _fits(found):
        return None
    sources = tuple(source_of_heads(graph, value, node) for node, value in found.reads)
    for whole in (replace(found, sources=sources), found):
        if whole.nodes <= free and may_join(whole.nodes):
            return whole
    return None


def _fits(found: RotateAppend) -> bool:
    """Whether both rotations use the same angles, and both caches are updated alike."""
    return are_rotated_alike(found.q, found.k) and are_appended_alike(found.keys, found.values)


def updated(caches: Iterable[Node]) -> tuple[tuple[Value, Value], ...]:
    """Return what nodes that append to caches store, each with the previous value of the cache."""
    pasts = ((node, node.inputs[0]) for node in caches)
    return tuple((node.output, past) for node, past in pasts if past is not None)


def are_rotated_alike(q: Node, k: Node) -> bool:
    """Whether nodes are rotations by the same angles."""
    return (
        isinstance(q.op, RotaryEmbedding)
        and isinstance(k.op, RotaryEmbedding)
        and (q.op.interleaved, q.op.rotary_embedding_dim)
        == (k.op.interleaved, k.op.rotary_embedding_dim)
        and q.inputs[1:] == k.inputs[1:]
    )


def are_appended_alike(keys: Node, values: Node) -> bool:
    """Whether nodes update caches [batch, heads, room, size] of one shape at the same positions."""
    dims = keys.output.tensor.dims
    return (
        isinstance(keys.op, TensorScatter)
        and isinstance(values.op, TensorScatter)
        and keys.inputs[2:] == values.inputs[2:]
        and keys.op.mode == values.op.mode
        and len(dims) == 4
        and dims == values.output.tensor.dims
        and axis_of(keys) == axis_of(values) == 2
    )


def rotate_append(found: RotateAppend, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the launches: copies of caches that are not updated in place, and the kernel."""
    op, mode = found.q.op, found.keys.op
    if not isinstance(op, RotaryEmbedding) or not isinstance(mode, TensorScatter):
        return "no rotation"
    sources = found.sources or tuple(HeadSource(value) for _, value in found.reads)
    x, k, v = (operand(source.value) for source in sources)
    cos, sin = (operand(value) for value in found.q.inputs[1:3] if value is not None)
    positions, first = (
        None if value is None else operand(value)
        for value in ((*found.q.inputs, None)[3], (*found.keys.inputs, None)[2])
    )
    y, keys, values = (operand(node.output) for node in (found.q, found.keys, found.values))
    tensors = (x, k, v, cos, sin, y, keys, values)
    refused = need_dtypes(FLOATS, x) or need_dtypes((x.dtype,), *tensors)
    if refused or (refused := need_dtypes((int32, int64), first)):
        return refused
    known = (op.num_heads, op.num_heads, None)
    heads, new_keys, new_values = (
        source.operand(rows, own)
        for rows, source, own in zip((x, k, v), sources, known, strict=True)
    )
    result = by_head(y, op.num_heads)
    batch, count, rows, size = heads.dims
    if new_keys.dims != new_values.dims or new_keys.dims[2:] != (rows, size):
        return f"heads of {new_keys.dims} and {new_values.dims}"
    kv_heads, room = keys.dims[1], keys.dims[2]
    half = (op.rotary_embedding_dim or size) // 2
    widest = min(one.vector(WORD) for one in (heads, result, new_keys, new_values))
    vector = gcd(min(WORD // x.dtype.itemsize, widest), half, size - 2 * half)
    chunks = (size - half) // vector
    threads = batch * (count + 2 * kv_heads) * rows * chunks
    batches = cos.dims[0] if positions is None else positions.dims[0]
    launch = each(
        "attention/rotate_append.cu",
        "rotate_append",
        threads,
        {
            **{"q": x, "k": k, "v": v, "cosine": cos, "sine": sin, "positions": positions},
            **{"first": first, "y": y, "keys": keys, "values": values, "count": threads},
            "s": {
                **{"heads": count, "kv_heads": kv_heads, "rows": rows, "half": half},
                **{"chunks": chunks, "batches": max(1, batches), "places": cos.size // half},
                **{"room": room, "size": size},
            },
            **{"of_q": heads.struct, "of_k": new_keys.struct, "of_v": new_values.struct},
            "of_y": result.struct,
        },
        types=(
            *(("T", x.dtype), ("A", arithmetic(x.dtype))),
            *(("Index", index_type(threads)), ("I", int64 if first is None else first.dtype)),
        ),
        constants=(
            *(("INTERLEAVED", bool(op.interleaved)), ("VECTOR", vector)),
            ("CIRCULAR", mode.mode == "circular"),
        ),
        note=f"{count} + {2 * kv_heads} heads",
        pitched=(x, k, v),
    )
    return (*_copies(found, operand), launch)


def _copies(found: RotateAppend, operand: Callable[[Value], Tensor]) -> tuple[Launch, ...]:
    """Return the copies of caches that are not updated in place."""
    pasts = [past for _, past in found.in_place]
    return tuple(
        copied_unless_same(operand(node.output), operand(past))
        for node, past in zip((found.keys, found.values), pasts, strict=True)
    )
