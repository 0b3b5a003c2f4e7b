"""Fusion: which nodes run as one step, a head followed by elementwise nodes."""

from __future__ import annotations

from collections.abc import Iterator, Set

from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.types import TensorType
from ..numerics.elementwise import ELEMENTWISE
from .blocking import Frame
from .chain import Chain, ChainStage
from .registry import BUILDERS


def chains(graph: Graph, free: Set[Node]) -> Iterator[Chain]:
    """Yield disjoint groups of two or more of the `free` nodes.

    Heads with much arithmetic are served first, purely elementwise chains last.
    """
    left = set(free)
    nodes = [node for node in graph.nodes if node in free]
    heads = [n for n in nodes if type(n.op) in BUILDERS and BUILDERS[type(n.op)].fuses]
    for head in (*heads, *(n for n in nodes if type(n.op) in ELEMENTWISE)):
        if head in left:
            chain = _follow(graph, head, left)
            if chain.stages:
                left.difference_update(chain.nodes)
                yield chain


def _follow(graph: Graph, head: Node, free: Set[Node]) -> Chain:
    stages: list[ChainStage] = []
    result = head.output
    if any(value.consumers for value in head.outputs[1:]):
        return Chain(head)  # what follows may wait for those
    while stage := _next(graph, result, free):
        stages.append(stage)
        result = stage.node.output
    return Chain(head, tuple(stages))


def _next(graph: Graph, result: Value, free: Set[Node]) -> ChainStage | None:
    """Return the node that follows `result` if it can process blocks of it in place."""
    node = graph.sole_consumer(result)
    if node is None or node not in free or type(node.op) not in ELEMENTWISE:
        return None
    if node.output.type != result.type:
        return None
    stage = ChainStage(node, node.inputs.index(result))
    finest = Frame.finest(result.tensor.dims)
    for value in stage.others:
        other = value.type
        if not isinstance(other, TensorType) or not other.is_static or not finest.fits(other.dims):
            return None
    return stage
