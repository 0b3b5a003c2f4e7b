"""Applies an operator to a tensor rather than to each of its places along an axis."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ...ir.graph import Graph, Node
from ...ops.cuts import place_of
from ..driver import Context
from ..editing import Builder, first_input, shape_of
from ..pointwise import is_elementwise

#: Minimum number of places.
_COUNT = 4


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Compute an elementwise operator of one tensor once, if steps apply it to most of its places.

    Steps of an unrolled loop cut their place out of a tensor and then take its exponential, say. Of
    the whole tensor that is one node, and steps read places of the result.
    """
    for value in dict.fromkeys(v for node in graph.nodes for v in node.distinct_reads):
        alike: dict[Hashable, list[Node]] = {}
        for reader in (each for each in value.consumers if first_input(each) is value):
            follower, place = _follower(graph, reader), place_of(reader)
            if follower is not None and place is not None:
                key = type(reader.op), place[0], follower.op
                alike.setdefault(key, []).append(reader)
        for cuts in alike.values():
            if _is_most(cuts):
                yield _join(graph, cuts)


def _follower(graph: Graph, cut: Node) -> Node | None:
    """Return the elementwise operator of one tensor that alone reads what a node gives."""
    follower = graph.sole_consumer(cut.output) if len(cut.outputs) == 1 else None
    if follower is None or len(follower.inputs) != 1:
        return None
    return follower if is_elementwise(follower.op) else None


def _is_most(cuts: Sequence[Node]) -> bool:
    """Whether these are at least half of all places of their axis."""
    found = [place for place in map(place_of, cuts) if place is not None]
    shape = shape_of(cuts[0].inputs[0])
    size = None if shape is None else shape[found[0][0]]
    count = len({place for _, place in found})
    return isinstance(size, int) and count >= _COUNT and 2 * count >= size


def _join(graph: Graph, cuts: Sequence[Node]) -> str:
    followers = [next(iter(cut.output.consumers)) for cut in cuts]
    first, name = graph.in_order(cuts)[0], followers[0].name
    add = Builder(graph, first, name, tuple(followers))
    whole = add(followers[0].op, first.inputs[0])
    for cut, follower in zip(cuts, followers, strict=True):
        add = Builder(graph, cut, cut.name, (cut, follower))
        graph.replace(follower, [add(cut.op, whole, *cut.inputs[1:])])
        graph.remove(cut)
    return f"'{name}' is computed of a tensor, not of {len(cuts)} of its places"
