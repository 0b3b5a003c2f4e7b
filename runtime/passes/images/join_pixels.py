"""Joins the pixels of several images as rows of channels, as convolutions store them."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ops.cuts import is_along_last
from ...ops.movement import Concat, Transpose
from ...ops.shape import Flatten, Reshape
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of
from ..moves.transpose_images import to_channels_last
from .flatten_pixels import is_stored

_HALVES = ("float16", "bfloat16")


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Join flattened images of 16-bit floats before their axes change places, not behind.

    ``cat([x.flatten(2) for x in levels], 2)`` is ``cat(rows, 1).transpose(1, 2)``, where rows cost
    nothing if channels are last in memory: one Transpose instead of one for each level of a
    detector (YOLO).
    """
    if context.options.precision not in _HALVES:
        return
    for node in list(graph.nodes):
        images = [_image(graph, value) for value in node.operands] if _joins_rows(node) else []
        known = [image for image in images if image is not None]
        if not known or len(known) < len(images):
            continue
        add, views = Builder(graph, node, node.name, (node,)), [v.producer for v in node.operands]
        rows: list[Value] = []
        for image, value in zip(known, node.operands, strict=True):
            transposed = add(Transpose(perm=to_channels_last(len(image.tensor.shape or ()))), image)
            shape = shape_of(value)
            assert shape is not None
            rows.append(add.view(transposed, (shape[0], shape[2], shape[1])))
        name = node.name
        graph.replace(node, [add(Transpose(perm=(0, 2, 1)), add(Concat(axis=1), *rows))])
        for view in views:
            drop(graph, view)
        yield f"Concat '{name}' joins the pixels of {len(known)} images as rows"


def _joins_rows(node: Node) -> bool:
    """Whether a node joins several tensors of three axes along the last."""
    if not isinstance(node.op, Concat) or len(node.inputs) < 2:
        return False
    return rank_of(node.output) == 3 and is_along_last(node)


def _image(graph: Graph, value: Value) -> Value | None:
    """Return the image, stored with channels last, of which a value is the only flattened form."""
    view, flat = value.producer, shape_of(value)
    if view is None or flat is None or not isinstance(view.op, Reshape | Flatten):
        return None
    image, shape = view.operands[0], shape_of(view.operands[0])
    alone = all(graph.sole_consumer(each) is not None for each in (value, image))
    if shape is None or len(shape) < 4 or not alone or shape[:2] != flat[:2]:
        return None
    known = all(isinstance(size, int) for size in (*shape[1:], *flat[1:]))
    return image if known and is_stored(image) else None
