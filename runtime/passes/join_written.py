"""Replaces ScatterNDs that write all rows of a tensor, some each, by a Concat."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ops.gather import ScatterND
from ..ops.movement import Concat
from .driver import Context
from .editing import Builder, shape_of


class Rows(NamedTuple):
    """Consecutive rows, and what is written there."""

    first: int
    size: int
    updates: Value


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a chain of ScatterNDs by the Concat of their updates, if these are all rows.

    Assignments to parts of a new tensor (``q[..., :n] = a; q[..., n:] = b``) are traced so, in
    between Transposes that bring the axis to the front.
    """
    for node in list(graph.nodes):
        rows = _all_rows(graph, node) if node in graph else None
        if rows is None:
            continue
        chain = _chain(graph, node)[: len(rows)]
        add = Builder(graph, node, node.name, tuple(reversed(chain)))
        joined = add(Concat(axis=0), *(each.updates for each in rows))
        graph.replace(node, [joined])
        for each in chain[1:]:
            graph.remove(each)
        yield f"{node.kind} '{node.name}' writes the last of {len(rows)} parts: they are joined"


def _chain(graph: Graph, node: Node) -> list[Node]:
    """Return a ScatterND and those whose results nothing but the next one writes to."""
    found = [node]
    while True:
        data = found[-1].operands[0]
        before = data.producer
        if before is None or not isinstance(before.op, ScatterND) or graph.is_output(data):
            return found
        if sum(data.consumers.values()) != 1:
            return found
        found.append(before)


def _all_rows(graph: Graph, node: Node) -> list[Rows] | None:
    """Return what a chain writes, if every row is written once, in order of rows."""
    shape = shape_of(node.output) if isinstance(node.op, ScatterND) else None
    if not shape or not isinstance(shape[0], int):
        return None
    found: list[Rows] = []
    for each in _chain(graph, node):
        rows = rows_of(each)
        if rows is None:
            return None
        found.append(rows)
        if sum(rows.size for rows in found) >= shape[0]:
            break
    found.sort(key=lambda rows: rows.first)
    ends = list(accumulate((rows.size for rows in found), initial=0))
    in_order = [rows.first for rows in found] == ends[:-1] and ends[-1] == shape[0]
    return found if in_order and len(found) > 1 else None


def rows_of(node: Node) -> Rows | None:
    """Return the rows that a ScatterND writes, if their numbers are known and consecutive."""
    if not isinstance(node.op, ScatterND) or node.op.reduction != "none":
        return None
    _, indices, updates = node.operands
    places = indices.data
    if places is None or places.ndim != 2 or places.shape[1] != 1 or not places.size:
        return None
    first = int(places[0, 0])
    if first < 0 or (places[:, 0] != np.arange(first, first + len(places))).any():
        return None
    return Rows(first, len(places), updates)
