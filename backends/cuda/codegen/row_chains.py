"""Rows that are reduced more than once, or used again after they are reduced, read once.

Normalizations and divisions by lengths that are spelled as usual have kernels of their own, as has
a Softmax without elementwise nodes around it. This is the rule for all others: masked scores and
their Softmax, ``x / sqrt(var(x))``, ``relu(x)² / sum(relu(x)²)``, scales of rows for quantization,
entropies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import axes_of, is_along_last
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.norm import LogSoftmax, Softmax
from ....runtime.plan.format import Format
from ....runtime.plan.partition import results_of
from ..recipe.launch import Recipe
from ..recipe.operands import Ints, Tensor
from ..recipe.pattern import OperandOf
from ..recipe.setting import Setting, Stored
from .elementwise import in_chains
from .folds import FOLDS, folded_axes
from .moves import Movement
from .readers import Formed, readers_outside
from .stages import MovedChain

#: Maximum numbers of reductions of a kernel, each of which waits for the one before, of nodes, and
#: of tensors that they read.
MAX_FOLDS, MAX_NODES, MAX_OPERANDS = 6, 32, 8
#: Maximum number of results.
MAX_RESULTS = 4
#: Maximum number of elements of a row, and of the rows that are read together, and of a row whose
#: elements may be far apart.
MAX_ROW, MAX_APART = 1 << 13, 1 << 10


@record
class Rows:
    """Rows that threads can keep in registers.

    Attributes:
        dims: the sizes of all of them together.
        axes: those within a row, in order.
    """

    dims: Ints
    axes: Ints

    @property
    def count(self) -> int:
        """The number of elements of a row."""
        return prod(self.dims[axis] for axis in self.axes)

    @property
    def kept(self) -> Ints:
        """The sizes of one number for each row, with the axes."""
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(self.dims))

    @property
    def dropped(self) -> Ints:
        """The sizes of one number for each row, without the axes."""
        return tuple(size for axis, size in enumerate(self.dims) if axis not in self.axes)


@record
class RowChain(MovedChain):
    """Reductions of rows, and elementwise nodes around them, of rows and of what they reduce to.

    Attributes:
        chain: these, in topological order.
        results: what other nodes read, the last one's result among them.
        moves: the movements through which they read.
    """

    chain: tuple[Node, ...]
    results: tuple[Value, ...]
    moves: tuple[Movement, ...] = ()

    @property
    def folds(self) -> tuple[Node, ...]:
        """The reductions among the nodes."""
        return tuple(node for node in self.chain if is_fold(node))

    @property
    def rows(self) -> Rows:
        """What is reduced."""
        rows = rows_of(self.folds[0])
        assert rows is not None
        return rows

    @property
    def follows(self) -> bool:
        """Whether it accepts any format; see `Pattern`.

        Where channels are last, elements of rows of an image are apart.
        """
        rows = self.rows
        rank, wide = len(rows.dims), wide_of(operands_of(self.chain), rows)
        if rank > 3 and wide * rows.count > MAX_APART:
            return False
        reads = (v for node in self.chain for v in (*read_by(node), node.output))
        same = all(value.is_constant or value.tensor.rank == rank for value in reads)
        return same and not self.moves

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return {each.x: each.format for each in self.moves if not each.is_plain}

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        from .row_kernel import row_chain

        return row_chain(self, operand)


def is_fold(node: Node) -> bool:
    """Whether a node reduces rows, or divides what it computes of their elements by its sum."""
    return type(node.op) in FOLDS or isinstance(node.op, Softmax | LogSoftmax)


def folds_of(node: Node) -> int:
    """Return the number of reductions of a node: a Softmax has two."""
    return (2 if isinstance(node.op, Softmax | LogSoftmax) else 1) if is_fold(node) else 0


def read_by(node: Node) -> tuple[Value, ...]:
    """Return what a node of a chain reads; axes are part of the code."""
    return node.operands[:1] if is_fold(node) else node.distinct_reads


def row_chain_at(
    graph: Graph,
    fold: Node,
    free: Set[Node],
    moved: Sequence[Movement],
    formed: Formed | None = None,
) -> RowChain | None:
    """Return a reduction with what is around it, if its rows are used more than once.

    Args:
        graph: the graph.
        fold: the reduction.
        free: nodes that may be taken.
        moved: movements that may be taken.
        formed: the groups so far; without these, there is one result.
    """
    rows = rows_of(fold)
    if rows is None:
        return None
    behind = _behind(graph, fold, rows, free, formed)
    nodes = _before(graph, behind, rows, free)
    uses = sum(map(folds_of, nodes))
    if uses + any(node.output.tensor.dims == rows.dims for node in behind) < 2:
        return None
    if all(node is fold or _is_cast_of(node, fold.output) for node in nodes):
        return None  # a Softmax has kernels of its own
    results = results_of(graph, graph.in_order(nodes))
    if any(each.is_order and each.x in results for each in moved):
        return None  # a chain stores them in that order
    reads = operands_of(nodes)
    joined = tuple(
        each
        for each in moved
        if each.y in reads and _fits(each, rows)
        if not graph.is_read_outside(each.y, nodes)
    )
    return RowChain(graph.in_order(nodes), results, joined)


def _is_cast_of(node: Node, value: Value) -> bool:
    return isinstance(node.op, Cast) and node.operands[0] is value


def operands_of(nodes: Sequence[Node]) -> list[Value]:
    """Return what nodes of a chain read; numbers are part of the code."""
    made = {node.output for node in nodes}
    reads = dict.fromkeys(value for node in nodes for value in read_by(node))
    return [v for v in reads if v not in made and (v.data is None or v.data.size > 1)]


def rows_of(node: Node) -> Rows | None:
    """Return the rows that a node reduces, if threads can keep these in registers.

    Elements that are adjacent are shared by more threads. Pixels may be far apart; a Softmax of
    columns has a kernel in which more threads share one.
    """
    axes = folded_axes(node) if type(node.op) in FOLDS else None
    if isinstance(node.op, Softmax | LogSoftmax):
        axes = axes_of(node) if is_along_last(node) else None
    if axes is None or node.operands[0].tensor.dtype not in FLOATS:
        return None
    rows = Rows(node.operands[0].tensor.dims, tuple(sorted(axes)))
    rank = len(rows.dims)
    last = rows.axes == tuple(range(rank - len(axes), rank))
    pixels = rank > 3 and rows.axes[:1] == (2,)
    return rows if 1 < rows.count <= (MAX_ROW if last and not pixels else MAX_APART) else None


def _behind(
    graph: Graph, fold: Node, rows: Rows, free: Set[Node], formed: Formed | None
) -> list[Node]:
    """Return reductions of the same rows, and nodes behind them of which only the last is a result.

    Others may be results as well, if nodes behind them read nothing but what the kernel has.
    """
    found, more = _beside(graph, fold, rows, free, formed), True
    fitting = len(found)
    while len(found) < MAX_NODES:
        node = next(iter(readers_outside(graph, (each.output for each in found), found)), None)
        if node is None or node not in free or not _joins(node, rows, found):
            break
        read = {*operands_of(found), *(each.output for each in found)}
        found.append(node)
        if not _is_small(found, rows):
            break
        more = more and read.issuperset(operands_of([node]))
        results = results_of(graph, found)
        if results == node.outputs:
            fitting, more = len(found), True
        elif more and len(results) <= MAX_RESULTS and formed and formed.may_join(set(found)):
            fitting = len(found)
    return found[:fitting]


def _beside(
    graph: Graph, fold: Node, rows: Rows, free: Set[Node], formed: Formed | None
) -> list[Node]:
    """Return a reduction, and others of the same rows if one kernel can have them."""
    readers = graph.in_order(fold.operands[0].consumers)
    kinds = FOLDS if type(fold.op) in FOLDS else ()
    found = [n for n in readers if n in free and type(n.op) in kinds and rows_of(n) == rows]
    fits = formed is not None and 0 < len(found) <= MAX_RESULTS
    fits = fits and formed is not None and formed.may_join(set(found))
    return found if fits else [fold]


def _before(graph: Graph, nodes: Sequence[Node], rows: Rows, free: Set[Node]) -> list[Node]:
    """Return nodes with those before them that nothing else reads."""
    found = list(nodes)
    while True:
        made = {node.output for node in found}
        sources = {value.producer for value in operands_of(found)}
        for source in graph.in_order(node for node in sources if node is not None):
            fits = source in free and source.output not in made and _joins(source, rows, ())
            fits = fits and not graph.is_read_outside(source.output, found)
            fits = fits and source.output.tensor.dims != rows.dropped
            if fits and _is_small([*found, source], rows):
                found.append(source)
                break
        else:
            return found


def _joins(node: Node, rows: Rows, nodes: Sequence[Node]) -> bool:
    """Whether a node reduces these rows, or computes elements of them or of their results.

    Numbers whose axes are dropped are not broadcast to rows: at their place these have others.
    """
    made = {each.output for each in nodes if each.output.tensor.dims == rows.dropped}
    if is_fold(node):
        return rows_of(node) == rows
    if not in_chains(node):
        return False
    if node.output.tensor.dims == rows.dropped:
        return made.issuperset(operands_of([node]))
    return node.output.tensor.dims in (rows.dims, rows.kept) and made.isdisjoint(read_by(node))


def wide_of(reads: Iterable[Value], rows: Rows) -> int:
    """Return how many of some tensors have more than an element for each row."""
    return sum(value.tensor.size > prod(rows.dropped) for value in reads)


def _is_small(nodes: Sequence[Node], rows: Rows) -> bool:
    """Whether one kernel can have these nodes, and keep the rows that they read."""
    folds = sum(map(folds_of, nodes))
    reads = operands_of(nodes)
    wide = wide_of(reads, rows)
    within = len(nodes) <= MAX_NODES and folds <= MAX_FOLDS
    return within and len(reads) <= MAX_OPERANDS and wide * rows.count <= MAX_ROW


def _fits(movement: Movement, rows: Rows) -> bool:
    """Whether rows may be read through nodes that move elements: where strides lead, adjacent."""
    walk = movement.walk(Tensor(movement.x))
    same = movement.y.tensor.dims == rows.dims
    return walk.table is None and same and movement.is_adjacent(movement.format)
