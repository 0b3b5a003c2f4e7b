"""Graph editing for passes: typed insertion, replacement with origins, clean-up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

import numpy as np

from ..base.record import record
from ..ir.dtypes import DType
from ..ir.graph import Graph, Node, Value
from ..ir.infer import infer_node
from ..ir.op import Op
from ..ir.types import Array, Dim, Shape, TensorType
from ..ops.movement import Slice, Split
from ..ops.shape import VIEWS, Reshape


def shape_of(value: Value | None) -> Shape | None:
    """Return the shape of a tensor; None if its rank is unknown."""
    return value.type.shape if value is not None and isinstance(value.type, TensorType) else None


def rank_of(value: Value | None) -> int | None:
    """Return the number of axes, None if unknown."""
    shape = shape_of(value)
    return None if shape is None else len(shape)


def size_of(value: Value | None, axis: int) -> Dim:
    """Return the size of one axis of a tensor; None if it is unknown, or there is no such axis."""
    shape = shape_of(value) or ()
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def first_input(node: Node | None) -> Value | None:
    """Return what a node reads first; None if it leaves that out, or reads nothing."""
    return node.inputs[0] if node is not None and node.inputs else None


def static_dims(dims: Iterable[Dim] | None) -> tuple[int, ...] | None:
    """Return dimensions as integers; None if there are none, or unless all are known."""
    given = () if dims is None else tuple(dims)
    known = tuple(size for size in given if isinstance(size, int))
    return None if dims is None or len(known) < len(given) else known


def without_ones(shape: Shape) -> Shape:
    """Return the sizes of the axes that have not size 1."""
    return tuple(size for size in shape if size != 1)


def dims_of(value: Value | None) -> tuple[int, ...] | None:
    """Return the dimensions of a tensor as integers; None unless all are known."""
    return static_dims(shape_of(value))


def unviewed(value: Value, kinds: tuple[type[Op], ...] = VIEWS) -> Value:
    """Return the tensor that a value is a view of, through any number of nodes of these kinds."""
    while (node := value.producer) is not None and isinstance(node.op, kinds) and node.inputs[0]:
        value = node.inputs[0]
    return value


def actual(value: Value, sources: Mapping[Value, Value]) -> Value:
    """Return the value outside of bodies that one in them stands for.

    Args:
        value: the value, which may be outside already.
        sources: what captures stand for; see `Node.captured`.
    """
    while value in sources:
        value = sources[value]
    return value


def static_size(dims: Iterable[Dim] | None) -> int | None:
    """Return the product of dimensions; None unless all are known."""
    known = static_dims(dims)
    return None if known is None else prod(known)


def are_finite(values: Iterable[Value | None]) -> bool:
    """Whether values are constants without infinities and NaN."""
    found = [None if value is None else value.data for value in values]
    return all(data is not None and np.isfinite(data).all() for data in found)


def is_static(value: Value | None) -> bool:
    """Whether a value is a tensor whose dimensions are all known."""
    return value is not None and isinstance(value.type, TensorType) and value.type.is_static


def dtype_of(value: Value | None) -> DType | None:
    """Return a tensor's dtype; None if it is not known to be a tensor."""
    return value.type.dtype if value is not None and isinstance(value.type, TensorType) else None


def number(value: Value | None, rank: int | None = None) -> float | None:
    """Return the real number in a one-element constant; None for anything else.

    Args:
        value: a possible constant.
        rank: of the tensor that it is combined with; a constant of higher rank would add axes.
    """
    if value is None or value.data is None or value.data.size != 1:
        return None
    if value.data.dtype.kind not in "fiuV" or value.data.ndim > (rank or 0):
        return None
    return float(value.data.reshape(-1)[0])


def to_sizes(sizes: Sequence[int]) -> Reshape:
    """Return the Reshape to a constant shape in which 0 is a size, not one to copy.

    Beside -1, which stands for what is left, ONNX has only copied sizes.
    """
    return Reshape(allowzero=int(0 in sizes and -1 not in sizes))


