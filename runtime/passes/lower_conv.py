"""Rewrites convolutions whose window is the whole image as matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ..ir.graph import Graph, Node, Value
from ..ops.conv import Conv
from ..ops.elementwise import Clip, Unary
from ..ops.matmul import Gemm
from ..ops.shape import Reshape
from .driver import Context
from .editing import Builder, drop, shape_of
from .linear import as_linear


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace each Conv that gives one pixel and reads every element once by Gemm.

    Squeeze-and-excite blocks and the heads of many networks are such layers. Activations after them
    work on the rows as well, so that only views remain around the whole.
    """
    for node in list(graph.nodes):
        if node in graph and _is_whole(node):
            yield _lower(graph, node)


def _is_whole(node: Node) -> bool:
    """Whether a node is a Conv of constant filters, each as large as the image."""
    op, linear = node.op, as_linear(node)
    if not isinstance(op, Conv) or linear is None or op.group != 1 or not linear.weight.size:
        return False
    image, padded = shape_of(node.inputs[0]), any(op.pads or ()) or "SAME" in op.auto_pad
    return not padded and image is not None and image[1:] == linear.weight.shape[1:]


def _lower(graph: Graph, node: Node) -> str:
    linear = as_linear(node)
    assert linear is not None
    channels = len(linear.weight)
    add = Builder(graph, node, f"{node.name}.rows", (node,))
    rows = _rows(add, node.inputs[0], prod(linear.weight.shape[1:]))
    weight = graph.constant(linear.weight.reshape(channels, -1), f"{node.name}.matrix")
    last, value = node, add(Gemm(transB=1), rows, weight, *node.inputs[2:], name=node.name)
    nodes = [node]
    while (follower := graph.sole_consumer(last.output)) is not None:
        if not isinstance(follower.op, (Unary, Clip)) or follower.inputs[0] is not last.output:
            break
        behind = Builder(graph, follower, follower.name, (follower,))
        value, last = behind(follower.op, value, *follower.inputs[1:]), follower
        nodes.append(last)
    add = Builder(graph, last, f"{last.name}.image", (last,))
    sizes = add.integers((-1, channels, *(1 for _ in linear.weight.shape[2:])), "sizes")
    graph.redirect(last.output, add(Reshape(), value, sizes))
    for old in reversed(nodes):
        drop(graph, old)
    return f"Conv '{node.name}' of whole images is a Gemm"


def _rows(add: Builder, image: Value | None, size: int) -> Value:
    """Return an image as one row, or the row from which the image was reshaped."""
    source = None if image is None else image.producer
    if source is not None and isinstance(source.op, Reshape) and source.inputs[0] is not None:
        before = shape_of(source.inputs[0])
        if before is not None and len(before) == 2 and before[1] == size:
            return source.inputs[0]
    return add(Reshape(), image, add.integers((-1, size), "sizes"))
