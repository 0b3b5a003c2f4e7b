"""Sums of embeddings: elementwise nodes that read slices chosen by tensors of indices.

The slices that Gather takes are read where they are, so that nothing copies them first: networks of
text begin with the sum of what tables have for tokens, their types and their positions, and those
of graphs combine what the two ends of each edge have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import islice

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, int32, int64
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.gather import Gather, ScatterND
from ....runtime.ops.reduce import Reduce
from ....runtime.ops.shapes import normalize_axis
from ..recipe.launch import Recipe
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .chain_kernel import elementwise
from .elementwise import MAX_CHAINED, NUMBERS, chain_of, one_by_one
from .moves import Walk
from .shared_chains import operands_of

#: Maximum number of rows whose indices are sorted.
MAX_SORTED = 1 << 18
#: Returns a node of a graph with elementwise nodes before it, among these, that only they read.
ChainBefore = Callable[[Graph, Node, Set[Node]], Sequence[Node]]


@record
class GatheredChain(Whole):
    """A chain of elementwise nodes that reads slices chosen by indices.

    Attributes:
        gathers: the nodes that choose slices, which only the chain reads.
        chain: in order; only the chain reads their results, but the last.
    """

    gathers: tuple[Node, ...]
    chain: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({*self.gathers, *self.chain})

    @property
    def reads_rows(self) -> bool:
        """Whether its kernel takes parts of rows; see `Pattern`."""
        return True

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return gathered_chain(self, y, operand)


def gathered_chain_at(
    graph: Graph,
    gather: Node,
    free: Set[Node],
    *,
    chain: ChainBefore,
    takes_epilogue: Callable[[Node], bool],
) -> GatheredChain | None:
    """Return the chain behind a Gather, if there is one.

    Args:
        graph: the graph.
        gather: the node.
        free: nodes that may be taken.
        chain: returns a node with the elementwise nodes before it that only they read.
        takes_epilogue: whether a node's kernel may compute elementwise nodes behind it.
    """
    root = _root(graph, gather, free, takes_epilogue)
    if root is None:
        return None
    nodes = chain(graph, root, free)
    inside, makers = set(nodes), [value.producer for value in operands_of(nodes)]
    gathers = [
        node
        for node in makers
        if node is not None and node in free and chooses(node)
        if not graph.is_read_outside(node.output, inside)
    ]
    reader = graph.sole_consumer(root.output)
    reduces = reader is not None and isinstance(reader.op, Reduce)
    if gather not in gathers or (reduces and len(gathers) == 1):  # a reduction computes the chain
        return None
    return GatheredChain(tuple(gathers), graph.in_order(nodes))


def _root(
    graph: Graph, gather: Node, free: Set[Node], takes_epilogue: Callable[[Node], bool]
) -> Node | None:
    """Return the last of the elementwise nodes behind a Gather, each the only reader of another.

    They end before one that a product or convolution computes as it stores its results.
    """
    found, value = None, gather.output
    if gather not in free or not chooses(gather):
        return None
    for node in islice(one_by_one(graph, value, free), MAX_CHAINED):
        dtype, dims = node.output.tensor.dtype, node.output.tensor.dims
        if dtype not in FLOATS or (found is not None and dims != value.tensor.dims):
            break
        makers = [other.producer for other in node.distinct_reads if other is not value]
        if any(m in free and takes_epilogue(m) and _is_read_once(graph, m) for m in makers if m):
            break
        found, value = node, node.output
    return found


def _is_read_once(graph: Graph, node: Node) -> bool:
    return graph.sole_consumer(node.output) is not None


def chooses(node: Node) -> bool:
    """Whether a node chooses slices by indices that are computed."""
    if not isinstance(node.op, Gather):
        return False
    x, indices = node.operands
    return indices.data is None and indices.tensor.dtype in (int32, int64) and bool(x.tensor.dims)


def combines_rows(node: Node) -> bool:
    """Whether a node combines the rows of a tensor with others, whose indices can be sorted."""
    if not isinstance(node.op, ScatterND) or node.op.reduction == "none":
        return False
    x, indices, updates = node.operands
    rows, dtype = indices.tensor, x.tensor.dtype
    fits = rows.rank == 2 and rows.dims[1] == 1 and rows.dtype == int64
    return fits and 0 < rows.size <= MAX_SORTED and bool(updates.tensor.size) and dtype in NUMBERS


def gathered_chain(found: GatheredChain, y: Tensor, operand: OperandOf) -> Recipe | str:
    """Return the launch, or why there is none."""
    chain = chain_of(found.chain)
    if isinstance(chain, str):
        return chain
    gathers = {node.output: node for node in found.gathers}
    chosen = {i: gathers[v] for i, v in enumerate(chain.operands) if v in gathers}
    read = [operand(gathers[v].operands[0] if v in gathers else v) for v in chain.operands]
    walks = {i: walk_of_rows(node, operand, y.rank) for i, node in chosen.items()}
    return elementwise(chain, y, read, gathered=walks)


def walk_of_rows(node: Node, operand: OperandOf, rank: int) -> Walk:
    """Return where the slices that a Gather chooses are, by axis of what they are broadcast to."""
    x, indices = map(operand, node.operands)
    assert isinstance(node.op, Gather)
    axis, dims = normalize_axis(node.op.axis, x.rank), node.output.tensor.dims
    behind = x.rank - axis - 1
    strides = (*x.strides[:axis], *(0,) * indices.rank, *x.strides[axis + 1 :])
    slots = (*(0,) * axis, *indices.strides, *(0,) * behind)
    missing = (0,) * (rank - len(dims))

    def along_y(steps: tuple[int, ...]) -> tuple[int, ...]:
        return (*missing, *(s if d > 1 else 0 for s, d in zip(steps, dims, strict=True)))

    how = {"indices": indices, "size": x.dims[axis], "step": x.strides[axis]}
    return Walk(0, along_y(strides), None, along_y(slots), **how)
