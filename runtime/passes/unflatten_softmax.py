"""Removes views of rows around a Softmax."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph
from ..ir.op import with_attributes
from ..ops.norm import LogSoftmax, Softmax
from ..ops.shape import Flatten, Reshape
from .driver import Context
from .editing import shape_of
from .fusion import Found, Fusion, Outcome, Replacement, fuse
from .pattern import Apply


def _build(found: Found) -> Outcome:
    """Apply the operator along the last axis of the unflattened tensor."""
    before, after = shape_of(found["x"]), shape_of(found.top.output)
    flat, rows = found.match.made("flat"), found.match.made("rows").op
    between = shape_of(flat.output)
    if not before or before != after or None in before or not between:
        return None
    if not isinstance(before[-1], int) or before[-1] != between[-1]:
        return None
    if getattr(rows, "axis", 0) not in (-1, len(between) - 1):
        return None
    return Replacement(with_attributes(rows, axis=-1), (found["x"],))


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
    writes with a Flatten. PyTorch's attention has heads and samples as one axis.
    """
    return fuse(graph, context, FUSIONS)
