"""Queries and keys that are divided by their norms (SwinV2): both at once."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ops.attention import Attention
from ...ops.cuts import is_along_last, reduced_axes
from ...ops.elementwise import Cast, Clip, Div, Max
from ...ops.movement import Split
from ...ops.reduce import ReduceL2
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, number, rank_of, shape_of, size_of, static_dims


@record
class Heads:
    """An operand of an attention, before its heads are divided by their norms, if they are.

    Attributes:
        rows: what a layer computes.
        nodes: from the view that cuts rows into heads to the view of rows: Reshape, ReduceL2, Clip
            or Max, Div, Reshape, and Casts behind the first and in front of the last one; none
            without norms.
    """

    rows: Value
    nodes: tuple[Node, ...]

    @property
    def bound(self) -> Node | None:
        """What bounds norms from below."""
        return next((node for node in self.nodes if isinstance(node.op, Clip | Max)), None)


def before_norms(graph: Graph, value: Value) -> Heads:
    """Return the rows that are cut into heads, each divided by its norm, to compute a value.

    Heads of a row are all of it, and those of the same row of the value.
    """
    plain = Heads(value, ())
    joined = value.producer
    if joined is None or not isinstance(joined.op, Reshape):
        return plain
    behind, divided = _before_cast(joined.operands[0])
    if divided is None or not isinstance(divided.op, Div):
        return plain
    heads, norm = divided.operands
    bound, (before, cut) = norm.producer, _before_cast(heads)
    reduced = bound.operands[0].producer if bound and isinstance(bound.op, Clip | Max) else None
    if bound is None or cut is None or reduced is None or not isinstance(cut.op, Reshape):
        return plain
    rank, given = rank_of(heads) or 0, [each.operands[1].known for each in (cut, joined)]
    whole = isinstance(reduced.op, ReduceL2) and reduced.op.keepdims and rank
    if not whole or reduced.operands[0] is not heads or reduced_axes(reduced) != (rank - 1,):
        return plain
    if any(sizes is None for sizes in given) or shape_of(norm) != shape_of(reduced.output):
        return plain
    nodes = (cut, *before, reduced, bound, divided, *behind, joined)
    others = [each.output for each in nodes[:-1] if each.output is not heads]
    alone = all(len(each.consumers) == 1 for each in others)
    alone = alone and set(heads.consumers) == {reduced, divided}
    rows = cut.operands[0]
    same = _are_cut(rows, heads) and _are_cut(value, heads)
    hidden = alone and same and not any(graph.is_output(each.output) for each in nodes)
    return Heads(rows, nodes) if hidden else plain


def _are_cut(rows: Value, heads: Value) -> bool:
    """Whether heads are the parts of rows, in order, with the same axes in front of them."""
    sizes = static_dims((shape_of(heads) or ())[-2:])
    if sizes is None or rank_of(heads) != 1 + (rank_of(rows) or 0):
        return False
    return size_of(rows, -1) == prod(sizes)


def _before_cast(value: Value) -> tuple[tuple[Node, ...], Node | None]:
    """Return the Cast that computes a value, if one does, and what computes it otherwise."""
    node = value.producer
    if node is None or not isinstance(node.op, Cast):
        return (), node
    return (node,), node.operands[0].producer


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Divide queries and keys that are adjacent parts of one tensor as twice as many heads.

    One kernel computes what two would, and the attention reads parts of its results.
    """
    for node in list(graph.nodes):
        if not isinstance(node.op, Attention) or len(set(node.operands[:2])) != 2:
            continue
        pair = [before_norms(graph, value) for value in node.operands[:2]]
        if _are_alike(graph, node, pair):
            _join(graph, pair)
            yield f"queries and keys of '{node.name}' are divided by their norms at once"


def _are_alike(graph: Graph, node: Node, pair: list[Heads]) -> bool:
    """Whether both are divided by norms in the same way, and are adjacent parts of a tensor."""
    q, k = pair
    split = q.rows.producer
    if not q.nodes or not k.nodes or split is None or not isinstance(split.op, Split):
        return False
    place = split.outputs.index(q.rows)
    if split.outputs[place + 1 : place + 2] != (k.rows,) or not is_along_last(split):
        return False
    if static_dims(size_of(value, -1) for value in split.outputs) is None:
        return False
    for value, each in zip(node.operands[:2], pair, strict=True):
        alone = set(value.consumers) == {node} and set(each.rows.consumers) == {each.nodes[0]}
        if not alone or graph.is_output(value) or graph.is_output(each.rows):
            return False
    kinds = [[type(node.op) for node in each.nodes] for each in pair]
    (first, *_), (other, *_) = q.nodes, k.nodes
    if kinds[0] != kinds[1] or shape_of(first.output) != shape_of(other.output):
        return False
    if shape_of(node.operands[0]) != shape_of(node.operands[1]):
        return False
    bounds = [each.bound for each in pair]
    least = {number(b.operands[1], 4) if b and len(b.inputs) == 2 else None for b in bounds}
    return len(least) == 1 and None not in least


def _join(graph: Graph, pair: list[Heads]) -> None:
    """Normalize the heads of both, and cut the rows that these make."""
    q, k = pair
    split = q.rows.producer
    assert split is not None
    place, source = split.outputs.index(q.rows), split.operands[0]
    cut, *_, joined = q.nodes
    heads, size = static_dims((shape_of(cut.output) or ())[-2:]) or (0, 0)
    widths = static_dims(size_of(value, -1) for value in split.outputs) or ()
    wider = (*widths[:place], 2 * heads * size, *widths[place + 2 :])
    add = Builder(graph, split, split.name, (split,))
    parts = add.split(source, -1, wider) if len(wider) > 1 else (source,)
    made = {q.rows: parts[place]}
    sizes = {cut: (2 * heads, size), joined: (2 * heads * size,)}
    for one, other in zip(q.nodes, k.nodes, strict=True):
        add = Builder(graph, split, one.name, (one, other))
        inputs = [value if value is None else made.get(value, value) for value in one.inputs]
        if one in sizes:
            known = one.operands[1].known
            assert known is not None
            inputs[1] = add.integers((*known[: -len(sizes[one])], *sizes[one]), "shape")
        made[one.output] = add(one.op, *inputs)
    halves = add.split(made[joined.output], -1, 2)
    for value, half in zip((joined.output, k.nodes[-1].output), halves, strict=True):
        graph.redirect(value, half)
    others = (*split.outputs[:place], *split.outputs[place + 2 :])
    for value, part in zip(others, (*parts[:place], *parts[place + 1 :]), strict=True):
        graph.redirect(value, part)
    for node in (joined, k.nodes[-1]):
        drop(graph, node)
