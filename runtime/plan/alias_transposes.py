"""Transposes that only rename the axes of the same bytes, and so need not run.

An NHWC image is, byte by byte, an NCHW image in channels-last format: a step that requests that
format can read it in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from ..ir.graph import Graph, Node, Value
from ..ops.movement import Transpose
from .backend import Format
from .partition import Assigned, reads_of, results_of


def demands(graph: Graph, steps: Sequence[Assigned]) -> dict[Value, set[Format]]:
    """Return for each value the formats in which it will be read.

    Steps that accept any format pass on what is requested of their results.
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
    """Return formats of a Transpose's input and output in which both have the same bytes.

    Args:
        node: any node; only a Transpose has such formats.
        given: formats of the input.
        asked: formats in which the result is read.
    """
    if not isinstance(node.op, Transpose):
        return None
    source, result = node.distinct_reads[0].tensor, node.output.tensor
    perm = node.op.order(len(source.dims))
    for before in given:
        order = before.order(source.dims)
        for after in Format:
            found = tuple((perm[axis], size) for axis, size in after.order(result.dims))
            if after in asked and found == order:
                return before, after
    return None
