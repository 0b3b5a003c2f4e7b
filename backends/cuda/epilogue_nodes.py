"""What the epilogue of a kernel takes of the elementwise nodes around its results."""

from __future__ import annotations

from collections.abc import Set

from ...runtime.ir.dtypes import float32
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ops.conv import Conv, ConvTranspose
from ...runtime.ops.elementwise import Add
from ...runtime.ops.matmul import Gemm, MatMul
from ...runtime.ops.movement import Concat, Slice, Split
from ...runtime.ops.norm import BatchNormalization
from ...runtime.plan.format import Format
from .algorithms.registry import kernel_of
from .codegen.elementwise import closed_after, in_chains, is_worth_repeating, reads_reduced
from .codegen.epilogue import epilogue_of
from .codegen.second_results import SecondResult
from .gemm.atoms import HALVES
from .recipe.operands import Tensor

#: Float types with float32 accumulators, which kernels may store in place of one another.
STORED = HALVES | {float32}
#: Operators whose epilogues may store second results, and that read these.
FACTORS = Conv | ConvTranspose | MatMul | Gemm


def takes_epilogue(node: Node) -> bool:
    """Whether the kernel of a node applies an elementwise epilogue before it stores results."""
    registered = kernel_of(node.op)
    return registered is not None and registered.chains_for(node)


def tail(graph: Graph, anchor: Node, free: Set[Node]) -> tuple[Node, ...]:
    """Return the elementwise nodes after an anchor, each reading the previous one.

    The last of them has the anchor's dtype, or another float type that the kernel can store; in
    between there may be any. Each is preceded by nodes that only it reads, and there may be several
    where branches meet again, x + f(x). What an epilogue cannot compute is left to chains and to
    other anchors.
    """
    found: list[Node] = []
    fitting = 0
    value = anchor.output
    own = value.tensor.dtype
    stored = STORED if own in STORED else {own}
    while (nodes := next(closed_after(graph, (value,), free), None)) is not None:
        *branches, follower = nodes
        if found and _is_left(graph, anchor, tuple(found), follower, free):
            break
        found += nodes
        if not branches:
            found[-1:] = (*_sides(graph, anchor, value, found, free), follower)
        if not _is_epilogue(tuple(found), anchor):
            break
        value = follower.output
        if value.tensor.dtype in stored:
            fitting = len(found)
    return tuple(found[:fitting])


def meeting(graph: Graph, products: tuple[Node, Node], free: Set[Node]) -> tuple[Node, ...]:
    """Return the elementwise nodes that combine two products, which have no other readers.

    At most as many as an epilogue supports.
    """
    first, *others = (node.output for node in products)
    stored = STORED if first.tensor.dtype in STORED else {first.tensor.dtype}
    fitting = tuple[Node, ...]()
    for found in closed_after(graph, (first, *others), free):
        if found[-1].output.tensor.dtype in stored:
            y = Tensor(found[-1].output)
            if isinstance(epilogue_of(found, y, first, *others, operand=Tensor), str):
                break
            fitting = found
    return fitting


def _is_epilogue(nodes: tuple[Node, ...], anchor: Node) -> bool:
    """Whether an epilogue computes these nodes, in any format of an image."""
    y = nodes[-1].output
    formats = (Format.CONTIGUOUS, Format.CHANNELS_LAST)[: 1 + (len(y.tensor.dims) > 2)]
    return any(
        not isinstance(epilogue_of(nodes, Tensor(y, format), anchor.output, operand=Tensor), str)
        for format in formats
    )


def _is_left(
    graph: Graph, anchor: Node, epilogue: tuple[Node, ...], follower: Node, free: Set[Node]
) -> bool:
    """Whether the sum after an epilogue is left to that of the other product in it.

    A product that adds one tensor already is faster without a second one.
    """
    value = epilogue[-1].output
    others = [v for v in follower.distinct_reads if v is not value]
    if not isinstance(anchor.op, MatMul) or not isinstance(follower.op, Add) or len(others) != 1:
        return False
    node = others[0].producer
    if node is not None and isinstance(node.op, Add):  # its bias
        node = next((v.producer for v in node.distinct_reads if not v.is_constant), None)
    if node is None or node not in free or not isinstance(node.op, MatMul):
        return False
    so_far = epilogue_of(epilogue, Tensor(value), anchor.output, operand=Tensor)
    alone = graph.sole_consumer(others[0]) is follower
    return alone and not isinstance(so_far, str) and so_far.reads_along


