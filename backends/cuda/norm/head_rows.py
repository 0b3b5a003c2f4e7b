"""Normalizations of heads that are columns of rows, as one kernel: `normalize_rows.cu`.

Queries and keys are parts of the rows of one product. A Reshape cuts such a part into heads, each
is normalized (LayerNormalization, RMSNormalization, or a division by its length), and another
Reshape may join them again. As a whole the rows are read where they are, with their own distance.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import is_along_last
from ....runtime.ops.movement import Slice, Split
from ....runtime.ops.norm import LayerNormalization, RMSNormalization, are_of_rows
from ....runtime.ops.shape import Reshape
from ..algorithms.registry import Answer
from ..codegen.epilogue import Tail, epilogue_of
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .norm_rows import RowStatistic, ScaleShift, normalize_rows
from .unit_rows import UnitRows, unit_rows_at


@record
class HeadRows(Whole):
    """Nodes that normalize the heads of rows.

    Attributes:
        cut: the Reshape of rows [..., heads * size] to [..., heads, size].
        norm: what normalizes heads: a node, or those that divide by their length.
        epilogue: the elementwise nodes after it.
        join: the Reshape to rows; None if heads stay apart, which are as adjacent.
    """

    cut: Node
    norm: Node | UnitRows
    epilogue: tuple[Node, ...]
    join: Node | None

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        own = self.norm.nodes if isinstance(self.norm, UnitRows) else {self.norm}
        joins = () if self.join is None else (self.join,)
        return frozenset({self.cut, *own, *self.epilogue, *joins})

    @property
    def rows(self) -> Value:
        """The rows of heads."""
        return self.cut.operands[0]

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return head_rows(self, y, operand)


def head_rows_at(graph: Graph, node: Node, free: Set[Node], tail: Tail) -> HeadRows | None:
    """Return the normalization of heads that this node ends, before an epilogue, if it is one.

    Args:
        graph: the graph.
        node: a LayerNormalization or RMSNormalization, or the quotient by a length.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    return _heads_at(graph, node, free, tail, apart=False)


def heads_apart_at(graph: Graph, node: Node, free: Set[Node], tail: Tail) -> HeadRows | None:
    """Return the same of heads that no Reshape joins, such as are transposed for a cache."""
    return _heads_at(graph, node, free, tail, apart=True)


def _heads_at(
    graph: Graph, node: Node, free: Set[Node], tail: Tail, *, apart: bool
) -> HeadRows | None:
    if isinstance(node.op, LayerNormalization | RMSNormalization):
        norm, x, epilogue = node, node.operands[0], tail(graph, node, free)
        alone = not any(map(graph.is_read, node.outputs[1:]))
        dims, parameters = x.tensor.dims, (v.tensor.dims for v in node.operands[1:])
        alone = alone and are_of_rows(dims, -1, *parameters)
        if not alone or not is_along_last(node):
            return None
    else:
        norm = unit_rows_at(graph, node, free, tail)
        if norm is None:
            return None
        x, epilogue = norm.x, norm.epilogue
    cut, join = x.producer, graph.sole_consumer((node, *epilogue)[-1].output)
    if cut is None or not {node, cut} <= free:
        return None
    is_joined = join in free and _joins(join, cut)
    if is_joined == apart:
        return None
    found = HeadRows(cut, norm, epilogue, join if is_joined else None)
    return found if _is_of_rows(graph, found, x) else None


def _joins(node: Node | None, cut: Node) -> bool:
    """Whether a node is the Reshape of heads to the rows that were cut."""
    if node is None or not isinstance(node.op, Reshape):
        return False
    return node.output.tensor.dims == cut.operands[0].tensor.dims


def _is_of_rows(graph: Graph, found: HeadRows, x: Value) -> bool:
    """Whether heads come from part of a row, and nothing else reads them."""
    if not isinstance(found.cut.op, Reshape):
        return False
    rows, (*lead, heads, size) = found.rows.tensor.dims, x.tensor.dims
    part = found.rows.producer
    if part is None or not isinstance(part.op, Slice | Split):
        return False
    if part.operands[0].tensor.dims[:-1] != rows[:-1]:
        return False
    inside = not graph.is_read_outside(x, found.nodes)
    return inside and rows == (*lead, heads * size)


def head_rows(found: HeadRows, y: Tensor, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the launch, or why there is none."""
    norm = found.norm.before[-1] if isinstance(found.norm, UnitRows) else found.norm
    last = (norm, *found.epilogue)[-1].output
    epilogue = epilogue_of(found.epilogue, Tensor(last), norm.output, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    if epilogue.operands:
        return "operands of its epilogue"
    rows = operand(found.rows)
    heads = norm.output.tensor.dims[-2]
    affine, epsilon, centred = ScaleShift(), 0.0, False
    if isinstance(found.norm, UnitRows):
        epsilon = found.norm.floor
    elif isinstance(norm.op, LayerNormalization | RMSNormalization):
        scale, shift = (*norm.inputs[1:], None)[:2]
        affine = ScaleShift(scale and operand(scale), shift and operand(shift))
        epsilon, centred = norm.op.epsilon, isinstance(norm.op, LayerNormalization)
    how = RowStatistic(epsilon, centred=centred, heads=heads)
    launch = normalize_rows(y, rows, rows.rank - 1, how, epilogue, affine=affine)
    return launch or "rows that do not fit into registers, or are not contiguous"
