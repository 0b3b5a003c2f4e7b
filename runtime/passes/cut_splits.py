"""Replaces a Split by Slices, each of which is read in place or copied by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from ..ir.graph import Graph, Node, Value
from ..ops.attention import Attention
from ..ops.movement import Concat, Slice, Split
from ..ops.shapes import normalize_axis
from .driver import Context
from .editing import Builder, is_static, split_sizes


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a Split of known sizes by Slices, unless Attentions or Concats read all parts.

    The parts of a Split are read where they are only if all readers of all of them can do so; a
    Slice depends on its own readers: those of the steps of an unrolled loop (``x.unbind()``), of
    weights per channel that elementwise operators repeat (SKNet, FiLM), or of what a Concat joins
    with other tensors. And nodes that only move elements, such as a Transpose behind a part, are
    one kernel with a Slice. Attention that reads queries, keys and values of one product is a
    kernel with its Split; and what is split and joined again (YOLO's C2f) is computed in the
    result, with all parts.
    """
    for node in list(graph.nodes):
        found = split_sizes(node)
        if found is None or not all(map(is_static, (node.inputs[0], *node.outputs))):
            continue
        if all(_stays(node, value.consumers) for value in node.outputs):
            continue
        cut_split(graph, node, *found)
        yield f"parts of Split '{node.name}' are Slices"


def cut_split(graph: Graph, split: Node, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Replace a Split of known sizes, and return its parts, each the result of a Slice."""
    add = Builder(graph, split, split.name, (split,))
    bounds = [
        [add.integers([n], "bound") for n in (end - size, end, axis)]
        for size, end in zip(sizes, accumulate(sizes), strict=True)
    ]
    parts = [add(Slice(), split.inputs[0], *each) for each in bounds]
    graph.replace(split, parts)
    return parts


def _stays(split: Node, readers: Iterable[Node]) -> bool:
    """Whether only an Attention reads a part, or a Concat along the axis of a Split does, too."""
    kinds = [type(reader.op) for reader in readers]
    return set(kinds) <= {Attention} or any(_joins(split, reader) for reader in readers)


def _joins(split: Node, reader: Node) -> bool:
    """Whether a node is a Concat along the axis of a Split."""
    if not isinstance(reader.op, Concat) or not isinstance(split.op, Split):
        return False
    rank = len(split.outputs[0].tensor.dims)
    return normalize_axis(reader.op.axis, rank) == normalize_axis(split.op.axis, rank)
