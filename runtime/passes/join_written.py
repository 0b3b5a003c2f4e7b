"""Replaces scatters that write all rows of a tensor, some each, by a Concat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
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
    seen = set[Node]()
    for node in reversed(list(graph.nodes)):
        if isinstance(node.op, (ScatterND, ScatterElements)) and node not in seen:
            chain = _chain(graph, node)
            seen.update(chain)
            text = _join(graph, chain)
            if text:
                yield text


def _join(graph: Graph, chain: Sequence[Node]) -> str:
    """Replace the last scatters of a chain that write all rows; return what was done."""
    written = [rows_of(node) or places_of(node) for node in chain]
    for start, node in enumerate(chain):
        rows = _all_rows(node, islice(written, start, None))
        if rows is None:
            continue
        replaced = chain[start : start + len(rows)]
        add = Builder(graph, node, node.name, tuple(reversed(replaced)))
        joined = add(Concat(axis=rows[0].axis), *(each.updates for each in rows))
        kind, name = node.kind, node.name
        graph.replace(node, [joined])
        for each in replaced[1:]:
            graph.remove(each)
        return f"{kind} '{name}' writes the last of {len(rows)} parts: they are joined"
    return ""


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


def _all_rows(node: Node, written: Iterable[Rows | None]) -> list[Rows] | None:
    """Return what a scatter and those before it write, in order, if it is every row once.

    Args:
        node: the last one.
        written: what each writes, the last one first.
    """
    found, total, size = list[Rows](), 0, 0
    for rows in written:
        if rows is None or (found and rows.axis != found[0].axis):
            return None
        if not found:
            known = (shape_of(node.output) or ())[rows.axis]
            size = known if isinstance(known, int) else 0
        found.append(rows)
        total += rows.size
        if total >= size:
            break
    if total != size or len(found) < 2:
        return None
    found.sort(key=lambda rows: rows.first)
    ends = accumulate((rows.size for rows in found), initial=0)
    return found if all(rows.first == end for rows, end in zip(found, ends, strict=False)) else None


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
