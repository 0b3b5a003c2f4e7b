"""Rewrites a Col2Im whose blocks do not overlap as a Transpose."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.graph import Graph, Node, Value
from ...ops.conv import Col2Im
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, size_of


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace each Col2Im of blocks side by side, which adds nothing, by views and a Transpose.

    So `fold` in PyTorch becomes the inverse of `unfold`, as which `lower_gather_nd` finds one
    (MobileViTv2): pixels of an image in another order.
    """
    for node in list(graph.nodes):
        if node in graph and (counts := _counts(node)):
            yield _lay_out(graph, node, counts)


def _counts(node: Node) -> list[int]:
    """Return how many blocks of a Col2Im are along each axis if they do not overlap; else none."""
    op = node.op
    if not isinstance(op, Col2Im) or not isinstance(size_of(node.inputs[0], 1), int):
        return []
    image, block = (_numbers(value) for value in node.operands[1:3])
    ones = (1,) * len(block)
    is_apart = list(op.strides or ones) == block and (op.dilations or ones) == ones
    if not (image and block) or not is_apart or any(op.pads or ()):
        return []
    pairs = list(zip(image, block, strict=True))
    return [] if any(n % size for n, size in pairs) else [n // size for n, size in pairs]


def _numbers(value: Value) -> list[int]:
    return [] if value.data is None else [int(n) for n in value.data.flat]


def _lay_out(graph: Graph, node: Node, counts: list[int]) -> str:
    """Replace a Col2Im by views and a Transpose of [n, c, *block, *counts]."""
    x, image, block = node.operands[0], *(_numbers(value) for value in node.operands[1:3])
    channels = size_of(x, 1)
    assert isinstance(channels, int)
    apart = (0, channels // prod(block), *block, *counts)
    axes = range(2, 2 + len(block))
    order = (0, 1, *(place for axis in axes for place in (axis + len(block), axis)))
    add = Builder(graph, node, node.name, (node,))
    transposed = add(Transpose(perm=order), add(Reshape(), x, add.integers(apart, "blocks")))
    result = add(Reshape(), transposed, add.integers((*apart[:2], *image), "image"))
    graph.redirect(node.output, result)
    name = node.name
    drop(graph, node)
    return f"Col2Im '{name}' lays {prod(counts)} blocks side by side"
