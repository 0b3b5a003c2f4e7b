"""Replaces assignments to parts by a Pad: to equal elements, and of what is added to the part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import Part, Update, part_of, update_of
from ...ops.elementwise import Add, Where
from ...ops.gather import Gather, ScatterElements, ScatterND
from ...ops.movement import Expand, Pad, Slice, Transpose
from ...ops.shape import ConstantOfShape, Unsqueeze
from ..driver import Context
from ..editing import Builder, drop, dtype_of, rank_of, shape_of, size_of
from ..pattern import pairs
from ..pointwise import is_elementwise

Order = tuple[int, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``x[:, a:b] += r`` by ``x + pad(r)``, and what writes a part of x back by x.

    torch.onnx writes such assignments as ScatterNDs of rows between Transposes that bring the axis
    to the front, one in another for each axis (relative positions behind a class token), or as a
    ScatterElements of one place. If all elements of x are equal, what is assigned is padded. What
    reads a part that was assigned, as after ``y = x[:, a:b]; y *= r``, reads what was assigned.
    """
    yield from _assigned(graph)
    yield from _read_back(graph)
    for node in list(graph.nodes):
        hidden = _hidden(graph, node)
        if hidden is not None:
            name = node.name
            graph.replace(node, (hidden,))
            yield f"Pad '{name}' puts a part back where it was, and so replaces the rest by zeros"


def _read_back(graph: Graph) -> Iterator[str]:
    """Replace a Slice of what was assigned to the same part by what was assigned."""
    for node in [node for node in graph.nodes if isinstance(node.op, Slice)]:
        part = _cut(node.output)
        source = None if part is None else _unviewed(part.source)
        transpose = None if source is None else source.producer
        if part is None or source is None or transpose is None:
            continue
        order, scatter = tuple(range(len(shape_of(source) or ()))), transpose
        if isinstance(transpose.op, Transpose):
            order, scatter = transpose.op.order(len(order)), transpose.operands[0].producer
        rows = None if scatter is None else update_of(scatter)
        if rows is None or shape_of(node.output) is None:
            continue
        if (rows.axis, rows.places) != (order[part.axis], part.places):
            continue
        back = tuple(np.argsort(order).tolist())
        result = _untransposed(rows.value, back)
        if result is None:
            add = Builder(graph, node, node.name, (node,))
            result = add(Transpose(perm=order), rows.value)
        name = node.name
        graph.replace(node, [result])
        drop(graph, transpose)
        yield f"Slice '{name}' reads what was assigned to this part"


def _unviewed(value: Value) -> Value:
    """Return the first value of which views in a row make another one of the same shape."""
    source, shape, first = value, shape_of(value), value
    while source.producer is not None and source.producer.op.view:
        source = source.producer.operands[0]
        if shape is not None and None not in shape and shape_of(source) == shape:
            first = source
    return first


def _assigned(graph: Graph) -> Iterator[str]:
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, ScatterND | ScatterElements):
            continue
        rows, shape = update_of(node), shape_of(node.output)
        if (
            rows is None
            or rows.places.step > 1
            or not shape
            or not isinstance(shape[rows.axis], int)
        ):
            continue
        if shape_of(rows.value) is None:
            continue
        text = _pad_all(graph, node, rows) or _add_to_part(graph, node, rows)
        if text:
            yield text


def _pad_all(graph: Graph, node: Node, rows: Update) -> str:
    """Replace what is assigned to a tensor of equal elements by a Pad; return what was done."""
    filler = _filler(node.operands[0])
    if filler is None:
        return ""
    rank = len(shape_of(node.output) or ())
    order, updates = tuple(range(rank)), rows.value
    while (transpose := updates.producer) is not None and isinstance(transpose.op, Transpose):
        order, updates = (
            tuple(transpose.op.order(rank)[axis] for axis in order),
            transpose.operands[0],
        )
    add = Builder(graph, node, node.name, (node,))
    part = Part(node.output, rows.axis, rows.places)
    result = _padded(add, node, updates, part, order[rows.axis], filler)
    if order != tuple(range(rank)):
        result = add(Transpose(perm=order), result)
    kind, name, read = node.kind, node.name, [rows.value.producer, node.operands[0].producer]
    graph.replace(node, [result])
    for each in read:
        drop(graph, each)
    return f"{kind} '{name}' writes {len(part.places)} places of axis {part.axis} of equal elements"


def _add_to_part(graph: Graph, node: Node, rows: Update) -> str:
    """Replace an assignment that adds to a part by the sum; return what was done."""
    rank, data = len(shape_of(node.output) or ()), node.operands[0]
    transpose, same = data.producer, tuple(range(rank))
    sources = [(data, same)]
    if transpose is not None and isinstance(transpose.op, Transpose):
        sources.insert(0, (transpose.operands[0], transpose.op.order(rank)))
    add = Builder(graph, node, node.name, (node,))
    for source, order in sources:
        part = Part(source, order[rows.axis], rows.places)
        result = _sum(add, node, _untransposed(rows.value, order), part)
        if result is None:
            continue
        if order != same:
            result = add(Transpose(perm=order), result)
        kind, name, read = node.kind, node.name, [rows.value.producer, transpose]
        graph.replace(node, [result])
        for each in read:  # a product that they read, too, would not become part of an attention
            drop(graph, each)
        count = len(part.places)
        return f"{kind} '{name}' adds to {count} places of axis {part.axis}, zeros to others"
    return ""


