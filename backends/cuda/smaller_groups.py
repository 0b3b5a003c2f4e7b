"""What is tried instead of a group without a recipe."""

from __future__ import annotations

from dataclasses import replace

from ...runtime.ir.graph import Graph
from .attention.decode import DecodeAttention
from .attention.sink import SinkAttention
from .attention.weighted import WeightedHeads
from .codegen.elementwise import in_chains
from .codegen.moves import Movement
from .codegen.reductions import ChainReduction
from .codegen.scans import ScanChain
from .conv.inverted_residual import InvertedResidual
from .fusion import FusionGroup, Separable, groups, plain_groups
from .gemm.few_rows import FewRows
from .gemm.strided import StridedProduct
from .norm.unit_rows import UnitRows


def smaller(graph: Graph, group: FusionGroup) -> tuple[FusionGroup, ...]:
    """Return the groups to try instead of one without a recipe; the last contains its head.

    An anchor keeps as much as possible of its epilogue; a chain is split into nodes.
    """
    if isinstance(group.whole, DecodeAttention) and (rest := group.whole.behind_norms):
        first = group.whole.nodes - rest.nodes
        behind = FusionGroup(graph.in_order(rest.nodes), None, whole=rest)
        return *plain_groups(graph, first), behind
    if isinstance(group.whole, DecodeAttention) and (before := group.whole.appending):
        nodes = tuple(node for node in group.nodes if node in before.nodes)
        attention, sink = group.whole.attention, group.whole.sink
        views = {node for source in group.whole.sources for node in source.nodes}
        rest = FusionGroup((attention,), attention), FusionGroup(nodes, None, whole=before)
        if sink is not None:
            whole = SinkAttention(attention, sink)
            rest = FusionGroup(graph.in_order(whole.nodes), None, whole=whole), rest[1]
        return *plain_groups(graph, views), *rest
    if isinstance(group.whole, FewRows):
        return _less(graph, group, group.whole)
    if isinstance(group.whole, InvertedResidual) and len(group.whole.layers) == 3:
        rest = group.whole.smaller
        left = group.whole.nodes - rest.nodes
        pair = FusionGroup(graph.in_order(rest.nodes), None, whole=rest)
        return *plain_groups(graph, left), pair
    if isinstance(group.whole, UnitRows) and group.whole.epilogue:
        alone = replace(group.whole, epilogue=())
        rest = tuple(plain_groups(graph, set(group.whole.epilogue)))
        return FusionGroup(graph.in_order(alone.nodes), None, whole=alone), *rest
    if isinstance(group.whole, StridedProduct) and (alone := group.whole.in_order):
        rest = tuple(plain_groups(graph, set(group.whole.behind), moves=True))
        return FusionGroup(graph.in_order(alone.nodes), None, whole=alone), *rest
    if isinstance(group.whole, WeightedHeads):
        return tuple(groups(graph, set(group.nodes), last=True))
    if isinstance(group.whole, Separable):
        again = isinstance(group.whole, Movement | ChainReduction | ScanChain)  # as plain groups
        return tuple(plain_groups(graph, set(group.nodes), moves=not again))
    if group.head is None:
        nodes = (node for node in group.nodes if not node.op.view)
        return tuple(FusionGroup((node,), None if in_chains(node) else node) for node in nodes)
    if group.pool is not None:
        rest = replace(group, nodes=group.nodes[:-1], pool=None)
        return FusionGroup((group.pool,), group.pool), rest
    if group.cast is not None:
        return FusionGroup((group.cast,), None), FusionGroup(group.nodes[1:], group.head)
    at = _stages(group)[-1]
    return FusionGroup(group.nodes[at:], None), FusionGroup(group.nodes[:at], group.head)


def _less(graph: Graph, group: FusionGroup, whole: FewRows) -> tuple[FusionGroup, ...]:
    """Return the products of few rows without the normalization, or each separately."""
    rest = tuple(node for node in group.nodes if node is not whole.norm)
    if whole.norm is None or len(whole.products) == 1:
        return tuple(plain_groups(graph, set(group.nodes)))
    without = FusionGroup(rest, None, whole=replace(whole, norm=None))
    return FusionGroup((whole.norm,), whole.norm), without


def _stages(group: FusionGroup) -> list[int]:
    """Return the index at which the nodes of each intermediate result after the head start."""
    begins, value = [1], group.nodes[0].output
    for place, node in enumerate(group.nodes[1:], 1):
        if value in node.distinct_reads:
            value = node.output
            begins.append(place + 1)
    return begins[:-1]
