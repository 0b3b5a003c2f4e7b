"""Which chains of elementwise operators read through nodes that only move elements."""

from __future__ import annotations

from collections.abc import Set

from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ops.matmul import MatMul
from ...runtime.ops.movement import Concat, Expand, Pad, Slice, Transpose
from ...runtime.ops.norm import LayerNormalization, Softmax
from ...runtime.ops.shape import Reshape
from .codegen.elementwise import in_chains
from .codegen.free_moves import may_be_free
from .codegen.moves import Movement

#: Maximum number of values that are looked at to find out whether a tensor may be an image.
MAX_TRACED = 16
#: Operators whose results are in C order, or in that of their operands.
_ORDERED = (MatMul, Reshape, Transpose, Slice, Pad, Concat, Expand, Softmax, LayerNormalization)


def may_join_all(graph: Graph, movement: Movement, free: Set[Node]) -> bool:
    """Whether chains of free nodes may read through nodes that move elements, if one has all."""
    readers = movement.y.consumers
    if not readers or graph.is_output(movement.y) or not readers.keys() <= free:
        return False
    return all(_may_join(movement, reader) for reader in readers)


def _may_join(movement: Movement, reader: Node) -> bool:
    """Whether a chain may read through nodes that move elements: adjacent ones stay adjacent.

    Elements further apart are read no worse than by a copy that keeps the order of axes, or by a
    copy of few. Images, whose formats nodes follow, are left out unless nothing is followed.
    """
    if not in_chains(reader) or not movement.fits(reader.output.tensor.dims):
        return False
    rank = len(movement.y.tensor.dims)
    others = [v for v in reader.distinct_reads if not v.is_constant and v is not movement.y]
    is_image = rank == movement.x.tensor.rank == 4 and (movement.copies < 2 or movement.is_plain)
    follows = is_image and bool(others) and any(map(_may_be_image, (movement.x, *others)))
    if follows or not movement.transposes or movement.is_few:
        return not follows
    return rank > 2 and movement.is_adjacent(movement.format)


def _may_be_image(value: Value) -> bool:
    """Whether a tensor of four axes may have channels last, unlike heads, which views make."""
    waiting, seen = [value], set[Value]()
    while waiting and len(seen) < MAX_TRACED:
        value = waiting.pop()
        if value in seen or value.is_constant or value.tensor.rank != 4:
            continue
        seen.add(value)
        node = value.producer
        if node is None or not (in_chains(node) or type(node.op) in _ORDERED):
            return True
        if not isinstance(node.op, MatMul | Reshape) and not _reorders(node):
            waiting += node.distinct_reads
    return bool(waiting)


def _reorders(node: Node) -> bool:
    """Whether a Transpose gives another order than that of an image or of its rows of pixels."""
    return isinstance(node.op, Transpose) and not may_be_free(node)
