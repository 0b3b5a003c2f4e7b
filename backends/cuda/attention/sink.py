"""Attention with a sink per head: one more term in the denominator of its softmax.

Importers write it as results times ``sigmoid(log of the sum of exponentials - sink)``. The kernels
of `mma_tiles.cuh` begin with the sink instead, as with a key whose value is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from ....runtime.ir.dtypes import bfloat16, float16, float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention
from ....runtime.ops.elementwise import Cast, Mul, Sigmoid, Sub
from ....runtime.ops.reduce import ReduceLogSumExp
from ..algorithms.registry import Answer, Setting
from ..recipe.operands import Tensor
from .flash_f16x3 import choose, on_halves
from .flash_mma import FEWEST_KEYS, MAX_HEAD, on_tensor_cores
from .heads import AttentionTask, by_head

#: The stage of the scores whose sum counts: with mask, before the softmax.
MASKED = 2


@dataclass(frozen=True, slots=True)
class Sink:
    """The nodes behind an attention that account for a sink.

    Attributes:
        nodes: all of them, the last one being that of the result.
        value: the sinks, float32 [1, heads, 1, 1], constant.
    """

    nodes: tuple[Node, ...]
    value: Value

    @property
    def output(self) -> Value:
        """The result."""
        return self.nodes[-1].output


def sink_behind(graph: Graph, attention: Node, free: Set[Node]) -> Sink | None:
    """Return the sink of an attention of rank 4 that has one; its scores have no other reader."""
    op = attention.op
    assert isinstance(op, Attention)
    if len(attention.outputs) < 4 or op.qk_matmul_output_mode != MASKED:
        return None
    y, scores = attention.outputs[0], attention.outputs[3]
    total = _next(graph, scores, Cast) or attention
    logsum = _next(graph, scores if total is attention else total.output, ReduceLogSumExp)
    apart = None if logsum is None else _next(graph, logsum.output, Sub)
    share = None if apart is None else _next(graph, apart.output, Sigmoid)
    if logsum is None or apart is None or share is None or not _is_over_keys(logsum):
        return None
    cast = _next(graph, share.output, Cast)
    product = _next(graph, share.output if cast is None else cast.output, Mul)
    if product is None or graph.sole_consumer(y) is not product or apart.inputs[0] != logsum.output:
        return None
    sink, heads = apart.operands[1], y.tensor.dims[1] if y.tensor.rank == 4 else 0
    if not sink.is_constant or sink.tensor.dims != (1, heads, 1, 1):
        return None
    if sink.tensor.dtype != float32 or logsum.output.tensor.dtype != float32:
        return None
    casts = [node for node in (total, cast) if node is not None and node is not attention]
    nodes = graph.in_order({*casts, logsum, apart, share, product})
    return Sink(nodes, sink) if set(nodes) <= free else None


def _next(
    graph: Graph, value: Value, kind: type[Cast | Mul | Sigmoid | Sub | ReduceLogSumExp]
) -> Node | None:
    """Return the only reader of a value if it is of a kind."""
    found = graph.sole_consumer(value)
    return found if found is not None and isinstance(found.op, kind) else None


def _is_over_keys(node: Node) -> bool:
    """Whether a reduction is over the last of four axes, which stays."""
    axes = node.inputs[1].data if len(node.inputs) > 1 and node.inputs[1] else None
    assert isinstance(node.op, ReduceLogSumExp)
    return bool(node.op.keepdims) and axes is not None and axes.tolist() in ([3], [-1])


@dataclass(frozen=True, slots=True)
class SinkAttention:
    """An attention with the nodes that account for its sink."""

    attention: Node
    sink: Sink

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.attention, *self.sink.nodes})


def sink_attention_at(graph: Graph, attention: Node, free: Set[Node]) -> SinkAttention | None:
    """Return the attention with a sink that begins with a node, if its kernel can compute it."""
    sink = sink_behind(graph, attention, free)
    q, _, v, *_ = attention.operands
    is_able = q.tensor.dtype in (float16, bfloat16, float32) and v.tensor.dtype == q.tensor.dtype
    caches = attention.outputs[1:3]
    if sink is None or not is_able or any(graph.is_output(x) or x.consumers for x in caches):
        return None
    return SinkAttention(attention, sink)


def sink_attention(
    found: SinkAttention, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launches of an attention with a sink, or why there are none."""
    node, op = found.attention, found.attention.op
    assert isinstance(op, Attention)
    given = [None if value is None else operand(value) for value in node.inputs]
    q, k, v, mask, *rest = (*given, None, None, None, None)[:7]
    assert q is not None
    assert k is not None
    assert v is not None
    past, lengths = (rest[0], rest[1]), rest[2]
    y = by_head(operand(found.sink.output), op.q_num_heads)
    queries = by_head(q, op.q_num_heads)
    keys, values = (by_head(x, op.kv_num_heads) for x in (k, v))
    sink = operand(found.sink.value)
    task = AttentionTask(op, queries, keys, values, y, mask, past, lengths, sink=sink)
    sizes = queries.dims[3], values.dims[3]
    if op.is_wide or max(sizes) > MAX_HEAD:
        return "float64, or large heads"
    if task.total < FEWEST_KEYS or not min(sizes):
        return f"{task.total} keys"
    if q.dtype != float32:
        return on_tensor_cores(task, setting.target)
    shape = choose(task, setting.target)
    return "few queries in float32" if shape is None else on_halves(task, setting.target, shape)