def _sides(
    graph: Graph, anchor: Node, value: Value, epilogue: list[Node], free: Set[Node]
) -> list[Node]:
    """Return the other operands of an epilogue's last node that can be fused as well.

    Nodes in the epilogue of another kernel stay there, with reductions of the rows that they read
    (x - max(x)) as well, and nodes that read part of a tensor read it in place, which an epilogue
    cannot.
    """
    found: list[Node] = []
    todo = [v for v in epilogue[-1].distinct_reads if v is not value]
    while todo:
        source = todo.pop().producer
        if source is None or source not in free or not in_chains(source):
            continue
        own = anchor.output.tensor
        joins = source.output.tensor.dtype == own.dtype and is_worth_repeating(source, own.dims)
        joins = joins and graph.sole_consumer(source.output) is not None
        joins = joins and not reads_reduced(source)
        is_whole = source.output.tensor.dims == own.dims
        if not joins or any(_stays_apart(graph, v, free, is_whole) for v in source.distinct_reads):
            continue
        if _is_epilogue((*epilogue[:-1], source, *found, epilogue[-1]), anchor):
            found.insert(0, source)
            todo += source.distinct_reads
    return found


def _stays_apart(graph: Graph, value: Value, free: Set[Node], is_whole: bool) -> bool:
    """Whether the sole reader of a value is in its producer's kernel, or reads part of a tensor.

    A part that all rows of a sample share is read where it is, or costs little to copy.
    """
    node = value.producer
    if is_whole and node is not None and isinstance(node.op, (Slice, Split)):
        return True
    if node is None or node not in free or not takes_epilogue(node):
        return False
    return graph.sole_consumer(value) is not None


def second_result_at(
    graph: Graph, head: Node, first: Value, free: Set[Node]
) -> SecondResult | None:
    """Return the elementwise nodes of one operand that compute a second result of an epilogue.

    What a convolution or product stores is read as it is, and through these nodes by convolutions
    and products, which would else wait for a kernel that reads and stores as many elements. Tensors
    that are joined may be stored in place, where a second one has no place.
    """
    if not isinstance(head.op, FACTORS):
        return None
    able = _scales if isinstance(head.op, Conv) else _is_alone
    nodes = [node for node in first.consumers if able(node, first, free)]
    others = [node for node in first.consumers if node not in nodes]
    if len(nodes) != 1 or not (others or graph.is_output(first)):
        return None
    if any(isinstance(node.op, Concat) for node in others):
        return None
    while (follower := graph.sole_consumer(nodes[-1].output)) is not None:
        if not _is_alone(follower, nodes[-1].output, free):
            break
        nodes.append(follower)
    last = nodes[-1].output
    if graph.is_output(last) or not all(isinstance(n.op, FACTORS) for n in last.consumers):
        return None
    return SecondResult(tuple(nodes))


def _scales(node: Node, value: Value, free: Set[Node]) -> bool:
    """Whether a node scales and shifts channels by constants, or `_is_alone`."""
    if not isinstance(node.op, BatchNormalization) or node.op.training_mode:
        return _is_alone(node, value, free)
    x, *constants = node.operands
    alike = x is value and node.output.tensor.dtype == value.tensor.dtype
    return alike and node in free and all(v.data is not None for v in constants)


def _is_alone(node: Node, value: Value, free: Set[Node]) -> bool:
    """Whether an elementwise node computes a tensor of the same type of one only."""
    own, found = value.tensor, node.output.tensor
    if node not in free or not in_chains(node):
        return False
    others = [v for v in node.distinct_reads if v is not value]
    alike = (found.dims, found.dtype) == (own.dims, own.dtype)
    return alike and all(v.data is not None and v.data.size == 1 for v in others)
