"""Let a convolution or Gemm add the constant that is added behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir import Graph, Node
from ..ops.elementwise import Add
from ..ops.matmul import Gemm
from ..types import Array, TensorType
from .driver import Context
from .linear import Linear, as_linear, rebuild, substitute


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``conv(x) + c`` into the bias, where `c` is constant over all but the channels."""
    for add in list(graph.nodes):
        if not isinstance(add.op, Add):
            continue
        found = _linear_and_addend(graph, add)
        if found is None:
            continue
        linear, addend = found
        chain = (linear.node, add)
        weight = linear.weight.astype(np.float64)
        new = rebuild(graph, linear, weight, linear.bias + addend, chain)
        substitute(graph, chain, new)
        yield f"{new.kind} '{new.name}' took over Add '{add.name}'"


def _linear_and_addend(graph: Graph, add: Node) -> tuple[Linear, Array] | None:
    for source, other in (add.inputs, add.inputs[::-1]):
        if source is None or other is None or other.data is None:
            continue
        linear = as_linear(source.producer)
        if linear is None or graph.sole_consumer(source) is not add:
            continue
        if not isinstance(source.type, TensorType) or source.type.rank is None:
            continue
        addend = _per_channel(linear, other.data, source.type.rank)
        if addend is not None:
            return linear, addend
    return None


def _per_channel(linear: Linear, data: Array, rank: int) -> Array | None:
    """Return `data` as float64 [channels], or None if it varies over another axis."""
    if data.ndim > rank or data.dtype != linear.weight.dtype:
        return None
    axis = rank - 1 if isinstance(linear.node.op, Gemm) else 1
    shape = (1,) * (rank - data.ndim) + data.shape
    if any(size != 1 for i, size in enumerate(shape) if i != axis):
        return None
    if shape[axis] not in (1, linear.channels):
        return None
    return np.broadcast_to(data.astype(np.float64).ravel(), (linear.channels,))
