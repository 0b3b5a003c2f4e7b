"""Multiplies a layer's input by what sums of its heads' elements, times constants, amount to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import reduced_axes
from ...ops.elementwise import Add, Mul
from ...ops.matmul import Gemm, MatMul
from ...ops.reduce import ReduceSum
from ...ops.shape import Reshape
from ..driver import Context, Reason
from ..editing import Builder, drop, dtype_of, shape_of
from ..fusion import refusal
from ..linear import as_linear
from ..pattern import pairs
from ..rounding import Unfit, rounded_bias

#: How long a layer's input may be, in columns of its result: it is read in the place of these.
_LONGER = 2


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``(layer(x).reshape(..., h, d) * a).sum(-1)`` by a layer with a column for each head.

    These are the scores that both ends of an edge add to the attention of GAT. The layer itself is
    read by others as well, and need not be waited for.
    """
    for node in list(graph.nodes):
        mul = node.operands[0].producer if isinstance(node.op, ReduceSum) else None
        if (
            mul is None
            or not isinstance(mul.op, Mul)
            or graph.sole_consumer(mul.output) is not node
        ):
            continue
        found = next((each for pair in pairs(mul) if (each := _layer(node, *pair))), None)
        if found is None:
            continue
        x, weight, bias = found
        dtype = dtype_of(x)
        if dtype is None:
            continue
        add = Builder(graph, node, node.name, (node, mul))
        try:
            weight, bias = rounded_bias(weight, dtype), rounded_bias(bias, dtype)
        except Unfit as error:
            context.refused.append(refusal(graph, {node, mul}, Reason.NUMBERS, str(error)))
            continue
        y = add(MatMul(), x, add.constant(weight, "weights"))
        y = add(Add(), y, add.constant(bias, "bias")) if bias.any() else y
        graph.redirect(node.output, y)
        drop(graph, node)
        yield f"'{node.name}' is a layer with {weight.shape[1]} columns"


def _layer(total: Node, heads: Value, factor: Value) -> tuple[Value, Array, Array] | None:
    """Return the input of the layer whose heads are summed, and weights and bias in float64."""
    view, dims = heads.producer, shape_of(heads)
    if view is None or not isinstance(view.op, Reshape) or factor.data is None or not dims:
        return None
    count, size = dims[-2:] if len(dims) > 2 else (None, None)
    rows = view.operands[0]
    if not isinstance(count, int) or not isinstance(size, int) or not _sums_last(total, len(dims)):
        return None
    leading, own = factor.data.shape[:-2], (1, 1, *factor.data.shape)[-2:]
    fits = factor.data.ndim <= len(dims) and set(leading) <= {1}
    fits = fits and all(n in (1, m) for n, m in zip(own, (count, size), strict=True))
    *outer, width = shape_of(rows) or (None,)
    # One axis in front is the same in both, whatever its size; several may be cut in other places.
    is_cut = len(dims) > 3 or len(outer) != 1
    if is_cut and (None in outer or tuple(outer) != tuple(dims[:-2])):
        return None
    if width != count * size or not fits:
        return None
    made = _weights(rows.producer)
    if made is None or made[1].shape[0] > _LONGER * count * size:
        return None
    x, weight, bias = made
    factors = factor.data.reshape(own).astype(np.float64)
    wide = weight.astype(np.float64).reshape(-1, count, size)
    return x, (wide * factors).sum(-1), (bias.reshape(count, size) * factors).sum(-1)


def _sums_last(total: Node, rank: int) -> bool:
    """Whether a node sums along the last axis alone, and drops it."""
    last = reduced_axes(total, rank) == (rank - 1,)
    return isinstance(total.op, ReduceSum) and not total.op.keepdims and last


def _weights(node: Node | None) -> tuple[Value, Array, Array] | None:
    """Return the input of a layer, its weights [columns, width], and its bias in float64."""
    if node is None or not isinstance(node.op, Gemm | MatMul):
        return None
    x, weight = node.operands[0], node.operands[1].data
    if isinstance(node.op, MatMul):
        plain = weight is not None and weight.ndim == 2
        return (x, weight, np.zeros(weight.shape[1])) if plain and weight is not None else None
    layer = as_linear(node)
    if layer is None or node.op.transA or node.op.alpha != 1 or layer.bias.size == 0:
        return None
    weight = layer.weight.T if node.op.transB else layer.weight
    if layer.bias.size not in (1, weight.shape[1]):
        return None
    return x, weight, np.broadcast_to(layer.bias.reshape(-1), weight.shape[1:])
