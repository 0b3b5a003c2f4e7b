"""Rotations of heads by angles that the graph computes: cosines and sines of positions.

    y = x * cos + concat(-x[half:], x[:half]) * sin

where cos and sin [batch, 1, positions, size] are equal for both elements of a pair, as in models of
transformers, from any exporter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS, float64
from ...ir.graph import Node, Value
from ...ir.op import Op
from ...ir.types import Array, Shape
from ...ops.attention import RotaryEmbedding
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add, Cast, Cos, Div, Mul, Neg, Sin
from ...ops.gather import Gather
from ...ops.movement import Concat, Expand, Tile, Transpose
from ...ops.shape import Identity, Reshape, Squeeze, Unsqueeze
from ..driver import Reason
from ..editing import Builder, dtype_of, first_input, number, rank_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement
from ..pattern import Apply, Match, OneOf
from .row_sums import RowSums, Term, sources

#: The element types of a RotaryEmbedding.
ROTATED = FLOATS - {float64}


@record
class _Rotated:
    """Elements of the rows of x, moved and negated."""

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        if value is None or rank_of(value) != 4 or dtype_of(value) not in ROTATED:
            return
        for source, nodes in sources(value):
            bound = replace(match, nodes=match.nodes | nodes).bound("x", source)
            bound = bound and bound.bound("rotated", value)
            if bound is not None:
                yield bound


# ── one element for each pair ────────────────────────────────────────────────────────────────────


@record
class _Pairs:
    """A tensor with one element per pair, from which one with two equal elements is computed.

    Attributes:
        leaf: the tensor or constant at the start of the computation; or tensors that are joined
            there, as columns (an axis of positions each).
        steps: the nodes after it, the last one first; they do not mix elements of rows.
        index: indices of the rows gathered from a constant; None for all rows.
        is_column: whether the leaf has a trailing axis of size 1.
    """

    leaf: Value | Array | tuple[_Pairs, ...]
    steps: tuple[Node, ...] = ()
    index: Value | None = None
    is_column: bool = False

    def rebuilt(self, add: Builder) -> Value:
        """Return the tensor; existing nodes that compute it are reused."""
        if isinstance(self.leaf, Value):
            column = made(add, Squeeze(), self.leaf, np.array([-1])) if self.is_column else None
            value = column or self.leaf
        elif isinstance(self.leaf, tuple):
            value = made(add, Concat(axis=-1), *(each.rebuilt(add) for each in self.leaf))
        elif self.index is None:
            value = add.constant(self.leaf, "cache")
        else:
            value = made(add, Gather(), self.leaf, self.index)
        for node in reversed(self.steps):
            kept = _kept(node, _width(node.output) or 0)
            inputs = (value if each is kept else _halved(node, each) for each in node.inputs)
            value = made(add, node.op, *inputs)
        return value


def made(add: Builder, op: Op, *inputs: Value | Array | None) -> Value:
    """Return the result of an operator, reusing an earlier node that computes it.

    Args:
        add: inserts nodes.
        op: the operator.
        inputs: arrays are constants.
    """
    for value in inputs:
        for node in value.consumers if isinstance(value, Value) else ():
            if node.op == op and node.position < add.before.position and _reads(node, inputs):
                return node.output
    given = (add.constant(each) if isinstance(each, np.ndarray) else each for each in inputs)
    return add(op, *given)


def _reads(node: Node, inputs: tuple[Value | Array | None, ...]) -> bool:
    return len(node.inputs) == len(inputs) and all(
        given is not None and given.data is not None and np.array_equal(given.data, wanted)
        if isinstance(wanted, np.ndarray)
        else given is wanted
        for given, wanted in zip(node.inputs, inputs, strict=True)
    )


def _halved(node: Node, given: Value | None) -> Value | Array | None:
    """Return an input of a node behind its rows, for those of half the size."""
    shape = None if given is None else given.data
    if isinstance(node.op, Reshape) and shape is not None and shape[-1] > 0:
        return np.array([*shape[:-1], shape[-1] // 2], np.int64)
    return given


def _pairs(value: Value | None, *, interleaved: bool) -> _Pairs | None:
    """Return the computation of a tensor that is equal for both elements of a pair, else None."""
    steps: list[Node] = []
    while value is not None:
        width = _width(value)
        if width is None or width % 2:
            return None
        if value.data is not None:
            found = _first(value.data, interleaved=interleaved)
            return None if found is None else _Pairs(found, tuple(steps))
        node = value.producer
        if node is None:
            return None
        leaf = _doubled(node, width, interleaved=interleaved)
        if leaf is not None:
            return _Pairs(leaf, tuple(steps), is_column=interleaved)
        if interleaved and isinstance(node.op, Concat):
            parts = _joined(node)
            return None if parts is None else _Pairs(parts, tuple(steps))
        if isinstance(node.op, Gather):
            table, index = node.inputs
            is_table = table is not None and table.data is not None and table.data.ndim == 2
            if not is_table or table is None or table.data is None or node.op.axis not in (0, -2):
                return None
            found = _first(table.data, interleaved=interleaved)
            return None if found is None else _Pairs(found, tuple(steps), index)
        steps.append(node)
        value = _kept(node, width)
    return None


def _joined(concat: Node) -> tuple[_Pairs, ...] | None:
    """Return what a Concat of columns joins, if all of it consists of equal neighbours."""
    if not is_along_last(concat):
        return None
    found = tuple(_pairs(each, interleaved=True) for each in concat.inputs)
    parts = tuple(each for each in found if each is not None)
    return parts if len(parts) == len(found) else None


def _width(value: Value) -> int | None:
    *_, width = (None, *(shape_of(value) or ()))
    return width if isinstance(width, int) else None


def _first(data: Array, *, interleaved: bool) -> Array | None:
    """Return the first elements of all pairs of a row; None if the second ones differ."""
    half = data.shape[-1] // 2
    first, second = (
        (data[..., ::2], data[..., 1::2]) if interleaved else (data[..., :half], data[..., half:])
    )
    return np.ascontiguousarray(first) if np.array_equal(first, second) else None


def _doubled(node: Node, width: int, *, interleaved: bool) -> Value | None:
    """Return the tensor that a node repeats, as a whole or each element in turn; None if none.

    In the second case it is a column, with a trailing axis of size 1.
    """
    leaf = first_input(node)
    if not interleaved:
        if not isinstance(node.op, Concat) or node.inputs != (leaf, leaf):
            return None
        return leaf if is_along_last(node) else None
    repeated = leaf.producer if isinstance(node.op, Reshape) and leaf is not None else None
    if repeated is None or not isinstance(repeated.op, Tile | Expand | Concat):
        return None
    alone = repeated.inputs[0]
    if alone is None or (isinstance(repeated.op, Concat) and {*repeated.inputs} != {alone}):
        return None
    *rows, last = shape_of(alone) or (None,)
    is_twice = last == 1 and shape_of(repeated.output) == (*rows, 2) and rows[-1:] == [width // 2]
    return alone if is_twice and shape_of(node.output) == (*rows[:-1], width) else None


def _kept(node: Node, width: int) -> Value | None:
    """Return the input of a node whose result has the same rows, of this size; None if none."""
    if not node.inputs:
        return None
    x, *others = node.inputs
    rank = rank_of(x) or 0
    if isinstance(node.op, Cos | Sin | Cast | Neg | Identity):
        return x
    if isinstance(node.op, Mul | Div):
        (other,) = others
        if number(other, rank) is not None:
            return x
        is_scaled = isinstance(node.op, Mul) and number(x, rank_of(other)) is not None
        return other if is_scaled else None
    if isinstance(node.op, Transpose):
        return x if rank and node.op.order(rank)[-1] == rank - 1 else None
    if isinstance(node.op, Unsqueeze | Squeeze | Reshape) and x is not None:
        is_known = all(each is not None and each.data is not None for each in others)
        return x if is_known and _width(x) == width else None
    return None


# ── the rotation ─────────────────────────────────────────────────────────────────────────────────


def _interleaved(terms: list[Term] | None, size: int) -> int | None:
    """Return `RotaryEmbedding.interleaved` for the factors of sines; None if they do not fit."""
    if terms is None or len(terms) != 1 or terms[0].factor.size != size:
        return None
    own, half = np.arange(size), size // 2
    for interleaved, pairs, is_second in (
        (0, (own + half) % size, own >= half),
        (1, own ^ 1, own % 2 == 1),
    ):
        signs = np.where(is_second, 1.0, -1.0)
        is_rotated = np.array_equal(terms[0].factor.reshape(-1), signs)
        if is_rotated and np.array_equal(terms[0].index, pairs):
            return interleaved
    return None


def _positions(shape: Shape, angles: Shape) -> int | None:
    """Return the axis of positions of x, 1 or 2; None if the angles do not fit."""
    if angles[0] not in (1, shape[0]) or angles[3] != shape[3]:
        return None
    for axis in (2, 1):
        if angles[axis] == shape[axis] is not None and angles[3 - axis] == 1:
            return axis
    return None


def _build(found: Found) -> Outcome:
    x, cos, sin = (found[name] for name in ("x", "cos", "sin"))
    shape, angles = shape_of(x), shape_of(cos)
    size = _width(x)
    if shape is None or angles is None or angles != shape_of(sin) or size is None or size % 2:
        return None
    angles = (*(1,) * (4 - len(angles)), *angles)
    axis = _positions(shape, angles)
    interleaved = _interleaved(RowSums(x, found.context.places).terms(found["rotated"]), size)
    if axis is None or interleaved is None:
        return None
    both = [_pairs(each, interleaved=bool(interleaved)) for each in (cos, sin)]
    batch, heads, length = shape[0], shape[3 - axis], shape[axis]
    is_wide = angles[0] == batch
    if not is_wide and not (isinstance(batch, int) and isinstance(length, int)):
        return found.refuse(Reason.SHAPE, f"{batch} samples of {length} positions")
    if axis == 1 and not (isinstance(heads, int) and heads):
        return found.refuse(Reason.SHAPE, f"{heads} heads")
    add = found.builder(f"{found.top.name}.angles")
    tables: list[Value] = []
    for each in both:
        if each is None:
            return found.refuse(Reason.NUMBERS, "pairs may have two angles")
        table = each.rebuilt(add)
        heads_axis = 3 - axis - (4 - (rank_of(table) or 0))
        if heads_axis > 0:  # before the positions, an axis 0 of size 1 is that of samples
            table = made(add, Squeeze(), table, np.array([heads_axis]))
        for _ in range(3 - (rank_of(table) or 3)):
            table = made(add, Unsqueeze(), table, np.array([0]))
        if not is_wide:
            table = made(add, Expand(), table, np.array([batch, length, size // 2], np.int64))
        tables.append(table)
    if axis == 2:
        return Replacement(RotaryEmbedding(interleaved=interleaved), (x, *tables))
    assert isinstance(heads, int)
    rotated = RotaryEmbedding(interleaved=interleaved, num_heads=heads)
    return of_rows(add, rotated, x, heads, tables)


def of_rows(
    add: Builder, op: RotaryEmbedding, x: Value, heads: int, tables: Sequence[Value | None]
) -> Replacement:
    """Return the rotation of x [batch, positions, heads, size] as rows of all heads."""
    size, split = _width(x) or 0, x.producer
    rows = split.inputs[0] if split is not None and isinstance(split.op, Reshape) else None
    if rows is None or shape_of(rows) != (*(shape_of(x) or ())[:2], heads * size):
        rows = add(Reshape(), x, add.integers((0, 0, heads * size)))
    rotated = add(op, rows, *tables)
    return Replacement(Reshape(), (rotated, add.integers((0, 0, heads, size))))


# ── of the first part of a head ──────────────────────────────────────────────────────────────────


def _whole(part: Value, rest: Value, found: Found) -> Value | None:
    """Return the tensor whose rows consist of those of `part` and then those of `rest`."""
    size = _width(found.top.output)
    for read in part.producer.distinct_reads if part.producer is not None else ():
        if _width(read) != size or rank_of(read) != 4 or size is None:
            continue
        rows = RowSums(read, found.context.places)
        terms = [rows.terms(each) for each in (part, rest)]
        if any(each is None or len(each) != 1 or (each[0].factor != 1).any() for each in terms):
            continue
        index = np.concatenate([each[0].index for each in terms if each])
        if np.array_equal(index, np.arange(size)):
            return read
    return None


def _build_part(found: Found) -> Outcome:
    node = found.match.made("rotated")
    part, *tables = node.inputs
    first, rest = found.top.inputs[0], found["rest"]
    if not isinstance(node.op, RotaryEmbedding) or part is None or len(found.top.inputs) != 2:
        return None
    heads, width = node.op.num_heads, _width(first) if first is not None else None
    if heads is not None:  # the rows were joined from heads, and are split into them again
        joined = part.producer
        part = joined.inputs[0] if joined is not None and isinstance(joined.op, Reshape) else None
        if part is None or shape_of(part) != shape_of(first):
            return None
    if node.op.rotary_embedding_dim or width is None:
        return None
    whole = _whole(part, rest, found)
    if whole is None:
        return None
    op = replace(node.op, rotary_embedding_dim=width)
    if heads is None:
        return Replacement(op, (whole, *tables))
    return of_rows(found.builder(f"{found.top.name}.part"), op, whole, heads, tables)


def _joins_rows(node: Node) -> bool:
    return isinstance(node.op, Concat) and rank_of(node.output) == 4 and is_along_last(node)


_ROTATED = Apply(RotaryEmbedding, name="rotated")

FUSIONS = (
    Fusion(Apply(Add, Apply(Mul, "x", "cos"), Apply(Mul, _Rotated(), "sin")), _build),
    Fusion(
        Apply(Concat, OneOf(_ROTATED, Apply(Reshape, _ROTATED)), "rest", where=_joins_rows),
        _build_part,
    ),
)
