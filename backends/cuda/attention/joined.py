"""Attention of several positions whose heads become rows: the kernel stores them where they go.

An Attention with caches has its heads in front, [batch, heads, length, size]. A Transpose and a
Reshape make rows of its result for the next layer.
"""

from __future__ import annotations

from collections.abc import Set

from ....runtime.base.record import record
from ....runtime.ir.dtypes import bfloat16, float16
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.attention import Attention
from ....runtime.ops.movement import Transpose
from ....runtime.ops.shape import Reshape
from ..algorithms.registry import Answer, RecipeContext, kernel_of
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored


@record
class JoinedAttention(Whole):
    """An attention with the nodes that join its heads.

    Attributes:
        attention: the attention.
        transpose: of heads and positions.
        join: the Reshape to rows.
    """

    attention: Node
    transpose: Node
    join: Node

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.attention, self.transpose, self.join})

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        op, own = self.attention.op, setting.for_node(self.attention)
        found = kernel_of(op)
        if found is None or own.asked:
            return "no kernel, or an algorithm that was asked for"
        inputs = tuple(None if v is None else operand(v) for v in self.attention.inputs)
        return found.build(RecipeContext(op, y, inputs, own, stored=stored))


def joined_attention_at(graph: Graph, attention: Node, free: Set[Node]) -> JoinedAttention | None:
    """Return the attention whose heads become rows behind it, if they do."""
    transpose = graph.sole_consumer(attention.output)
    join = None if transpose is None else graph.sole_consumer(transpose.output)
    if transpose is None or join is None or not {attention, transpose, join} <= free:
        return None
    assert isinstance(attention.op, Attention)
    y = attention.output.tensor
    unread = not any(v.consumers or graph.is_output(v) for v in attention.outputs[1:])
    halves = y.dtype in (float16, bfloat16) and not attention.op.is_wide
    if y.rank != 4 or not unread or not halves or y.dims[2] == 1:
        return None  # heads of a single position are rows already
    if not isinstance(transpose.op, Transpose) or not isinstance(join.op, Reshape):
        return None
    batch, heads, length, size = y.dims
    rows = (batch, length, heads * size)
    is_joined = transpose.op.order(4) == (0, 2, 1, 3) and join.output.tensor.dims == rows
    return JoinedAttention(attention, transpose, join) if is_joined else None
