"""Replaces nested assignments to parts of a new tensor by Concats of what is assigned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import sliced_places, written_places
from ...ops.gather import Gather, ScatterElements, ScatterND
from ...ops.movement import Concat, DepthToSpace, Expand, Pad, Transpose
from ...ops.shape import RESHAPES, Unsqueeze
from ..driver import Context
from ..editing import Builder, drop, is_static

#: Maximum number of assignments to one tensor.
_MANY = 512
#: Maximum number of elements between what is assigned.
_FILLED = 1 << 20
#: Places along each axis of a tensor.
Box = tuple[range, ...]


@record
class _Write:
    """What is assigned to a box of a tensor.

    Attributes:
        box: where.
        value: what.
        axes: the tensor's axis for each axis of the value; None for one of size 1.
    """

    box: Box
    value: Value
    axes: tuple[int | None, ...]


@record
class _Part:
    """Part of a new tensor, as it is after some assignments.

    Attributes:
        base: the tensor before any of them, whose elements are all equal.
        fill: its elements.
        writes: the assignments, in order.
        box: the part.
        axes: the tensor's axis for each axis of the part; None for one of size 1.
        is_nested: whether several axes were cut, one after the other or by one node.
    """

    base: Value
    fill: Array
    writes: tuple[_Write, ...]
    box: Box
    axes: tuple[int | None, ...]
    is_nested: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole tensor."""
        return self.box == _whole(self.base)

    def cut(self, axis: int, places: slice) -> _Part:
        """Return the part with some of its places along an axis."""
        own = self.axes[axis]
        if own is None:
            return self
        box = (*self.box[:own], _cut(self.box[own], places), *self.box[own + 1 :])
        return replace(self, box=box, axes=_without_ones(self.axes, box))


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace assignments to parts of a new tensor, in parts of it, by Concats of what is assigned.

    ``y[:, :-1, :c] = x[:, 1:, :c]`` (temporal shifts), ``y[:, :, 0::2, 1::2] = x`` (wavelets) and
    ``y[:, :c, i, :, i:] = x`` (volumes of costs) are traced as assignments to a slice of a slice,
    each of which is copied, changed and written back, or to all places of a box. Nothing is
    assigned twice. What is between is filled as before.
    """
    while (found := _first(graph)) is not None:
        value, joined, part = found
        graph.redirect(value, joined)
        node = value.producer
        assert node is not None
        name = node.name
        drop(graph, node)
        yield f"{len(part.writes)} parts that '{name}' has been assigned are joined"


def _first(graph: Graph) -> tuple[Value, Value, _Part] | None:
    """Return the first tensor to replace, its replacement, and what is known about it."""
    known: dict[Value, _Part] = {}
    for node in list(graph.nodes):
        part = _after(node, known)
        if part is not None:
            known[node.output] = part
    for value, part in known.items():
        read = graph.is_output(value) or any(n.output not in known for n in value.consumers)
        if not (read and part.is_nested and part.is_whole and len(part.writes) > 1):
            continue
        if any(_overlap(a.box, b.box) for a, b in combinations(part.writes, 2)):
            continue
        assert value.producer is not None
        add = Builder(graph, value.producer, value.producer.name, (value.producer,))
        joined = _emit(add, part, [len(places) for places in part.box], part.writes)
        if joined is not None:
            axes = _order(part.axes)
            order = [sorted(axes).index(axis) for axis in axes]
            return value, _arranged(add, joined, order, value.tensor.dims), part
    return None


def _whole(value: Value) -> Box:
    return tuple(map(range, value.tensor.dims))


def _cut(places: range, part: slice) -> range:
    """Return a part of the places; a single one is next to the one behind it."""
    cut = places[part]
    return range(cut.start, cut.start + 1) if len(cut) == 1 else cut


def _without_ones(axes: Sequence[int | None], box: Box) -> tuple[int | None, ...]:
    return tuple(None if axis is None or len(box[axis]) == 1 else axis for axis in axes)


# ── what is known about a tensor ─────────────────────────────────────────────────────────────────


def _after(node: Node, known: dict[Value, _Part]) -> _Part | None:
    """Return what a node's result is part of."""
    if not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
        return None
    if not is_static(node.output) or not is_static(node.inputs[0]):
        return None
    if isinstance(node.op, ScatterND | ScatterElements):
        return _written(node, known)
    part = known.get(node.inputs[0])
    if part is None:
        return None
    if isinstance(node.op, Transpose):
        return replace(part, axes=tuple(part.axes[i] for i in node.op.order(len(part.axes))))
    if isinstance(node.op, RESHAPES):
        kept = iter([axis for axis in part.axes if axis is not None])
        sizes = [size for size in node.inputs[0].tensor.dims if size != 1]
        if [size for size in node.output.tensor.dims if size != 1] != sizes:
            return None
        return replace(
            part, axes=tuple(None if n == 1 else next(kept) for n in node.output.tensor.dims)
        )
    if isinstance(node.op, Gather):
        return _chosen(part, node, node.op)
    cuts = sliced_places(node)
    for axis, places in (cuts or {}).items():
        if places.step < 1:
            return None
        part = part.cut(axis, slice(places.start, places.stop, places.step))
    return part if cuts and node.output.tensor.size else None


