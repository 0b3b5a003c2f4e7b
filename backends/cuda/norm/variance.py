"""Variances of long rows in one pass; exporters write means of squared differences from means."""

from __future__ import annotations

from collections.abc import Callable, Set

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import reduced_axes
from ....runtime.ops.elementwise import Cast, Mul, Pow, Sub
from ....runtime.ops.reduce import ReduceMean
from ..algorithms.registry import Answer
from ..codegen.fold_kernel import fold
from ..codegen.folds import VARIANCE
from ..codegen.row_chains import rows_of
from ..recipe.operands import Ints, Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored

#: Minimum number of elements of a row. Of shorter ones, and of those that registers keep, the
#: differences are part of the reduction of their squares, and so is what follows it.
LONG = 1024


@record
class Variance(Whole):
    """Nodes that compute the mean square of differences from the mean along some axes.

    Attributes:
        nodes: all of them.
        x: the input.
        axes: those that are reduced.
    """

    nodes: frozenset[Node]
    x: Value
    axes: Ints

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return variance(self, y, operand)


def variance_at(graph: Graph, last: Node, free: Set[Node]) -> Variance | None:
    """Return the variance that ends with this mean, if there is one.

    Both means are of the same elements, which may be widened before or after the first.

    Args:
        graph: the graph.
        last: the mean of squares.
        free: nodes that may be taken.
    """
    axes = _axes(last)
    square = _maker(graph, last.operands[0])
    if axes is None or square is None or not _is_square(square):
        return None
    apart, casts = _uncast(graph, square.operands[0])
    if apart is None or not isinstance(apart.op, Sub):
        return None
    x, mean = apart.operands[0], _maker(graph, apart.operands[1])
    if mean is None or _axes(mean) != axes or mean.operands[0] is not x:
        return None
    if x.tensor.dtype not in FLOATS or mean.output.tensor.rank != x.tensor.rank:
        return None
    nodes = frozenset({mean, apart, *casts, square, last})
    long = x.tensor.size >= LONG * max(last.output.tensor.size, 1) and rows_of(last) is None
    return Variance(nodes, x, axes) if long and free >= nodes else None


def variance(found: Variance, y: Tensor, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the launches, or why there are none."""
    return fold(VARIANCE, y, operand(found.x), found.axes, "variance")


def _maker(graph: Graph, value: Value) -> Node | None:
    """Return the node that computes a value which only one other reads, any number of times."""
    alone = len(value.consumers) == 1 and not graph.is_output(value)
    return value.producer if alone else None


def _uncast(graph: Graph, value: Value) -> tuple[Node | None, list[Node]]:
    """Return the node that computes a value, and the Casts behind it."""
    node, casts = _maker(graph, value), list[Node]()
    while node is not None and isinstance(node.op, Cast):
        casts.append(node)
        node = _maker(graph, node.operands[0])
    return node, casts


def _is_square(node: Node) -> bool:
    first, *others = node.operands
    if isinstance(node.op, Mul):
        return others == [first]
    exponent = others[0].data if isinstance(node.op, Pow) else None
    return exponent is not None and exponent.size == 1 and float(exponent.reshape(())) == 2


def _axes(node: Node) -> Ints | None:
    """Return the axes of a mean in order, if they are known."""
    return reduced_axes(node) if isinstance(node.op, ReduceMean) else None
