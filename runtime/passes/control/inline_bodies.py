"""Inlines bodies of which it is known whether and how often they run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.dtypes import DType
from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer
from ...ops.attention import FlexAttention
from ...ops.control import If
from ...ops.elementwise import Cast, Mul
from ...ops.matmul import MatMul
from ...ops.movement import Expand, Transpose
from ...ops.norm import Softmax
from ...ops.shape import Unsqueeze
from ..driver import Context
from ..editing import Builder, is_static


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace an If with known condition by its branch, and FlexAttention by its formula.

    FlexAttention without bodies stays, for the kernels that support it.
    """
    while True:
        before = set(graph.nodes)
        yield from _inline(graph)
        if not any(isinstance(node.op, If) for node in graph.nodes if node not in before):
            return
        infer(graph)  # conditions inside of a branch


def _inline(graph: Graph) -> Iterator[str]:
    for node in list(graph.nodes):
        if isinstance(node.op, If):
            yield from _choose(graph, node, node.op)
        elif isinstance(node.op, FlexAttention) and _may_be_written(node, node.op):
            _write_out(graph, node, node.op)
            yield f"{node.kind} '{node.name}' became its formula"


def lower(graph: Graph) -> None:
    """Inline nodes with bodies that no backend runs, whatever passes are skipped.

    Nodes without readers are removed: steps write only outputs that are read.
    """
    for node in list(graph.nodes):
        if isinstance(node.op, FlexAttention) and _may_be_written(node, node.op):
            _write_out(graph, node, node.op)
    graph.sweep()


def _choose(graph: Graph, node: Node, op: If) -> Iterator[str]:
    cond = node.inputs[0]
    known = None if cond is None else cond.known
    if known is None or known.size != 1:
        return
    chosen = bool(known.reshape(()))
    results = graph.splice(node, op.then_branch if chosen else op.else_branch)
    graph.replace(node, results[: len(node.outputs)])
    yield f"If '{node.name}' became its {'then' if chosen else 'else'} branch"


def _may_be_written(node: Node, op: FlexAttention) -> bool:
    """Whether an attention has bodies, and operands of known sizes."""
    return bool(op.graphs()) and all(map(is_static, node.distinct_reads))


def _write_out(graph: Graph, node: Node, op: FlexAttention) -> None:
    """Scale queries and keys equally, and compute in the softmax's dtype, as the function does."""
    write = Builder(graph, node, origin=(node,))
    q, k, v = (value for value in node.inputs if value is not None)
    dtype = q.tensor.dtype
    precision = op.precision(dtype)
    scale = q.tensor.dims[3] ** -0.5 if op.scale is None else op.scale
    root = write.constant(np.array(np.sqrt(np.float32(scale)), dtype), f"{node.name}.constant")
    heads = q.tensor.dims[1]
    k, v = (_repeated(write, value, heads) for value in (k, v))
    keys = write(Transpose(perm=(0, 1, 3, 2)), write(Mul(), k, root))
    scores = _cast(write, write(MatMul(), write(Mul(), q, root), keys), precision)
    weights = write(Softmax(axis=-1), _body(write, op.score_mod, scores))
    result = write(MatMul(), _body(write, op.prob_mod, weights), _cast(write, v, precision))
    graph.replace(node, (_cast(write, result, dtype),))


def _cast(write: Builder, value: Value, dtype: DType) -> Value:
    return value if value.tensor.dtype == dtype else write(Cast(to=dtype), value)


def _body(write: Builder, body: Graph | None, value: Value) -> Value:
    if body is None:
        return value
    (result,) = write.graph.splice(write.before, body, (value,))
    return result


def _repeated(write: Builder, value: Value, heads: int) -> Value:
    """Return keys or values with one head per head of the queries."""
    batch, have, length, size = value.tensor.dims
    if have == heads:
        return value
    times = heads // have
    apart = write(Unsqueeze(), value, write.integers([2]))
    wide = write.integers([batch, have, times, length, size])
    return write.shaped(write(Expand(), apart, wide), [batch, heads, length, size])