def _chosen(part: _Part, node: Node, op: Gather) -> _Part | None:
    """Return the part with one place of an axis, which has no axis for it then."""
    index, axis = node.operands[1].data, op.axis % len(part.axes)
    if index is None or index.ndim:
        return None
    place = int(index) % node.operands[0].tensor.dims[axis]
    chosen = part.cut(axis, slice(place, place + 1))
    return replace(chosen, axes=(*chosen.axes[:axis], *chosen.axes[axis + 1 :]))


def _written(node: Node, known: dict[Value, _Part]) -> _Part | None:
    """Return what a scatter's result is part of."""
    cuts, (data, _, updates) = written_places(node), node.operands
    part = known.get(data) or _new(data)
    if cuts is None or part is None or not is_static(updates) or len(part.writes) >= _MANY:
        return None
    target = part
    for axis, places in cuts.items():
        target = target.cut(axis, slice(places.start, places.stop, places.step))
    inner = known.get(updates)
    if inner is None:
        write = _Write(target.box, updates, target.axes)
        is_nested = part.is_nested or max(cuts) > 0
        return replace(part, writes=(*part.writes, write), is_nested=is_nested)
    if inner.base is part.base:
        before = inner.writes[: len(part.writes)]
        same = inner.box == target.box and _order(inner.axes) == _order(target.axes)
        if not same or before != part.writes:
            return None
        return replace(part, writes=inner.writes, is_nested=True)
    # A slice of equal elements is another new tensor.
    if not inner.is_whole or (inner.fill != part.fill).any():
        return None
    if any(_overlap(write.box, target.box) for write in part.writes):
        return None
    there = dict(zip(_order(inner.axes), _order(target.axes), strict=True))
    moved = tuple(_moved(write, target.box, there) for write in inner.writes)
    return replace(part, writes=(*part.writes, *moved), is_nested=True)


def _order(axes: Sequence[int | None]) -> list[int]:
    return [axis for axis in axes if axis is not None]


def _moved(write: _Write, box: Box, there: dict[int, int]) -> _Write:
    """Return an assignment to a tensor as one to another tensor, a box of which it is written to.

    Args:
        write: the assignment.
        box: where the tensor is written.
        there: the other tensor's axes by those of the tensor.
    """
    places = list(box)
    for axis, other in there.items():
        own = write.box[axis]
        places[other] = _cut(box[other], slice(own.start, own.stop, own.step))
    axes = tuple(None if axis is None else there[axis] for axis in write.axes)
    return _Write(tuple(places), write.value, axes)


def _new(value: Value) -> _Part | None:
    """Return a tensor of equal elements, as one that nothing has been assigned to."""
    node, data = value.producer, value.data
    if node is not None and isinstance(node.op, Expand):
        data = node.operands[0].data
    if data is None or not data.size or not value.tensor.size or data.dtype.kind not in "fiuV":
        return None
    fill = data.reshape(-1)[:1]
    if data.size > 1 and not (data == fill).all():
        return None
    box = _whole(value)
    return _Part(value, fill, (), box, _without_ones(range(len(box)), box))


def _overlap(a: Box, b: Box) -> bool:
    return all(
        max(p.start, q.start) < min(p.stop, q.stop)
        and (p.step == q.step == 1 or not set(p).isdisjoint(q))
        for p, q in zip(a, b, strict=True)
    )


# ── its parts, joined ────────────────────────────────────────────────────────────────────────────


def _emit(add: Builder, part: _Part, sizes: list[int], writes: Sequence[_Write]) -> Value | None:
    """Return a tensor of these sizes with what is written to it; None if no axis separates it."""
    if not writes:
        if prod(sizes) > _FILLED:
            return None
        return add.constant(np.full(sizes, part.fill[0], part.fill.dtype), "filled")
    (write, *others) = writes
    if not others and [len(places) for places in write.box] == sizes:
        return _placed(add, write)
    if (image := _interleaved(add, part, sizes, writes)) is not None:
        return image
    for axis, size in enumerate(sizes):
        for bounds in (_intervals(size, axis, writes), _turns(size, axis, writes)):
            if len(bounds) > 1:
                return _joined(add, part, sizes, writes, (axis, bounds))
    return None


