"""Constant folding at load time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.budget import Budget
from ...base.guard import check_time
from ...ir.graph import Graph, Node
from ...ir.types import Array, TensorType, bytes_of
from ...ops.movement import Transpose
from ...ops.quantize import DequantizeLinear
from ...ops.shape import ConstantOfShape
from ..driver import Context

#: Maximum bytes written by folding, as a multiple of `Options.fold_total`: constants that are
#: dropped later take time, too.
MAX_MADE = 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Evaluate nodes whose inputs are constant or whose results inference knows.

    A result larger than `Options.fold_bytes`, or one that would exceed `Options.fold_total`
    together with the others, is not folded: a few bytes of ConstantOfShape must not become
    gigabytes. A Transpose shares its input's memory, and so does a view, which counts as a copy:
    the input may be dropped before it. With `Options.keep_quantized`, neither is a
    DequantizeLinear: its result is four times as large, and compilers of other runtimes look for
    the integers.
    """
    for node in list(graph.nodes):
        if node not in graph or not node.op.deterministic or node.op.graphs():
            continue
        if context.options.keep_quantized and isinstance(node.op, DequantizeLinear):
            continue
        check_time()
        found = _elements(node, context)
        if found is None:
            continue
        read = [value for value in node.distinct_reads if value.data is not None]
        graph.settle(node, found)
        if not isinstance(node.op, Transpose):
            cost = sum(map(_cost, found))
            context.made += cost
            context.spent += cost - sum(_cost(value.data) for value in read if graph.drop(value))
        yield f"{node.kind} '{node.name}' became a constant of {sum(map(_cost, found))} bytes"


def _elements(node: Node, context: Context) -> list[Array] | None:
    known = [value.known for value in node.outputs]
    if known and all(data is not None for data in known):
        return [data for data in known if data is not None]
    if any(v is not None and v.data is None for v in node.inputs):
        return None
    if isinstance(node.op, ConstantOfShape):
        return _repeated(node, context)
    if isinstance(node.op, Transpose):
        return _transposed(node)
    if not _fits(node, context):
        return None
    found = _viewed(node)
    if found is None:
        arrays = [None if v is None else v.data for v in node.inputs]
        found = context.evaluate(node.op, arrays, len(node.outputs))
    if found is None:
        return None
    costs = list(map(_cost, found))
    if sum(costs) > _left(context):
        return None
    if max(costs, default=0) > context.options.fold_bytes:
        return None
    return [np.asarray(data) for data in found]


def _transposed(node: Node) -> list[Array] | None:
    """Return a transposed constant: a view, whatever its size."""
    x = node.inputs[0]
    if x is None or x.data is None or not isinstance(node.op, Transpose):
        return None
    return [x.data.transpose(node.op.order(x.data.ndim))]


def _viewed(node: Node) -> list[Array] | None:
    """Return a constant in another shape, without a copy; None if that takes one."""
    x = node.inputs[0] if node.op.view else None
    if x is None or x.data is None or not x.data.flags.c_contiguous:
        return None
    type_ = node.output.type
    if not isinstance(type_, TensorType) or not type_.is_static:
        return None
    return [x.data.reshape(type_.dims)]


def _repeated(node: Node, context: Context) -> list[Array] | None:
    """Return one element broadcast to the result's shape, which takes no memory until used.

    If materialising it would exceed the budget, the node stays, and planning reports it.
    """
    type_ = node.output.type
    if not isinstance(node.op, ConstantOfShape) or not isinstance(type_, TensorType):
        return None
    fill = np.zeros((), type_.dtype) if node.op.value is None else node.op.value.array.reshape(())
    if not type_.is_static or type_.nbytes > Budget(context.options.max_bytes).limit:
        return None
    return [np.broadcast_to(fill, type_.dims)]


def _fits(node: Node, context: Context) -> bool:
    """Whether the results are known to fit the budget before anything is computed.

    A broadcast constant takes no memory, but processing it takes just as long.
    """
    limit, total = context.options.fold_bytes, 0
    if any(v.data is not None and _is_too_long(v.data, limit) for v in node.distinct_reads):
        return False
    for value in node.outputs:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            return not any(v is not None and _cost(v.data) > 1 << 20 for v in node.inputs)
        if value.type.nbytes > limit:
            return False
        total += value.type.nbytes
    return total <= _left(context)


def _is_too_long(data: Array, limit: int) -> bool:
    return data.nbytes > limit and not any(data.strides)


def _left(context: Context) -> int:
    total = context.options.fold_total
    return min(total - context.spent, MAX_MADE * total - context.made)


def _cost(data: Array | None) -> int:
    """Return the bytes that an array actually takes, including characters of strings."""
    return 0 if data is None else bytes_of(data)
