"""Updates of rows, such as edges of a graph at its nodes, with the elementwise nodes around them.

A ScatterND that combines rows is a reduction of those with equal indices. All that have the same
indices share what sorts these, and one kernel has those of which one chain reads the totals (the
gates of GatedGCN), and those whose totals each row reads again, as a softmax over the edges of a
node does (GAT). What it reads through a Gather (the other end of each edge) is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import islice
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import axis_of
from ....runtime.ops.gather import Gather, ScatterND
from ....runtime.ops.shape import Reshape, Unsqueeze
from ....runtime.plan.format import Format
from ..recipe.launch import Recipe
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .elementwise import CHEAP, MAX_CHAINED, MAX_REPEATED, compute_type, in_chains, one_by_one
from .gathered import ChainBefore, chooses, combines_rows
from .shared_chains import operands_of

#: Maximum number of tensors that the rows are computed of.
MAX_OPERANDS = 8
#: Rows from which on a kernel that looks through the indices itself takes longer than sorting them.
MANY_ROWS = 1 << 13
#: Maximum number of nodes after one that are looked at for those that combine rows.
MAX_AHEAD = 48


@record
class Stage:
    """Totals that the rows of later ones are computed of.

    Attributes:
        fold: the node that combines rows.
        between: elementwise nodes that only read its result, and numbers.
        gather: gives every row the total of its own node.
    """

    fold: Node
    between: tuple[Node, ...]
    gather: Node

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All its nodes."""
        return (self.fold, *self.between, self.gather)


@record
class SegmentReduction(Whole):
    """Rows that are combined where their indices are equal, and elementwise nodes around.

    Attributes:
        folds: the nodes that combine rows, with equal indices.
        stages: what is computed of the same rows before, in order.
        rows: the nodes that compute the rows, in order: elementwise, and views that append axes.
        gathers: the nodes that choose the rows of operands.
        behind: those that read the totals, in order.
        view: where nodes behind read the totals as rows with one axis; None if they do not.
    """

    folds: tuple[Node, ...]
    stages: tuple[Stage, ...]
    rows: tuple[Node, ...]
    gathers: tuple[Node, ...]
    behind: tuple[Node, ...]
    view: Node | None = None

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        early = (node for stage in self.stages for node in stage.nodes)
        view = () if self.view is None else (self.view,)
        return frozenset({*self.folds, *early, *self.rows, *self.gathers, *view, *self.behind})

    @property
    def indices(self) -> Value:
        """Where the rows go."""
        return self.folds[0].operands[1]

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return {} if self.indices.is_constant else {self.indices: Format.SORTED}

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        from .segment_kernel import segment_reduction

        return segment_reduction(self, y, operand)


def segment_reduction_at(
    graph: Graph,
    node: Node,
    free: Set[Node],
    *,
    chain: ChainBefore,
    takes_epilogue: Callable[[Node], bool],
) -> SegmentReduction | None:
    """Return what combines rows with the nodes around it, unless these are few and alone.

    Args:
        graph: the graph.
        node: combines rows, or chooses some that are combined.
        free: nodes that may be taken.
        chain: returns a node with the elementwise nodes before it that only they read.
        takes_epilogue: whether a node's kernel may compute elementwise nodes behind it.
    """
    for fold in _folds_ahead(graph, node, free):
        view = _joining(graph, fold, free)
        behind = _behind(graph, fold if view is None else view, free, chain)
        others = [v.producer for v in operands_of(behind)]
        like = [other for other in others if other is not None and _is_like(other, fold)]
        outside = partial(graph.is_read_outside, nodes=behind)
        folds = [each for each in like if each in free and not outside(each.output)]
        if view is not None and behind and not outside(view.output):
            folds = [fold]
        elif fold not in folds or view is not None:
            behind, folds, view = (), [fold], None
        found = _Rows(graph, tuple(graph.in_order(folds)), free, takes_epilogue).found(behind)
        found = replace(found, view=view)
        shares = [other for other in found.indices.consumers if isinstance(other.op, ScatterND)]
        is_alone = len(shares) == 1 and len(found.nodes) == 1
        if node in found.nodes and not (is_alone and found.indices.tensor.size < MANY_ROWS):
            return found
    return None


