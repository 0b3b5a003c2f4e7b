"""Lays out heads of which a part is rotated as rows: multi-head latent attention (DeepSeek-V3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Array, Dim
from ...ops.attention import Attention, RotaryEmbedding
from ...ops.cuts import axis_of, part_of
from ...ops.elementwise import Add
from ...ops.gather import Gather
from ...ops.matmul import MatMul
from ...ops.movement import Concat, Expand, Slice, Split, Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, size_of
from ..pattern import without_addend

#: Heads in front of positions, and back.
_HEADS = (0, 2, 1, 3)


@record
class _Part:
    """Elements of all heads that a layer computes.

    Attributes:
        product: the layer's MatMul.
        weight, bias: its constants; no bias is None.
        rows: the layer's result [..., heads * width].
        heads, width: how its columns are split.
        first, size: the elements of each head.
        nodes: from the layer to the part.
    """

    product: Node
    weight: Array
    bias: Array | None
    rows: Value
    heads: int
    width: int
    first: int
    size: int
    nodes: frozenset[Node]

    @property
    def columns(self) -> Array:
        """The columns of the layer, by head."""
        own = np.arange(self.first, self.first + self.size)
        return np.arange(self.heads)[:, None] * self.width + own

    def completes(self, other: _Part) -> bool:
        """Whether this and another part are all of the heads of one layer."""
        one, two = sorted((self, other), key=lambda part: part.first)
        adjacent = (one.first, two.first, two.first + two.size) == (0, one.size, self.width)
        return self.rows is other.rows and self.heads == other.heads and adjacent


@record
class _Rotated:
    """Elements of heads that are rotated.

    Attributes:
        rotation: the RotaryEmbedding.
        order: where its results go; None if they stay.
        nodes: it and those behind it.
    """

    rotation: Node
    order: tuple[int, ...] | None
    nodes: frozenset[Node]


@record
class _Latent:
    """An attention to heads [rotated elements, others], in this order or the other.

    Attributes:
        q, k: the rotations of queries, and of keys, which are those of one head.
        rotated, kept: elements of the queries.
        keys, values: elements that another layer computes.
    """

    q: _Rotated
    k: _Rotated
    rotated: _Part
    kept: _Part
    keys: _Part
    values: _Part

    @property
    def nodes(self) -> frozenset[Node]:
        """All nodes in front of the attention that become others."""
        parts = (self.q, self.k, self.rotated, self.kept, self.keys, self.values)
        return frozenset(node for part in parts for node in part.nodes)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Reorder the elements of heads that are rotated in part, and have rows of all heads.

    Queries are ``[q, rotated q]``, keys ``[k, rotated r]`` with ``r`` of one head for all; keys and
    values are parts of one layer. Scores do not depend on the order of elements: with the rotated
    ones in front, as the weights' columns are permuted, queries are rotated in place, and keys and
    values are columns next to one another. What puts pairs apart behind both rotations is left out.
    """
    for node in list(graph.nodes):
        if isinstance(node.op, Attention) and (found := _latent(graph, node)) is not None:
            _rewrite(graph, node, found)
            yield f"heads of '{node.name}' are rotated as rows, first elements first"


def _latent(graph: Graph, attention: Node) -> _Latent | None:
    if len(attention.inputs) < 3 or any(attention.inputs[4:]):
        return None
    if any(map(graph.is_read, attention.outputs[1:])):
        return None
    values = _part(graph, attention.operands[2])
    joins = [value.producer for value in attention.operands[:2]]
    found = [_halves(node) for node in joins if node is not None]
    if values is None or len(found) < 2 or not all(found):
        return None
    for place in (1, 0):
        (q, source), (k, _) = (_rotated(halves[place]) for halves in found)
        rotated, kept = (source and _part(graph, source)), _part(graph, found[0][1 - place])
        keys = _part(graph, found[1][1 - place])
        if not q or not k or not rotated or not kept or not keys:
            continue
        whole = _Latent(q, k, rotated, kept, keys, values)
        if _fits(whole) and _is_alone(graph, {*whole.nodes, *filter(None, joins)}, attention):
            return whole
    return None


def _halves(node: Node) -> tuple[Value, ...]:
    """Return the two values that a Concat joins to heads; nothing if it does not."""
    joins = isinstance(node.op, Concat) and axis_of(node) == 3 and len(node.inputs) == 2
    return tuple(node.operands) if joins and rank_of(node.output) == 4 else ()


def _rotated(value: Value) -> tuple[_Rotated | None, Value | None]:
    """Return the rotation that computes a value, and what it rotates."""
    nodes, order = list[Node](), None
    while (node := value.producer) is not None and isinstance(node.op, Expand | Gather):
        if isinstance(node.op, Gather):
            places = node.operands[1].data
            if places is None or places.ndim != 1 or axis_of(node) != 3 or order:
                return None, None
            order = tuple(map(int, places))
        nodes.append(node)
        value = node.operands[0]
    if node is None or not isinstance(node.op, RotaryEmbedding) or node.op.rotary_embedding_dim:
        return None, None
    size = size_of(value, -1)
    if order is not None and sorted(order) != list(range(size if isinstance(size, int) else 0)):
        return None, None
    return _Rotated(node, order, frozenset({node, *nodes})), node.operands[0]


