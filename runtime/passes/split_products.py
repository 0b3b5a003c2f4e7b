"""Splits a product into the parts of a gated layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array
from ..ops import elementwise
from ..ops.elementwise import Add
from ..ops.matmul import MatMul
from ..ops.movement import Split
from .driver import Context
from .editing import Builder, drop, shape_of
from .pattern import without_addend


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a product whose columns a Split separates by one product per part.

    ``a, b = split(x W + c)`` followed by ``silu(a) * b`` (SwiGLU, GeGLU, GLU) copies both parts;
    two products with the columns of W do not, and one of them computes the gate as its epilogue.
    Parts with readers other than elementwise nodes, such as an Attention, stay together.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Split):
            continue
        layer, widths = _layer(graph, node), _widths(node)
        if layer is None or widths is None or not _is_gated(graph, node):
            continue
        product, bias = layer
        _rewrite(graph, node, product, bias, widths)
        yield f"{len(widths)} parts of '{product.name}' became separate products"


def _is_gated(graph: Graph, node: Node) -> bool:
    """Whether only elementwise nodes read every part."""
    for value in node.outputs:
        kinds = [type(reader.op) for reader in value.consumers]
        if not kinds or graph.is_output(value):
            return False
        if any(kind.__module__ != elementwise.__name__ for kind in kinds):
            return False
    return True


def _widths(node: Node) -> list[int] | None:
    """Return the sizes of the parts along the last axis."""
    rank = len(shape_of(node.inputs[0]) or ())
    if not isinstance(node.op, Split) or not rank or node.op.axis % rank != rank - 1:
        return None
    sizes = [(shape_of(value) or (None,))[-1] for value in node.outputs]
    widths = [size for size in sizes if isinstance(size, int)]
    return widths if len(widths) == len(sizes) and all(widths) else None


def _layer(graph: Graph, node: Node) -> tuple[Node, Array | None] | None:
    """Return the product with a constant matrix whose only reader is the Split, and its bias."""
    value = node.inputs[0]
    if value is None or graph.sole_consumer(value) is not node:
        return None
    value, bias = without_addend(graph, value)
    product = value.producer
    if product is None or not isinstance(product.op, MatMul) or product.inputs[1] is None:
        return None
    weight = product.inputs[1].data
    if weight is None or weight.ndim != 2 or product.inputs[0] is None:
        return None
    return None if bias is not None and bias.shape != weight.shape[1:] else (product, bias)


def _rewrite(
    graph: Graph, node: Node, product: Node, bias: Array | None, widths: Sequence[int]
) -> None:
    x, matrix = product.inputs
    cut = node.inputs[0]
    assert x is not None
    assert matrix is not None
    assert matrix.data is not None
    assert cut is not None
    assert cut.producer is not None
    ends = [0, *np.cumsum(widths).tolist()]
    parts: list[Value] = []
    for number, (first, last) in enumerate(pairwise(ends)):
        name = f"{product.name}.{number}"
        add = Builder(graph, node, name, (product,))
        columns = np.ascontiguousarray(matrix.data[:, first:last])
        part = add(MatMul(), x, add.constant(columns, f"{matrix.name}.{number}"))
        if bias is not None:
            behind = Builder(graph, node, name, (cut.producer,))
            part = behind(Add(), part, add.constant(bias[first:last], f"{product.name}.bias"))
        parts.append(part)
    for value, part in zip(node.outputs, parts, strict=True):
        graph.redirect(value, part)
    drop(graph, node)
