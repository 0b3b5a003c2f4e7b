"""Rows divided by their length, mean or sum, as one kernel: `normalize_rows.cu`.

Exporters write ``x / max(|x|, floor)`` as three nodes, between two Casts if the rest is in half
precision. The floor is a number such as 1e-12, which float16 cannot represent; the kernel computes
in float32. ``x / (mean(x) + floor)`` compares channels with one another (ConvNeXt V2), and
``x / (factor * |x| + floor)`` is a normalization without parameters (TransNormer). ``x / |x|``
(nGPT), and ``x / sum(x)`` of weights that add up to one again, have no floor.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from ....runtime.base.record import record
from ....runtime.ir.dtypes import bfloat16, float16, float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.elementwise import Add, Cast, Clip, Div, Max, Mul
from ....runtime.ops.reduce import Reduce, ReduceL2, ReduceMean, ReduceSum
from ..algorithms.registry import Answer
from ..codegen.epilogue import Tail, epilogue_of
from ..recipe.operands import Tensor
from ..recipe.pattern import Grouping, OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Setting, Stored
from .norm_rows import RowStatistic, normalize_rows


@record
class UnitRows(Whole):
    """Nodes that divide rows by their length, mean or sum.

    Attributes:
        before: the nodes up to the quotient, which is the last one.
        epilogue: the elementwise nodes after it.
        x: the rows.
        floor: minimum of what divides, or what is added to it.
        is_added: whether it is added.
        factor: of the length or the mean.
        by_mean: whether the mean divides, of which the sum is a multiple.
    """

    before: tuple[Node, ...]
    epilogue: tuple[Node, ...]
    x: Value
    floor: float
    is_added: bool = False
    factor: float = 1.0
    by_mean: bool = False

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({*self.before, *self.epilogue})

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return unit_rows(self, y, operand)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return it without its epilogue; see `Pattern`."""
        if not self.epilogue:
            return (Rest(self.nodes, Grouping.MOVED),)
        return replace(self, epilogue=()), Rest(frozenset(self.epilogue))


def unit_rows_at(
    graph: Graph,
    quotient: Node,
    free: Set[Node],
    tail: Tail,
    *,
    may_be_mean: bool = False,
) -> UnitRows | None:
    """Return the normalization that ends with this quotient, if there is one.

    Args:
        graph: the graph.
        quotient: the node.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
        may_be_mean: whether rows may be divided by their mean or sum, too.
    """
    x, divisor = quotient.inputs
    limit = None if divisor is None else divisor.producer
    if x is None or limit is None or quotient.output.tensor.dims != x.tensor.dims:
        return None
    if isinstance(limit.op, ReduceL2) or (may_be_mean and isinstance(limit.op, ReduceSum)):
        before, length, floor, factor = (quotient,), limit, 0.0, None
    else:
        before, floor, length = (limit, quotient), _floor(limit), _measure(limit)
        factor = None if length is None else _factor(length)
        if length is not None and factor is not None:
            before, length = (length, *before), _measure(length)
    by_mean = length is not None and isinstance(length.op, ReduceMean | ReduceSum)
    is_added = not floor or isinstance(limit.op, Add)
    if length is None or floor is None or (by_mean and not (may_be_mean and is_added)):
        return None
    if not _is_divisor(length, x, (ReduceMean, ReduceSum) if by_mean else (ReduceL2,)):
        return None
    if isinstance(length.op, ReduceSum):
        factor = (1.0 if factor is None else factor) * x.tensor.dims[-1]
    before = (length, *before)
    if x.producer is not None and _widens(x.producer) and x.consumers.keys() == {length, quotient}:
        before, x = (x.producer, *before), x.producer.distinct_reads[0]
    inner = [node.output for node in before[:-1]]
    if any(graph.is_read_outside(v, before) for v in inner):
        return None
    if not all(node in free for node in before):
        return None
    return UnitRows(
        before,
        tail(graph, quotient, free),
        x,
        floor,
        is_added=is_added,
        factor=1.0 if factor is None else factor,
        by_mean=by_mean,
    )


def divided_rows_at(graph: Graph, quotient: Node, free: Set[Node], tail: Tail) -> UnitRows | None:
    """Return the division of rows by their length or mean that ends with this quotient."""
    return unit_rows_at(graph, quotient, free, tail, may_be_mean=True)


def _measure(node: Node) -> Node | None:
    """Return the node that computes the only operand which is not constant."""
    found = [value.producer for value in node.operands if value.data is None]
    return found[0] if len(found) == 1 else None


def _factor(node: Node) -> float | None:
    """Return the positive number by which a node multiplies or divides, if it does nothing else."""
    if not isinstance(node.op, Mul | Div):
        return None
    first, second = node.operands
    if first.data is not None and isinstance(node.op, Mul):
        first, second = second, first
    if second.data is None or second.data.size != 1 or first.data is not None:
        return None
    number = float(second.data.reshape(()))
    if number <= 0:
        return None
    return 1 / number if isinstance(node.op, Div) else number


def _floor(node: Node) -> float | None:
    """Return the positive lower bound or addend that a node applies, if it does nothing else."""
    if not isinstance(node.op, Clip | Max | Add):
        return None
    first, low, *high = (*node.inputs, None)
    if isinstance(node.op, Add) and first is not None and first.data is not None:
        first, low = low, first
    if any(high) or low is None or low.data is None or low.data.size != 1:
        return None
    if low.tensor.dtype != float32:
        return None
    return floor if (floor := float(low.data.reshape(()))) > 0 else None


def _is_divisor(node: Node, x: Value, kinds: tuple[type[Reduce], ...]) -> bool:
    """Whether a node computes the lengths, means or sums of the rows of a value."""
    rank = x.tensor.rank or 0
    row_dims = (*x.tensor.dims[:-1], 1)
    sums = isinstance(node.op, kinds) and node.inputs[0] is x and x.tensor.dtype == float32
    return sums and rank > 1 and node.output.tensor.dims == row_dims != x.tensor.dims


def _widens(node: Node) -> bool:
    return isinstance(node.op, Cast) and node.distinct_reads[0].tensor.dtype in (float16, bfloat16)


def unit_rows(found: UnitRows, y: Tensor, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the launch, or why there is none."""
    quotient = found.before[-1].output
    epilogue = epilogue_of(found.epilogue, y, quotient, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    if len(epilogue.along) < len(epilogue.operands):
        return "constants per channel in its epilogue"
    by_mean, factor, is_added = found.by_mean, found.factor, found.is_added
    how = RowStatistic(found.floor, by_mean=by_mean, factor=factor, is_added=is_added)
    launch = normalize_rows(y, operand(found.x), y.rank - 1, how, epilogue)
    return launch or "rows that do not fit into registers, or are not contiguous"
