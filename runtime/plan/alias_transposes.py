"""Transposes and views of the same bytes in another format, which need not run.

An NHWC image is, byte by byte, an NCHW image in channels-last format: a step that requests that
format can read it in place. A Reshape of the spatial axes keeps that format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from ..ir.graph import Graph, Node, Value
from ..ops.movement import Transpose
from .format import Format
from .partition import Assigned, reads_of, results_of


def demands(graph: Graph, steps: Sequence[Assigned]) -> dict[Value, set[Format]]:
    """Return for each value the formats in which it will be read.

    Steps that accept any format pass on what is requested of their results, and so do transposes
    and views, where the bytes would be the same.
    """
    asked: dict[Value, set[Format]] = {
        value: {Format.CONTIGUOUS} for value in graph.outputs.values()
    }
    for assigned in reversed(steps):
        claim, reads = assigned.claim, reads_of(assigned.nodes)
        follows = claim is not None and claim.formats.follows
        results = results_of(graph, assigned.nodes) if follows else ()
        handed = {format for value in results for format in asked.get(value, ())}
        free = set[Format]()
        if len(assigned.nodes) == 1:
            free = _free(assigned.nodes[0], asked.get(assigned.nodes[0].output, set()))
        for value in reads:
            wants = claim.formats.wants if claim else dict[Value, Format]()
            own = wants.get(value, Format.CONTIGUOUS)
            is_handed = follows and value not in wants
            asked.setdefault(value, set()).update(handed if is_handed else {own} | free)
    return asked


def _free(node: Node, asked: Set[Format]) -> set[Format]:
    """Return formats of a node's input in which it need not run, as its result is read."""
    found = (same_bytes(node, [format], asked) for format in Format)
    return {pair[0] for pair in found if pair is not None}


def same_bytes(
    node: Node, given: Iterable[Format], asked: Set[Format]
) -> tuple[Format, Format] | None:
    """Return formats of the input and the result of a Transpose or view that have the same bytes.

    Args:
        node: any node; others have no such formats.
        given: formats of the input.
        asked: formats in which the result is read.
    """
    return reshaped(node, given, asked) if node.op.view else renamed(node, given, asked)


def reshaped(
    node: Node, given: Iterable[Format], asked: Set[Format]
) -> tuple[Format, Format] | None:
    """Return channels last twice for a view of an image's spatial axes read in that format.

    What is only there in halves stays so, if rows are the same.
    """
    source, last = node.distinct_reads[0].tensor.dims, Format.CHANNELS_LAST
    result, formats = node.output.tensor.dims, set(given)
    if formats == {Format.HALVES} and has_same_rows(node):
        return Format.HALVES, Format.HALVES
    is_image = min(len(source), len(result)) > 2 and source[:2] == result[:2]
    fits = is_image and last in asked and last in formats and Format.CONTIGUOUS not in formats
    return (last, last) if fits else None


def has_same_rows(node: Node) -> bool:
    """Whether the rows of a view, along the last axis, are those of its input."""
    source, result = node.distinct_reads[0].tensor.dims, node.output.tensor.dims
    return source[-1:] == result[-1:]


def renamed(
    node: Node, given: Iterable[Format], asked: Set[Format]
) -> tuple[Format, Format] | None:
    """Return formats of a Transpose's input and output in which both have the same bytes.

    Single pixels have them in any format: channels last, so that what is computed with them may be.

    Args:
        node: any node; only a Transpose has such formats.
        given: formats of the input.
        asked: formats in which the result is read.
    """
    if not isinstance(node.op, Transpose):
        return None
    source, result = node.distinct_reads[0].tensor, node.output.tensor
    perm = node.op.order(len(source.dims))
    formats = [format for format in reversed(Format) if format.is_plain]
    for before in given:
        if not before.is_plain:
            continue
        order = before.order(source.dims)
        for after in formats:
            found = tuple((perm[axis], size) for axis, size in after.order(result.dims))
            if after in asked and found == order:
                return before, after
    return None
