"""Which nodes become one kernel: anchors with what follows them, and elementwise chains.

Inside of a group every value has all its readers inside, except the last one's result. So no path
leaves a group and comes back, and nothing in between needs memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

from ...runtime.ir.dtypes import float32
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op
from ...runtime.ops.attention import Attention
from ...runtime.ops.conv import Conv
from ...runtime.ops.elementwise import Div
from ...runtime.ops.movement import Slice, Split
from ...runtime.ops.pool import MaxPool
from .attention.relu_linear import ReluLinear, relu_linear_at
from .attention.rotate_append import RotateAppend, rotate_append_at
from .codegen.elementwise import CHEAP, in_chains
from .codegen.epilogue import epilogue_of
from .custom import kernel_of
from .gemm.atoms import HALVES
from .recipe.operands import Tensor

#: Larger chains would need more registers than they save memory.
MAX_CHAINED = 24
MAX_CHAIN_OPERANDS = 8
#: What finds the groups that have a kernel as a whole, by the operator of one of their nodes.
WHOLE: Mapping[type[Op], Callable[[Graph, Node, Set[Node]], ReluLinear | RotateAppend | None]] = {
    Attention: rotate_append_at,
    Div: relu_linear_at,
}
#: Floats that are added up in float32, and that a kernel may store instead of one another.
STORED = HALVES | {float32}


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that become one step.

    Attributes:
        nodes: in topological order.
        head: the node whose kernel computes, before the elementwise rest; None for a chain of
            elementwise nodes alone, and for what has a kernel as a whole.
        pool: the last node, where it pools what the others compute.
        whole: what the nodes are as a whole: a linear attention, or heads that are rotated while
            keys and values are appended to caches; None for others.
    """

    nodes: tuple[Node, ...]
    head: Node | None
    pool: Node | None = None
    whole: ReluLinear | RotateAppend | None = None

    @property
    def epilogue(self) -> tuple[Node, ...]:
        """The elementwise nodes behind the head, or all of them."""
        if self.whole is not None:
            return ()
        if self.head is None:
            return self.nodes
        return self.nodes[1:] if self.pool is None else self.nodes[1:-1]


def groups(graph: Graph, free: Set[Node]) -> Iterator[Group]:
    """Yield groups of nodes, anchors first, each node in one of them."""
    taken: set[Node] = set()
    position = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        find = WHOLE.get(type(node.op))
        found = find(graph, node, free) if find else None
        if found is not None and taken.isdisjoint(found.nodes):
            taken |= found.nodes
            nodes = tuple(sorted(found.nodes, key=position.__getitem__))
            yield Group(nodes, None, whole=found)
    for node in graph.nodes:
        registered = kernel_of(node.op)
        if node not in free or node in taken:
            continue
        if registered is not None and not in_chains(node):
            epilogue: tuple[Node, ...] = ()
            if registered.epilogue:
                epilogue = _tail(graph, node, free - taken)
            taken.update((node, *epilogue))
            pool = _pool(graph, node, (node, *epilogue)[-1].output, free - taken)
            taken.update(pool)
            yield Group((node, *epilogue, *pool), node, pool[0] if pool else None)
    for node in reversed(graph.nodes):
        if node in free and node not in taken and in_chains(node):
            chain = _chain(graph, node, free - taken)
            taken.update(chain)
            yield Group(tuple(sorted(chain, key=position.__getitem__)), None)


def _tail(graph: Graph, anchor: Node, free: Set[Node]) -> tuple[Node, ...]:
    """Return the elementwise nodes behind an anchor that read it, one after the other.

    The last of them gives the anchor's dtype again, or another one of floats that the kernel stores
    instead; in between there may be any. Right in front of each come nodes that it alone reads.
    """
    found: list[Node] = []
    fitting = 0
    value = anchor.output
    own = value.tensor.dtype
    stored = STORED if own in STORED else {own}
    while True:
        follower = graph.sole_consumer(value)
        if follower is None or follower not in free or not in_chains(follower):
            return tuple(found[:fitting])
        out = follower.output
        if out.tensor.dims != value.tensor.dims:
            return tuple(found[:fitting])
        found.append(follower)
        found[-1:] = (*_sides(graph, anchor, value, found, free), follower)
        value = out
        if out.tensor.dtype in stored:
            fitting = len(found)


