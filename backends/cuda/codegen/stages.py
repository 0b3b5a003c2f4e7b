"""Chains of elementwise operators before, between and behind nodes that combine elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.op import Op
from ....runtime.ops.shape import Reshape
from ..recipe.pattern import Grouping, Whole
from .elementwise import ElementwiseChain, chain_of, in_chains
from .moves import Movement


class MovedChain(Whole):
    """What patterns of elementwise nodes around nodes that combine elements have in common.

    Attributes:
        chain: these, in topological order.
        moves: the movements through which they read.
    """

    __slots__ = ()
    chain: tuple[Node, ...]
    moves: tuple[Movement, ...]

    reads_rows = True
    regrouped = Grouping.PLAIN

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((*(node for each in self.moves for node in each.nodes), *self.chain))


def head_of(x: Value, kinds: type[Op] | UnionType) -> Node | None:
    """Return the node of some kinds of which elementwise nodes compute a value, if there is one.

    Nothing else reads what they read of one another; others of their operands may be anything.
    """
    todo, found = [x], list[Node]()
    while todo:
        value = todo.pop()
        node = value.producer
        if node is None or (value is not x and len(value.consumers) > 1):
            continue
        if isinstance(node.op, kinds):
            found.append(node)
        elif in_chains(node):
            todo += node.distinct_reads
    return found[0] if len(found) == 1 else None


@record
class ViewedRows:
    """Rows that a node reads, perhaps behind Reshapes.

    Attributes:
        value: the rows as they are computed.
        views: the Reshapes in between, in order.
        kept: what others read of these; None if nothing does.
    """

    value: Value
    views: tuple[Node, ...]
    kept: Value | None


def viewed_rows(graph: Graph, reader: Node) -> ViewedRows | None:
    """Return the rows along the last axis that are a node's first input.

    None if they are parts of others, or are read in several shapes.
    """
    views, value = list[Node](), reader.operands[0]
    width = value.tensor.dims[-1:]
    while (node := value.producer) is not None and isinstance(node.op, Reshape):
        views.insert(0, node)
        value = node.operands[0]
    between, inside = (value, *(view.output for view in views)), {*views, reader}
    read = [v for v in between if graph.is_read_outside(v, inside)]
    if value.tensor.dims[-1:] != width or len(read) > 1:
        return None
    return ViewedRows(value, tuple(views), next(iter(read), None))


@record
class Stage:
    """What computes a value from operands and from what nodes have combined so far.

    Attributes:
        name: of the C++ function, and of its namespace.
        value: what is computed.
        chain: the computation; None if the value is an operand or combined itself.
    """

    name: str
    value: Value
    chain: ElementwiseChain | None

    @property
    def code(self) -> str:
        """The function."""
        return "" if self.chain is None else self.chain.within(self.name)

    @property
    def operands(self) -> tuple[Value, ...]:
        """What it reads, in the order of the parameters."""
        return (self.value,) if self.chain is None else self.chain.operands

    def call(self, names: Mapping[Value, str]) -> str:
        """Return the value as C++, given what it reads."""
        arguments = ", ".join(names[value] for value in self.operands)
        return arguments if self.chain is None else f"{self.name}::{self.name}({arguments})"


def stage_of(
    nodes: Sequence[Node],
    combining: Sequence[Node],
    value: Value,
    name: str,
    *,
    rounds: bool = False,
) -> Stage | str:
    """Return what computes a value, or why there is nothing.

    Args:
        nodes: elementwise nodes and those that combine elements, in topological order.
        combining: the latter.
        value: what to compute.
        name: of the function.
        rounds: whether the result has the type that is stored, or else its compute type.
    """
    inside = {node.output: node for node in nodes if node not in combining}
    wanted, todo = set[Node](), [value]
    while todo:
        node = inside.get(todo.pop())
        if node is not None and node not in wanted:
            wanted.add(node)
            todo += node.distinct_reads
    if not wanted:
        return Stage(name, value, None)
    own = [node for node in nodes if node in wanted]
    reads = {v for node in own for v in node.distinct_reads}
    combined = [node.output for node in combining if node.output in reads]
    chain = chain_of(own, name, combined, rounds=rounds)
    return chain if isinstance(chain, str) else Stage(name, value, chain)
