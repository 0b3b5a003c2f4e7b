"""Sums of embeddings: elementwise nodes that read slices chosen by tensors of indices.

The slices that Gather takes are read where they are, so that nothing copies them first: networks of
text begin with the sum of what tables have for tokens, their types and their positions.
"""

from __future__ import annotations

from collections.abc import Set

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, int32, int64
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.gather import Gather
from ....runtime.ops.shapes import normalize_axis
from ..recipe.launch import Recipe
from ..recipe.operands import Tensor
from ..recipe.pattern import Operand, Whole
from ..recipe.setting import Setting, Stored
from .chain_kernel import elementwise
from .elementwise import MAX_CHAINED, chain_of, in_chains
from .moves import Walk


@record
class GatheredChain(Whole):
    """A chain of elementwise nodes that reads nothing but slices chosen by indices, and constants.

    Attributes:
        gathers: the nodes that choose slices, which only the chain reads.
        chain: in order; only the next one reads the result of each.
    """

    gathers: tuple[Node, ...]
    chain: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({*self.gathers, *self.chain})

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return gathered_chain(self, y, operand)


def gathered_chain_at(graph: Graph, gather: Node, free: Set[Node]) -> GatheredChain | None:
    """Return the chain behind a Gather, if there is one.

    Args:
        graph: the graph.
        gather: the node.
        free: nodes that may be taken.
    """
    gathers, chain, value = [gather], list[Node](), gather.output
    if gather not in free or not _chooses(gather):
        return None
    while len(chain) < MAX_CHAINED:
        node = graph.sole_consumer(value)
        if node is None or node not in free or not in_chains(node):
            break
        others = [v for v in node.distinct_reads if v is not value and not v.is_constant]
        more = [v.producer for v in others if v.producer is not None and v.producer in free]
        more = [n for n in more if _chooses(n) and graph.sole_consumer(n.output) is node]
        dtype, dims = node.output.tensor.dtype, node.output.tensor.dims
        if len(more) < len(others) or dtype not in FLOATS or (chain and dims != value.tensor.dims):
            break
        gathers += more
        chain.append(node)
        value = node.output
    return GatheredChain(tuple(gathers), tuple(chain)) if chain else None


def _chooses(node: Node) -> bool:
    """Whether a node chooses slices by indices that are computed."""
    if not isinstance(node.op, Gather):
        return False
    x, indices = node.operands
    return indices.data is None and indices.tensor.dtype in (int32, int64) and bool(x.tensor.dims)


def gathered_chain(found: GatheredChain, y: Tensor, operand: Operand) -> Recipe | str:
    """Return the launch, or why there is none."""
    chain = chain_of(found.chain)
    if isinstance(chain, str):
        return chain
    gathers = {node.output: node for node in found.gathers}
    chosen = {i: gathers[v] for i, v in enumerate(chain.operands) if v in gathers}
    read = [operand(gathers[v].operands[0] if v in gathers else v) for v in chain.operands]
    walks = {i: _walk(node, operand, y) for i, node in chosen.items()}
    return elementwise(chain, y, read, gathered=walks)


def _walk(node: Node, operand: Operand, y: Tensor) -> Walk:
    """Return where the slices that a Gather chooses are, by axis of what they are broadcast to."""
    x, indices = map(operand, node.operands)
    assert isinstance(node.op, Gather)
    axis, dims = normalize_axis(node.op.axis, x.rank), node.output.tensor.dims
    behind = x.rank - axis - 1
    strides = (*x.strides[:axis], *(0,) * indices.rank, *x.strides[axis + 1 :])
    slots = (*(0,) * axis, *indices.strides, *(0,) * behind)
    missing = (0,) * (y.rank - len(dims))

    def along_y(steps: tuple[int, ...]) -> tuple[int, ...]:
        return (*missing, *(s if d > 1 else 0 for s, d in zip(steps, dims, strict=True)))

    how = {"indices": indices, "size": x.dims[axis], "step": x.strides[axis]}
    return Walk(0, along_y(strides), None, along_y(slots), **how)
