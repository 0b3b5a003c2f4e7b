"""Computes all elements of a Scan at once, where none of them depends on those before it.

skl2onnx writes pairwise distances as a Scan over the rows of one matrix, whose state is the other
matrix and never changes. With a leading axis of elements, the operators of such a body compute the
stacked results themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ops.control import Scan
from ...ops.cuts import reduced_axes
from ...ops.movement import Transpose
from ...ops.reduce import Reduce
from ...ops.shape import Identity
from ..driver import Context
from ..editing import Builder, dims_of, unviewed
from ..pointwise import aside, broadcasts, by_place

#: Maximum number of elements of a batched value; a Scan needs memory for one element only.
ROOM = 1 << 24


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace Scans without a changing state by the nodes of their bodies, batched."""
    for node in list(graph.nodes):
        if isinstance(node.op, Scan) and (batch := _Batch.of(node, node.op)) is not None:
            count = batch.count
            graph.replace(node, batch.written(graph))
            yield f"Scan '{node.name}' computes its {count} elements at once"


@record
class _Made:
    """A value of a body, to be computed for all elements: its shape in the body."""

    shape: tuple[int, ...]
    is_batched: bool


class _Batch:
    """A Scan whose body can be batched; shapes are those of the body's values."""

    def __init__(self, node: Node, op: Scan, known: dict[Value, _Made], count: int) -> None:
        self._node, self._op, self._known, self.count = node, op, known, count

    @classmethod
    def of(cls, node: Node, op: Scan) -> _Batch | None:
        """Return the batch of a Scan, or None."""
        body, states = op.body, len(node.inputs) - op.num_scan_inputs
        flags = *(op.scan_input_directions or ()), *(op.scan_output_directions or ())
        results = list(body.outputs.values())
        kept = zip(body.inputs[:states], results, strict=False)
        if any(flags) or not all(unviewed(v, (Identity,)) is before for before, v in kept):
            return None
        shapes = [dims_of(value) for value in node.inputs]
        axes = op.scan_input_axes or (0,) * op.num_scan_inputs
        known: dict[Value, _Made] = {}
        count: int | None = None
        for i, (inner, shape) in enumerate(zip(body.inputs, shapes, strict=True)):
            if shape is None:
                return None
            if i >= states:
                axis = axes[i - states] % len(shape)
                count, shape = shape[axis], shape[:axis] + shape[axis + 1 :]
            known[inner] = _Made(shape, i >= states)
        for inner, outer in node.captured.items():
            shape = dims_of(outer)
            if shape is None:
                return None
            known[inner] = _Made(shape, is_batched=False)
        batch = None if count is None else cls(node, op, known, count)
        fits = batch is not None and all(batch._learn(each) for each in body.nodes)
        stacked = all(known.get(r, _NOTHING).is_batched for r in results[states:])
        return batch if fits and stacked else None

    def _made(self, value: Value | None) -> _Made | None:
        if value is not None and value.data is not None:
            return _Made(value.data.shape, is_batched=False)
        return None if value is None else self._known.get(value)

    def _learn(self, node: Node) -> bool:
        """Note the shape of a node's result; False if the node cannot be batched."""
        read = by_place(node) if broadcasts(node) else node.distinct_reads
        made = [self._made(value) for value in read]
        given = [each for each in made if each is not None]
        if len(given) < len(made) or not given or len(node.outputs) != 1:
            return False
        if any((each := self._made(value)) is None or each.is_batched for value in aside(node)):
            return False
        is_batched = any(each.is_batched for each in given)
        if isinstance(node.op, Identity) or broadcasts(node):
            shape = np.broadcast_shapes(*(each.shape for each in given))
        elif isinstance(node.op, Reduce):
            shape, axes = given[0].shape, reduced_axes(node, len(given[0].shape))
            if axes is None or not shape:
                return False
            left = ((1 if i in axes else size) for i, size in enumerate(shape))
            shape = tuple(s for i, s in enumerate(left) if node.op.keepdims or i not in axes)
        else:
            return False
        self._known[node.output] = _Made(shape, is_batched)
        return prod(shape) * (self.count if is_batched else 1) <= ROOM

    def written(self, graph: Graph) -> tuple[Value, ...]:
        """Insert the batched nodes before the Scan and return its results."""
        node, op, body = self._node, self._op, self._op.body
        write = Builder(graph, node, node.name, (node,))
        states = len(node.inputs) - op.num_scan_inputs
        image = node.captured
        axes = op.scan_input_axes or (0,) * op.num_scan_inputs
        for i, (inner, outer) in enumerate(zip(body.inputs, node.inputs, strict=True)):
            assert outer is not None
            axis = axes[i - states] if i >= states else 0
            rank = len(self._known[inner].shape) + (i >= states)
            order = (axis % max(rank, 1), *(k for k in range(rank) if k != axis % max(rank, 1)))
            image[inner] = outer if axis == 0 else write(Transpose(perm=order), outer)
        for each in body.nodes:
            self._write(write, each, image)
        results = list(body.outputs.values())
        kept = [value for value in node.inputs[:states] if value is not None]
        ends = op.scan_output_axes or (0,) * (len(results) - states)
        stacked = [
            _moved(write, self._image(write, result, image), len(self._known[result].shape), axis)
            for result, axis in zip(results[states:], ends, strict=True)
        ]
        return (*kept, *stacked)[: len(node.outputs)]

    def _image(self, write: Builder, value: Value, image: dict[Value, Value]) -> Value:
        if value not in image and value.data is not None:
            image[value] = write.constant(value.data, value.name)
        return image[value]

    def _write(self, write: Builder, node: Node, image: dict[Value, Value]) -> None:
        made = self._known[node.output]
        reads = {value: self._image(write, value, image) for value in node.distinct_reads}
        if isinstance(node.op, Reduce) and made.is_batched:
            rank = len(self._known[node.operands[0]].shape)
            axes = reduced_axes(node, rank) or ()
            op = replace(node.op, noop_with_empty_axes=1)
            inner = write.integers(axis + 1 for axis in axes)
            image[node.output] = write(op, reads[node.operands[0]], inner)
            return
        reads |= {v: self._aligned(write, v, reads[v], len(made.shape)) for v in by_place(node)}
        image[node.output] = write(node.op, *(value and reads[value] for value in node.inputs))

    def _aligned(self, write: Builder, value: Value, outer: Value, rank: int) -> Value:
        """Return a batched value with axes of size 1 after the first, up to `rank` behind it."""
        made = self._made(value)
        if made is None or not made.is_batched or len(made.shape) == rank:
            return outer
        shape = (self.count, *(1,) * (rank - len(made.shape)), *made.shape)
        return write.shaped(outer, shape)


_NOTHING = _Made((), is_batched=False)


def _moved(write: Builder, value: Value, rank: int, axis: int) -> Value:
    """Return a stacked result with its first axis where the Scan puts it."""
    order = list(range(1, rank + 1))
    order.insert(axis % (rank + 1), 0)
    return value if order[0] == 0 else write(Transpose(perm=tuple(order)), value)
