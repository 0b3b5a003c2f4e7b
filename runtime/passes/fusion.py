"""Fusions: replacing several nodes by one, given a pattern, a condition and a replacement.

A `Fusion` states which nodes it matches (`pattern`) and what replaces them (`build`). What all
fusions need is done here: no other node may read intermediate values, none of these may be a graph
output, the new node gets origins, type and name, and dead nodes are removed. If a pattern matches
but nothing is rewritten, a `RewriteRefusal` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ..base.record import record
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from .driver import Context, Reason, RewriteRefusal
from .editing import Builder, stand_in
from .pattern import Apply, Match, Pattern
from .rounding import Unfit


@record
class Found:
    """A match of a fusion's pattern, before any change.

    Attributes:
        graph: the graph.
        match: its nodes, values and numbers.
        top: the node whose result matched the whole pattern.
        context: of the pass.
    """

    graph: Graph
    match: Match
    top: Node
    context: Context

    def __getitem__(self, name: str) -> Value:
        return self.match[name]

    def builder(self, name: str | None = None, origin: tuple[Node, ...] = ()) -> Builder:
        """Return a builder that inserts nodes before the new one."""
        return Builder(self.graph, self.top, name, origin)

    def refuse(self, reason: Reason, text: str) -> RewriteRefusal:
        """Return the reason why these nodes are not rewritten."""
        return refusal(self.graph, self.match.nodes, reason, text)


@record
class Replacement:
    """The node that replaces a match.

    Attributes:
        op: the operator.
        inputs: its inputs.
        named: the node whose name it takes; the top one if None.
    """

    op: Op
    inputs: Sequence[Value | None]
    named: Node | None = None


#: The outcome of a match: a node, a refusal, or None if it is not a match after all.
Outcome = Replacement | RewriteRefusal | None


@record
class Fusion:
    """A rule.

    Attributes:
        around: the anchor pattern, matched at the results of single nodes.
        build: decides what a match becomes; it may add constants, and nodes before it, once nothing
            can fail.
        pattern: the whole pattern, matched at what follows the anchor; the anchor itself if None.
        reach: maximum number of nodes from the anchor to the end. The longest match wins.
        text: a sentence about a rewrite, with {new}, {anchor} and {count}.
    """

    around: Apply
    build: Callable[[Found], Outcome]
    pattern: Pattern | None = None
    reach: int = 0
    text: str = "{new} is what {count} nodes around '{anchor}' compute"

    def kinds(self) -> tuple[type[Op], ...]:
        """Return the operators of the anchor."""
        kinds = self.around.kinds
        return kinds if isinstance(kinds, tuple) else (type(kinds),)


def fuse(graph: Graph, context: Context, fusions: Sequence[Fusion]) -> Iterator[str]:
    """Apply fusions wherever they match, in the order of their anchors."""
    by_kind: dict[type[Op], list[Fusion]] = {}
    for fusion in fusions:
        for kind in fusion.kinds():
            by_kind.setdefault(kind, []).append(fusion)
    for node in list(graph.nodes):
        for fusion in by_kind.get(type(node.op), ()):
            if node not in graph:
                break
            text = _apply(graph, context, fusion, node)
            if text:
                yield text


def _apply(graph: Graph, context: Context, fusion: Fusion, node: Node) -> str:
    """Rewrite the longest match around a node; return a sentence about it."""
    refusals: list[RewriteRefusal] = []
    for found in _matches(graph, context, fusion, node):
        nodes, top = found.match.nodes, found.top
        outcome = obstacle(graph, nodes, top) or _built(fusion, found)
        if isinstance(outcome, Replacement):
            named = outcome.named.name if outcome.named else None
            count, anchor = len(nodes), node.name
            new = stand_in(graph, nodes, top, outcome.op, outcome.inputs, named)
            label = f"{new.kind} '{new.name}'"
            return fusion.text.format(new=label, anchor=anchor, kind=node.kind, count=count)
        if outcome is not None:
            refusals.append(outcome)
    if refusals:
        context.refused.append(refusals[0])
    return ""


def _built(fusion: Fusion, found: Found) -> Outcome:
    try:
        with np.errstate(all="ignore"):
            return fusion.build(found)
    except Unfit as error:
        return found.refuse(Reason.NUMBERS, str(error))


def _matches(graph: Graph, context: Context, fusion: Fusion, node: Node) -> Iterator[Found]:
    """Yield the matches around a node, those that end furthest first."""
    parts = list(fusion.around.find(node.outputs[0], Match()))
    if not parts:
        return
    if fusion.pattern is None:
        yield from (Found(graph, match, node, context) for match in parts)
        return
    for end in reversed(_behind(node, fusion.reach)):
        for part in parts:
            for match in fusion.pattern.find(end.outputs[0], part):
                if end in match.nodes:
                    yield Found(graph, match, end, context)


def _behind(node: Node, reach: int) -> list[Node]:
    """Return a node and its transitive readers up to this distance, nearest first."""
    found, layer = {node: None}, [node]
    for _ in range(reach):
        layer = [reader for each in layer for reader in each.outputs[0].consumers]
        found.update(dict.fromkeys(layer))
    return list(found)


def obstacle(graph: Graph, nodes: Collection[Node], top: Node) -> RewriteRefusal | None:
    """Return why `nodes` cannot be replaced by one computing the result of `top`; None if they can.

    Only `nodes` may read their intermediate values, none of which may be a graph output.
    """
    for node in graph.in_order(nodes):
        if node is top:
            continue
        for value in node.outputs:
            if graph.is_output(value):
                text = f"'{value.name}' is a result of the model"
                return refusal(graph, nodes, Reason.RESULT, text)
            other = next((reader for reader in value.consumers if reader not in nodes), None)
            if other is not None:
                text = f"{other.kind} '{other.name}' reads '{value.name}', too"
                return refusal(graph, nodes, Reason.SHARED, text)
    return None


def refusal(graph: Graph, nodes: Collection[Node], reason: Reason, text: str) -> RewriteRefusal:
    """Return why nodes are not rewritten, for users."""
    chain = graph.in_order(nodes)
    named = " and ".join(f"{node.kind} '{node.name}'" for node in chain[:3])
    more = f" and {len(chain) - 3} more" if len(chain) > 3 else ""
    return RewriteRefusal(
        reason, tuple(node.name for node in chain), f"{named}{more} stay apart: {text}"
    )
