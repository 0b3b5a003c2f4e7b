"""Tensors times a number, scaled where that needs no kernel of its own."""

from __future__ import annotations

import numpy as np

from ...ir.dtypes import DType
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.elementwise import Div, Mul
from ...ops.movement import Concat
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.shape import RESHAPES
from ...ops.signal import DFT
from ..editing import Builder, rank_of
from ..pointwise import is_elementwise
from ..rounding import check, rounded_bias

#: Numbers that spectra and norms are scaled by keep their order of magnitude.
LEAST, MOST = 1e-3, 1e3


def scaled(
    graph: Graph,
    before: Node,
    value: Value,
    op: Mul | Div,
    factor: Value,
    also: tuple[DType, ...] = (),
) -> Value | None:
    """Return a value times, or divided by, a number; None if that would be a kernel of its own.

    Elementwise nodes are scaled, also those that a Concat joins, and the scale and shift of a norm;
    views and Fourier transforms of these follow. Nothing else may read any of it.

    Args:
        graph: the graph.
        before: what the new nodes come before.
        value: the tensor.
        op: how it is scaled.
        factor: a constant of one element, and of one axis at most.
        also: types that have to be able to represent constants, beside their own.

    Raises:
        Unfit: scale or shift of a norm are beyond a type. No node has been added.
    """
    if factor.data is None or not LEAST <= abs(float(factor.data.reshape(-1)[0])) <= MOST:
        return None
    behind: list[Node] = []
    node = _made_for_one(graph, value)
    while node is not None and isinstance(node.op, (DFT, *RESHAPES)):
        behind.append(node)
        value = node.operands[0]
        node = _made_for_one(graph, value)
    if node is None:
        return None
    add = Builder(graph, before, node.name, (node,))
    if is_elementwise(node.op):
        made = add(op, value, factor)
    elif isinstance(node.op, Concat):
        makers = [_made_for_one(graph, each) for each in node.operands]
        if any(maker is None or not is_elementwise(maker.op) for maker in makers):
            return None
        made = add(node.op, *(_times(graph, before, each, op, factor) for each in node.operands))
    elif isinstance(node.op, LayerNormalization | RMSNormalization):
        constants = _constants(node, op, factor.data, also)
        if constants is None:
            return None
        made = add(node.op, node.operands[0], *map(add.constant, constants))
    else:
        return None
    for each in reversed(behind):
        made = Builder(graph, before, each.name, (each,))(each.op, made, *each.inputs[1:])
    return made


def _made_for_one(graph: Graph, value: Value) -> Node | None:
    """Return what computes a tensor with axes, and nothing else, for one reader."""
    node = graph.made_for_one(value)
    return node if node is not None and rank_of(value) and len(node.outputs) == 1 else None


def _times(graph: Graph, before: Node, value: Value, op: Mul | Div, factor: Value) -> Value:
    node = value.producer
    assert node is not None
    return Builder(graph, before, node.name, (node,))(op, value, factor)


def _constants(
    norm: Node, op: Mul | Div, factor: Array, also: tuple[DType, ...]
) -> list[Array] | None:
    """Return the scale and shift of a norm, scaled; None if they are computed."""
    number = factor.astype(np.float64).reshape(-1)[0]
    found: list[Array] = []
    for i, value in enumerate(norm.operands[1:]):
        if value.data is None:
            return None
        exact = value.data.astype(np.float64)
        exact = exact / number if isinstance(op, Div) else exact * number
        for dtype in (*also, value.data.dtype):
            if i:
                rounded_bias(exact, dtype)
            else:
                check(exact, dtype, value.data, "scales")
        found.append(exact.astype(value.data.dtype))
    return found
