"""Graph partitioning: which backend runs which nodes; collects, checks and orders the claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NoReturn

from ..base.guard import check_time
from ..base.record import record
from ..errors import DeviceError, NodeRefusal, UnsupportedError
from ..ir.dtypes import string
from ..ir.graph import Graph, Node, Value
from ..ir.grown import Grown
from ..ir.types import TensorType
from ..options import Options
from .backend import Backend, Claim, Decline, measured
from .contract import answers_of, asked_of


@record
class Assigned:
    """Nodes that run as one step, with their backend; views need none."""

    nodes: tuple[Node, ...]
    backend: Backend | None
    claim: Claim | None


@record
class Partition:
    """Every node of a graph, in an order in which steps can run.

    Attributes:
        steps: the assignment.
        refusals: all declines, including those of nodes that another backend took.
    """

    steps: tuple[Assigned, ...]
    refusals: tuple[NodeRefusal, ...]


@dataclass(slots=True)
class Bars:
    """Declines of earlier attempts to build.

    Attributes:
        pairs: reasons by backend and node; these pairs are not tried again.
        dense: nodes whose tensors must not be slices with gaps.
    """

    pairs: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    dense: set[Node] = field(default_factory=set[Node])

    def add(self, backend: str, node: Node, reason: str) -> None:
        """Record that the backend of this name declined `node` while building."""
        self.pairs[backend, node.name] = reason

    def allows(self, backend: Backend, node: Node) -> bool:
        """Whether `backend` may be asked about `node`."""
        return (backend.name, node.name) not in self.pairs


def partition(
    graph: Graph,
    backends: Sequence[Backend],
    options: Options,
    bars: Bars,
    nesting: Backend | None = None,
) -> Partition:
    """Offer every node to the backends in order.

    Args:
        graph: all shapes static.
        backends: the requested one, then fallbacks.
        options: passed to the backends.
        bars: what earlier attempts to build ruled out.
        nesting: claims control flow, which is not offered to other backends.

    Raises:
        UnsupportedError: no backend takes a node; lists all such nodes with all reasons.
    """
    free: dict[Node, None] = dict.fromkeys(graph.nodes)
    order = {node: i for i, node in enumerate(graph.nodes)}
    groups: list[Assigned] = []
    refusals: list[NodeRefusal] = []
    if nesting is not None:
        for held in nesting.claim(graph, free.keys(), options):
            if isinstance(held, Claim):
                groups.append(Assigned(held.nodes, nesting, held))
        for node in (node for group in groups for node in group.nodes):
            del free[node]
    for backend in backends:
        offered = {n for n in free if _is_static(n) and bars.allows(backend, n)}
        refusals.extend(_ruled_out(free, offered, backend, bars))
        asked = asked_of(backend, measured(backend, graph, frozenset(offered), options))
        for answer in _answers(asked, graph, offered, order, options):
            check_time()
            if isinstance(answer, Decline):
                refusals.append(_refusal(answer.node, backend, answer.reason))
                continue
            nodes = tuple(sorted(answer.nodes, key=order.__getitem__))
            groups.append(Assigned(nodes, backend, answer))
            for node in nodes:
                del free[node]
    views = [node for node in free if node.op.view and _is_static(node)]
    groups.extend(Assigned((node,), None, None) for node in views)
    for node in views:
        del free[node]
    seen = {node.name for node in views}
    refusals = [r for r in refusals if r.node not in seen]
    if free:
        _refuse(list(free), refusals, backends)
    return Partition(_sorted(groups, order), tuple(refusals))


def _answers(
    backend: Backend, graph: Graph, offered: set[Node], order: dict[Node, int], options: Options
) -> Iterator[Claim | Decline]:
    """Yield what a backend declines, and its claims that steps can run.

    Nodes of a claim that no step can run, because it would wait for itself, are offered again one
    by one.

    Args:
        backend: is asked.
        graph: all nodes.
        offered: the nodes to claim, from which those of claims are removed.
        order: the places of nodes.
        options: passed to the backend.
    """
    offers = [frozenset(offered)]
    for some in offers:
        for answer in answers_of(backend, backend.claim(graph, some & offered, options)):
            if isinstance(answer, Decline):
                yield answer
            elif _is_good(answer.nodes, offered):
                if _is_convex(answer.nodes, order):
                    offered.difference_update(answer.nodes)
                    yield answer
                elif len(answer.nodes) > 1:
                    offers.extend(frozenset((node,)) for node in answer.nodes)


def _is_good(nodes: tuple[Node, ...], offered: Set[Node]) -> bool:
    return all(n in offered for n in nodes) and not all(n.op.view for n in nodes)


def _is_static(node: Node) -> bool:
    return not obstacle(node)


def obstacle(node: Node) -> str:
    """Return why no plan can run the node, or an empty string."""
    return "plans cannot contain control flow" if node.op.graphs() else misfit(node)


def holds(node: Node) -> bool:
    """Whether a device can hold the tensors of a node, once their types and sizes are known."""
    types = [value.type for value in (*node.distinct_reads, *node.outputs)]
    return all(
        each is None or (isinstance(each, TensorType) and each.dtype != string) for each in types
    )


def misfit(node: Node) -> str:
    """Return which tensor of a node no plan can hold, and why; empty if there is none."""
    for value in (*node.distinct_reads, *node.outputs):
        if not isinstance(value.type, TensorType):
            what = value.type or "of unknown type"
            return f"'{value.name}' is {what}; plans contain only tensors"
        if value.type.dtype == string:
            return f"'{value.name}' holds strings, which live on the host"
        if any(isinstance(size, Grown) for size in value.type.shape or ()):
            return f"'{value.name}' grows from run to run: {value.type}, one program for every k"
        if not value.type.is_static:
            return f"the shape of '{value.name}' depends on the data: {value.type}"
    return ""


def _refusal(node: Node, backend: Backend, reason: str) -> NodeRefusal:
    return NodeRefusal(node.name, node.kind, node.signature(), backend.name, reason)


def _ruled_out(
    free: dict[Node, None], offered: Set[Node], backend: Backend, bars: Bars
) -> list[NodeRefusal]:
    found: list[NodeRefusal] = []
    for node in free:
        if node in offered:
            continue
        reason = obstacle(node) or bars.pairs[backend.name, node.name]
        found.append(_refusal(node, backend, reason))
    return found


def _refuse(free: list[Node], refusals: list[NodeRefusal], backends: Sequence[Backend]) -> None:
    missing = {node.name for node in free}
    reported = [r for r in refusals if r.node in missing]
    covered = {(r.node, r.backend) for r in reported}
    for node in free:
        for backend in backends:
            if (node.name, backend.name) not in covered:
                reported.append(_refusal(node, backend, "no implementation"))
    names = " + ".join(b.name for b in backends)
    plural = "s" if len(free) > 1 else ""
    remedy = (
        ""
        if any(b.name == "numpy" for b in backends)
        else "fallback='numpy' (on the command line --fallback numpy) runs them on the host"
    )
    raise UnsupportedError(f"{len(free)} node{plural} cannot run on {names}:", reported, remedy)


def _is_convex(nodes: tuple[Node, ...], order: dict[Node, int]) -> bool:
    """Whether no path leaves `nodes` and re-enters them."""
    inside = set(nodes)
    last = max(order[n] for n in nodes)
    tainted: set[Node] = set()
    frontier = [c for n in nodes for v in n.outputs for c in v.consumers if c not in inside]
    while frontier:
        node = frontier.pop()
        if node in tainted or order[node] > last:
            continue
        tainted.add(node)
        for value in node.outputs:
            for consumer in value.consumers:
                if consumer in inside:
                    return False
                frontier.append(consumer)
    return True


def _sorted(groups: list[Assigned], order: dict[Node, int]) -> tuple[Assigned, ...]:
    """Return the groups in topological order, else in file order.

    Raises:
        DeviceError: claims of a backend wait for one another.
    """
    owner = {node: i for i, group in enumerate(groups) for node in group.nodes}
    before = [
        {owner[p] for n in group.nodes for v in n.distinct_reads if (p := v.producer)} - {i}
        for i, group in enumerate(groups)
    ]
    after: list[list[int]] = [[] for _ in groups]
    for i, sources in enumerate(before):
        for source in sources:
            after[source].append(i)
    waits = [len(sources) for sources in before]
    ready: list[tuple[int, int]] = []
    for i, group in enumerate(groups):
        if not waits[i]:
            heappush(ready, (order[group.nodes[-1]], i))
    result: list[Assigned] = []
    while ready:
        _, i = heappop(ready)
        result.append(groups[i])
        for j in after[i]:
            waits[j] -= 1
            if not waits[j]:
                heappush(ready, (order[groups[j].nodes[-1]], j))
    if len(result) != len(groups):
        i, way = next(i for i, left in enumerate(waits) if left), list[int]()
        while i not in way:  # some claim before one that waits does so, too
            way.append(i)
            i = next(source for source in before[i] if waits[source])
        _refuse_cycle([groups[i] for i in way[way.index(i) :]])
    return tuple(result)


def _refuse_cycle(groups: list[Assigned]) -> NoReturn:
    names = ", ".join(sorted({f"'{each.backend.name}'" for each in groups if each.backend}))
    claims = ["{" + ", ".join(f"'{node.name}'" for node in each.nodes) + "}" for each in groups]
    raise DeviceError(f"backend {names}: claims wait for one another: {' and '.join(claims)}")


def reads_of(nodes: tuple[Node, ...]) -> tuple[Value, ...]:
    """Return the non-constant values that the nodes read from outside, without duplicates."""
    inside = {value for node in nodes for value in node.outputs}
    seen = dict.fromkeys(v for node in nodes for v in node.distinct_reads)
    return tuple(v for v in seen if v not in inside and not v.is_constant)


def results_of(graph: Graph, nodes: Iterable[Node]) -> tuple[Value, ...]:
    """Return the values of these nodes that other nodes read, or that are results of the graph."""
    inside = set(nodes)
    made = (value for node in nodes for value in node.outputs)
    return tuple(value for value in made if graph.is_read_outside(value, inside))
