"""What is tried instead of a group without a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...runtime.ir.graph import Graph, Node
from .codegen.elementwise import in_chains
from .fusion import FusionGroup, groups, plain_groups
from .recipe.pattern import Grouping, Pattern, Rest


def smaller(graph: Graph, group: FusionGroup) -> tuple[FusionGroup, ...]:
    """Return the groups to try instead of one without a recipe; the last contains its head.

    An anchor keeps as much as possible of its epilogue; a chain is split into nodes.
    """
    if group.whole is not None:
        return tuple(g for part in group.whole.instead() for g in _regrouped(graph, part))
    if group.head is None:
        return tuple(_alone(group.nodes))
    if group.also is not None:
        return FusionGroup(group.also.nodes, group.also.norm), FusionGroup(group.first, group.head)
    if group.pool is not None:
        rest = replace(group, nodes=group.nodes[:-1], pool=None)
        return FusionGroup((group.pool,), group.pool), rest
    if group.cast is not None:
        return FusionGroup((group.cast,), None), FusionGroup(group.nodes[1:], group.head)
    at = _stages(group)[-1]
    return FusionGroup(group.nodes[at:], None), FusionGroup(group.nodes[:at], group.head)


def _regrouped(graph: Graph, part: Pattern | Rest) -> Iterator[FusionGroup]:
    """Yield the groups of what is tried instead of a pattern."""
    if not isinstance(part, Rest):
        yield FusionGroup(graph.in_order(part.nodes), None, whole=part)
    elif part.grouping is Grouping.ALONE:
        yield from _alone(graph.in_order(part.nodes))
    elif part.grouping is Grouping.LAST:
        yield from groups(graph, part.nodes, last=True)
    else:
        yield from plain_groups(graph, part.nodes, moves=part.grouping is Grouping.MOVED)


def _alone(nodes: Iterable[Node]) -> Iterator[FusionGroup]:
    """Yield a group for each node that is no view."""
    computing = (node for node in nodes if not node.op.view)
    yield from (FusionGroup((node,), None if in_chains(node) else node) for node in computing)


def _stages(group: FusionGroup) -> list[int]:
    """Return the index at which the nodes of each intermediate result after the head start."""
    begins, value = [1], group.nodes[0].output
    for place, node in enumerate(group.nodes[1:], 1):
        if value in node.distinct_reads:
            value = node.output
            begins.append(place + 1)
    return begins[:-1]
