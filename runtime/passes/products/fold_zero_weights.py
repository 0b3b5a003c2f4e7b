"""Replaces products with zero weights by their bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.types import TensorType
from ...ops.conv import Conv, ConvTranspose
from ...ops.elementwise import Add, Mul, Sub
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Expand
from ...ops.shape import Unsqueeze
from ..driver import Context
from ..editing import shape_of
from ..rounding import holds


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a Conv, ConvTranspose, Gemm or MatMul with zero weights by its bias.

    Only with `Options.finite`: by IEEE 754, 0 · ∞ and 0 · NaN are NaN, so the node propagates
    non-finite inputs, and a bias does not. The bias is broadcast to the shape of the result, which
    must be known; an Add, Sub or Mul that broadcasts anyway takes it directly, so that it may be
    folded further. `drop_zero_units` handles layers of which only some filters or columns are zero.
    A Conv over padding alone, whose image has no elements, is its bias in any case.
    """
    for node in list(graph.nodes):
        type_ = node.outputs[0].type if node.outputs else None
        if not isinstance(type_, TensorType) or not type_.is_static or 0 in type_.dims:
            continue
        is_empty = isinstance(node.op, Conv) and 0 in (shape_of(node.inputs[0]) or ())
        if not is_empty and not (context.options.finite and _is_zero(node)):
            continue
        bias = _bias(graph, node)
        shape = graph.constant(np.array(type_.dims, np.int64), f"{node.name}.shape")
        new = graph.insert(Expand(), [bias, shape], name=node.name, before=node, origin=(node,))
        new.output.type = type_.without_value()
        graph.replace(node, new.outputs)
        graph.rename(new, node.name)
        _hand_on(graph, new, bias)
        why = "its image has no elements" if is_empty else "its weights are zero"
        yield f"{node.kind} '{node.name}' is its bias: {why}"


def _is_zero(node: Node) -> bool:
    """Whether the node is a product with a constant that is all zero, -0 included."""
    if isinstance(node.op, Conv | ConvTranspose):
        factors = node.inputs[1:2]
    elif isinstance(node.op, Gemm | MatMul):
        factors = node.inputs[:2]
    else:
        return False
    if not any(v is not None and v.data is not None and not v.data.any() for v in factors):
        return False
    return _is_exact(node)


def _is_exact(node: Node) -> bool:
    """Whether a computed addend may be multiplied by a Gemm's beta."""
    op, addend = node.op, node.inputs[2] if len(node.inputs) > 2 else None
    if not isinstance(op, Gemm) or addend is None or addend.data is not None:
        return True
    return op.beta in (0, 1) or holds(op.beta, node.output.tensor.dtype)


def _bias(graph: Graph, node: Node) -> Value:
    """Return the constant result, whole or per channel or column, in a shape that broadcasts."""
    type_ = node.output.tensor
    addend = node.inputs[2] if len(node.inputs) > 2 else None
    if addend is None or (isinstance(node.op, Gemm) and node.op.beta == 0):
        return graph.constant(np.zeros((), type_.dtype), f"{node.name}.zero")
    if isinstance(node.op, Gemm):
        return addend if node.op.beta == 1 else _times(graph, node, addend, node.op.beta)
    axes = range(1, len(type_.dims) - 1)
    if addend.data is not None:
        data = addend.data.reshape(-1, *(1 for _ in axes))
        return graph.constant(data, f"{node.name}.bias")
    places = graph.constant(np.array(axes, np.int64), f"{node.name}.axes")
    by_channel = graph.insert(Unsqueeze(), [addend, places], before=node, origin=(node,))
    channels = type_.dims[1]
    by_channel.output.type = type_.with_shape((channels, *(1 for _ in axes)))
    return by_channel.output


def _times(graph: Graph, node: Node, addend: Value, beta: float) -> Value:
    """Return a Gemm's addend times beta."""
    dtype = node.output.tensor.dtype
    if addend.data is not None:
        with np.errstate(over="ignore", under="ignore"):
            scaled = (addend.data.astype(np.float64) * beta).astype(dtype)
        return graph.constant(scaled, f"{node.name}.bias")
    factor = graph.constant(np.array(beta, dtype), f"{node.name}.beta")
    scaled = graph.insert(Mul(), [addend, factor], before=node, origin=(node,))
    scaled.output.type = addend.type
    return scaled.output


def _hand_on(graph: Graph, expand: Node, bias: Value) -> None:
    """Make readers that broadcast the bias themselves read it directly."""
    wide = expand.output
    for reader in list(wide.consumers):
        if not isinstance(reader.op, Add | Sub | Mul) or reader.inputs.count(wide) > 1:
            continue
        other = next(v for v in reader.inputs if v is not wide)
        full = other.type if other is not None else None
        if isinstance(full, TensorType) and full.shape == wide.tensor.shape:
            graph.set_inputs(reader, [bias if v is wide else v for v in reader.inputs])
    if not graph.is_read(wide):
        graph.remove(expand)
