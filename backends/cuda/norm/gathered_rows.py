"""Rows that are gathered and normalized, as one kernel: `normalize_rows.cu`.

Blocks of windows (Swin, MaxViT, SAM 2) begin so: what they add to is gathered as well, and stored
as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import takewhile

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.gather import Gather
from ....runtime.ops.norm import LayerNormalization, RMSNormalization, are_of_rows
from ....runtime.ops.shape import Reshape
from ..algorithms.registry import Answer
from ..codegen.epilogue import Tail, epilogue_of
from ..recipe.operands import Tensor
from ..recipe.pattern import Grouping, Operand, Pattern, Rest, Whole
from ..recipe.setting import Setting, Stored
from .norm_rows import normalize_rows


@record
class GatheredRows(Whole):
    """Nodes that gather rows and normalize them.

    Attributes:
        gather: the Gather of rows at constant places.
        views: the Reshapes of what it gathers, before it is normalized.
        norm: a LayerNormalization or RMSNormalization.
        epilogue: the elementwise nodes after it that do not read gathered rows.
        moved: what other nodes read of what is gathered; None if none does.
    """

    gather: Node
    views: tuple[Node, ...]
    norm: Node
    epilogue: tuple[Node, ...]
    moved: Value | None

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.gather, *self.views, self.norm, *self.epilogue})

    @property
    def reads_rows(self) -> bool:
        """Whether its kernel takes parts of rows; see `Pattern`."""
        return True

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return gathered_rows(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return its nodes, as if there were no such pattern; see `Pattern`."""
        rest = frozenset({self.norm, *self.epilogue})
        return (Rest(self.nodes - rest, Grouping.MOVED), Rest(rest))


def gathered_rows_at(graph: Graph, norm: Node, free: Set[Node], tail: Tail) -> GatheredRows | None:
    """Return the normalization of gathered rows that this node is, if it is one.

    Not in float32, where norms store their results in halves for products.

    Args:
        graph: the graph.
        norm: a LayerNormalization or RMSNormalization.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    assert isinstance(norm.op, LayerNormalization | RMSNormalization)
    x = norm.operands[0]
    alone = not any(v.consumers or graph.is_output(v) for v in norm.outputs[1:])
    alone = alone and are_of_rows(x.tensor.dims, -1, *(v.tensor.dims for v in norm.operands[1:]))
    is_last = norm.op.axis in (-1, len(x.tensor.dims) - 1)
    if not alone or not is_last or norm.output.tensor.dtype == float32:
        return None
    views, value = list[Node](), x
    while (node := value.producer) is not None and isinstance(node.op, Reshape):
        views.append(node)
        value = node.operands[0]
    if node is None or not _gathers_rows(node) or value.tensor.dims[-1] != x.tensor.dims[-1]:
        return None
    inside = {*views, norm}
    between = [view.output for view in views] + [value]
    read = [v for v in between if graph.is_output(v) or not inside.issuperset(v.consumers)]
    if len(read) > 1:
        return None
    own = takewhile(lambda each: not set(between) & set(each.operands), tail(graph, norm, free))
    found = GatheredRows(node, tuple(views), norm, tuple(own), read[0] if read else None)
    return found if found.nodes <= free and _are_together(graph, found) else None


def _gathers_rows(node: Node) -> bool:
    """Whether a node gathers rows at places that are known, and counted from the first."""
    if not isinstance(node.op, Gather) or node.op.axis or node.operands[0].tensor.rank != 2:
        return False
    places = node.operands[1].data
    return places is not None and places.ndim == 1 and places.size > 0 and int(places.min()) >= 0


def _are_together(graph: Graph, found: GatheredRows) -> bool:
    """Whether what others read of gathered rows is not read before the last of the nodes."""
    readers = set(found.moved.consumers) - found.nodes if found.moved is not None else set[Node]()
    count = len(found.nodes)
    return found.nodes.issuperset(graph.in_order(found.nodes | readers)[:count])


def gathered_rows(
    found: GatheredRows, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch, or why there is none."""
    norm = found.norm
    epilogue = epilogue_of(found.epilogue, y, norm.output)
    if isinstance(epilogue, str):
        return epilogue
    assert isinstance(norm.op, LayerNormalization | RMSNormalization)
    rows, places = (operand(value) for value in found.gather.operands)
    scale, *shift = (operand(value) for value in norm.operands[1:])
    launch = normalize_rows(
        y,
        rows,
        scale,
        shift[0] if shift else None,
        1,
        norm.op.epsilon,
        epilogue,
        centred=isinstance(norm.op, LayerNormalization),
        places=places,
        moved=None if found.moved is None else operand(found.moved),
        target=setting.target,
    )
    return launch or "rows that do not fit into registers, or are not contiguous"