def _folds_ahead(graph: Graph, node: Node, free: Set[Node]) -> list[Node]:
    """Return nodes that combine what is computed of the rows of a node, the last one first."""
    found, waiting = dict[Node, None](), [node]
    while waiting and len(found) < MAX_AHEAD:
        each = waiting.pop()
        passes = in_chains(each) or combines_rows(each) or isinstance(each.op, Gather | Unsqueeze)
        if each in free and each not in found and passes:
            found[each] = None
            waiting += each.output.consumers
    return [each for each in reversed(graph.in_order(found)) if combines_rows(each)]


def _joining(graph: Graph, fold: Node, free: Set[Node]) -> Node | None:
    """Return the view of totals with one axis for all behind the first (heads of GAT)."""
    view, dims = graph.sole_consumer(fold.output), fold.output.tensor.dims
    if view is None or view not in free or not isinstance(view.op, Reshape) or len(dims) < 3:
        return None
    return view if view.output.tensor.dims == (dims[0], prod(dims[1:])) else None


def _behind(graph: Graph, fold: Node, free: Set[Node], chain: ChainBefore) -> tuple[Node, ...]:
    root = _root(graph, fold, free)
    return () if root is None else tuple(graph.in_order(chain(graph, root, free)))


def _is_like(node: Node, fold: Node) -> bool:
    """Whether a node combines rows of the same sizes in the same way with the same indices."""
    if not combines_rows(node) or node.op != fold.op:
        return False
    (x, indices, updates), (own, same, rows) = node.operands, fold.operands
    sizes = (x.tensor.dims, updates.tensor.dims) == (own.tensor.dims, rows.tensor.dims)
    kinds = compute_type(x.tensor.dtype) == compute_type(own.tensor.dtype)
    return indices is same and sizes and kinds


def _root(graph: Graph, fold: Node, free: Set[Node]) -> Node | None:
    """Return the last of the elementwise nodes behind a fold, each the only reader of another."""
    found, dims = None, fold.output.tensor.dims
    for node in islice(one_by_one(graph, fold.output, free), MAX_CHAINED):
        if node.output.tensor.dims != dims:
            break
        found = node
    return found


def _keeps_rank(value: Value) -> bool:
    """Whether elementwise nodes that read a value have as many axes: their first are rows."""
    readers = (node for node in value.consumers if in_chains(node))
    return all(node.output.tensor.rank == value.tensor.rank for node in readers)


