"""Merges the rotations of an attention's queries and keys, which are parts of one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Array
from ...ops.attention import Attention, RotaryEmbedding
from ...ops.cuts import split_sizes
from ...ops.movement import Split
from ..editing import Builder, rank_of

#: Largest difference of a table from another times a number, relative to its greatest element.
ROUNDING = 1e-6


@record
class _Rotation:
    """Heads that are rotated, of rows that a Split yields.

    Attributes:
        node: the RotaryEmbedding.
        op: the operator.
        split: the Split.
        place: which of its parts is rotated.
        heads: their number.
        width: elements of a row of all heads.
    """

    node: Node
    op: RotaryEmbedding
    split: Node
    place: int
    heads: int
    width: int

    @property
    def tables(self) -> Sequence[Value | None]:
        """Cosines, sines and, if they are rows of these, positions."""
        return self.node.inputs[1:]


def merged_rotations(graph: Graph, attention: Node) -> Iterator[str]:
    """Rotate queries and keys at once if they are adjacent parts of one tensor.

    Both are rotated by the same angles: as rows, they are the heads of a longer one. A factor in
    the tables of the queries becomes one of the scores.
    """
    if not isinstance(attention.op, Attention) or any(attention.inputs[4:]):
        return
    q, k = (_rotation_of(graph, value, attention) for value in attention.inputs[:2])
    if q is None or k is None or q.split is not k.split or q.place + 1 != k.place:
        return
    ratio = _ratio(q.tables, k.tables)
    alike = replace(q.op, num_heads=k.heads) == k.op
    if not alike or ratio is None or q.width * k.heads != k.width * q.heads:
        return
    if ratio != 1 and k.op.rotary_embedding_dim not in (0, k.width // k.heads):
        return  # elements that are not rotated have no such factor
    _rotate(graph, q, k)
    if ratio != 1:
        scale = attention.op.scale
        scale = 1 / sqrt(q.width // q.heads) if scale is None else scale
        add = Builder(graph, attention, attention.name, (attention,))
        op = with_attributes(attention.op, scale=scale * ratio)
        new = add.node(op, *attention.inputs, outputs=len(attention.outputs))
        graph.replace(attention, list(new.outputs))
        graph.rename(new, attention.name)
    yield f"RotaryEmbedding '{q.node.name}' rotates the queries and keys of '{attention.name}'"


def _rotation_of(graph: Graph, value: Value | None, attention: Node) -> _Rotation | None:
    """Return the rotation that computes an operand and nothing else."""
    node = None if value is None else value.producer
    if value is None or node is None or not isinstance(node.op, RotaryEmbedding):
        return None
    rows, heads = node.inputs[0], node.op.num_heads
    split = None if rows is None else rows.producer
    if rows is None or split is None or not isinstance(split.op, Split) or heads is None:
        return None
    axis, widths = split_sizes(split) or (None, ())
    if axis != 2 or rank_of(rows) != 3:
        return None
    if graph.sole_consumer(rows) is not node or graph.sole_consumer(value) is not attention:
        return None
    place = split.outputs.index(rows)
    return _Rotation(node, node.op, split, place, heads, widths[place])


def _ratio(some: Sequence[Value | None], others: Sequence[Value | None]) -> float | None:
    """Return the number by which cosines and sines are others times it; None if there is none."""
    if len(some) != len(others):
        return None
    pairs = list(zip(some, others, strict=True))
    if all(a is b or _equal(a, b) for a, b in pairs):
        return 1.0
    if any(a is not b and not _equal(a, b) for a, b in pairs[2:]):
        return None
    known = [(a.data, b.data) for a, b in pairs[:2] if a is not None and b is not None]
    found = [(a, b) for a, b in known if a is not None and b is not None and a.shape == b.shape]
    return _factor(*found) if len(found) == 2 else None


def _equal(one: Value | None, other: Value | None) -> bool:
    a, b = (None if value is None else value.data for value in (one, other))
    return a is not None and b is not None and np.array_equal(a, b)


def _factor(cos: tuple[Array, Array], sin: tuple[Array, Array]) -> float | None:
    a, b = (np.stack(each).astype(np.float64) for each in zip(cos, sin, strict=True))
    ratio = float((a * b).sum() / max(float((b * b).sum()), 1e-300))
    fits = np.abs(a - ratio * b).max(initial=0) <= ROUNDING * np.abs(a).max(initial=0)
    return ratio if ratio > 0 and fits else None


def _rotate(graph: Graph, q: _Rotation, k: _Rotation) -> None:
    """Replace two rotations by one, and the Split in front by one of fewer parts."""
    split, place = q.split, q.place
    _, widths = split_sizes(split) or (2, ())
    whole = [*widths[:place], q.width + k.width, *widths[place + 2 :]]
    value = split.inputs[0]
    outputs: Sequence[Value | None] = [value]
    if len(whole) > 1:
        add = Builder(graph, split, split.name, (split,))
        outputs = add.split(value, -1, whole)
    last = graph.in_order((q.node, k.node))[-1]
    add = Builder(graph, last, q.node.name, (q.node, k.node))
    op = replace(k.op, num_heads=q.heads + k.heads)
    rotated = add(op, outputs[place], *k.tables)
    both = add.split(rotated, -1, (q.width, k.width))
    for old, new in zip((q.node, k.node), both, strict=True):
        graph.replace(old, [new])
    others = [each for i, each in enumerate(split.outputs) if i not in (place, place + 1)]
    for old, new in zip(others, [*outputs[:place], *outputs[place + 1 :]], strict=True):
        if new is not None:
            graph.redirect(old, new)
    graph.remove(split)
