"""Replaces scatters that write all rows of a tensor, some each, by a Concat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ops.gather import ScatterElements, ScatterND, counted
from ..ops.movement import Concat, Transpose
from ..ops.shape import Unsqueeze
from .driver import Context
from .editing import Builder, dims_of, drop, rank_of, shape_of, size_of


class Rows(NamedTuple):
    """Places of an axis at equal distances, `step`, and what is written there."""

    first: int
    size: int
    updates: Value
    axis: int = 0
    step: int = 1


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a chain of scatters by the Concat of their updates, if these are all rows.

    Assignments to parts of a new tensor (``q[..., :n] = a; q[..., n:] = b``) are traced as
    ScatterNDs, in between Transposes that bring the axis to the front, or as ScatterElements along
    the axis: one for each step of a recurrence over time (RWKV, RecurrentGemma). Those to every
    other place (``q[..., 0::2] = a; q[..., 1::2] = b``, rotated pairs of Wan) are stacked.
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
        joined = _joined(add, rows)
        kind, name = node.kind, node.name
        graph.replace(node, [joined])
        for each in replaced[1:]:
            graph.remove(each)
        for each in rows:
            drop(graph, each.updates.producer)
        return f"{kind} '{name}' writes the last of {len(rows)} parts: they are joined"
    return ""


def _joined(add: Builder, rows: Sequence[Rows]) -> Value:
    """Return what is written, one after the other, or every k-th place in turn.

    If all has been brought to the front, it is joined where it was before.
    """
    values, axis, perm = [each.updates for each in rows], rows[0].axis, None
    transposes = [value.producer for value in values]
    orders = {
        transpose.op.order(rank_of(transpose.output) or 0)
        if isinstance(transpose.op, Transpose)
        else None
        for transpose in transposes
        if transpose is not None
    }
    if len(orders) == 1 and None not in transposes and (perm := orders.pop()) is not None:
        values, axis = (
            [transpose.operands[0] for transpose in transposes if transpose is not None],
            perm[axis],
        )
    if rows[0].step == 1:
        whole = add(Concat(axis=axis), *values)
    else:
        parts = [add(Unsqueeze(), value, add.integers((axis + 1,))) for value in values]
        sizes = list(dims_of(values[0]) or ())
        sizes[axis] *= len(values)
        whole = add.shaped(add(Concat(axis=axis + 1), *parts), sizes)
    return whole if perm is None else add(Transpose(perm=perm), whole)


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
        if rows is None or (found and (rows.axis, rows.step) != (found[0].axis, found[0].step)):
            return None
        if not found:
            shape = shape_of(node.output)
            known = None if shape is None else shape[rows.axis]
            size = known if isinstance(known, int) else 0
        found.append(rows)
        total += rows.size
        if total >= size:
            break
    if total != size or len(found) < 2:
        return None
    found.sort(key=lambda rows: rows.first)
    if found[0].step > 1:
        alike = len({rows.size for rows in found}) == 1 and found[0].step == len(found)
        known = all(dims_of(rows.updates) is not None for rows in found)
        firsts = [rows.first for rows in found]
        return found if alike and known and firsts == list(range(len(found))) else None
    ends = accumulate((rows.size for rows in found), initial=0)
    return found if all(rows.first == end for rows, end in zip(found, ends, strict=False)) else None


def rows_of(node: Node) -> Rows | None:
    """Return the rows that a ScatterND writes, if they are known and at equal distances."""
    if not isinstance(node.op, ScatterND) or node.op.reduction != "none":
        return None
    _, indices, updates = node.operands
    places = indices.data
    if places is None or places.ndim != 2 or places.shape[1] != 1 or not places.size:
        return None
    size = size_of(node.output, 0)
    if isinstance(size, int):
        places = counted(places, size)
    if places is None:
        return None
    first, count = int(places[0, 0]), len(places)
    step = int(places[1, 0]) - first if count > 1 else 1
    if first < 0 or step < 1 or (places[:, 0] != first + step * np.arange(count)).any():
        return None
    return Rows(first, count, updates, step=step)


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
