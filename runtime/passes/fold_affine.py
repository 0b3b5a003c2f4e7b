"""Let a convolution, Gemm or batch-norm do the scaling and shifting behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir import Graph, Node, Value
from ..ops.elementwise import Add, Div, Mul, Sub
from ..ops.matmul import Gemm
from ..ops.norm import BatchNormalization
from ..types import Array, TensorType
from .driver import Context
from .linear import as_linear, rebuild, substitute
from .rounding import Unfit, check, refusal, rounded_bias

Affine = tuple[Array, Array]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``y * s + t`` (Mul, Div, Add, Sub of a constant per channel) into what computes `y`.

    Weight and bias of a Conv, ConvTranspose or Gemm, or scale and shift of a BatchNormalization
    in inference, are changed instead, in float64. Nobody else may read `y`.
    """
    for node in list(graph.nodes):
        for source, other, first in _operands(node):
            producer = source.producer
            if producer is None or graph.sole_consumer(source) is not node:
                continue
            affine = _affine(node, source, other, first)
            try:
                with np.errstate(all="ignore"):
                    new = affine and _absorb(graph, producer, node, *affine)
            except Unfit as error:
                context.refused.append(refusal((producer, node), error))
                continue
            if new:
                yield f"{new.kind} '{new.name}' took over {node.kind} '{node.name}'"
                break


def _operands(node: Node) -> Iterator[tuple[Value, Array, bool]]:
    """Yield (variable, constant, whether the variable is the first operand)."""
    if not isinstance(node.op, Add | Sub | Mul | Div):
        return
    a, b = node.inputs
    if a is not None and b is not None:
        if b.data is not None:
            yield a, b.data, True
        if a.data is not None:
            yield b, a.data, False


def _affine(node: Node, source: Value, other: Array, first: bool) -> Affine | None:
    """Return scale and shift per channel (float64), or None if `other` varies elsewhere."""
    if (
        not isinstance(source.type, TensorType)
        or source.type.rank is None
        or source.producer is None
    ):
        return None
    rank = source.type.rank
    axis = rank - 1 if isinstance(source.producer.op, Gemm) else 1
    if other.ndim > rank or other.dtype != source.type.dtype or other.dtype.kind != "f":
        return None
    shape = (1,) * (rank - other.ndim) + other.shape
    if any(size != 1 for i, size in enumerate(shape) if i != axis):
        return None
    values = other.astype(np.float64).reshape(-1)
    one, zero = np.ones(1), np.zeros(1)
    if isinstance(node.op, Add):
        return one, values
    if isinstance(node.op, Mul):
        return values, zero
    if isinstance(node.op, Sub):
        return (one, -values) if first else (-one, values)
    with np.errstate(all="ignore"):
        return (1 / values, zero) if first and values.all() else None


def _absorb(graph: Graph, producer: Node, node: Node, scale: Array, shift: Array) -> Node | None:
    """Return the node that replaces `producer` and `node`, or None if they do not fit."""
    chain = (producer, node)
    linear = as_linear(producer)
    if linear is not None:
        if not {scale.size, shift.size} <= {1, linear.channels}:
            return None
        factor = np.broadcast_to(scale, linear.channels)
        weight, bias = linear.scaled(factor), linear.bias * scale + shift
        new = rebuild(graph, linear, weight, bias, chain)
    elif isinstance(producer.op, BatchNormalization) and not producer.op.training_mode:
        new = _rescale(graph, chain, scale, shift)
        if new is None:
            return None
    else:
        return None
    substitute(graph, chain, new)
    return new


def _rescale(graph: Graph, chain: tuple[Node, ...], scale: Array, shift: Array) -> Node | None:
    norm = chain[0]
    old = [v.data for v in norm.inputs[1:3] if v is not None and v.data is not None]
    if len(old) != 2 or len(norm.outputs) != 1 or not {scale.size, shift.size} <= {1, old[0].size}:
        return None
    weight = old[0].astype(np.float64) * scale
    check(weight, old[0].dtype, old[0], "scales")
    shifts = rounded_bias(old[1].astype(np.float64) * scale + shift, old[1].dtype)
    inputs = list(norm.inputs)
    for i, data in enumerate((weight.astype(old[0].dtype), shifts), 1):
        inputs[i] = graph.constant(data, f"{norm.name}.{i}")
    new = graph.insert(norm.op, inputs, name=norm.name, before=chain[-1], origin=chain)
    new.output.type = chain[-1].output.type
    return new
