"""Keeps all steps of a recurrence that an exporter has unrolled in one type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ...ir.graph import Graph, Node, Value
from ...ops.movement import Concat
from ..editing import unviewed
from ..pointwise import is_elementwise

#: Minimum number of results that a Concat joins where these may be the steps of a recurrence.
MIN_STEPS = 5


def wide_steps(graph: Graph, bears: Callable[[Node], bool]) -> set[Node]:
    """Return the nodes of unrolled recurrences that stay float32, as some of them have to.

    States are sums that grow with each step (Mamba), so that some step is the first one that may
    leave the range of float16. With all in float32, the loop is one kernel.

    Args:
        graph: the graph.
        bears: whether a node may compute in half precision.
    """
    depths, found = dict[Value, int](), set[Node]()
    for join in graph.nodes:
        if isinstance(join.op, Concat) and len(join.operands) >= MIN_STEPS:
            results = [unviewed(part) for part in join.operands]
            if _are_steps(results, depths):
                nodes = _computing(results)
                found |= nodes if not all(map(bears, nodes)) else set()
    return found


def _are_steps(results: Sequence[Value], depths: dict[Value, int]) -> bool:
    """Whether each result has as many elementwise nodes more behind it than the one before.

    The first one may have fewer: it often is an initial state.
    """
    if not all(value.producer and is_elementwise(value.producer.op) for value in results[1:-1]):
        return False
    found = [_depth(value, depths) for value in results]
    steps = {b - a for a, b in pairwise(found[1:-1])}
    return len(steps) == 1 and steps != {0}


def _depth(value: Value, depths: dict[Value, int]) -> int:
    """Return the most elementwise nodes in a row that end at a value; views are none."""
    waiting = [value]
    while waiting:
        top = waiting[-1]
        reads = _reads(top)
        missing = [each for each in reads if each not in depths] if top not in depths else []
        if missing:
            waiting += missing
            continue
        if top not in depths:
            depths[top] = 1 + max((depths[each] for each in reads), default=-1)
        waiting.pop()
    return depths[value]


def _reads(value: Value) -> list[Value]:
    """Return what the elementwise node that computes a value reads, before views."""
    node = value.producer
    if node is None or not is_elementwise(node.op):
        return []
    return [unviewed(each) for each in node.distinct_reads if not each.is_constant]


def _computing(results: Sequence[Value]) -> set[Node]:
    """Return the elementwise nodes that compute the results, and those before them in a row."""
    found, waiting, seen = set[Node](), [*results], set[Value]()
    while waiting:
        value = waiting.pop()
        node = value.producer
        if value in seen or node is None or not is_elementwise(node.op):
            continue
        seen.add(value)
        found.add(node)
        waiting += _reads(value)
    return found
