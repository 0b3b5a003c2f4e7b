"""Transposes that give the axes of the same bytes other names, and so need not run.

A image whose channels come last is, byte by byte, a channels-last image; what a network that was
made for the one hands to a convolution that wants the other is there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from ..ir.graph import Graph, Node, Value
from ..ops.movement import Transpose
from .backend import Format
from .partition import Assigned, reads_of, results_of


def demands(graph: Graph, steps: Sequence[Assigned]) -> dict[Value, set[Format]]:
    """Return for each value the formats in which it is going to be read.

    Steps that take their input as it lies hand on what is asked of their results.
    """
    asked: dict[Value, set[Format]] = {
        value: {Format.CONTIGUOUS} for value in graph.outputs.values()
    }
    for assigned in reversed(steps):
        claim, reads = assigned.claim, reads_of(assigned.nodes)
        follows = claim is not None and claim.formats.follows
        results = results_of(graph, assigned.nodes) if follows else ()
        handed = {format for value in results for format in asked.get(value, ())}
        for value in reads:
            own = claim.formats.wants.get(value, Format.CONTIGUOUS) if claim else Format.CONTIGUOUS
            asked.setdefault(value, set()).update(handed if follows else {own})
    return asked


def renamed(
    node: Node, given: Iterable[Format], asked: Set[Format]
) -> tuple[Format, Format] | None:
    """Return formats of a Transpose's input and result in which both have the same bytes.

    Args:
        node: any node; only a Transpose has such formats.
        given: those in which the input lies.
        asked: those in which the result is read.
    """
    if not isinstance(node.op, Transpose):
        return None
    source, result = node.reads[0].tensor, node.output.tensor
    perm = node.op.order(len(source.dims))
    for before in given:
        order = before.order(source.dims)
        for after in Format:
            found = tuple((perm[axis], size) for axis, size in after.order(result.dims))
            if after in asked and found == order:
                return before, after
    return None
