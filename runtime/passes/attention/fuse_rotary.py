"""Fuses rotary position embeddings that exporters decompose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.dtypes import DType
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.attention import RotaryEmbedding
from ...ops.cuts import axes_of, axis_of, part_of
from ...ops.elementwise import Add, Mul, Sub
from ...ops.gather import Gather
from ...ops.movement import Concat, Slice, Split
from ...ops.reduce import ReduceSum
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, dims_of, drop, dtype_of, number, rank_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..pattern import Apply, Match
from . import computed_rotary
from .computed_rotary import of_rows
from .row_sums import RowSums, Term, sources

#: Maximum and minimum number of nodes that rotate parts of a head.
_PARTS, _WORTH = 64, 12


@record
class _Sums:
    """Matches any sum of moved and scaled elements of one tensor, and names that tensor x.

    Attributes:
        reach: maximum number of nodes.
    """

    reach: int = 24

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        dtype = dtype_of(value)
        if value is None or rank_of(value) != 4 or dtype not in computed_rotary.ROTATED:
            return
        for source, nodes in sources(value, self.reach):
            bound = replace(match, nodes=match.nodes | nodes).bound("x", source)
            if bound is not None:
                yield bound


@record
class _Rotation:
    """``y[j] = cos[j] x[j] + sin[j] x[pair of j]`` for the first elements of a row.

    Attributes:
        op: the operator, which defines the pairs.
        cos: float64 [positions or 1, pairs].
        sin: likewise; negative for the first element of a pair.
        apart: whether the first elements of all pairs come first in the result.
    """

    op: RotaryEmbedding
    cos: Array
    sin: Array
    apart: bool = False


def _rotation(terms: Sequence[Term], size: int) -> _Rotation | None:
    """Return the rotation that a sum computes, of factors by position; None if it is none."""
    found = _in_place(terms, size)
    if found is None and size % 2 == 0:
        places = np.arange(size).reshape(2, -1).T.reshape(-1)  # of a result with pairs side by side
        found = _in_place([term.taken(places) for term in terms], size)
        usable = found is not None and found.op.interleaved and not found.op.rotary_embedding_dim
        return replace(found, apart=True) if found is not None and usable else None
    return found


def _in_place(terms: Sequence[Term], size: int) -> _Rotation | None:
    """Return a rotation whose result has the order of its input."""
    own = np.arange(size)
    moved = np.zeros(size, bool)
    for term in terms:
        moved |= (term.index != own) & (term.factor != 0).any(axis=0)
    width = int(np.flatnonzero(moved)[-1]) + 1 if moved.any() else 0
    if width < 2 or width % 2:
        return None
    half = width // 2
    halves, neighbours = (own[:width] + half) % width, own[:width] ^ 1
    dim = 0 if width == size else width
    for pairs, is_interleaved in ((halves, 0), (neighbours, 1)):
        first = own[:width:2] if is_interleaved else own[:half]
        tables = _tables(terms, np.concatenate([pairs, own[width:]]), own)
        if tables is None:
            continue
        cos, sin = tables
        second = pairs[first]
        is_rotation = np.array_equal(cos[:, first], cos[:, second])
        is_rotation = is_rotation and np.array_equal(sin[:, first], -sin[:, second])
        if is_rotation and (cos[:, width:] == 1).all():
            op = RotaryEmbedding(interleaved=is_interleaved, rotary_embedding_dim=dim)
            return _Rotation(op, cos[:, first], sin[:, second])
    return None


def _by_position(terms: Sequence[Term]) -> tuple[int, list[Term]] | None:
    """Return the axis of positions, 2 or 1, and terms whose factors are [positions, elements]."""
    for axis in (2, 1):
        others = (0, 3 - axis)
        if all(term.factor.shape[i] == 1 for term in terms for i in others):
            alone = [Term(term.index, term.factor.squeeze(others)) for term in terms]
            return axis, alone
    return None


def _tables(terms: Sequence[Term], pairs: Array, own: Array) -> tuple[Array, Array] | None:
    """Return the factors of each element and of its partner, by position."""
    cos, sin = np.zeros((1, len(own))), np.zeros((1, len(own)))
    for term in terms:
        factor, is_own = term.factor, term.index == own
        if (factor[:, ~is_own & (term.index != pairs)] != 0).any():
            return None
        cos = cos + np.where(is_own, factor, 0)
        sin = sin + np.where(is_own, 0, factor)
    shape = np.broadcast_shapes(cos.shape, sin.shape)
    return np.broadcast_to(cos, shape), np.broadcast_to(sin, shape)


def _build(found: Found) -> Outcome:
    x = found["x"]
    sizes, dtype = dims_of(x), dtype_of(x)
    if sizes is None or len(sizes) != 4 or 0 in sizes or dtype is None:
        return None
    terms = RowSums(x, found.context.places).terms(found.top.output)
    axis, alone = (_by_position(terms) if terms else None) or (2, [])
    rotation = _rotation(alone, sizes[3])
    if rotation is None:
        return None
    length = sizes[axis]
    tables = [
        np.broadcast_to(table, (length, table.shape[1])) for table in (rotation.cos, rotation.sin)
    ]
    caches = _caches(found, tables, sizes[0], dtype)
    if axis == 2:
        rotated = Replacement(rotation.op, (x, *caches))
    else:
        add = found.builder(f"{found.top.name}.rows")
        op = replace(rotation.op, num_heads=sizes[2])
        rotated = of_rows(add, op, x, sizes[2], caches)
    return _apart(found, rotated, sizes[3]) if rotation.apart else rotated


def _apart(found: Found, rotated: Replacement, size: int) -> Replacement:
    """Return a rotation with the first elements of all pairs in front (DeepSeek-V3)."""
    add = found.builder(f"{found.top.name}.rotated", found.graph.in_order(found.match.nodes))
    places = np.arange(size).reshape(-1, 2).T.reshape(-1)
    order = add.constant(places.astype(np.int64), "order")
    return Replacement(Gather(axis=-1), (add(rotated.op, *rotated.inputs), order))


def _replacement(
    found: Found, x: Value, op: RotaryEmbedding, tables: Sequence[Array], batch: int, dtype: DType
) -> Replacement:
    """Return a rotation of x with tables [positions, pairs]."""
    return Replacement(op, (x, *_caches(found, tables, batch, dtype)))


def _caches(found: Found, tables: Sequence[Array], batch: int, dtype: DType) -> tuple[Value, ...]:
    """Return the inputs of a rotation behind the first, of tables [positions, pairs]."""
    add = found.builder(f"{found.top.name}.caches")
    caches = [table.astype(dtype) for table in tables]
    if batch == 1:
        return tuple(add.constant(cache[None], "cache") for cache in caches)
    places = np.broadcast_to(np.arange(len(caches[0]), dtype=np.int64), (batch, len(caches[0])))
    values = (add.constant(cache, "cache") for cache in caches)
    return (*values, add.constant(places.copy(), "positions"))


# ── parts of a head ──────────────────────────────────────────────────────────────────────────────


def _build_parts(found: Found) -> Outcome:
    """Return a rotation of x, or the sum of it and of moved elements, each times a constant."""
    if len(found.match.nodes) < _WORTH:
        return None
    if (outcome := _build(found)) is not None:
        return outcome
    x, dtype = found["x"], dtype_of(found["x"])
    terms = RowSums(x, found.context.places).terms(found.top.output)
    mixed = _mixed(terms) if terms else None
    if mixed is None or dtype is None:
        return None
    places, own, other = mixed
    add = found.builder(f"{found.top.name}.parts")
    moved = add(Gather(axis=-1), x, add.constant(places, "places"))
    products = (
        add(Mul(), value, add.constant(factor.astype(dtype), "factors"))
        for value, factor in ((x, own), (moved, other))
    )
    return Replacement(Add(), tuple(products))


def _mixed(terms: Sequence[Term]) -> tuple[Array, Array, Array] | None:
    """Return the other element that each is a sum with, and the factors of both; None if more."""
    own = np.arange(len(terms[0].index))
    places, is_set = own.copy(), np.zeros(len(own), bool)
    factors, others = np.zeros((1, 1, 1, len(own))), np.zeros((1, 1, 1, len(own)))
    for term in terms:
        is_own = term.index == own
        moved = ~is_own & (term.factor != 0).any(axis=(0, 1, 2))
        if (moved & is_set & (places != term.index)).any():
            return None
        places, is_set = np.where(moved, term.index, places), is_set | moved
        factors = factors + np.where(is_own, term.factor, 0)
        others = others + np.where(moved, term.factor, 0)
    return (places, factors, others) if is_set.any() else None


def _joins_parts(node: Node) -> bool:
    return rank_of(node.output) == 4 and axis_of(node) == 3


# ── some of the positions ────────────────────────────────────────────────────────────────────────


def _positions(part: Value | None) -> tuple[Value, range] | None:
    """Return which positions of a tensor [batch, heads, positions, size] a value consists of.

    It is the result of a Slice, or a part of a Split.
    """
    found = None if part is None else part_of(part)
    return (found.source, found.places) if found is not None and found.axis == 2 else None


def _rows(rotated: Node) -> list[Array] | None:
    """Return the tables of all positions in order; None if samples differ."""
    caches = [None if v is None else v.data for v in rotated.inputs[1:]]
    cos, sin, places = (*caches, None)[:3]
    if cos is None or sin is None or (len(caches) > 2 and places is None):
        return None
    if places is not None:
        cos, sin = cos[places], sin[places]
    if any((cache != cache[:1]).any() for cache in (cos, sin)):
        return None
    return [cos[0], sin[0]]


def _build_joined(found: Found) -> Outcome:
    rotated, shape = found.match.made("rotated"), shape_of(found.top.output)
    batch, _, length, _ = shape or (None,) * 4
    rows = _rows(rotated)
    if not isinstance(batch, int) or not isinstance(length, int) or rows is None:
        return None
    source, start, place = None, 0, 0
    for piece in found.top.inputs:
        is_rotated = piece is not None and piece.producer is rotated
        cut = _positions(found["part"] if is_rotated else piece)
        if cut is None or cut[1] != range(place, place + len(cut[1])):
            return None
        if source not in (None, cut[0]) or shape_of(cut[0]) != shape:
            return None
        source, place = cut[0], place + len(cut[1])
        start = cut[1].start if is_rotated else start
    dtype = dtype_of(source)
    if source is None or dtype is None or not isinstance(rotated.op, RotaryEmbedding):
        return None
    tables = [np.ones((length, rows[0].shape[1])), np.zeros((length, rows[1].shape[1]))]
    for table, known in zip(tables, rows, strict=True):
        table[start : start + len(known)] = known
    return _replacement(found, source, rotated.op, tables, batch, dtype)


def _joins_positions(node: Node) -> bool:
    return rank_of(node.output) == 4 and axis_of(node) == 2


_PART = Apply(RotaryEmbedding, "part", name="rotated")

FUSIONS = (
    Fusion(Apply((Add, Sub, ReduceSum), name="sum"), _build, _Sums(), 3),
    Fusion(Apply(Concat, where=_joins_parts), _build_parts, _Sums(_PARTS)),
    Fusion(_PART, _build_joined, Apply(Concat, where=_joins_positions), 1),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace sums that rotate pairs of a head's elements by RotaryEmbedding.

    ``y[j] = cos[j] x[j] + sin[j] x[pair of j]``, however elements are moved, negated, scaled and
    added, also as a matrix times each pair (Perception Encoder): pairs are in the two halves of a
    head or adjacent, in all of it or in its first part. The tables are constants shared by all
    heads, and x has four axes of known sizes, the heads in front of the positions or behind; or
    they are computed from positions (`computed_rotary`). If only some positions are rotated and
    concatenated with the others, these get the identity rotation. What is multiplied by a number
    before it is rotated may be multiplied afterwards, which is part of an Attention's scale (ESM).

    Parts of a head that are rotated separately, by positions along different axes, are joined by a
    Concat. If the elements of a pair rotate by different angles (V-JEPA 2), all of it is still
    ``y[j] = a[j] x[j] + b[j] x[pair of j]``.
    """
    yield from _joined_pairs(graph)
    yield from _parted_pairs(graph)
    for fusion in (*FUSIONS, *computed_rotary.FUSIONS):
        yield from fuse(graph, context, (fusion,))
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, RotaryEmbedding):
            yield from _scaled_afterwards(graph, node)


