"""Fusions: one node for several, by a pattern, a condition and a replacement.

A `Fusion` says which nodes it is about (`pattern`) and what they are (`build`). What holds of all
of them is done here: that no other node reads what goes away, that nothing of it is a result of the
model, which nodes of the file the new one stands for, its type and its name, and what is dead
after it. Where a pattern fits and nothing is rewritten all the same, a `Refusal` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from .driver import Context, Reason, Refusal
from .editing import Builder, stand_in
from .pattern import Apply, Match, Pattern
from .rounding import Unfit


@dataclass(frozen=True, slots=True)
class Found:
    """A match of a fusion's pattern, of which nothing has been changed yet.

    Attributes:
        graph: the graph.
        match: nodes, values and numbers.
        top: the node whose result the pattern was laid on.
        context: of the pass.
    """

    graph: Graph
    match: Match
    top: Node
    context: Context

    def __getitem__(self, name: str) -> Value:
        return self.match[name]

    def builder(self, name: str | None = None, origin: tuple[Node, ...] = ()) -> Builder:
        """Return a function that inserts nodes before the new one."""
        return Builder(self.graph, self.top, name, origin)

    def refuse(self, reason: Reason, text: str) -> Refusal:
        """Return why these nodes stay as they are."""
        return refusal(self.graph, self.match.nodes, reason, text)


@dataclass(frozen=True, slots=True)
class Replacement:
    """The node that takes the place of a match.

    Attributes:
        op: the operator.
        inputs: what it reads.
        named: the node whose name it takes; the top one if None.
    """

    op: Op
    inputs: Sequence[Value | None]
    named: Node | None = None


#: What becomes of a match: a node; a reason why not; None where it is not a match after all.
Outcome = Replacement | Refusal | None


@dataclass(frozen=True, slots=True)
class Fusion:
    """A rule.

    Attributes:
        around: the part that it is recognised by, laid on the results of single nodes.
        build: says what a match is. It may add constants and nodes in front, once all is well.
        pattern: the whole, laid on what the part leads to; the part itself if None.
        reach: number of nodes between part and whole at most. The longest match counts.
        text: a sentence about a rewrite, of {new}, {anchor} and {count}.
    """

    around: Apply
    build: Callable[[Found], Outcome]
    pattern: Pattern | None = None
    reach: int = 0
    text: str = "{new} is what {count} nodes around '{anchor}' compute"

    def kinds(self) -> tuple[type[Op], ...]:
        """Return the operators that it is recognised by."""
        kinds = self.around.kinds
        return kinds if isinstance(kinds, tuple) else (type(kinds),)


def fuse(graph: Graph, context: Context, fusions: Sequence[Fusion]) -> Iterator[str]:
    """Apply fusions wherever they fit, in the order of the nodes that they are recognised by."""
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
    """Make the rewrite for the longest match around a node; return the sentence about it."""
    refusals: list[Refusal] = []
    for found in _matches(graph, context, fusion, node):
        nodes, top = found.match.nodes, found.top
        outcome = obstacle(graph, nodes, top) or _built(fusion, found)
        if isinstance(outcome, Replacement):
            named = outcome.named.name if outcome.named else None
            count, anchor = len(nodes), node.name
            new = stand_in(graph, nodes, top, outcome.op, outcome.inputs, named)
            said = f"{new.kind} '{new.name}'"
            return fusion.text.format(new=said, anchor=anchor, kind=node.kind, count=count)
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
    """Yield the matches around a node, those that end far behind it first."""
    ends = reversed(_behind(node, fusion.reach))
    parts = list(fusion.around.find(node.outputs[0], Match()))
    if not parts:
        return
    if fusion.pattern is None:
        yield from (Found(graph, match, node, context) for match in parts)
        return
    for end in ends:
        for part in parts:
            for match in fusion.pattern.find(end.outputs[0], part):
                if end in match.nodes:
                    yield Found(graph, match, end, context)


def _behind(node: Node, reach: int) -> list[Node]:
    """Return a node and those that read it, over at most that many nodes, near ones first."""
    found, layer = {node: None}, [node]
    for _ in range(reach):
        layer = [reader for each in layer for reader in each.outputs[0].consumers]
        found.update(dict.fromkeys(layer))
    return list(found)


def obstacle(graph: Graph, nodes: Collection[Node], top: Node) -> Refusal | None:
    """Return why `nodes` cannot go, except for the result of `top`; None where they can.

    Nobody but `nodes` may read what they compute, and none of it may be a result of the graph.
    """
    for node in nodes:
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


def refusal(graph: Graph, nodes: Collection[Node], reason: Reason, text: str) -> Refusal:
    """Return why nodes stay as they are, for users."""
    chain = tuple(node for node in graph.nodes if node in nodes)
    named = " and ".join(f"{node.kind} '{node.name}'" for node in chain[:3])
    more = f" and {len(chain) - 3} more" if len(chain) > 3 else ""
    return Refusal(reason, tuple(node.name for node in chain), f"{named}{more} stay apart: {text}")
