"""Removes views of rows around a Softmax, and what it subtracts from rows itself."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ops.cuts import axes_of, is_along_last, reduced_axes
from ...ops.elementwise import Sub
from ...ops.norm import LogSoftmax, Softmax
from ...ops.reduce import ReduceMax
from ...ops.shape import Flatten, Reshape
from ..driver import Context
from ..editing import drop, rank_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..pattern import Apply


def _build(found: Found) -> Outcome:
    """Apply the operator along the last axis of the unflattened tensor."""
    before, after = shape_of(found["x"]), shape_of(found.top.output)
    flat, rows = found.match.made("flat"), found.match.made("rows")
    between = shape_of(flat.output)
    if not before or before != after or None in before or not between:
        return None
    if not isinstance(before[-1], int) or before[-1] != between[-1]:
        return None
    if not is_along_last(rows):
        return None
    return Replacement(with_attributes(rows.op, axis=-1), (found["x"],))


_ROWS = Apply(
    (Softmax, LogSoftmax),
    Apply((Flatten, Reshape), "x", name="flat", stays=True),
    name="rows",
)
FUSIONS = (
    Fusion(_ROWS, _build, Apply(Reshape, "rows"), 1, text="{new} works along the last axis"),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop the views around a Softmax or LogSoftmax of rows that keep its last axis.

    Before opset 13 these operators normalized all axes from one on together, which the importer
    writes with a Flatten. PyTorch's attention has heads and samples as one axis. Nor does a row's
    maximum make a difference, which models subtract against overflows (gpt-oss).
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, Softmax | LogSoftmax):
            whole = _whole(node)
            if whole is not None:
                shifted = node.operands[0].producer
                graph.set_inputs(node, (whole,))
                drop(graph, shifted)
                yield f"{node.kind} '{node.name}' subtracts the maxima itself"
    yield from fuse(graph, context, FUSIONS)


def _whole(node: Node) -> Value | None:
    """Return the rows from which the input of a Softmax is their maxima less, if it is."""
    assert isinstance(node.op, Softmax | LogSoftmax)
    less, rank = node.operands[0].producer, rank_of(node.output)
    if less is None or rank is None or not isinstance(less.op, Sub):
        return None
    x, maxima = less.operands
    made = maxima.producer
    if made is None or not isinstance(made.op, ReduceMax) or made.operands[0] is not x:
        return None
    fits = made.op.keepdims and reduced_axes(made, rank) == axes_of(node)
    return x if fits else None
