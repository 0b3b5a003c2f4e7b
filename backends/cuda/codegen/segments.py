"""Updates of rows, such as edges of a graph at its nodes, with the elementwise nodes around them.

A ScatterND that combines rows is a reduction of those with equal indices. All that have the same
indices share what sorts these, and one kernel has those of which one chain reads the totals (the
gates of GatedGCN). What it reads through a Gather (the other end of each edge) is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.gather import Gather, ScatterND
from ....runtime.ops.shapes import normalize_axis
from ....runtime.plan.backend import Format
from ..recipe.launch import Recipe
from ..recipe.operands import Tensor
from ..recipe.pattern import Operand, Whole
from ..recipe.setting import Setting, Stored
from .elementwise import CHEAP, MAX_CHAINED, MAX_REPEATED, compute_type, in_chains
from .gathered import ChainBefore, chooses, combines_rows
from .shared_chains import operands_of

#: Maximum number of operands of the chains before the totals.
MAX_OPERANDS = 8
#: Rows from which on a kernel that looks through the indices itself takes longer than sorting them.
MANY_ROWS = 1 << 13


@record
class SegmentReduction(Whole):
    """Rows that are combined where their indices are equal, and elementwise nodes around.

    Attributes:
        folds: the nodes that combine rows, with equal indices.
        gathers: the nodes that choose the rows of operands.
        before: of each fold, the elementwise nodes that compute its rows, in order; several may
            have the same ones.
        behind: those that read the totals, in order.
    """

    folds: tuple[Node, ...]
    gathers: tuple[Node, ...]
    before: tuple[tuple[Node, ...], ...]
    behind: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        before = (node for nodes in self.before for node in nodes)
        return frozenset({*self.folds, *self.gathers, *before, *self.behind})

    @property
    def indices(self) -> Value:
        """Where the rows go."""
        return self.folds[0].operands[1]

    @property
    def reads_rows(self) -> bool:
        """Whether its kernel takes parts of rows; see `Pattern`."""
        return True

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return {} if self.indices.is_constant else {self.indices: Format.SORTED}

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        from .segment_kernel import segment_reduction

        return segment_reduction(self, y, operand)


def segment_reduction_at(
    graph: Graph,
    fold: Node,
    free: Set[Node],
    *,
    chain: ChainBefore,
    takes_epilogue: Callable[[Node], bool],
) -> SegmentReduction | None:
    """Return what combines rows with the nodes around it, unless these are few and alone.

    Args:
        graph: the graph.
        fold: the node.
        free: nodes that may be taken.
        chain: returns a node with the elementwise nodes before it that only they read.
        takes_epilogue: whether a node's kernel may compute elementwise nodes behind it.
    """
    if fold not in free or not combines_rows(fold):
        return None
    root = _root(graph, fold, free)
    behind = () if root is None else tuple(graph.in_order(chain(graph, root, free)))
    others = [v.producer for v in operands_of(behind)]
    folds = [fold, *(node for node in others if node is not fold and _is_like(node, fold))]
    folds = [node for node in folds if node in free and _is_inside(graph, node.output, behind)]
    if fold not in folds and behind:
        behind, folds = (), [fold]
    before = _before(graph, folds or [fold], free, takes_epilogue)
    folds = folds or [fold]
    inside = {*folds, *before}
    read = dict.fromkeys((*operands_of(graph.in_order(before)), *(n.operands[2] for n in folds)))
    gathers = tuple(
        node
        for value in read
        if (node := value.producer) is not None and node in free and node not in inside
        if _chooses_rows(node, folds[0]) and _is_inside(graph, value, inside)
    )
    found = SegmentReduction(
        tuple(graph.in_order(folds)),
        gathers,
        tuple(tuple(_those_before(graph, node, before)) for node in graph.in_order(folds)),
        behind,
    )
    shares = [node for node in found.indices.consumers if isinstance(node.op, ScatterND)]
    is_alone = len(shares) == 1 and len(found.nodes) == 1
    few = found.indices.tensor.size < MANY_ROWS
    return None if is_alone and few else found


def _is_like(node: Node | None, fold: Node) -> bool:
    """Whether a node combines rows of the same sizes in the same way with the same indices."""
    if node is None or not combines_rows(node) or node.op != fold.op:
        return False
    (x, indices, updates), (own, same, rows) = node.operands, fold.operands
    sizes = (x.tensor.dims, updates.tensor.dims) == (own.tensor.dims, rows.tensor.dims)
    kinds = compute_type(x.tensor.dtype) == compute_type(own.tensor.dtype)
    return indices is same and sizes and kinds


def _root(graph: Graph, fold: Node, free: Set[Node]) -> Node | None:
    """Return the last of the elementwise nodes behind a fold, each the only reader of another."""
    found, value = None, fold.output
    for _ in range(MAX_CHAINED):
        node = graph.sole_consumer(value)
        if node is None or node not in free or not in_chains(node):
            break
        if node.output.tensor.dims != fold.output.tensor.dims:
            break
        found, value = node, node.output
    return found


def _is_inside(graph: Graph, value: Value, nodes: Sequence[Node] | Set[Node]) -> bool:
    """Whether only some nodes read a value."""
    return not graph.is_output(value) and value.consumers.keys() <= set(nodes)


def _before(
    graph: Graph, folds: Sequence[Node], free: Set[Node], takes_epilogue: Callable[[Node], bool]
) -> set[Node]:
    """Return the elementwise nodes that compute the rows of folds, and that nothing else reads."""
    found = set[Node]()
    rows = folds[0].operands[2].tensor.dims
    few = prod(rows) <= MAX_REPEATED
    grown = True
    while grown and len(found) < MAX_CHAINED:
        grown = False
        updates = [node.operands[2] for node in folds]
        for value in dict.fromkeys((*updates, *operands_of(graph.in_order(found)))):
            node = value.producer
            if node is None or node not in free or node in found or not in_chains(node):
                continue
            if not _is_inside(graph, value, {*found, *folds}):
                continue
            if value.tensor.dims != rows and not (few or isinstance(node.op, CHEAP)):
                continue
            if _stays_apart(graph, node, free, takes_epilogue):
                continue
            if len(operands_of(graph.in_order({*found, node}))) <= MAX_OPERANDS:
                found.add(node)
                grown = True
    return found


def _stays_apart(
    graph: Graph, node: Node, free: Set[Node], takes_epilogue: Callable[[Node], bool]
) -> bool:
    """Whether another kernel computes a node as it stores its result, and reads no chosen rows."""
    makers = [(v, v.producer) for v in node.distinct_reads]
    if any(maker is not None and chooses(maker) for _, maker in makers):
        return False
    return any(
        maker in free and maker is not None and takes_epilogue(maker)
        for value, maker in makers
        if graph.sole_consumer(value) is node and value.tensor.dims == node.output.tensor.dims
    )


def _chooses_rows(node: Node, fold: Node) -> bool:
    """Whether a node chooses a row of a table for each row of the updates."""
    rows = fold.operands[2].tensor
    if not chooses(node) or not isinstance(node.op, Gather):
        return False
    table, indices = node.operands
    first = normalize_axis(node.op.axis, len(table.tensor.dims)) == 0
    return first and indices.tensor.rank == 1 and node.output.tensor.rank == rows.rank


def _those_before(graph: Graph, fold: Node, found: Set[Node]) -> Iterator[Node]:
    """Yield those of some nodes that compute the rows of one fold, in order."""
    needed, waiting = set[Node](), [fold.operands[2].producer]
    while waiting:
        node = waiting.pop()
        if node is not None and node in found and node not in needed:
            needed.add(node)
            waiting += [value.producer for value in node.distinct_reads]
    yield from graph.in_order(needed)
