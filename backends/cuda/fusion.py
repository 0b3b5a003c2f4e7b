"""Fusion: anchors with their epilogues, elementwise chains, and groups with dedicated kernels.

Within a group, every value has all its readers inside, except for the last result. So no path
leaves a group and re-enters it, and intermediate values need no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING

from ...runtime.base.record import record
from ...runtime.ir.dtypes import float32
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ops.conv import Conv
from ...runtime.ops.elementwise import Cast
from ...runtime.ops.norm import LogSoftmax, Softmax
from ...runtime.ops.pool import GlobalAveragePool, GlobalMaxPool, MaxPool
from ...runtime.ops.reduce import Cumulative, Reduce
from .algorithms.registry import kernel_of
from .codegen.elementwise import (
    MAX_CHAINED,
    in_chains,
    is_worth_repeating,
)
from .codegen.epilogue import Epilogue, epilogue_of, pitches_in
from .codegen.moves import MOVING, Movement, movements
from .codegen.readers import Formed
from .codegen.second_results import SecondResult
from .codegen.shared_chains import (
    FEW_ELEMENTS,
    MAX_OPERANDS,
    operands_of,
    shared_chain_at,
)
from .epilogue_nodes import STORED, meeting, second_result_at, tail, takes_epilogue
from .gemm.atoms import HALVES
from .gemm.conv_f16 import is_packed
from .joined_moves import may_join_all
from .patterns import CAST_SOFTMAX, LAST, WHOLE, Finder
from .recipe.operands import Tensor
from .recipe.pattern import Pattern

if TYPE_CHECKING:
    from .codegen.reductions import ChainReduction
    from .codegen.row_chains import RowChain
    from .codegen.scans import ScanChain


@record
class FusionGroup:
    """Nodes that become one step.

    Attributes:
        nodes: in topological order.
        head: the anchor, before its epilogue; None for elementwise chains, and for groups with a
            dedicated kernel.
        pool: the last node, if it pools the result.
        cast: the Cast before the anchor that it reads through: a reduction computes in float32 what
            it reads in 16 bits, and a first layer rounds the image that it packs.
        whole: the pattern that a dedicated kernel computes; see `patterns`.
        moves: the movements through which a chain reads.
        also: the last nodes, if they compute a second result of the head's epilogue.
        epilogues: what `epilogue_in` has returned.
    """

    nodes: tuple[Node, ...]
    head: Node | None
    pool: Node | None = None
    cast: Node | None = None
    whole: Pattern | None = None
    moves: tuple[Movement, ...] = ()
    also: SecondResult | None = None
    epilogues: dict[Hashable, Epilogue | str] = field(
        default_factory=dict[Hashable, Epilogue | str], compare=False, repr=False
    )

    @property
    def epilogue(self) -> tuple[Node, ...]:
        """The elementwise nodes after the head, or all of them."""
        if self.whole is not None:
            return ()
        if self.head is None:
            return self.nodes
        begin = 1 if self.cast is None else 2
        return self.first[begin:] if self.pool is None else self.nodes[begin:-1]

    @property
    def first(self) -> tuple[Node, ...]:
        """The nodes, without those of a second result."""
        return self.nodes if self.also is None else self.nodes[: -len(self.also.nodes)]

    @property
    def result(self) -> Value:
        """The last result; the first one, where the epilogue stores two."""
        return self.first[-1].output

    def epilogue_in(self, y: Tensor, operand: Callable[[Value], Tensor]) -> Epilogue | str:
        """Return the epilogue of the head, or why there is none; see `epilogue_of`.

        It is asked for as the group is claimed, as it is built, and for its task.

        Args:
            y: the last result of the epilogue, in the format that the kernel stores.
            operand: returns the operand of a value.
        """
        assert self.head is not None
        nodes = self.epilogue
        key = nodes, y, *pitches_in(nodes, operand).items()
        if key not in self.epilogues:
            found = epilogue_of(nodes, y, self.head.output, operand=operand)
            if self.also is not None and not isinstance(found, str):
                found = self.also.of(found, y.value, Tensor(self.also.output, y.format))
            self.epilogues[key] = found
        return self.epilogues[key]


def groups(graph: Graph, free: Set[Node], *, last: bool = False) -> Iterator[FusionGroup]:
    """Yield disjoint groups of nodes, those with an anchor first.

    Args:
        graph: the graph.
        free: the nodes.
        last: whether only the finders of `LAST` are asked, about nodes of one group.
    """
    formed = Formed(graph)
    for group in _groups(graph, free, formed, last=last):
        formed.add(group.nodes)
        yield group


def _groups(graph: Graph, free: Set[Node], formed: Formed, *, last: bool) -> Iterator[FusionGroup]:
    """Yield groups, while `formed` has those that were yielded already."""
    left = set(free)
    for table, node in ((t, n) for t in (WHOLE, LAST)[last:] for n in graph.nodes):
        finders = table.get(type(node.op), ())
        patterns = (_found(at, graph, node, left, formed) for at in finders)
        found = next((each for each in patterns if each and formed.may_join(each.nodes)), None)
        if found is not None:
            left.difference_update(found.nodes)
            yield FusionGroup(graph.in_order(found.nodes), None, whole=found)
    yield from plain_groups(graph, left, moves=True, formed=None if last else formed)


def plain_groups(
    graph: Graph,
    free: Set[Node],
    *,
    moves: bool = False,
    formed: Formed | None = None,
) -> Iterator[FusionGroup]:
    """Yield groups without a dedicated kernel.

    Args:
        graph: the graph.
        free: the nodes.
        moves: whether nodes that move elements are among them.
        formed: the groups so far; without these, no chain has several results.
    """
    return _PlainGroups(graph, free, moves=moves, formed=formed).of_every_kind()


class _PlainGroups:
    """Groups without a dedicated kernel: each method yields those of one kind.

    Attributes:
        graph: the graph.
        nodes: all of them, in topological order.
        left: the nodes that are in no group yet.
        moves: whether nodes that move elements are among them.
        moved: the movements that no group reads through yet.
        heads: the anchors.
        formed: see `plain_groups`.
    """

    def __init__(
        self, graph: Graph, free: Set[Node], *, moves: bool, formed: Formed | None
    ) -> None:
        self.graph, self.left, self.formed = graph, set(free), formed
        self.nodes, self.moves = graph.in_order(free), moves
        moving = moves and any(type(node.op) in MOVING for node in self.nodes)
        self.moved = dict.fromkeys(movements(graph, self.nodes, self.left) if moving else ())
        inside = {node for each in self.moved for node in each.nodes}
        self.heads = [
            node
            for node in self.nodes
            if node not in inside and kernel_of(node.op) and not in_chains(node)
        ]

    def of_every_kind(self) -> Iterator[FusionGroup]:
        """Yield all groups."""
        yield from self._headed(node for node in self.heads if takes_epilogue(node))
        if self.moves:
            yield from self._folded()
        yield from self._headed(self.heads)
        joining = {each for each in self.moved if may_join_all(self.graph, each, self.left)}
        yield from self._ordered([each for each in self.moved if each not in joining])
        yield from self._chained(joining)
        yield from self._moved()

    def _headed(self, heads: Iterable[Node]) -> Iterator[FusionGroup]:
        """Anchors with their epilogues."""
        for node in heads:
            if node in self.left:
                yield _headed(self.graph, node, self.left)

    def _folded(self) -> Iterator[FusionGroup]:
        """Scans, reductions and Softmaxes with the chains around them."""
        for node in self.heads:
            folded = self._around(node)
            if folded:
                self.left.difference_update(folded.nodes)
                self._take(folded.moves)
                yield FusionGroup(self.graph.in_order(folded.nodes), None, whole=folded)
            elif node in self.left and isinstance(node.op, Softmax | LogSoftmax):
                cast = CAST_SOFTMAX.function(self.graph, node, self.left)
                if cast is not None:
                    self.left.difference_update(cast.nodes)
                    yield FusionGroup(self.graph.in_order(cast.nodes), None, whole=cast)

    def _around(self, node: Node) -> ScanChain | RowChain | ChainReduction | None:
        """Return a scan or reductions with the chains around, if a node is one that has any."""
        kinds = Cumulative | Reduce | GlobalAveragePool | GlobalMaxPool | Softmax | LogSoftmax
        if node not in self.left or not isinstance(node.op, kinds):
            return None
        moved = [each for each in self.moved if self.left.issuperset(each.nodes)]
        if isinstance(node.op, Cumulative):
            from .codegen.scans import scan_chain_at

            return scan_chain_at(self.graph, node, self.left, moved)
        from .codegen.reductions import chain_reduction_at
        from .codegen.row_chains import row_chain_at

        rows = row_chain_at(self.graph, node, self.left, moved, self.formed)
        if rows or isinstance(node.op, Softmax | LogSoftmax):
            return rows
        helpers = {"chain": _chain, "takes_epilogue": takes_epilogue}
        return chain_reduction_at(self.graph, node, self.left, moved, **helpers)

    def _ordered(self, moved: Sequence[Movement]) -> Iterator[FusionGroup]:
        """Chains whose results are stored in another order."""
        for each in moved:
            root = each.x.producer
            if not each.is_order or root is None or root not in self.left or not in_chains(root):
                continue
            if _is_only(self.graph, each):
                before = _chain(self.graph, root, self.left)
                read = tuple(each.of(value) for value in operands_of(before))
                self._take((each,))
                yield self._chain_group([*before, *each.nodes], read)

    def _chained(self, joining: Set[Movement]) -> Iterator[FusionGroup]:
        """Chains, with the movements through which they read."""
        order = {each: place for place, each in enumerate(self.moved) if each in joining}
        read_by: dict[Node, list[Movement]] = {}
        for each in order:
            for reader in each.y.consumers:
                read_by.setdefault(reader, []).append(each)
        for node in reversed(self.nodes):
            if node not in self.left or not in_chains(node):
                continue
            chain = _chain(self.graph, node, self.left)
            inside = set(chain)
            near = {each for reader in chain for each in read_by.get(reader, ())}
            whole = (
                each
                for each in near
                if each in self.moved and not self.graph.is_read_outside(each.y, inside)
            )
            read = tuple(sorted(whole, key=order.__getitem__))
            shared = None
            if self.formed is not None and not read:
                shared = shared_chain_at(self.graph, chain, self.left, self.formed, _closed)
            if shared is not None:
                self.left.difference_update(shared.nodes)
                yield FusionGroup(shared.chain, None, whole=shared)
                continue
            self._take(read)
            yield self._chain_group([*chain, *(node for each in read for node in each.nodes)], read)

    def _moved(self) -> Iterator[FusionGroup]:
        """Movements that no other group reads through."""
        for each in self.moved:
            if each.is_worth:
                yield FusionGroup(each.nodes, None, whole=each)
            else:
                yield from plain_groups(self.graph, set(each.nodes))

    def _take(self, moves: Sequence[Movement]) -> None:
        """A group reads through these movements."""
        for each in moves:
            self.moved.pop(each, None)

    def _chain_group(self, chain: Sequence[Node], moves: tuple[Movement, ...]) -> FusionGroup:
        """Return the group of a chain, whose nodes are no longer left."""
        self.left.difference_update(chain)
        return FusionGroup(self.graph.in_order(chain), None, moves=moves)


def _headed(graph: Graph, node: Node, left: set[Node]) -> FusionGroup:
    """Return the group of an anchor, whose nodes are no longer left."""
    epilogue = tail(graph, node, left) if takes_epilogue(node) else ()
    left.difference_update((node, *epilogue))
    cast = _cast_before(graph, node, left)
    result = (node, *epilogue)[-1].output
    pool = _pool(graph, node, result, left)
    before = () if cast is None else (cast,)
    left.difference_update((*before, *pool))
    also = None if cast or pool else second_result_at(graph, node, result, left)
    more = pool if also is None else also.nodes
    left.difference_update(more)
    last = pool[0] if pool else None
    return FusionGroup((*before, node, *epilogue, *more), node, last, cast, also=also)


def _is_only(graph: Graph, movement: Movement) -> bool:
    """Whether nothing else reads what nodes move."""
    return graph.sole_consumer(movement.x) is movement.nodes[0]


def _cast_before(graph: Graph, node: Node, free: Set[Node]) -> Node | None:
    """Return the Cast before a node that only it reads, if its kernel can convert elements.

    Some kernels widen 16-bit floats, and a first layer narrows an image of float32 as it packs it.
    """
    x = node.inputs[0] if node.inputs else None
    cast = None if x is None else x.producer
    if x is None or cast is None or cast not in free or not isinstance(cast.op, Cast):
        return None
    source, registered = cast.inputs[0], kernel_of(node.op)
    if source is None or registered is None or graph.sole_consumer(x) is not node:
        return None
    narrow, wide = (source, x) if registered.widens else (x, source)
    fits = narrow.tensor.dtype in HALVES and wide.tensor.dtype == float32
    return cast if fits and (registered.widens or _is_packed(node)) else None


def _is_packed(node: Node) -> bool:
    """Whether a node is a convolution that packs its image, which has few channels."""
    if not isinstance(node.op, Conv) or node.op.group > 1:
        return False
    x, w = node.operands[:2]
    if w.data is None:
        return False
    return x.tensor.rank in (4, 5) and is_packed(w.tensor.dims[1])


def _found(
    finder: Finder, graph: Graph, node: Node, left: Set[Node], formed: Formed
) -> Pattern | None:
    """Return the pattern that a finder finds at a node, if there is one."""
    helpers: dict[str, Callable[..., object]] = {"tail": tail, "meeting": meeting}
    helpers |= {"chain": _chain, "takes_epilogue": takes_epilogue, "cast_before": _cast_before}
    helpers["may_join"] = formed.may_join
    return finder.function(graph, node, left, **{name: helpers[name] for name in finder.needs})


def _pool(graph: Graph, head: Node, value: Value, free: Set[Node]) -> tuple[Node, ...]:
    """Return the max pooling that is the sole reader of a convolution.

    Of 2 x 2 pixels, or any behind a first layer. One of channels that are no whole words keeps what
    follows it.
    """
    follower = graph.sole_consumer(value)
    if not isinstance(head.op, Conv) or value.tensor.dtype not in STORED or follower is None:
        return ()
    if follower not in free or not isinstance(follower.op, MaxPool) or value.tensor.rank != 4:
        return ()
    from .conv.pools import pools_squares  # with the kernels of convolutions

    fits = _is_packed(head) or pools_squares(follower.op, Tensor(value))
    unread = not any(map(graph.is_read, follower.outputs[1:]))
    if value.tensor.dims[1] * value.tensor.dtype.itemsize % 16 and takes_epilogue(follower):
        unread = unread and not tail(graph, follower, free)
    return (follower,) if fits and unread else ()


def _chain(graph: Graph, root: Node, free: Set[Node]) -> list[Node]:
    """Return `root` with preceding elementwise nodes that only the chain reads."""
    return _closed(graph, [root], free)


def _closed(graph: Graph, nodes: Sequence[Node], free: Set[Node]) -> list[Node]:
    """Return nodes with preceding elementwise ones that only these read; the first has a result."""
    chain = list(nodes)
    shape = chain[0].output.tensor.dims
    most = MAX_OPERANDS[prod(shape) <= FEW_ELEMENTS]
    grown = True
    while grown and len(chain) < MAX_CHAINED:
        grown = False
        for value in operands_of(chain):
            source = value.producer
            if source is None or source not in free or not in_chains(source):
                continue
            if graph.is_read_outside(value, chain) or not is_worth_repeating(source, shape):
                continue
            if len(operands_of([*chain, source])) <= most:
                chain.append(source)
                grown = True
                break
    return chain
