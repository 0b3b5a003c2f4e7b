"""Widens what a Concat joins at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ...ir.constraints import takes
from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Cast
from ...ops.movement import Concat
from ..driver import Context
from ..editing import Builder, dtype_of, unviewed


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace Casts of adjacent parts of a Concat by a Cast of these parts, joined.

    They widen what is also read as it is, so that nothing that computes it could store it wide: the
    states of a recurrence in half precision, all of which a product in float32 reads (Mamba).
    """
    for node in list(graph.nodes):
        if not isinstance(node.op, Concat):
            continue
        runs = [list(run) for _, run in groupby(node.operands, lambda part: _source(graph, part))]
        if all(len(run) == 1 or _source(graph, run[0]) is None for run in runs):
            continue
        found = [value for run in runs for value in _joined(graph, node, run)]
        kept = {*found}
        casts = [value.producer for value in node.operands if value not in kept]
        if len(found) == 1:
            graph.redirect(node.output, found[0])
        else:
            add = Builder(graph, node, node.name, (node,))
            graph.redirect(node.output, add(node.op, *found))
        graph.remove(node)
        for cast in casts:
            if cast is not None and not graph.is_read(cast.output):
                graph.remove(cast)
        yield f"{len(casts)} parts of '{node.name}' are widened at once"


def _source(graph: Graph, part: Value) -> object:
    """Return the dtype from which a Cast widens a part for one reader; None for another part.

    None also for what ONNX joins only widened (float8, integers of four bits).
    """
    cast = part.producer
    if cast is None or not isinstance(cast.op, Cast) or graph.sole_consumer(part) is None:
        return None
    before, after = dtype_of(cast.operands[0]), dtype_of(part)
    if before is None or after is None or before.itemsize >= after.itemsize:
        return None
    if not takes(Concat, before):
        return None
    return before if len(unviewed(cast.operands[0]).consumers) > 1 else None


def _joined(graph: Graph, node: Node, run: Sequence[Value]) -> list[Value]:
    """Return parts that are adjacent, as one if Casts widen them."""
    casts = [cast for part in run if (cast := part.producer) is not None]
    if len(run) == 1 or _source(graph, run[0]) is None:
        return [*run]
    add = Builder(graph, node, node.name, (node, *casts))
    joined = add(node.op, *(cast.operands[0] for cast in casts))
    return [add(casts[0].op, joined)]
