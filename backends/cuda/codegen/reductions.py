"""Reductions of what a chain of elementwise operators computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.movement import Slice
from ....runtime.plan.format import Format
from ..recipe.launch import Recipe
from ..recipe.operands import Ints, Tensor
from ..recipe.pattern import Grouping, OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .elementwise import in_chains, one_by_one
from .folds import FOLDS, folded_axes, keeps_axes, keeps_order
from .moves import Movement, movement, moves

#: Maximum number of nodes behind a reduction.
MAX_BEHIND = 12
#: Rows of at most this many elements are not worth a warp each.
SHORT = 16


@record
class ChainReduction(Whole):
    """Elementwise nodes, a reduction of their result, and elementwise nodes behind it.

    Attributes:
        chain: the nodes before, in topological order.
        fold: the reduction.
        behind: the nodes after it, each of which reads the one before.
        moves: the movements through which the chain reads.
    """

    chain: tuple[Node, ...]
    fold: Node
    behind: tuple[Node, ...]
    moves: tuple[Movement, ...]

    reads_rows = True
    regrouped = Grouping.PLAIN

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        moving = (node for each in self.moves for node in each.nodes)
        return frozenset({*moving, *self.chain, self.fold, *self.behind})

    @property
    def axes(self) -> Ints:
        """The axes that are reduced."""
        axes = folded_axes(self.fold)
        assert axes is not None
        return axes

    @property
    def keeps_axes(self) -> bool:
        """Whether its result has an axis of size 1 for each that is reduced."""
        return keeps_axes(self.fold.op)

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return what its moves request of what they read and of its result; see `Pattern`."""
        found = {each.x: each.format for each in self.moves if not each.is_plain}
        if any(each.result is Format.CHANNELS_LAST for each in self.moves):
            found[(self.fold, *self.behind)[-1].output] = Format.CHANNELS_LAST
        return found

    @property
    def keeps_order(self) -> bool:
        """Whether axes of the result are in the order of those of what it reads, in any format."""
        before, behind = (self.chain or (self.fold,)), self.behind
        pairs = ((self.fold.operands[0], before), (self.fold.output, behind))
        same = all(
            v.is_constant or v.tensor.rank == whole.tensor.rank
            for whole, nodes in pairs
            for node in nodes
            for v in node.distinct_reads
            if node is not self.fold or v is self.fold.operands[0]
        )
        return same and keeps_order(self.fold) and all(each.is_plain for each in self.moves)

    @property
    def follows(self) -> bool:
        """Whether it accepts any format; see `Pattern`."""
        return self.keeps_order

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        from .reduction_kernel import chain_reduction

        return chain_reduction(self, y, operand)


Chain = Callable[[Graph, Node, Set[Node]], Sequence[Node]]


def chain_reduction_at(
    graph: Graph,
    fold: Node,
    free: Set[Node],
    moved: Sequence[Movement],
    *,
    chain: Chain,
    takes_epilogue: Callable[[Node], bool],
) -> ChainReduction | None:
    """Return a reduction with the elementwise nodes around it, if there are any.

    Args:
        graph: the graph.
        fold: the reduction.
        free: nodes that may be taken.
        moved: movements that may be taken.
        chain: returns the elementwise nodes that end with one, and that only these read.
        takes_epilogue: whether a node's kernel computes elementwise nodes behind it.
    """
    if type(fold.op) not in FOLDS:
        return None
    x, *given = fold.operands
    if any(v.known is None for v in given):
        return None
    maker = x.producer
    before: Sequence[Node] = ()
    if maker is not None and maker in free and in_chains(maker) and graph.sole_consumer(x) is fold:
        before = graph.in_order(chain(graph, maker, free))
    behind = tuple(_behind(graph, fold, free, takes_epilogue))
    if not behind and all(isinstance(node.op, Cast) for node in before) and not _is_short(fold):
        return None
    reads = [v for node in before for v in node.distinct_reads]
    known = {each.y: each for each in moved if graph.sole_consumer(each.y) is not None}
    found = {v: known.get(v) or _part(graph, v, free) for v in reads}
    joined = tuple(
        fitting
        for each in found.values()
        if each is not None and (fitting := _joining(each, fold)) is not None
    )
    return ChainReduction(tuple(before), fold, behind, joined)


def _part(graph: Graph, value: Value, free: Set[Node]) -> Movement | None:
    """Return the nodes that cut a value out of a tensor, if only one node reads it."""
    node = value.producer
    if node not in free or node is None or not isinstance(node.op, Slice) or not moves(node):
        return None
    return movement([node]) if graph.sole_consumer(value) is not None else None


def _is_short(fold: Node) -> bool:
    """Whether rows of few elements are reduced."""
    x = fold.operands[0].tensor
    count = prod(x.dims) // max(fold.output.tensor.size, 1)
    return x.dims[-1:] != fold.output.tensor.dims[-1:] and 1 < count <= SHORT


def _joining(movement: Movement, fold: Node) -> Movement | None:
    """Return nodes that move elements as a chain may read through them, or None if it may not.

    Channels that are adjacent stay so if the result is channels-last, too. Threads that reduce
    short rows (windows) read next to one another if elements at the same place of them are.
    """
    dims, y = fold.operands[0].tensor.dims, fold.output.tensor.dims
    if not movement.fits(dims):
        return None
    if not movement.transposes or movement.is_few or movement.is_adjacent(movement.format):
        return movement
    if _is_short(fold) and movement.is_adjacent(Format.CONTIGUOUS, inner=1):
        return movement
    last = replace(movement, result=Format.CHANNELS_LAST)
    fits = 2 < len(y) <= len(dims) and y[:2] == dims[:2] and last.is_adjacent(Format.CHANNELS_LAST)
    return last if fits else None


def _behind(
    graph: Graph, fold: Node, free: Set[Node], takes_epilogue: Callable[[Node], bool]
) -> Iterator[Node]:
    """Yield the elementwise nodes behind a reduction that no other kernel would compute."""
    value = fold.output
    for node in islice(one_by_one(graph, value, free), MAX_BEHIND):
        if node.output.tensor.dims != fold.output.tensor.dims:
            return
        makers = {v.producer for v in node.distinct_reads if v is not value}
        if any(maker in free and maker is not None and takes_epilogue(maker) for maker in makers):
            return
        yield node
        value = node.output