def _sum(add: Builder, node: Node, updates: Value | None, part: Part) -> Value | None:
    """Return a tensor in which a part is replaced, if it is by itself or by a sum with itself."""
    if updates is None or dtype_of(part.source) not in FLOATS:
        return None
    if _cut(updates) == part:
        return part.source
    addend = _addend(updates, part) or _addend_of_one(add, updates, part)
    if addend is None:
        return None
    sizes, size = list(shape_of(addend) or ()), len(part.places)
    if sizes[part.axis] != size:
        repeats = tuple(size if axis == part.axis else 1 for axis in range(len(sizes)))
        addend = add(Expand(), addend, add.integers(repeats, f"{node.name}.sizes"))
    return add(Add(), part.source, _padded(add, node, addend, part, part.axis))


def _padded(
    add: Builder, node: Node, x: Value, part: Part, axis: int, filler: Array | None = None
) -> Value:
    """Return what a scatter writes in part of an axis, with equal elements around."""
    size = size_of(part.source, part.axis)
    rank = len(shape_of(x) or ())
    before, after = [0] * rank, [0] * rank
    assert isinstance(size, int)
    before[axis], after[axis] = part.places.start, size - part.places.stop
    pads = add.integers((*before, *after), f"{node.name}.pads")
    if filler is None or not any(filler.tobytes()):
        return add(Pad(), x, pads)
    return add(Pad(), x, pads, add.constant(filler, f"{node.name}.filler"))


def _filler(value: Value) -> Array | None:
    """Return the scalar that all elements of a tensor are, if that is known."""
    data, node = value.data, value.producer
    if node is not None and isinstance(node.op, ConstantOfShape):
        return node.op.fill
    if node is not None and isinstance(node.op, Expand | Slice | Transpose):
        return _filler(node.operands[0])
    if data is None or not data.size or data.dtype.kind not in "biuf":
        return None
    elements = data.reshape(-1, 1).view(np.uint8)
    return data.reshape(-1)[:1].reshape(()) if (elements == elements[:1]).all() else None


def _hidden(graph: Graph, node: Node) -> Value | None:
    """Return zeros around part of a tensor, in its place, as a Where of all of it.

    Elementwise nodes that read it choose for themselves, without a copy.
    """
    if not isinstance(node.op, Pad) or node.op.mode != "constant" or len(node.inputs) > 2:
        return None
    part, pads = _cut(node.operands[0]), node.operands[1].data
    shape, dtype = shape_of(node.output), dtype_of(node.output)
    if part is None or pads is None or shape is None or dtype is None:
        return None
    rank, size = len(shape), shape[part.axis]
    before, after = pads.reshape(2, -1).tolist()
    around = [before[part.axis], after[part.axis]]
    elsewhere = sum(map(abs, (*before, *after))) - sum(map(abs, around))
    readers = node.output.consumers
    if elsewhere or not isinstance(size, int) or not readers or shape_of(part.source) != shape:
        return None
    if around != [part.places.start, size - part.places.stop]:
        return None
    if not all(is_elementwise(each.op) for each in readers):
        return None
    shown = np.isin(np.arange(size), part.places)
    add = Builder(graph, node, node.name, (node,))
    condition = add.constant(shown.reshape(-1, *[1] * (rank - 1 - part.axis)), f"{node.name}.part")
    zero = add.constant(np.zeros((), dtype), f"{node.name}.zero")
    return add(Where(), condition, part.source, zero)


def _untransposed(value: Value, order: Order) -> Value | None:
    """Return the first value of which Transposes in a row make another one in this order."""
    found, source, best = tuple(range(len(order))), value, None
    while True:
        best = source if found == order else best
        node = source.producer
        if node is None or not isinstance(node.op, Transpose):
            return best
        inner = node.op.order(len(order))
        found, source = tuple(inner[axis] for axis in found), node.operands[0]


def _cut(value: Value) -> Part | None:
    """Return of what a Slice along one axis is a part."""
    is_slice = value.producer is not None and isinstance(value.producer.op, Slice)
    return part_of(value) if is_slice else None


def _addend(value: Value, part: Part) -> Value | None:
    """Return what is added to a part: as many places of the axis, or the same to all of them."""
    node = value.producer
    if node is None or not isinstance(node.op, Add):
        return None
    shape = shape_of(value) or ()
    for one, other in pairs(node):
        own = shape_of(other) or ()
        if _cut(one) == part and len(own) == len(shape) and own[part.axis] in (1, len(part.places)):
            return other
    return None


def _addend_of_one(add: Builder, value: Value, part: Part) -> Value | None:
    """Return what is added to one place of an axis that is cut without this axis."""
    view = value.producer
    if view is None or not isinstance(view.op, Unsqueeze) or len(part.places) != 1:
        return None
    axes, total = view.operands[1].data, view.operands[0].producer
    if axes is None or total is None or not isinstance(total.op, Add):
        return None
    rank = len(shape_of(value) or ())
    if [int(axis) % rank for axis in axes.reshape(-1)] != [part.axis]:
        return None
    for one, other in pairs(total):
        if _is_place(one, part) and len(shape_of(other) or ()) == rank - 1:
            return add(Unsqueeze(), other, add.integers((part.axis,), f"{view.name}.axis"))
    return None


def _is_place(value: Value, part: Part) -> bool:
    """Whether a Gather cuts one place out of an axis, without the axis."""
    node = value.producer
    if node is None or not isinstance(node.op, Gather) or rank_of(node.operands[1]) != 0:
        return False
    return part_of(value) == part
