"""Rows that are gathered and normalized, in either order, as one kernel: `normalize_rows.cu`.

Blocks of windows begin so: with a norm (Swin, MaxViT, SAM 2), where what they add to is gathered as
well and stored as it is; or behind that of the block before (SwinV2). In float16 on an H200
MaxViT-T takes 6 % less time than with a kernel that gathers, at batch 1 and 32; Swin-T 4 and 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from itertools import takewhile

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.chains import chain_behind
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import indices_of, is_along_last
from ....runtime.ops.gather import Gather
from ....runtime.ops.norm import LayerNormalization, RMSNormalization, are_of_rows
from ....runtime.ops.shape import Reshape
from ..algorithms.registry import Answer
from ..codegen.epilogue import Tail, epilogue_of
from ..recipe.operands import Tensor
from ..recipe.pattern import Grouping, OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Setting, Stored
from .norm_rows import RowPlaces, RowStatistic, ScaleShift, normalize_rows


@record
class GatheredRows(Whole):
    """Nodes that gather rows and normalize them, or normalize rows and gather them.

    Attributes:
        gather: the Gather of rows at constant places.
        views: the Reshapes between the Gather and the norm, or its epilogue.
        norm: a LayerNormalization or RMSNormalization.
        epilogue: the elementwise nodes after it that do not read gathered rows.
        moved: what others than the norm read of what is gathered before; None if none does.
        is_last: whether rows are gathered behind the epilogue.
    """

    gather: Node
    views: tuple[Node, ...]
    norm: Node
    epilogue: tuple[Node, ...]
    moved: Value | None = None
    is_last: bool = False

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.gather, *self.views, self.norm, *self.epilogue})

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return gathered_rows(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return its nodes, as if there were no such pattern; see `Pattern`."""
        rest = frozenset({self.norm, *self.epilogue})
        return (Rest(self.nodes - rest, Grouping.MOVED), Rest(rest))


def gathered_rows_at(graph: Graph, norm: Node, free: Set[Node], tail: Tail) -> GatheredRows | None:
    """Return the normalization of rows that are gathered which this node is, if it is one.

    Not in float32, where norms store their results in halves for products.

    Args:
        graph: the graph.
        norm: a LayerNormalization or RMSNormalization.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    assert isinstance(norm.op, LayerNormalization | RMSNormalization)
    dims = norm.operands[0].tensor.dims
    alone = not any(map(graph.is_read, norm.outputs[1:]))
    alone = alone and are_of_rows(dims, -1, *(v.tensor.dims for v in norm.operands[1:]))
    if not alone or not is_along_last(norm):
        return None
    if norm.output.tensor.dtype == float32:
        return None
    epilogue = tail(graph, norm, free)
    found = _gathered_before(graph, norm, epilogue) or _gathered_behind(graph, norm, epilogue)
    return found if found is not None and found.nodes <= free else None


def _gathered_before(graph: Graph, norm: Node, epilogue: tuple[Node, ...]) -> GatheredRows | None:
    """Return the nodes if the norm reads gathered rows, which others may read in one shape."""
    views, value = list[Node](), norm.operands[0]
    while (node := value.producer) is not None and isinstance(node.op, Reshape):
        views.append(node)
        value = node.operands[0]
    if node is None or not _gathers_rows(node, norm.operands[0]):
        return None
    between, inside = [value, *(view.output for view in views)], {*views, norm}
    read = [v for v in between if graph.is_read_outside(v, inside)]
    own = tuple(takewhile(lambda each: set(between).isdisjoint(each.operands), epilogue))
    if len(read) > 1:
        return None
    return GatheredRows(node, tuple(views), norm, own, next(iter(read), None))


def _gathered_behind(graph: Graph, norm: Node, epilogue: tuple[Node, ...]) -> GatheredRows | None:
    """Return the nodes if only a Gather reads the normalized rows, each at most once."""
    value = (norm, *epilogue)[-1].output
    views = [*takewhile(lambda each: isinstance(each.op, Reshape), chain_behind(graph, value))]
    value = views[-1].output if views else value
    node = graph.sole_consumer(value)
    if node is None or node.inputs[0] is not value or not _gathers_rows(node, norm.output):
        return None
    places = node.operands[1].data
    if places is None or len(np.unique(places)) < len(places):
        return None
    return GatheredRows(node, tuple(views), norm, epilogue, is_last=True)


def _gathers_rows(node: Node, rows: Value) -> bool:
    """Whether a node gathers such rows at places that exist, and are counted from the first.

    They are 64-bit numbers, as the kernel reads them.
    """
    if not isinstance(node.op, Gather) or node.op.axis or node.operands[0].tensor.rank != 2:
        return False
    places, width = node.operands[1].data, rows.tensor.dims[-1]
    if node.output.tensor.dims[-1] != width or places is None or places.ndim != 1:
        return False
    exist = indices_of(node) is not None and places.size > 0 and int(places.min()) >= 0
    return exist and places.dtype == np.int64


def gathered_rows(
    found: GatheredRows, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch, or why there is none."""
    norm = found.norm
    last = Tensor((norm, *found.epilogue)[-1].output)
    epilogue = epilogue_of(found.epilogue, last, norm.output, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    if found.is_last and epilogue.apart:
        return "operands of its epilogue that lie otherwise"
    assert isinstance(norm.op, LayerNormalization | RMSNormalization)
    rows, places = (operand(value) for value in found.gather.operands)
    if found.is_last:
        rows = operand(norm.operands[0])
    scale, shift = (*map(operand, norm.operands[1:]), None)[:2]
    moved = None if found.moved is None else operand(found.moved)
    launch = normalize_rows(
        *(y, rows, rows.rank - 1),
        RowStatistic(norm.op.epsilon, centred=isinstance(norm.op, LayerNormalization)),
        epilogue,
        setting.target,
        affine=ScaleShift(scale, shift),
        gathered=RowPlaces(places, moved, found.is_last),
    )
    if launch is not None and found.is_last:
        launch = replace(
            launch, pitched=tuple(t for t in launch.pitched if t not in epilogue.along)
        )
    return launch or "rows that do not fit into registers, or are not contiguous"
