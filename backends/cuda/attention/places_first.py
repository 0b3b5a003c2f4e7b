"""Attention of rows whose places come before their samples, which nothing transposes.

``nn.MultiheadAttention`` takes [places, samples, width] unless told otherwise (DETR, CLIP); kernels
step from place to place and from sample to sample by any strides.
"""

from __future__ import annotations

from collections.abc import Set

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention
from ....runtime.ops.movement import Transpose
from ..algorithms.registry import Answer, Setting, Stored
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from .flash import flash
from .heads import AttentionTask, Heads, by_head

#: Inputs of an Attention up to the mask.
INPUTS = 4
_ORDER = (1, 0, 2)


@record
class PlacesFirst(Whole):
    """An Attention, and Transposes of its operands and its result.

    Attributes:
        attention: the Attention.
        before: the Transposes of queries, keys and values; None where there is none.
        behind: that of the result, or None.
    """

    attention: Node
    before: tuple[Node | None, ...]
    behind: Node | None

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.attention, *filter(None, (*self.before, self.behind))})

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        op, inputs = self.attention.op, self.attention.inputs
        assert isinstance(op, Attention)
        if stored.halves:
            return "rows in halves, which are in order"
        counts = op.q_num_heads, op.kv_num_heads, op.kv_num_heads
        heads: list[Heads] = []
        for number, (move, count) in enumerate(zip(self.before, counts, strict=True)):
            value = self.attention.operands[number]
            x = operand(value if move is None else move.operands[0])
            heads.append(by_head(x, count) if move is None else _by_place(x, count))
        result = by_head(y, counts[0]) if self.behind is None else _by_place(y, counts[0])
        mask = inputs[3] if len(inputs) > 3 else None
        q, k, v = heads
        task = AttentionTask(op, q, k, v, result, None if mask is None else operand(mask))
        return flash(task, setting.target)


def places_first_at(graph: Graph, node: Node, free: Set[Node]) -> PlacesFirst | None:
    """Return the attention that a node is, if Transposes bring samples to the front of its rows.

    Args:
        graph: the graph.
        node: an Attention.
        free: nodes that may be taken.
    """
    if any(node.inputs[INPUTS:]) or any(v.tensor.rank != 3 for v in node.operands[:3]):
        return None
    if any(x.consumers or graph.is_output(x) for x in node.outputs[1:]):
        return None
    before = tuple(_move(graph, value, free) for value in node.operands[:3])
    behind = graph.sole_consumer(node.outputs[0])
    if behind is not None and not (behind in free and _is_move(behind)):
        behind = None
    return PlacesFirst(node, before, behind) if any(before) else None


def _move(graph: Graph, value: Value, free: Set[Node]) -> Node | None:
    node = graph.made_for_one(value)
    return node if node is not None and node in free and _is_move(node) else None


def _is_move(node: Node) -> bool:
    return isinstance(node.op, Transpose) and node.op.perm == _ORDER


def _by_place(x: Tensor, count: int | None) -> Heads:
    """Return rows [places, samples, width] by head."""
    length, batch, hidden = x.dims
    of_row, of_batch, _ = x.strides
    number = count or 1
    size = hidden // number
    return Heads(x, (batch, number, length, size), (of_batch, size, of_row))
