"""Replaces sequences with individually known elements by the tensors in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer
from ...ir.types import Array, SequenceType, TensorType
from ...ops.control import SequenceMap
from ...ops.movement import Concat, that_add_nothing
from ...ops.sequence import (
    ConcatFromSequence,
    SequenceAt,
    SequenceConstruct,
    SequenceEmpty,
    SequenceErase,
    SequenceInsert,
    SequenceLength,
    SplitToSequence,
)
from ...ops.shape import Identity, Squeeze, Unsqueeze
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, dtype_of, rank_of, shape_of
from . import inline_bodies

#: Maximum number of parts of a split tensor, and of nodes that a SequenceMap becomes.
PARTS = 1 << 10
_READERS = (
    *(SequenceAt, SequenceLength, ConcatFromSequence, SequenceInsert, SequenceErase),
    SequenceMap,
)
#: The known elements of a sequence, in order.
Elements = tuple[Value, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Make readers of an element, the length or the concatenation of a sequence read tensors."""
    known: dict[Value, Elements] = {}
    has_bodies = False
    for node in list(graph.nodes):
        if isinstance(node.op, SplitToSequence):
            if not _is_taken_apart(graph, node.output):
                continue
            parts = _split(graph, node, node.op)
            if parts is not None:
                known[node.output] = parts
                yield f"Split computes the {len(parts)} elements of '{node.output.name}'"
            continue
        if isinstance(node.op, SequenceMap):
            mapped = _map(graph, node, node.op, known)
            if mapped is not None:
                known |= mapped
                has_bodies = True
                yield f"SequenceMap '{node.name}' became its body for each element"
            continue
        elements = _elements(node, known)
        if elements is not None:
            known[node.output] = elements
            continue
        found = _read(graph, node, known)
        if found is not None:
            graph.replace(node, (found,))
            yield f"{node.kind} '{node.name}' reads a sequence whose elements are known"
    if has_bodies:
        infer(graph)  # conditions inside of a body
        yield from inline_bodies.run(graph, context)


def _map(
    graph: Graph, node: Node, op: SequenceMap, known: dict[Value, Elements]
) -> dict[Value, Elements] | None:
    """Return the results of a body for known elements of every sequence, or None."""
    if not all(not value.consumers or _is_taken_apart(graph, value) for value in node.outputs):
        return None
    given = [value for value in node.inputs if value is not None]
    lists = [known.get(value) for value in given if isinstance(value.type, SequenceType)]
    lengths = {None if each is None else len(each) for each in lists}
    length = lengths.pop() if len(lengths) == 1 else None
    if length is None or length * len(op.body.nodes) > PARTS:
        return None
    made = [
        graph.splice(node, op.body, [known[v][i] if v in known else v for v in given])
        for i in range(length)
    ]
    return {value: tuple(each[k] for each in made) for k, value in enumerate(node.outputs)}


def _elements(node: Node, known: dict[Value, Elements]) -> Elements | None:
    """Return the elements of the sequence that a node creates, if known."""
    op, given = node.op, [value for value in node.inputs if value is not None]
    if isinstance(op, SequenceEmpty):
        return ()
    if isinstance(op, SequenceConstruct):
        return tuple(given)
    source = known.get(given[0]) if given else None
    if source is None:
        return None
    if isinstance(op, Identity):
        return source
    if isinstance(op, SequenceInsert):
        at = _place(given[2], len(source), len(source)) if len(given) > 2 else len(source)
        return None if at is None else (*source[:at], given[1], *source[at:])
    if isinstance(op, SequenceErase):
        last = len(source) - 1
        at = _place(given[1], last, len(source)) if len(given) > 1 else last
        return None if at is None or at < 0 else (*source[:at], *source[at + 1 :])
    return None


def _place(position: Value, maximum: int, length: int) -> int | None:
    """Return a position from the front, -length to `maximum`; None if unknown or out of range."""
    if position.data is None:
        return None
    at = int(position.data.reshape(-1)[0])
    return at % length if -length <= at < 0 else at if 0 <= at <= maximum else None


def _read(graph: Graph, node: Node, known: dict[Value, Elements]) -> Value | None:
    """Return what a node reads of a sequence, or None."""
    source = node.inputs[0] if node.inputs else None
    elements = known.get(source) if source is not None else None
    if elements is None:
        return None
    op, build = node.op, Builder(graph, node, origin=(node,))
    if isinstance(op, SequenceAt):
        position = node.inputs[1]
        at = None if position is None else _place(position, len(elements) - 1, len(elements))
        return None if at is None else elements[at]
    if isinstance(op, SequenceLength):
        return build.constant(np.array(len(elements), np.int64))
    if isinstance(op, ConcatFromSequence) and elements:
        return _joined(build, op, elements)
    return None


def _joined(build: Builder, op: ConcatFromSequence, elements: Elements) -> Value | None:
    if not op.new_axis:
        nothing = that_add_nothing([shape_of(value) for value in elements], op.axis)
        elements = tuple(
            v for v, is_nothing in zip(elements, nothing, strict=True) if not is_nothing
        )
    ranks = {rank_of(value) for value in elements}
    rank = ranks.pop()
    if rank is None or ranks or len({dtype_of(value) for value in elements}) != 1:
        return None
    axis = normalize_axis(op.axis, rank + bool(op.new_axis))
    if op.new_axis:
        axes = build.integers((axis,))
        elements = tuple(build(Unsqueeze(), value, axes) for value in elements)
    return build(Concat(axis=axis), *elements)


def _is_taken_apart(graph: Graph, sequence: Value) -> bool:
    """Whether only nodes of this pass read a sequence."""
    is_read = all(isinstance(node.op, _READERS) for node in sequence.consumers)
    return bool(sequence.consumers) and is_read and not graph.is_output(sequence)


def _split(graph: Graph, node: Node, op: SplitToSequence) -> Elements | None:
    """Return the parts of a tensor, made by a Split, if their sizes are known."""
    x, split = (*node.inputs, None)[:2]
    if x is None or not isinstance(x.type, TensorType) or not x.type.shape:
        return None
    axis = normalize_axis(op.axis, len(x.type.shape))
    length = x.type.shape[axis]
    if not isinstance(length, int) or (split is not None and split.data is None):
        return None
    given = np.asarray(1 if split is None else split.data)
    sizes = _sizes(length, given)
    if not 0 < len(sizes) <= PARTS or sum(sizes) != length or min(sizes) < 0:
        return None
    build = Builder(graph, node, origin=(node,))
    parts = build.split(x, axis, sizes)
    if given.ndim == 0 and given == 1 and not op.keepdims:
        axes = build.integers((axis,))
        return tuple(build(Squeeze(), part, axes) for part in parts)
    return parts


def _sizes(length: int, split: Array) -> list[int]:
    if split.ndim:
        return split.tolist()
    size = max(1, int(split))
    return [min(size, length - first) for first in range(0, length, size)]