def _part(graph: Graph, value: Value) -> _Part | None:
    """Return which elements of heads [batch, heads, positions, size] a value is, of a layer."""
    first, size, nodes, transposes = 0, size_of(value, -1), list[Node](), 0
    while (node := value.producer) is not None and isinstance(node.op, Transpose | Split | Slice):
        if isinstance(node.op, Transpose):
            transposes += node.op.order(4) == _HEADS if rank_of(value) == 4 else 2
        else:
            part = part_of(value)
            first += part.places.start if part else 0
            transposes += 0 if part and part.axis == 3 else 2
        nodes.append(node)
        value = node.operands[0]
    *_, heads, width = (None, None, *(shape_of(value) or ()))
    if node is None or not isinstance(node.op, Reshape) or transposes != 1:
        return None
    rows = node.operands[0]
    source, bias = without_addend(graph, rows)
    product = source.producer
    if product is None or not isinstance(product.op, MatMul):
        return None
    weight = product.operands[1].data
    sizes = (heads, width, size)
    if weight is None or weight.ndim != 2 or not all(isinstance(each, int) for each in sizes):
        return None
    heads, width, size = (each for each in sizes if isinstance(each, int))
    if weight.shape[1] != heads * width or (bias is not None and bias.shape != weight.shape[1:]):
        return None
    own = {*nodes, node, product}
    own |= {rows.producer} if rows.producer is not None else set()
    return _Part(product, weight, bias, rows, heads, width, first, size, frozenset(own))


def _fits(found: _Latent) -> bool:
    """Whether parts are all of their layers' heads, and both rotations of the same form."""
    q, k, shape = found.q, found.k, shape_of(found.k.rotation.operands[0])
    queries = shape_of(found.q.rotation.operands[0])
    if shape is None or queries is None or len(shape) != 4 or len(queries) != 4 or shape[1] != 1:
        return False
    known = None not in queries and sum(not isinstance(n, int) for n in queries) <= 1
    whole = found.rotated.completes(found.kept) and found.keys.completes(found.values)
    one, other = q.rotation.op, k.rotation.op
    sizes = shape == (queries[0], 1, *queries[2:]) and found.keys.size == found.kept.size
    return (
        known
        and whole
        and sizes
        and one == other
        and q.order == k.order
        and found.keys.heads == found.kept.heads
    )


def _is_alone(graph: Graph, nodes: Set[Node], attention: Node) -> bool:
    """Whether nothing but an attention reads what some nodes compute."""
    values = [value for node in nodes for value in node.outputs]
    inside = {*nodes, attention}
    return not any(graph.is_read_outside(value, inside) for value in values)


def _rewrite(graph: Graph, attention: Node, found: _Latent) -> None:
    origin = (*graph.in_order(found.nodes), attention)
    add = Builder(graph, attention, attention.name, origin)
    batch, _, length, _ = shape_of(found.q.rotation.operands[0]) or (None,) * 4
    heads, size, rest = found.rotated.heads, found.rotated.size, found.keys.size
    lead, op = (batch, length), found.q.rotation.op
    order = np.concatenate([found.rotated.columns, found.kept.columns], 1).reshape(-1)
    rows = _permuted(graph, found.rotated, order, lead)
    rotation = with_attributes(op, num_heads=heads, rotary_embedding_dim=size)
    q = add(rotation, rows, *found.q.rotation.inputs[1:])
    order = np.concatenate([each.columns.reshape(-1) for each in (found.keys, found.values)])
    rows = _permuted(graph, found.keys, order, lead)
    keys, values = add.split(rows, -1, (heads * rest, heads * found.values.size))
    alone = add.shaped(found.k.rotation.operands[0], (*lead, size), "alone")
    alone = add(with_attributes(op, num_heads=1), alone, *found.k.rotation.inputs[1:])
    alone = add.shaped(alone, (*lead, 1, size), "head")
    alone = add(Expand(), alone, add.integers((1, 1, heads, 1), "heads"))
    k = add(Concat(axis=3), alone, add.shaped(keys, (*lead, heads, rest), "heads"))
    k = add.shaped(k, (*lead, heads * (size + rest)), "rows")
    new = with_attributes(attention.op, q_num_heads=heads, kv_num_heads=heads)
    y = add(new, q, k, values, *attention.inputs[3:])
    y = add.shaped(y, (*lead, heads, found.values.size), "heads")
    result = add(Transpose(perm=_HEADS), y)
    result.type = attention.output.type
    graph.redirect(attention.output, result)
    drop(graph, attention)


def _permuted(graph: Graph, part: _Part, columns: Array, lead: Sequence[Dim]) -> Value:
    """Return the rows of a layer with its columns in another order."""
    add = Builder(graph, part.product, part.product.name, (part.product,))
    weight = np.ascontiguousarray(part.weight[:, columns])
    value = add(MatMul(), part.product.operands[0], add.constant(weight, "weight"))
    if part.bias is not None:
        value = add(Add(), value, add.constant(part.bias[columns], "bias"))
    return add.shaped(value, (*lead, len(columns)), "rows")
