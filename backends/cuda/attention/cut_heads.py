"""Attention whose queries, keys and values products store in halves, so that nothing is cut again.

A head of 64 elements is a block of a row in halves: it has a scale of its own, as attention needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention
from ....runtime.ops.cuts import part_of
from ....runtime.ops.movement import Split
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, Setting, Stored
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from .flash_f16x3 import choose, on_halves
from .flash_mma import WarpShape
from .heads import AttentionTask, CutHeads, by_head

#: Elements of a head, and of a block that has a scale.
BLOCK = 64
#: Inputs of an Attention up to the mask.
INPUTS = 4


@record
class CutAttention(Whole):
    """An Attention, and the Splits of rows of which it reads columns.

    Attributes:
        attention: the Attention.
        sources: the rows of queries, keys and values, and the first column in each.
        splits: the Splits.
    """

    attention: Node
    sources: tuple[tuple[Value, int], ...]
    splits: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.attention, *self.splits})

    @property
    def rows(self) -> tuple[Value, ...]:
        """The values that it reads in halves."""
        return tuple(dict.fromkeys(value for value, _ in self.sources))

    @property
    def formats(self) -> dict[Value, Format]:
        """The formats that it requests."""
        return dict.fromkeys(self.rows, Format.HALVES)

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return self.formats

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return cut_attention(self, y, operand, setting, stored)


def cut_attention_at(graph: Graph, attention: Node) -> CutAttention | None:
    """Return the attention of products that a node is, if its operands could be in halves."""
    op = attention.op
    if not isinstance(op, Attention) or any(attention.inputs[INPUTS:]):
        return None
    if any(map(graph.is_read, attention.outputs[1:])):
        return None
    parts = attention.operands[:3]
    if any(x.tensor.rank != 3 or x.tensor.dtype != float32 for x in parts):
        return None
    sources, splits = list[tuple[Value, int]](), dict[Node, None]()
    for operand in parts:
        split = operand.producer
        if set(operand.consumers) != {attention} or graph.is_output(operand) or split is None:
            return None
        if not isinstance(split.op, Split):
            sources.append((operand, 0))
            continue
        part = part_of(operand)
        if part is None or part.axis != 2 or graph.is_output(part.source):
            return None
        if set(part.source.consumers) != {split}:
            return None
        sources.append((part.source, part.places.start))
        splits[split] = None
    read = {x for split in splits for x in split.outputs}
    if not read <= set(parts) or any(column % BLOCK for _, column in sources):
        return None
    return CutAttention(attention, tuple(sources), tuple(splits))


def cut_attention(
    found: CutAttention,
    y: Tensor,
    operand: Callable[[Value], Tensor],
    setting: Setting,
    stored: Stored,
) -> Answer:
    """Return the launches of an attention that reads halves, or why there are none."""
    node, op = found.attention, found.attention.op
    assert isinstance(op, Attention)
    q, k, v, mask = (*(None if x is None else Tensor(x) for x in node.inputs), None)[:INPUTS]
    assert q is not None
    assert k is not None
    assert v is not None
    rows = [(operand(value), column // BLOCK) for value, column in found.sources]
    if any(x.format is not Format.HALVES for x, _ in rows):
        return "its operands are not in halves"
    queries = by_head(q, op.q_num_heads)
    keys, values = (by_head(x, op.kv_num_heads) for x in (k, v))
    if {x.dims[3] for x in (queries, keys, values)} != {BLOCK}:
        return f"heads of other than {BLOCK} elements"
    of_q, of_k, of_v = (CutHeads(*x) for x in rows)
    task = AttentionTask(
        *(op, queries, keys, values, by_head(y, op.q_num_heads)),
        mask=None if mask is None else operand(mask.value),
        halves=Tensor(y.value, Format.HALVES) if stored.halves else None,
        plain=stored.plain,
        cut=(of_q, of_k, of_v),
    )
    shape = choose(task, setting.target)
    if op.is_wide or not isinstance(shape, WarpShape):
        return "another kernel is faster"
    return on_halves(task, setting.target, shape)
