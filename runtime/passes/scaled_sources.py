"""Tensors times a number, scaled where that needs no kernel of its own."""

from __future__ import annotations

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array
from ..ops.elementwise import Div, Mul
from ..ops.movement import Concat
from ..ops.norm import LayerNormalization, RMSNormalization
from ..ops.shape import RESHAPES
from ..ops.signal import DFT
from .editing import Builder, rank_of
from .pointwise import is_elementwise

#: Numbers that spectra and norms are scaled by keep their order of magnitude.
LEAST, MOST = 1e-3, 1e3


def scaled(graph: Graph, before: Node, value: Value, op: Mul | Div, factor: Value) -> Value | None:
    """Return a value times, or divided by, a number; None if that would be a kernel of its own.

    Elementwise nodes are scaled, also those that a Concat joins, and the scale and shift of a norm;
    views and Fourier transforms of these follow. Nothing else may read any of it.

    Args:
        graph: the graph.
        before: what the new nodes come before.
        value: the tensor.
        op: how it is scaled.
        factor: a constant of one element, and of one axis at most.
    """
    if factor.data is None or not LEAST <= abs(float(factor.data.reshape(-1)[0])) <= MOST:
        return None
    return _scaled(graph, before, value, op, factor)


def _scaled(graph: Graph, before: Node, value: Value, op: Mul | Div, factor: Value) -> Value | None:
    node = value.producer
    if node is None or graph.is_output(value) or len(value.consumers) != 1:
        return None
    if not (rank_of(value) or 0) or len(node.outputs) != 1:
        return None
    add = Builder(graph, before, node.name, (node,))
    if is_elementwise(node.op):
        return add(op, value, factor)
    if isinstance(node.op, (DFT, *RESHAPES)):
        inner = _scaled(graph, before, node.operands[0], op, factor)
        return None if inner is None else add(node.op, inner, *node.inputs[1:])
    if isinstance(node.op, Concat):
        if not all(_is_computed(graph, each) for each in node.operands):
            return None
        inner = [_scaled(graph, before, each, op, factor) for each in node.operands]
        found = [each for each in inner if each is not None]
        return add(node.op, *found) if len(found) == len(inner) else None
    if isinstance(node.op, LayerNormalization | RMSNormalization):
        given = [each for each in node.operands[1:]]
        if len(node.outputs) != 1 or any(each.data is None for each in given):
            return None
        constants = [add.constant(_times(each.data, op, factor.data)) for each in given]
        return add(node.op, node.operands[0], *constants)
    return None


def _is_computed(graph: Graph, value: Value) -> bool:
    """Whether a value is what an elementwise node computes, for one reader."""
    node = value.producer
    return node is not None and is_elementwise(node.op) and graph.sole_consumer(value) is not None


def _times(data: Array | None, op: Mul | Div, factor: Array | None) -> Array:
    assert data is not None
    assert factor is not None
    number = factor.astype(np.float64).reshape(-1)[0]
    exact = data.astype(np.float64)
    return (exact / number if isinstance(op, Div) else exact * number).astype(data.dtype)
