"""Replaces scatters that write all rows of a tensor, some each, by a Concat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice

from ...ir.graph import Graph, Node, Value
from ...ops.cuts import Update, update_of
from ...ops.gather import ScatterElements, ScatterND
from ...ops.movement import Concat, Transpose
from ...ops.shape import Unsqueeze
from ..driver import Context
from ..editing import Builder, dims_of, drop, rank_of, shape_of


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
    written = [update_of(node) for node in chain]
    for start, node in enumerate(chain):
        rows = _all_rows(node, islice(written, start, None))
        if rows is None:
            continue
        replaced = chain[start : start + len(rows)]
        add = Builder(graph, node, node.name, tuple(reversed(replaced)))
        joined = _joined(add, rows)
        kind, name, before = node.kind, node.name, node.operands[0].producer
        graph.replace(node, [joined])
        drop(graph, before)
        for each in rows:
            drop(graph, each.value.producer)
        return f"{kind} '{name}' writes the last of {len(rows)} parts: they are joined"
    return ""


def _joined(add: Builder, rows: Sequence[Update]) -> Value:
    """Return what is written, one after the other, or every k-th place in turn.

    If all has been brought to the front, it is joined where it was before.
    """
    values, axis, perm = [each.value for each in rows], rows[0].axis, None
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
    if rows[0].places.step == 1:
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
        before = _before(graph, found[-1].operands[0])
        if before is None or type(before.op) is not type(node.op):
            return found
        found.append(before)


def _before(graph: Graph, data: Value) -> Node | None:
    """Return the node that makes what a scatter alone reads, perhaps transposed there and back."""
    transpose = data.producer
    if _sole_reader(graph, data) is None:
        return None
    if transpose is None or not isinstance(transpose.op, Transpose):
        return transpose
    moved = transpose.operands[0]
    back = moved.producer
    if back is None or not isinstance(back.op, Transpose) or _sole_reader(graph, moved) is None:
        return None
    source, order = back.operands[0], transpose.op.order(len(shape_of(data) or ()))
    perm = back.op.order(len(order))
    is_same = [perm[axis] for axis in order] == list(range(len(order)))
    return source.producer if is_same and _sole_reader(graph, source) else None


def _sole_reader(graph: Graph, value: Value) -> Node | None:
    """Remove nodes that read a value in vain, as for sizes that are known; return the only other.

    None if there are others, or one reads it twice, or it is an output.
    """
    for reader in list(value.consumers):
        drop(graph, reader)
    return graph.sole_consumer(value)


def _all_rows(node: Node, written: Iterable[Update | None]) -> list[Update] | None:
    """Return what a scatter and those before it write, in order, if it is every row once.

    Args:
        node: the last one.
        written: what each writes, the last one first.
    """
    found, total, size = list[Update](), 0, 0
    for rows in written:
        if rows is None or (found and _along(rows) != _along(found[0])):
            return None
        if not found:
            shape = shape_of(node.output)
            known = None if shape is None else shape[rows.axis]
            size = known if isinstance(known, int) else 0
        found.append(rows)
        total += len(rows.places)
        if total >= size:
            break
    if total != size or len(found) < 2:
        return None
    found.sort(key=lambda rows: rows.places.start)
    sizes, firsts = [len(rows.places) for rows in found], [rows.places.start for rows in found]
    if found[0].places.step > 1:
        alike = len(set(sizes)) == 1 and found[0].places.step == len(found)
        known = all(dims_of(rows.value) is not None for rows in found)
        return found if alike and known and firsts == list(range(len(found))) else None
    return found if firsts == [*accumulate(sizes, initial=0)][:-1] else None


def _along(rows: Update) -> tuple[int, int]:
    """Return the axis, and the distance between places."""
    return rows.axis, rows.places.step
