"""Heads of several sequences that a Concat joins for one Attention (Stable Diffusion 3)."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph, Node, Value
from ..ops.movement import Concat, Slice, Split, Transpose
from ..ops.norm import LayerNormalization, RMSNormalization
from ..ops.shape import Reshape
from ..ops.shapes import normalize_axis
from .editing import Builder, drop, shape_of

#: Exchanges the axes of heads and of their rows.
_HEADS = (0, 2, 1, 3)


def turn_normalized(graph: Graph) -> Iterator[str]:
    """Replace ``norm(transpose(x))`` by ``transpose(norm(x))`` where a Concat joins heads.

    Queries and keys are normalized one by one, wherever they are. Then the transposes of all parts
    are one behind the Concat, next to the Attention, which reads heads as columns of rows.
    """
    for node in list(graph.nodes):
        if not _is_of_joined(graph, node):
            continue
        turn = node.operands[0].producer
        if turn is None or not _turns_heads(graph, turn, node):
            continue
        name = turn.name
        normalized = Builder(graph, node, node.name, (node,))(
            node.op, turn.inputs[0], *node.inputs[1:]
        )
        turned = Builder(graph, node, name, (turn,))(turn.op, normalized)
        graph.redirect(node.output, turned)
        graph.remove(node)
        drop(graph, turn)
        yield f"Transpose '{name}' turns normalized heads"


def turn_joined_heads(graph: Graph) -> Iterator[str]:
    """Replace a Concat of heads that are all transposed by the transpose of their Concat."""
    for node in list(graph.nodes):
        if not isinstance(node.op, Concat) or len(shape_of(node.output) or ()) != 4:
            continue
        turns = [value.producer for value in node.operands]
        heads = [turn for turn in turns if turn is not None and _turns_heads(graph, turn, node)]
        if normalize_axis(node.op.axis, 4) != 2 or len(heads) < len(turns):
            continue
        add, name = Builder(graph, node, node.name, (node, *heads)), node.name
        whole = add(Concat(axis=1), *(turn.inputs[0] for turn in heads))
        graph.replace(node, [add(Transpose(perm=_HEADS), whole)])
        for turn in heads:
            drop(graph, turn)
        yield f"Concat '{name}' joins heads before they are transposed"


def _turns_heads(graph: Graph, turn: Node, reader: Node) -> bool:
    """Whether a Transpose, which one node alone reads, exchanges heads and their rows."""
    turns = isinstance(turn.op, Transpose) and turn.op.perm == _HEADS
    return turns and graph.sole_consumer(turn.output) is reader


def _is_of_joined(graph: Graph, node: Node) -> bool:
    """Whether a Concat alone reads what a node normalizes along the last of four axes."""
    if not isinstance(node.op, LayerNormalization | RMSNormalization):
        return False
    reader, dims = graph.sole_consumer(node.output), shape_of(node.operands[0])
    alone = all(not value.consumers for value in node.outputs[1:])
    vectors = all(len(shape_of(value) or (0, 0)) == 1 for value in node.operands[1:])
    if reader is None or not isinstance(reader.op, Concat) or dims is None or len(dims) != 4:
        return False
    return node.op.axis in (-1, 3) and normalize_axis(reader.op.axis, 4) == 2 and alone and vectors


def join_rows(graph: Graph) -> Iterator[str]:
    """Make rows of heads before a Concat joins them, rather than after.

    So each part is normalized where it is in the rows of its product, and stored where the Concat
    needs it. What is joined as it is becomes a Slice: as a part of a Split it would be copied
    together with those that are read where they are.
    """
    for node in list(graph.nodes):
        join = node.operands[0].producer if isinstance(node.op, Reshape) else None
        if join is None or not isinstance(join.op, Concat):
            continue
        before, after = shape_of(join.output), shape_of(node.output)
        if before is None or not after or graph.sole_consumer(join.output) is not node:
            continue
        if len(before) < 2:
            continue
        *lead, heads, size = before
        if not isinstance(heads, int) or not isinstance(size, int):
            continue
        axis = normalize_axis(join.op.axis, len(before))
        if after != (*lead, heads * size) or axis >= len(lead):
            continue
        add = Builder(graph, node, join.name, (join, node))
        sizes = add.integers((*(0 for _ in lead), heads * size), "rows")
        parts = [
            _part(add, part, heads * size) or add(Reshape(), part, sizes) for part in join.operands
        ]
        name = join.name
        graph.redirect(node.output, add(Concat(axis=axis), *parts))
        graph.remove(node)
        drop(graph, join)
        yield f"Concat '{name}' joins rows, not their heads"


def _part(add: Builder, heads: Value, width: int) -> Value | None:
    """Return heads as a Slice of rows, if a Reshape makes them of one part of a Split."""
    view = heads.producer
    rows = view.operands[0] if view is not None and isinstance(view.op, Reshape) else None
    split = None if rows is None else rows.producer
    if rows is None or split is None or not isinstance(split.op, Split):
        return None
    dims, place = shape_of(rows), split.outputs.index(rows)
    if not dims or dims[:-1] != (shape_of(heads) or ())[:-2]:
        return None
    shapes = [shape_of(value) for value in split.outputs]
    sizes = [shape[-1] if shape else None for shape in shapes]
    axis = normalize_axis(split.op.axis, len(dims))
    before = [size for size in sizes[:place] if isinstance(size, int)]
    if axis != len(dims) - 1 or dims[-1] != width or len(before) < place:
        return None
    begin = sum(before)
    bounds = (add.integers([n], "bound") for n in (begin, begin + width, axis))
    return add(Slice(), split.inputs[0], *bounds)
