"""Writes Slices that share a tensor among them as a Split."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ops.cuts import part_of
from ...ops.movement import Slice
from ..driver import Context
from ..editing import Builder, size_of

#: Minimum number of parts. Two are often halves that a rotation swaps, which has patterns of its
#: own.
_COUNT = 3


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace Slices that have all places of an axis, each some, by a Split.

    TorchScript's exporter writes chunks so, such as queries, keys and values. A part that is read
    by several Slices is cut once.
    """
    for value in dict.fromkeys(v for node in graph.nodes for v in node.distinct_reads):
        yield from split(graph, value)


def split(graph: Graph, value: Value, count: int = _COUNT) -> Iterator[str]:
    """Replace Slices that have all places of an axis of a value, each some, by a Split.

    Args:
        graph: the graph.
        value: what is cut.
        count: minimum number of parts.
    """
    for axis, cuts in _cuts(value).items():
        size = size_of(value, axis)
        starts = sorted(cuts)
        ends = [cuts[start][0] for start in starts]
        if len(starts) < count or starts[0] or [*starts[1:], size] != ends:
            continue
        if any(end - start == 1 for start, end in zip(starts, ends, strict=True)):
            continue  # steps of a loop
        nodes = [node for start in starts for node in cuts[start][1]]
        first = graph.in_order(nodes)[0]
        add = Builder(graph, first, first.name, tuple(nodes))
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        parts = add.split(value, axis, sizes)
        for start, part in zip(starts, parts, strict=True):
            for node in cuts[start][1]:
                graph.replace(node, [part])
        yield f"{len(parts)} parts of '{value.name}' are those of a Split"


def _cuts(value: Value) -> dict[int, dict[int, tuple[int, list[Node]]]]:
    """Return the ends of Slices of a tensor, and who takes them, by their axis and first place.

    An axis of which two have the same first place and different ends has none.
    """
    found: dict[int, dict[int, tuple[int, list[Node]]]] = {}
    mixed: set[int] = set()
    for node in value.consumers:
        part = part_of(node.output) if isinstance(node.op, Slice) else None
        if part is None or part.source is not value:
            continue
        places = part.places
        end, nodes = found.setdefault(part.axis, {}).setdefault(places.start, (places.stop, []))
        nodes.append(node)
        if end != places.stop:
            mixed.add(part.axis)
    return {axis: cuts for axis, cuts in found.items() if axis not in mixed}