def _joined_pairs(graph: Graph) -> Iterator[str]:
    """View stacked pairs [b, h, t, pairs, 2] as heads first, if they are viewed as something else.

    The keys of PyTorch's attention are matrices that are counted by one axis.
    """
    for node in list(graph.nodes):
        stack = node.operands[0].producer if isinstance(node.op, Reshape) else None
        if stack is None or not isinstance(stack.op, Concat) or axis_of(stack) != 4:
            continue
        if graph.sole_consumer(stack.output) is not node:
            continue
        sizes, after = dims_of(stack.output), shape_of(node.output)
        if sizes is None or len(sizes) != 5 or sizes[4] != 2 or after is None:
            continue
        heads = (*sizes[:3], 2 * sizes[3])
        if len(after) != 4 and after[-1] == heads[-1] and _can_view_another(node):
            _view_heads(graph, node, heads)
            yield f"Reshape '{node.name}' views heads, not their pairs"


def _parted_pairs(graph: Graph) -> Iterator[str]:
    """View rows as heads before they are viewed as pairs [b, t, h, pairs, 2] of these."""
    for node in list(graph.nodes):
        if not isinstance(node.op, Reshape) or rank_of(node.operands[0]) == 4:
            continue
        sizes = dims_of(node.output)
        if sizes is None or len(sizes) != 5 or sizes[4] != 2:
            continue
        readers = node.output.consumers
        if readers and all(map(_takes_apart, readers)) and _can_view_another(node):
            _view_heads(graph, node, (*sizes[:3], 2 * sizes[3]))
            yield f"Reshape '{node.name}' views pairs of heads"