@record
class Builder:
    """Inserts nodes before one, with inferred types.

    Attributes:
        graph: the graph.
        before: the node to insert before.
        name: of new nodes; that of their operator if None.
        origin: nodes that the new ones stand for; if empty, each stands for itself.
    """

    graph: Graph
    before: Node
    name: str | None = None
    origin: tuple[Node, ...] = ()

    def node(
        self, op: Op, *inputs: Value | None, outputs: int = 1, name: str | None = None
    ) -> Node:
        """Insert a node."""
        made = self.graph.insert(
            op,
            inputs,
            outputs,
            name=name or self.name,
            before=self.before,
            origin=self.origin,
        )
        infer_node(made)
        return made

    def __call__(self, op: Op, *inputs: Value | None, name: str | None = None) -> Value:
        """Insert a node with one result, and return the result."""
        return self.node(op, *inputs, name=name).output

    def shaped(self, value: Value | None, sizes: Iterable[Dim], name: str = "shape") -> Value:
        """Return a value in a shape of which one size may be unknown, or -1; see `to_sizes`."""
        known = tuple(size if isinstance(size, int) else -1 for size in sizes)
        return self(to_sizes(known), value, self.integers(known, name))

    def view(self, value: Value, shape: Shape) -> Value:
        """Return a value in another shape; a single unknown size may be that of another axis."""
        own = shape_of(value) or shape
        sizes = [
            size if isinstance(size, int) else 0 if own[axis : axis + 1] == (size,) else -1
            for axis, size in enumerate(shape)
        ]
        op = to_sizes(sizes) if all(isinstance(size, int) for size in shape) else Reshape()
        return self(op, value, self.integers(sizes, "shape"))

    def slice(self, value: Value | None, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """Return places of one axis of a value."""
        bounds = (start, stop, axis) if step == 1 else (start, stop, axis, step)
        return self(Slice(), value, *(self.integers([n], "bound") for n in bounds))

    def split(
        self,
        value: Value | None,
        axis: int,
        sizes: int | Iterable[int],
        name: str | None = None,
    ) -> tuple[Value, ...]:
        """Return the parts of a value along an axis: of these sizes, or so many equal ones."""
        if isinstance(sizes, int):
            op = Split(axis=axis, num_outputs=sizes)
            return self.node(op, value, outputs=sizes, name=name).outputs
        given = self.integers(sizes, "sizes")
        count = given.tensor.size
        op = Split(axis=axis, num_outputs=count)
        return self.node(op, value, given, outputs=count, name=name).outputs

    def constant(self, data: Array, name: str = "constant") -> Value:
        """Add a constant."""
        return self.graph.constant(data, name)

    def integers(
        self, numbers: Iterable[int], name: str = "constant", like: Value | None = None
    ) -> Value:
        """Add a constant of one axis: a shape, axes, bounds.

        Its dtype is that of `like`, such as the bounds beside axes; int64 if there is none.
        """
        dtype = np.dtype(np.int64) if like is None else like.tensor.dtype
        return self.graph.constant(np.array(tuple(numbers), dtype), name)


def stand_in(
    graph: Graph,
    nodes: Collection[Node],
    top: Node,
    op: Op,
    inputs: Sequence[Value | None],
    name: str | None = None,
) -> Node:
    """Replace `nodes`, whose result is that of `top`, by one node; return it.

    It has the name of `top`, or the given one, and the origins of all.
    """
    origin = graph.in_order(nodes)
    new = graph.insert(op, inputs, name=name or top.name, before=top, origin=origin)
    new.output.type = top.output.type
    sources = [value.producer for value in top.distinct_reads]
    graph.replace(top, new.outputs)
    for node in (*reversed(origin), *sources):
        drop(graph, node)
    graph.rename(new, name or top.name)
    return new


def drop(graph: Graph, node: Node | None) -> None:
    """Remove an unread node, and the inputs that only it used."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node is None or node not in graph or any(map(graph.is_read, node.outputs)):
            continue
        waiting += [value.producer for value in node.distinct_reads]
        graph.remove(node)