def _interleaved(
    add: Builder, part: _Part, sizes: Sequence[int], writes: Sequence[_Write]
) -> Value | None:
    """Return an image whose blocks of pixels are channels of one that joins what is written.

    None unless that is every k-th pixel of every k-th row, at each place of a block once.
    """
    axes = _order(part.axes)
    order = [*(axis for axis in range(len(sizes)) if axis not in axes), *axes]
    if len(order) != 4:
        return None
    *whole, high, wide = order
    block = writes[0].box[high].step
    turns = {i: [range(n, sizes[i], block) for n in range(block)] for i in (high, wide)}
    for write in writes:
        if any(len(write.box[i]) != sizes[i] for i in whole):
            return None
        if any(sizes[i] % block or write.box[i] not in turns[i] for i in turns):
            return None
    if len(writes) != block**2 or block < 2:
        return None
    in_order = sorted(writes, key=lambda write: (write.box[high].start, write.box[wide].start))
    images = [add(Transpose(perm=tuple(order)), _placed(add, write)) for write in in_order]
    image = add(DepthToSpace(blocksize=block), add(Concat(axis=1), *images))
    return add(Transpose(perm=tuple(order.index(axis) for axis in range(4))), image)


def _intervals(size: int, axis: int, writes: Sequence[_Write]) -> list[range]:
    """Return the intervals of an axis in each of which all places are written alike."""
    places = [write.box[axis] for write in writes]
    ends = sorted({0, size, *(p.start for p in places), *(p.stop for p in places)})
    whole = all(p.step == 1 or len(p) == 1 for p in places)
    cut = any(p.start < end < p.stop for p in places for end in ends)
    return [] if cut or not whole else [range(a, b) for a, b in pairwise(ends)]


def _turns(size: int, axis: int, writes: Sequence[_Write]) -> list[range]:
    """Return every k-th place of an axis, of the first, the second, …, if that is written alike."""
    steps = {write.box[axis].step for write in writes}
    step = min(steps)
    turns = [range(first, size, step) for first in range(step)]
    alike = len(steps) == 1 and size % step == 0
    return turns if alike and all(write.box[axis] in turns for write in writes) else []


def _joined(
    add: Builder,
    part: _Part,
    sizes: list[int],
    writes: Sequence[_Write],
    cut: tuple[int, list[range]],
) -> Value | None:
    """Return the Concat of what is written to some places of an axis, to some others, …."""
    axis, bounds = cut
    parts, filled = list[Value](), list[int]()
    for bound in bounds:
        inside = [w for w in writes if w.box[axis].start in bound]
        moved = [_rebased(write, axis, bound) for write in inside]
        made = _emit(add, part, [*sizes[:axis], len(bound), *sizes[axis + 1 :]], moved)
        if made is None:
            return None
        parts.append(made)
        filled += [] if inside else [len(parts) - 1]
    if bounds[0].step > 1:
        stacked = [add(Unsqueeze(), each, add.integers((axis + 1,))) for each in parts]
        return add.shaped(add(Concat(axis=axis + 1), *stacked), sizes)
    if len(parts) - len(filled) == 1:
        (at,) = set(range(len(parts))) - set(filled)
        around = [0] * (2 * len(sizes))
        around[axis], around[axis + len(sizes)] = bounds[at].start, sizes[axis] - bounds[at].stop
        fill = add.constant(part.fill.reshape(()), "fill")
        return add(Pad(), parts[at], add.integers(around, "pads"), fill)
    return add(Concat(axis=axis), *parts)


def _rebased(write: _Write, axis: int, bound: range) -> _Write:
    """Return an assignment to a part of an axis, whose places are counted from its first."""
    first = (write.box[axis].start - bound.start) // bound.step
    places = range(first, first + len(write.box[axis]))
    return replace(write, box=(*write.box[:axis], places, *write.box[axis + 1 :]))


def _placed(add: Builder, write: _Write) -> Value:
    """Return what is assigned, with the axes of the tensor."""
    axes = _order(write.axes)
    order = [axes.index(axis) for axis in sorted(axes)]
    return _arranged(add, write.value, order, [len(places) for places in write.box])


def _arranged(add: Builder, value: Value, order: Sequence[int], dims: Sequence[int]) -> Value:
    """Return a value in other sizes, with its axes that are longer than 1 in another order."""
    if list(order) != sorted(order):
        value = add.view(value, tuple(size for size in value.tensor.dims if size != 1))
        value = add(Transpose(perm=tuple(order)), value)
    return add.view(value, tuple(dims))
