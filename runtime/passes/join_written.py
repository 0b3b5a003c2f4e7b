"""Replaces scatters that write all rows of a tensor, some each, by a Concat."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ops.gather import ScatterElements, ScatterND
from ..ops.movement import Concat
from .driver import Context
from .editing import Builder, shape_of


class Rows(NamedTuple):
    """Consecutive places of an axis, and what is written there."""

    first: int
    size: int
    updates: Value
    axis: int = 0


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a chain of scatters by the Concat of their updates, if these are all rows.

    Assignments to parts of a new tensor (``q[..., :n] = a; q[..., n:] = b``) are traced as
    ScatterNDs, in between Transposes that bring the axis to the front, or as ScatterElements along
    the axis: one for each step of a recurrence over time (RWKV, RecurrentGemma).
    """
    for node in list(graph.nodes):
        rows = _all_rows(graph, node) if node in graph else None
        if rows is None:
            continue
        chain = _chain(graph, node)[: len(rows)]
        add = Builder(graph, node, node.name, tuple(reversed(chain)))
        joined = add(Concat(axis=rows[0].axis), *(each.updates for each in rows))
        graph.replace(node, [joined])
        for each in chain[1:]:
            graph.remove(each)
        yield f"{node.kind} '{node.name}' writes the last of {len(rows)} parts: they are joined"


def _chain(graph: Graph, node: Node) -> list[Node]:
    """Return a scatter and those whose results nothing but the next one writes to."""
    found = [node]
    while True:
        data = found[-1].operands[0]
        before = data.producer
        if before is None or type(before.op) is not type(node.op) or graph.is_output(data):
            return found
        if sum(data.consumers.values()) != 1:
            return found
        found.append(before)


def _all_rows(graph: Graph, node: Node) -> list[Rows] | None:
    """Return what a chain writes, if every row is written once, in order of rows."""
    last = rows_of(node) if isinstance(node.op, ScatterND) else places_of(node)
    size = None if last is None else (shape_of(node.output) or ())[last.axis]
    if last is None or not isinstance(size, int):
        return None
    found: list[Rows] = []
    for each in _chain(graph, node):
        rows = rows_of(each) if isinstance(each.op, ScatterND) else places_of(each)
        if rows is None or rows.axis != last.axis:
            return None
        found.append(rows)
        if sum(rows.size for rows in found) >= size:
            break
    found.sort(key=lambda rows: rows.first)
    ends = list(accumulate((rows.size for rows in found), initial=0))
    in_order = [rows.first for rows in found] == ends[:-1] and ends[-1] == size
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


def places_of(node: Node) -> Rows | None:
    """Return the places that ScatterElements writes, if they are known, consecutive and whole."""
    op = node.op
    if not isinstance(op, ScatterElements) or op.reduction != "none":
        return None
    data, indices, updates = node.operands
    shape, places = shape_of(data), indices.data
    if places is None or not places.size or shape is None or len(shape) != places.ndim:
        return None
    axis = op.axis % len(shape)
    others = [i for i in range(len(shape)) if i != axis]
    first, size = int(places.flat[0]), int(places.shape[axis])
    along = np.moveaxis(places, axis, -1)
    if first < 0 or any(shape[i] != places.shape[i] for i in others):
        return None
    if (along != np.arange(first, first + size)).any():
        return None
    return Rows(first, size, updates, axis)
