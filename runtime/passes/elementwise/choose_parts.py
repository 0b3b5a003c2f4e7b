"""Computes stacks of few numbers, such as corners of boxes, as one chain that chooses by place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Equal, Where
from ...ops.gather import Gather
from ...ops.movement import Concat, Expand, Slice, Split, Transpose
from ...ops.shape import RESHAPES
from ...ops.signal import DFT
from ..driver import Context
from ..editing import Builder, dims_of, drop, unviewed
from ..pointwise import by_place, inputs_with, is_elementwise

#: What parts may be computed of: other nodes compute what follows them as they store results.
_MOVES = (Expand, Gather, Slice, Split, Transpose)
#: Maximum number of parts and of nodes that compute them, and of elements of the stack, each of
#: which costs the arithmetic of all parts.
_PARTS, _NODES, _ELEMENTS = 6, 14, 1 << 22


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a Concat of single places, which elementwise nodes compute, by Wheres of them.

    Exporters cut boxes into columns and stack others that are computed of these, each without the
    axis. Then all nodes, with the axis, are one chain. Parts along other axes than the last are
    adjacent in memory, so that kernels write them where they belong.
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, Concat) and not _is_spectrum(graph, node):
            text = _choose(graph, node)
            if text:
                yield text


def _is_spectrum(graph: Graph, stack: Node) -> bool:
    """Whether a transform reads a stack: its kernels compute real and imaginary parts, too."""
    reader = graph.sole_consumer(stack.output)
    return reader is not None and isinstance(reader.op, DFT)


def _choose(graph: Graph, stack: Node) -> str:
    """Replace a Concat; return a sentence about it, or nothing."""
    assert isinstance(stack.op, Concat)
    dims, parts = dims_of(stack.output), stack.operands
    if dims is None or not 1 < len(parts) <= _PARTS or not 0 < prod(dims) <= _ELEMENTS:
        return ""
    axis = stack.op.axis % len(dims)
    of_one = {(*dims[:axis], 1, *dims[axis + 1 :])}
    if prod(dims[axis + 1 :]) != 1 or {dims_of(part) for part in parts} != of_one:
        return ""
    lifting = _Lifting(graph, stack, axis)
    found = [lifting.source(part) for part in parts]
    nodes = lifting.region(found)
    if len(nodes) < 2 or not lifting.fits(nodes):
        return ""
    add = Builder(graph, stack, stack.name, (stack,))
    shape = [-1 if i == axis else 1 for i in range(len(dims))]
    places = np.arange(len(parts), dtype=np.int32).reshape(shape)
    chosen, *others = reversed([lifting.lifted(value, nodes) for value in found])
    if len(parts) == 2:
        chosen = add(Where(), add.constant(places == 0, "first"), *others, chosen)
    else:
        place = add.constant(places, "places")  # one operand of the chain
        for number, value in zip(reversed(range(len(others))), others, strict=True):
            here = add(Equal(), place, add.constant(np.array(number, np.int32), "place"))
            chosen = add(Where(), here, value, chosen)
    name = stack.name
    graph.replace(stack, [chosen])
    for part in parts:
        drop(graph, part.producer)
    return f"Concat '{name}' chooses among {len(parts)} parts that {len(nodes)} nodes compute"


class _Lifting:
    """Gives the axis of a stack to what its parts are computed of.

    Args:
        graph: the graph.
        stack: the Concat.
        axis: its axis.
    """

    def __init__(self, graph: Graph, stack: Node, axis: int) -> None:
        self.graph, self.stack, self.axis = graph, stack, axis
        dims = dims_of(stack.output) or ()
        self.dims = (*dims[:axis], 1, *dims[axis + 1 :])
        self._ends: set[Node] = {stack}
        self._known: dict[Value, Value] = {}

    def source(self, part: Value) -> Value:
        """Return what a part is a view of, if only the stack reads it."""
        view = part.producer
        if view is None or not isinstance(view.op, RESHAPES) or set(part.consumers) != {self.stack}:
            return part
        if self.graph.is_output(part):
            return part
        self._ends.add(view)
        return view.operands[0]

    def region(self, found: Sequence[Value]) -> Set[Node]:
        """Return the elementwise nodes that nothing but the stack depends on."""
        nodes, todo = set[Node](), list(found)
        while todo:
            node = todo.pop().producer
            if node is None or node in nodes or len(nodes) > _NODES:
                continue
            readers = set(node.output.consumers)
            read = by_place(node)
            if not read or self.graph.is_output(node.output) or not readers <= nodes | self._ends:
                continue
            nodes.add(node)
            todo += read
        return nodes

    def fits(self, nodes: Set[Node]) -> bool:
        """Whether all that nodes compute has one shape, and what they read is moved.

        That has the same shape, or is repeated along axes that all have already.
        """
        reads = {v for node in nodes for v in by_place(node) if v.producer not in nodes}
        if len(nodes) > _NODES or not all(map(_is_moved, reads)):
            return False
        shape, *others = {dims_of(node.output) for node in nodes}
        if others or shape is None or prod(shape) != prod(self.dims):
            return False
        read = {dims_of(v) for v in reads if v.data is None or v.data.size != 1} - {shape}
        return not read or (shape == self.dims and all(_repeats(dims, shape) for dims in read))

    def lifted(self, value: Value, nodes: Set[Node]) -> Value:
        """Return a value with the axis."""
        if value not in self._known:
            self._known[value] = self._lift(value, nodes)
        return self._known[value]

    def _lift(self, value: Value, nodes: Set[Node]) -> Value:
        node = value.producer
        if node is not None and node in nodes:
            add = Builder(self.graph, self.stack, node.name, (node,))
            own = {v: self.lifted(v, nodes) for v in by_place(node)}
            return add(node.op, *inputs_with(node, own))
        dims = dims_of(value)
        if dims is None or dims == self.dims or prod(dims) < prod(self.dims):
            return value
        if node is not None and isinstance(node.op, RESHAPES):
            source = node.operands[0]
            if dims_of(source) == self.dims:
                return source
        return Builder(self.graph, self.stack, f"{value.name}.lifted").shaped(value, self.dims)


def _repeats(dims: tuple[int, ...] | None, whole: tuple[int, ...]) -> bool:
    """Whether a tensor of these sizes is broadcast to others."""
    if dims is None or len(dims) > len(whole):
        return False
    return all(n in (1, m) for n, m in zip(dims[::-1], whole[::-1], strict=False))


def _is_moved(value: Value) -> bool:
    """Whether nothing but moves, and elementwise nodes with other readers, computes a value."""
    node = unviewed(value).producer
    return node is None or isinstance(node.op, _MOVES) or is_elementwise(node.op)