def _sides(
    graph: Graph, anchor: Node, value: Value, epilogue: list[Node], free: Set[Node]
) -> list[Node]:
    """Return what the last node of an epilogue alone reads besides `value`, if it may join it.

    What another kernel stores as its own epilogue stays there, and what reads a part of a tensor
    reads it where it is, which an epilogue cannot.
    """
    found: list[Node] = []
    todo = [v for v in epilogue[-1].reads if v is not value]
    while todo:
        source = todo.pop().producer
        if source is None or source not in free or not in_chains(source):
            continue
        joins = source.output.tensor == anchor.output.tensor
        joins = joins and graph.sole_consumer(source.output) is not None
        if not joins or any(_stays_apart(graph, v, free) for v in source.reads):
            continue
        nodes = (*epilogue[:-1], source, *found, epilogue[-1])
        y = Tensor(epilogue[-1].output)
        if not isinstance(epilogue_of(nodes, y, anchor.output), str):
            found.insert(0, source)
            todo += source.reads
    return found


def _stays_apart(graph: Graph, value: Value, free: Set[Node]) -> bool:
    """Whether what alone reads a value is computed by the kernel that gives it, or reads a part."""
    node = value.producer
    if node is not None and isinstance(node.op, (Slice, Split)):
        return True
    registered = None if node is None else kernel_of(node.op)
    if node not in free or registered is None or not registered.epilogue:
        return False
    return graph.sole_consumer(value) is not None


def _pool(graph: Graph, head: Node, value: Value, free: Set[Node]) -> tuple[Node, ...]:
    """Return the pooling of 2 x 2 pixels that alone reads a convolution of 16-bit floats."""
    follower = graph.sole_consumer(value)
    if not isinstance(head.op, Conv) or value.tensor.dtype not in HALVES or follower is None:
        return ()
    if follower not in free or not isinstance(follower.op, MaxPool) or value.tensor.rank != 4:
        return ()
    op, (*_, height, width) = follower.op, value.tensor.dims
    plain = not any(op.pads or ()) and not any(d != 1 for d in op.dilations or ())
    squares = op.kernel_shape == op.strides == (2, 2) and height % 2 == width % 2 == 0
    fits = plain and squares and op.auto_pad in ("NOTSET", "VALID")
    unread = all(not v.consumers and not graph.is_output(v) for v in follower.outputs[1:])
    return (follower,) if fits and unread else ()


def _chain(graph: Graph, root: Node, free: Set[Node]) -> list[Node]:
    """Return `root` with the elementwise nodes before it that only the chain reads."""
    chain = [root]
    shape = root.output.tensor.dims
    grown = True
    while grown and len(chain) < MAX_CHAINED:
        grown = False
        for value in _operands(chain):
            source = value.producer
            if source is None or source not in free or not in_chains(source):
                continue
            inside = all(reader in chain for reader in value.consumers)
            if not inside or graph.is_output(value) or not _suits(source, shape):
                continue
            if len(_operands([*chain, source])) <= MAX_CHAIN_OPERANDS:
                chain.append(source)
                grown = True
                break
    return chain


def _suits(source: Node, shape: tuple[int, ...]) -> bool:
    """Whether a node can be computed anew for every element of `shape`, as little as it costs."""
    if source.output.tensor.dims == shape:
        return True
    ranks = {value.tensor.rank for value in source.reads if not value.is_constant}
    return isinstance(source.op, CHEAP) and ranks == {len(shape)}


def _operands(chain: list[Node]) -> list[Value]:
    made = {node.output for node in chain}
    reads = dict.fromkeys(v for node in chain for v in node.reads)
    return [value for value in reads if value not in made]


def smaller(group: Group) -> tuple[Group, ...]:
    """Return the groups to try instead of one that has no recipe; the last is what is left of it.

    A kernel keeps as much as possible of what follows it; a chain falls apart into its nodes.
    """
    if group.head is None:
        nodes = (node for node in group.nodes if not node.op.view)
        return tuple(Group((node,), None if in_chains(node) else node) for node in nodes)
    if group.pool is not None:
        return Group((group.pool,), group.pool), Group(group.nodes[:-1], group.head)
    at = _stages(group)[-1]
    return Group(group.nodes[at:], None), Group(group.nodes[:at], group.head)


def _stages(group: Group) -> list[int]:
    """Return where the nodes begin that give each of the results on the way behind the head."""
    begins, value = [1], group.nodes[0].output
    for place, node in enumerate(group.nodes[1:], 1):
        if value in node.reads:
            value = node.output
            begins.append(place + 1)
    return begins[:-1]