@record
class _Rows:
    """What computes rows that are combined, and that nothing else reads.

    Attributes:
        graph: the graph.
        folds: the nodes that combine them.
        free: nodes that may be taken.
        takes_epilogue: whether a node's kernel may compute elementwise nodes behind it.
    """

    graph: Graph
    folds: tuple[Node, ...]
    free: Set[Node]
    takes_epilogue: Callable[[Node], bool]

    def found(self, behind: tuple[Node, ...]) -> SegmentReduction:
        """Return the pattern, of which elementwise nodes read the totals."""
        rows, stages = set[Node](), dict[Node, Stage]()
        grown = True
        while grown and len(rows) < MAX_CHAINED:
            grown = False
            inside = {
                *self.folds,
                *rows,
                *(node for stage in stages.values() for node in stage.nodes),
            }
            for value in self._read(rows, stages):
                node = value.producer
                if node is None or node not in self.free or node in inside:
                    continue
                if self.graph.is_read_outside(value, inside) or not _keeps_rank(value):
                    continue
                stage = self._stage(node)
                if stage is not None:
                    stages[node] = stage
                elif self._computes(node) and len(self._operands({*rows, node})) <= MAX_OPERANDS:
                    rows.add(node)
                else:
                    continue
                grown = True
                break
        inside = {*self.folds, *rows, *(stage.fold for stage in stages.values())}
        read = self._read(rows, stages)
        makers = [(value, value.producer) for value in read if _keeps_rank(value)]
        gathers = tuple(
            node
            for value, node in makers
            if node is not None and node in self.free and node not in {*inside, *stages}
            if self._chooses_rows(node) and not self.graph.is_read_outside(value, inside)
        )
        early = tuple(stages[node] for node in self.graph.in_order(stages))
        in_order = tuple(self.graph.in_order(rows))
        return SegmentReduction(self.folds, early, in_order, gathers, behind)

    @property
    def _dims(self) -> tuple[int, ...]:
        return self.folds[0].operands[2].tensor.dims

    def _read(self, rows: Set[Node], stages: Mapping[Node, Stage]) -> list[Value]:
        """Return what nodes of rows read, and what is combined, but for what is combined with."""
        folds = (*self.folds, *(stage.fold for stage in stages.values()))
        combined = (fold.operands[2] for fold in folds)
        apart = {value for fold in folds for value in fold.operands[:2]}
        read = dict.fromkeys((*combined, *self._operands(rows)))
        return [value for value in read if value not in apart]

    def _operands(self, rows: Set[Node]) -> list[Value]:
        reads = operands_of([node for node in self.graph.in_order(rows) if in_chains(node)])
        views = [node.operands[0] for node in rows if not in_chains(node)]
        made = {node.output for node in rows}
        return [value for value in dict.fromkeys((*reads, *views)) if value not in made]

    def _computes(self, node: Node) -> bool:
        """Whether a node computes rows, or views them with an axis appended."""
        dims = node.output.tensor.dims
        if isinstance(node.op, Unsqueeze):
            axes = node.operands[1].data
            last = {len(dims) - 1, -1}
            return axes is not None and axes.size == 1 and int(axes.reshape(-1)[0]) in last
        if not in_chains(node) or not dims or dims[0] != self._dims[0]:
            return False
        is_whole = dims == self._dims or prod(self._dims) <= MAX_REPEATED
        return (is_whole or isinstance(node.op, CHEAP)) and not self._stays_apart(node)

    def _stays_apart(self, node: Node) -> bool:
        """Whether another kernel computes a node as it stores its result, and no rows chosen."""
        makers = [(v, v.producer) for v in node.distinct_reads]
        if any(maker is not None and chooses(maker) for _, maker in makers):
            return False
        return any(
            maker in self.free and maker is not None and self.takes_epilogue(maker)
            for value, maker in makers
            if self.graph.sole_consumer(value) is node
            and value.tensor.dims == node.output.tensor.dims
        )

    def _chooses_rows(self, node: Node) -> bool:
        """Whether a node chooses a row of a table for each row that is combined."""
        if not chooses(node) or not isinstance(node.op, Gather):
            return False
        is_list = axis_of(node) == 0 and node.operands[1].tensor.rank == 1
        return is_list and node.output.tensor.dims[0] == self._dims[0]

    def _stage(self, node: Node) -> Stage | None:
        """Return the totals that a Gather gives to the rows they are made of."""
        graph, free = self.graph, self.free
        column = self.folds[0].operands[1].producer
        if column is None or not isinstance(column.op, Unsqueeze) or not self._chooses_rows(node):
            return None
        if node.operands[1] is not column.operands[0]:
            return None
        between, value, reader = list[Node](), node.operands[0], node
        while (maker := value.producer) is not None and maker in free:
            if graph.sole_consumer(value) is not reader:
                return None
            if combines_rows(maker):
                same = maker.operands[1] is column.output
                kinds = {compute_type(v.tensor.dtype) for v in (value, self.folds[0].output)}
                first = maker.output.tensor.dims[0] == self.folds[0].output.tensor.dims[0]
                is_stage = same and first and len(kinds) == 1
                return Stage(maker, tuple(between), node) if is_stage else None
            reads = operands_of([maker])
            if not in_chains(maker) or len(reads) != 1:
                return None
            between.insert(0, maker)
            value, reader = reads[0], maker
        return None
