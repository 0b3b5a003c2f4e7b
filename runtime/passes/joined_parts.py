"""Parts of a tensor that are joined along another axis: views with a Transpose between them."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph, Node
from ..ir.types import Dim, TensorType
from ..ops.movement import Concat, Split, Transpose
from ..ops.shapes import normalize_axis
from .editing import Builder


def turn_joined(graph: Graph) -> Iterator[str]:
    """Replace a Split into equal parts and the Concat of all of them along another axis.

    Part i of axis a comes i-th along axis b: the axis is cut in two, the number of the part moves
    in front of b, and is merged with it.
    """
    for node in list(graph.nodes):
        found = _axes_of(node)
        if found is None:
            continue
        split, a, b = found
        part, count = split.outputs[0].tensor.shape or (), len(split.outputs)
        cut = (*part[:a], count, *part[a:])
        moved = [i for i in range(len(part) + 1) if i != a]
        moved.insert(moved.index(b + (b >= a)), a)
        joined = (*part[:b], _times(part[b], count), *part[b + 1 :])
        sizes = [_sizes(cut), _sizes(joined)]
        add = Builder(graph, node, node.name, (node,))
        first = add.shaped(split.inputs[0], sizes[0], f"{node.name}.cut")
        turned = add(Transpose(perm=tuple(moved)), first)
        made = add.shaped(turned, sizes[1], f"{node.name}.joined")
        graph.replace(node, [made])
        if not any(value.consumers or graph.is_output(value) for value in split.outputs):
            graph.remove(split)
        yield f"Transpose '{made.name}' joins the {count} parts of Split '{split.name}'"


def _axes_of(node: Node) -> tuple[Node, int, int] | None:
    """Return the Split all of whose parts, equally large, a node joins in order, and both axes."""
    if not isinstance(node.op, Concat) or len(node.inputs) < 2:
        return None
    first = node.inputs[0]
    split = None if first is None else first.producer
    if split is None or not isinstance(split.op, Split) or [*node.inputs] != [*split.outputs]:
        return None
    types = [value.type for value in (*split.outputs, *node.outputs)]
    shapes = [type_.shape for type_ in types if isinstance(type_, TensorType) and type_.shape]
    if len(shapes) < len(types) or len(set(shapes[:-1])) != 1 or shapes[0] == shapes[-1]:
        return None
    a, b = (normalize_axis(axis, len(shapes[0])) for axis in (split.op.axis, node.op.axis))
    unknown = [i for i, size in enumerate(shapes[0]) if not isinstance(size, int)]
    fits = a != b and len(unknown) < 2 and not {a, b} & {*unknown}
    return (split, a, b) if fits else None


def _times(size: Dim, count: int) -> Dim:
    return size * count if isinstance(size, int) else size


def _sizes(shape: tuple[Dim, ...]) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in shape]
