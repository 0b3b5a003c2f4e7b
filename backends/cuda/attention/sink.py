"""Attention with a sink per head: one more term in the denominator of its softmax.

Importers write it as results times ``sigmoid(log of the sum of exponentials - sink)``. The kernels
of `mma_tiles.cuh` begin with the sink instead, as with a key whose value is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from ....runtime.base.record import record
from ....runtime.ir.chains import chain_behind
from ....runtime.ir.dtypes import bfloat16, float16, float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention
from ....runtime.ops.cuts import reduced_axes
from ....runtime.ops.elementwise import Cast, Mul, Sigmoid, Sub
from ....runtime.ops.movement import Transpose
from ....runtime.ops.reduce import ReduceLogSumExp
from ....runtime.ops.shape import Reshape
from ..algorithms.registry import Answer, Setting
from ..recipe.operands import Ints, Tensor
from ..recipe.pattern import Grouping, OperandOf, Whole
from ..recipe.setting import Stored
from .flash_f16x3 import choose, on_halves
from .flash_mma import FEWEST_KEYS, MAX_HEAD, on_tensor_cores
from .heads import AttentionTask, by_head

#: The stage of the scores whose sum counts: with mask, before the softmax.
MASKED = 2


@record
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
    """Return the sink of an attention that has one; its scores have no other reader.

    The result of an attention of rank 3 has an axis for heads: [batch, rows, heads, size].
    """
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
    split = _next(graph, y, Reshape) if y.tensor.rank == 3 else None
    moves = _moves(graph, share, is_transposed=split is not None)
    product = _next(graph, (moves or (share,))[-1].output, Mul)
    heads = y if split is None else split.output
    if product is None or graph.sole_consumer(heads) is not product:
        return None
    sink, dims = apart.operands[1], scores.tensor.dims
    if product.output.tensor.dims[:3] != (dims[:3] if split is None else _rows(dims)[:3]):
        return None
    if apart.inputs[0] != logsum.output or not sink.is_constant:
        return None
    if sink.tensor.dims != (1, dims[1], 1, 1) or sink.tensor.dtype != float32:
        return None
    if logsum.output.tensor.dtype != float32:
        return None
    others = [node for node in (total, split) if node is not None and node is not attention]
    nodes = graph.in_order({*others, *moves, logsum, apart, share, product})
    return Sink(nodes, sink) if set(nodes) <= free else None


def _rows(dims: Ints) -> Ints:
    """Return the sizes of rows of heads [batch, rows, heads, n] for [batch, heads, rows, n]."""
    return dims[0], dims[2], dims[1], dims[3]


def _moves(graph: Graph, share: Node, *, is_transposed: bool) -> tuple[Node, ...]:
    """Return the Cast of the shares, and where rows have heads the node that exchanges both."""
    found: list[Node] = []
    dims = share.output.tensor.dims
    for node in chain_behind(graph, share.output):
        transposes = isinstance(node.op, Transpose) and node.op.order(4) == (0, 2, 1, 3)
        views = isinstance(node.op, Reshape) and 1 in dims[1:3]
        if not isinstance(node.op, Cast) and not (is_transposed and (transposes or views)):
            break
        found.append(node)
    fits = not is_transposed or (found and found[-1].output.tensor.dims == _rows(dims))
    return tuple(found) if fits else ()


def _next(
    graph: Graph,
    value: Value,
    kind: type[Cast | Mul | Sigmoid | Sub | ReduceLogSumExp | Reshape],
) -> Node | None:
    """Return the only reader of a value if it is of a kind."""
    found = graph.sole_consumer(value)
    return found if found is not None and isinstance(found.op, kind) else None


def _is_over_keys(node: Node) -> bool:
    """Whether a reduction is over the last of four axes, which stays."""
    assert isinstance(node.op, ReduceLogSumExp)
    return bool(node.op.keepdims) and reduced_axes(node) == (3,)


@record
class SinkAttention(Whole):
    """An attention with the nodes that account for its sink."""

    attention: Node
    sink: Sink

    reads_rows = True
    regrouped = Grouping.ALONE

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.attention, *self.sink.nodes})

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return sink_attention(self, operand, setting)


def sink_attention_at(graph: Graph, attention: Node, free: Set[Node]) -> SinkAttention | None:
    """Return the attention with a sink that begins with a node, if its kernel can compute it."""
    sink = sink_behind(graph, attention, free)
    q, _, v, *_ = attention.operands
    is_able = q.tensor.dtype in (float16, bfloat16, float32) and v.tensor.dtype == q.tensor.dtype
    caches = attention.outputs[1:3]
    if sink is None or not is_able or any(map(graph.is_read, caches)):
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
    if q.rank == 3:
        y = replace(y, dims=_rows(y.dims), steps=(y.steps[0], y.steps[2], y.steps[1]))
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
