"""Rewrites normalizations whose scales or shifts differ from row to row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Node
from ..ops.elementwise import Add, Mul
from ..ops.norm import LayerNormalization, RMSNormalization
from ..ops.shapes import normalize_axis
from .driver import Context
from .editing import Builder, dtype_of, shape_of, static_dims


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``norm(x, s, t)`` by ``norm(x, 1) * s + t``.

    ONNX lets scale and shift broadcast to all of x. Kernels and the patterns below take one element
    per element of a row; where there is one per row, an elementwise operator is as good.
    """
    for node in list(graph.nodes):
        if _differs_by_row(node):
            _lower(graph, node)
            yield f"scales of {node.kind} '{node.name}' differ from row to row: they are factors"


def _differs_by_row(node: Node) -> bool:
    if not isinstance(node.op, LayerNormalization | RMSNormalization):
        return False
    x, *parameters = (shape_of(value) for value in node.operands)
    if x is None or None in parameters:
        return False
    rows = len(x) - normalize_axis(node.op.axis, len(x))
    return any(size != 1 for each in parameters for size in (each or ())[:-rows])


def _lower(graph: Graph, node: Node) -> None:
    x, scale, *shift = node.operands
    shape, add = shape_of(x) or (), Builder(graph, node, node.name, (node,))
    assert isinstance(node.op, LayerNormalization | RMSNormalization)
    row = static_dims(shape[normalize_axis(node.op.axis, len(shape)) :])
    ones = add.constant(np.ones(row or 1, dtype_of(scale)), "ones")
    y, *statistics = add.node(node.op, x, ones, outputs=len(node.outputs)).outputs
    y = add(Mul(), y, scale)
    y = add(Add(), y, *shift) if shift else y
    graph.replace(node, [y, *statistics])
