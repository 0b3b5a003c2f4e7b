"""Removes the Flatten around Softmax in files of older opsets."""

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
    flat, rows = found.match.made("flat").op, found.match.made("rows").op
    if not before or before != after or None in before:
        return None
    if getattr(flat, "axis", 0) not in (-1, len(before) - 1):
        return None
    return Replacement(with_attributes(rows, axis=-1), (found["x"],))


_ROWS = Apply(
    (Softmax, LogSoftmax),
    Apply(Flatten, "x", name="flat", stays=True),
    name="rows",
    where=lambda node: getattr(node.op, "axis", 0) in (-1, 1),
)
FUSIONS = (
    Fusion(_ROWS, _build, Apply(Reshape, "rows"), 1, text="{new} works along the last axis"),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop Flatten and Reshape around a Softmax or LogSoftmax of rows.

    Before opset 13 these operators normalized all axes from one on together, which the importer
    writes with a Flatten. For the last axis that is unnecessary.
    """
    return fuse(graph, context, FUSIONS)