def _can_view_another(node: Node) -> bool:
    """Whether a Reshape's sizes are known, or copied from no axis of what it views."""
    wanted, after = node.operands[1].data, dims_of(node.output)
    return (wanted is not None and bool(wanted.all())) or (after is not None and all(after))


def _view_heads(graph: Graph, node: Node, heads: Sequence[int]) -> None:
    """View as heads what a Reshape views; sizes that it copies are written out."""
    add = Builder(graph, node, f"{node.name}.heads", (node,))
    wanted = node.operands[1]
    if wanted.data is None or not wanted.data.all():
        wanted = add.integers(dims_of(node.output) or (), "sizes")
    graph.set_inputs(node, (add.shaped(node.operands[0], heads), wanted))


def _takes_apart(node: Node) -> bool:
    """Whether a node cuts pairs [b, t, h, pairs, 2] into first and second elements."""
    return isinstance(node.op, Gather | Slice | Split) and axes_of(node) == (4,)


def _scaled_afterwards(graph: Graph, node: Node) -> Iterator[str]:
    """Move a product with a number from before a rotation to behind it."""
    scaled = node.inputs[0]
    product = None if scaled is None else scaled.producer
    if scaled is None or product is None or not isinstance(product.op, Mul):
        return
    if graph.sole_consumer(scaled) is not node or graph.is_output(scaled):
        return
    factors = [value for value in product.operands if number(value, rank_of(scaled)) is not None]
    others = [value for value in product.operands if value not in factors]
    if len(factors) != 1 or shape_of(others[0]) != shape_of(scaled):
        return
    rotated = Builder(graph, node, node.name, (node,))(node.op, others[0], *node.inputs[1:])
    result = Builder(graph, node, product.name, (product,))(Mul(), rotated, factors[0])
    graph.redirect(node.output, result)
    name = product.name
    drop(graph, node)
    yield f"Mul '{name}' scales what has been rotated"
