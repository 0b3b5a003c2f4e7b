"""Computes only those of sorted elements that are read.

PyTorch exports a sort as the TopK of all elements. Searches for neighbours read the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ops.cuts import axis_of, indices_of, sliced_places
from ...ops.gather import Gather
from ...ops.search import TopK
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, rank_of


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Reduce the number of elements of each TopK to what its readers need."""
    for node in list(graph.nodes):
        if not isinstance(node.op, TopK) or not node.op.sorted:
            continue
        rank = rank_of(node.inputs[0])
        if not rank:
            continue
        count, axis = node.operands[1].data, normalize_axis(node.op.axis, rank)
        readers = [(reader, value) for value in node.outputs for reader in value.consumers]
        needed = [_needed(*each, axis, rank) for each in readers]
        if count is None or not all(needed) or any(map(graph.is_output, node.outputs)):
            continue
        k, most = int(count.reshape(())), max(needed, default=0)
        if 0 < most < k:
            add = Builder(graph, node, node.name, (node,))
            number = add.constant(np.full_like(count, most), f"{node.name}.k")
            graph.replace(node, add.node(node.op, node.inputs[0], number, outputs=2).outputs)
            yield f"TopK '{node.name}' finds {most} elements instead of {k}"


def _needed(reader: Node, value: Value, axis: int, rank: int) -> int:
    """Return how many of the first elements along an axis a node reads; 0 if that is unknown."""
    if reader.inputs.count(value) != 1 or reader.inputs[0] is not value:
        return 0
    numbers = [each.known for each in reader.operands[1:3]]
    if any(each is None or (each < 0).any() for each in numbers):
        return 0  # counted from the end, which will be another one
    if isinstance(reader.op, Gather) and axis_of(reader) == axis:
        indices = indices_of(reader)
        return 0 if indices is None or not indices.size else int(indices.max()) + 1
    taken = (sliced_places(reader) or {}).get(axis)
    return max(taken) + 1 if taken else 0
