"""Replaces a Split by Slices, each of which is read in place or copied by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from ...ir.graph import Graph, Node, Value
from ...ops.attention import Attention
from ...ops.cuts import Part, axis_of, part_of, split_sizes
from ...ops.movement import Concat, Slice
from ...ops.shape import RESHAPES, Reshape
from ..driver import Context
from ..editing import Builder, dims_of, drop, is_static


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
    for node in list(graph.nodes):
        part = part_of(node.output) if isinstance(node.op, Slice) else None
        whole = None if part is None else _whole(part)
        if part is not None and whole is not None:
            add = Builder(graph, node, node.name, (node,))
            source, start = whole.source, whole.places.start + part.places.start
            dims, of = dims_of(part.source), dims_of(source)
            if dims is not None and of is not None:
                dims = (*dims[: part.axis], of[whole.axis], *dims[part.axis + 1 :])
                if dims != of:
                    source = add(Reshape(), source, add.integers(dims, "shape"))
            cut = add.slice(source, part.axis, start, start + len(part.places))
            before = node.inputs[0]
            graph.replace(node, [cut])
            drop(graph, None if before is None else before.producer)
            yield f"'{node.name}' is cut from '{whole.source.name}'"


def _whole(part: Part) -> Part | None:
    """Return of what tensor a part is cut of which there is only a part, with the same rank or not.

    Axes of one element may have come or gone in between: the scales and shifts of a layer that
    computes those of all blocks.
    """
    value, axis = part.source, part.axis
    while (node := value.producer) is not None and isinstance(node.op, RESHAPES):
        before, after = dims_of(node.operands[0]), dims_of(value)
        if before is None or after is None or after[axis] == 1:
            return None
        many = [[i for i, size in enumerate(dims) if size != 1] for dims in (before, after)]
        if [before[i] for i in many[0]] != [after[i] for i in many[1]]:
            return None
        value, axis = node.operands[0], many[0][many[1].index(axis)]
    whole = part_of(value) if node is not None and isinstance(node.op, Slice) else None
    if whole is None or whole.axis != axis:
        return None
    return whole if value is part.source or dims_of(whole.source) is not None else None


def cut_split(graph: Graph, split: Node, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Replace a Split of known sizes, and return its parts, each the result of a Slice."""
    add = Builder(graph, split, split.name, (split,))
    parts = [
        add.slice(split.inputs[0], axis, end - size, end)
        for size, end in zip(sizes, accumulate(sizes), strict=True)
    ]
    graph.replace(split, parts)
    return parts


def _stays(split: Node, readers: Iterable[Node]) -> bool:
    """Whether only an Attention reads a part, or a Concat along the axis of a Split does, too."""
    kinds = [type(reader.op) for reader in readers]
    return set(kinds) <= {Attention} or any(_joins(split, reader) for reader in readers)


def _joins(split: Node, reader: Node) -> bool:
    """Whether a node is a Concat along the axis of a Split."""
    return isinstance(reader.op, Concat) and axis_of(reader) == axis_of(split)
