"""Heads of several sequences that a Concat joins for one Attention (Stable Diffusion 3)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ops.cuts import axis_of, part_of, place_of
from ...ops.gather import Gather
from ...ops.movement import Concat, Split, Transpose
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.shape import Reshape, Squeeze
from ...ops.shapes import normalize_axis
from ..editing import Builder, drop, rank_of, shape_of

#: Exchanges the axes of heads and of their rows.
_HEADS = (0, 2, 1, 3)


#: Brings the parts of rows [b, t, part, h, d] to the front, and heads before their rows.
_PARTS = (2, 0, 3, 1, 4)


def split_joined(graph: Graph) -> Iterator[str]:
    """Split rows into queries, keys and values before heads are moved, if a Concat joins these.

    Exporters have ``qkv.view(b, t, 3, h, d).permute(2, 0, 3, 1, 4)`` and take its places (Flux).
    """
    for node in list(graph.nodes):
        view = node.operands[0].producer if isinstance(node.op, Transpose) else None
        if view is None or not isinstance(view.op, Reshape) or node.op != Transpose(perm=_PARTS):
            continue
        before, after = shape_of(view.inputs[0]), shape_of(view.output)
        parts = _places(graph, node)
        if not before or not after or len(before) != 3 or before[:2] != after[:2]:
            continue
        if len(parts) != after[2] or not any(_is_joined(graph, part) for part in parts):
            continue
        add = Builder(graph, node, node.name, (node,))
        pieces = add.split(view.inputs[0], -1, len(parts))
        for part, rows in zip(parts, pieces, strict=True):
            heads = add(Transpose(perm=_HEADS), add.view(rows, (*after[:2], *after[3:])))
            maker = part.producer
            graph.redirect(part, heads)
            drop(graph, maker)
        yield f"Split '{node.name}' cuts rows of heads that are joined with others"


def _places(graph: Graph, transpose: Node) -> list[Value]:
    """Return the tensors of all places of the first axis, in order, if nothing else is read."""
    found: dict[int, Value] = {}
    for reader in transpose.output.consumers:
        if isinstance(reader.op, Split):
            cut = list(enumerate(reader.outputs)) if axis_of(reader) == 0 else []
        else:
            place = place_of(reader)
            cut = [] if place is None or place[0] else [(place[1], reader.output)]
        for i, value in cut:
            squeeze = None if isinstance(reader.op, Gather) else graph.sole_consumer(value)
            whole = value if squeeze is None else squeeze.output
            if rank_of(whole) != 4 or i in found or graph.is_output(value):
                return []
            if squeeze is not None and not isinstance(squeeze.op, Squeeze):
                return []
            found[i] = whole
        if not cut:
            return []
    return [found[i] for i in sorted(found)] if sorted(found) == [*range(len(found))] else []


def _is_joined(graph: Graph, value: Value) -> bool:
    """Whether a Concat joins heads with others, normalized or not."""
    for node in chain_behind(graph, value):
        if isinstance(node.op, Concat):
            return axis_of(node) == 2
        if not isinstance(node.op, LayerNormalization | RMSNormalization):
            break
    return False


def transpose_normalized(graph: Graph) -> Iterator[str]:
    """Replace ``norm(transpose(x))`` by ``transpose(norm(x))`` where a Concat joins heads.

    Queries and keys are normalized one by one, wherever they are. Then the transposes of all parts
    are one behind the Concat, next to the Attention, which reads heads as columns of rows.
    """
    for node in list(graph.nodes):
        if not _is_of_joined(graph, node):
            continue
        transpose = node.operands[0].producer
        if transpose is None or not _transposes_heads(graph, transpose, node):
            continue
        name = transpose.name
        normalized = Builder(graph, node, node.name, (node,))(
            node.op, transpose.inputs[0], *node.inputs[1:]
        )
        transposed = Builder(graph, node, name, (transpose,))(transpose.op, normalized)
        graph.redirect(node.output, transposed)
        graph.remove(node)
        drop(graph, transpose)
        yield f"Transpose '{name}' moves normalized heads"


def transpose_joined_heads(graph: Graph) -> Iterator[str]:
    """Replace a Concat of heads that are all transposed by the transpose of their Concat."""
    for node in list(graph.nodes):
        if not isinstance(node.op, Concat) or rank_of(node.output) != 4:
            continue
        transposes = [value.producer for value in node.operands]
        heads = [
            transpose
            for transpose in transposes
            if transpose is not None and _transposes_heads(graph, transpose, node)
        ]
        if axis_of(node) != 2 or len(heads) < len(transposes):
            continue
        add, name = Builder(graph, node, node.name, (node, *heads)), node.name
        whole = add(Concat(axis=1), *(transpose.inputs[0] for transpose in heads))
        graph.replace(node, [add(Transpose(perm=_HEADS), whole)])
        for transpose in heads:
            drop(graph, transpose)
        yield f"Concat '{name}' joins heads before they are transposed"


def _transposes_heads(graph: Graph, transpose: Node, reader: Node) -> bool:
    """Whether a Transpose, which one node alone reads, exchanges heads and their rows."""
    transposes = isinstance(transpose.op, Transpose) and transpose.op.perm == _HEADS
    return transposes and graph.sole_consumer(transpose.output) is reader


def _is_of_joined(graph: Graph, node: Node) -> bool:
    """Whether a Concat alone reads what a node normalizes along the last of four axes."""
    if not isinstance(node.op, LayerNormalization | RMSNormalization):
        return False
    reader, dims = graph.sole_consumer(node.output), shape_of(node.operands[0])
    alone = not any(map(graph.is_read, node.outputs[1:]))
    vectors = all(len(shape_of(value) or (0, 0)) == 1 for value in node.operands[1:])
    if reader is None or not isinstance(reader.op, Concat) or dims is None or len(dims) != 4:
        return False
    return axis_of(node) == 3 and axis_of(reader) == 2 and alone and vectors


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
        graph.replace(node, [add(Concat(axis=axis), *parts)])
        drop(graph, join)
        yield f"Concat '{name}' joins rows, not their heads"


def _part(add: Builder, heads: Value, width: int) -> Value | None:
    """Return heads as a Slice of rows, if a Reshape makes them of one part of a Split."""
    view = heads.producer
    rows = view.operands[0] if view is not None and isinstance(view.op, Reshape) else None
    split = None if rows is None else rows.producer
    if rows is None or split is None or not isinstance(split.op, Split):
        return None
    part, dims = part_of(rows), shape_of(rows)
    if part is None or not dims or dims[:-1] != (shape_of(heads) or ())[:-2]:
        return None
    if part.axis != len(dims) - 1 or len(part.places) != width:
        return None
    return add.slice(part.source, part.axis, part.places.start, part.places.stop)
