"""Attention whose constant mask a Tile repeats for all samples, such as that of Swin's windows."""

from __future__ import annotations

from collections.abc import Set

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.attention import Attention
from ....runtime.ops.movement import Tile
from ..algorithms.registry import Answer, Setting, Stored
from ..recipe.operands import Tensor
from ..recipe.pattern import Operand, Whole
from .flash import flash
from .heads import AttentionTask, by_head

#: Inputs of an Attention up to the mask.
INPUTS = 4


@record
class RepeatedMask(Whole):
    """An Attention and the Tile that makes its mask: samples have the tiles in turn.

    Attributes:
        attention: the Attention.
        tile: the Tile, along samples alone.
    """

    attention: Node
    tile: Node

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """Both nodes."""
        return frozenset({self.attention, self.tile})

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        op = self.attention.op
        assert isinstance(op, Attention)
        if stored.halves:
            return "rows in halves, whose mask is not repeated"
        counts = op.q_num_heads, op.kv_num_heads, op.kv_num_heads
        read = (operand(value) for value in self.attention.operands[:3])
        q, k, v = (by_head(x, count) for x, count in zip(read, counts, strict=True))
        mask = operand(self.tile.operands[0])
        return flash(AttentionTask(op, q, k, v, by_head(y, counts[0]), mask), setting.target)


def repeated_mask_at(graph: Graph, node: Node, free: Set[Node]) -> RepeatedMask | None:
    """Return the attention that a node is, if a Tile repeats its mask for all samples.

    Args:
        graph: the graph.
        node: an Attention.
        free: nodes that may be taken.
    """
    if len(node.inputs) != INPUTS or any(
        x.consumers or graph.is_output(x) for x in node.outputs[1:]
    ):
        return None
    tile = None if node.inputs[3] is None else node.inputs[3].producer
    if tile is None or tile not in free or not isinstance(tile.op, Tile):
        return None
    mask, repeats = tile.operands
    alone = graph.sole_consumer(tile.output) is node
    if not alone or mask.data is None or mask.tensor.rank != 4 or repeats.data is None:
        return None
    return RepeatedMask(node, tile) if (repeats.data[1:] == 1).all() else None
