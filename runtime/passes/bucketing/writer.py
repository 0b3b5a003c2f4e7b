"""The tools of bucketing rules: sizes as numbers and as data, and masks of valid elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ModelError, ShapeError, UnsupportedError
from ...ir.dtypes import DType, int64
from ...ir.graph import Graph, Node, Value
from ...ir.grown import Grown, combined
from ...ir.infer import infer_node
from ...ir.op import Op
from ...ir.types import Array, Dim, TensorType, ValueType
from ...ops.attention import Attention
from ...ops.elementwise import Add, Cast, Less, Mul, Where
from ...ops.movement import Expand, Transpose
from ...ops.shape import Reshape

#: Operators, beside views, whose results hold the numbers of their first input.
_SAME_NUMBERS = (Cast, Expand, Transpose)
#: Name of the input with the number of growth steps, if it is free.
COUNT = "growth"


class GraphWriter:
    """Rewrites a graph node by node, in order.

    Attributes:
        graph: the graph.
        room: an axis of size `step` * k + `first` gets room for k = `room`, or its maximum if it
            shrinks.
        truth: types with growing sizes, of values of the original graph.
        count: the input with the number of growth steps, int64 [1].
        most: maximum number of growth steps for the axes seen so far.
        least: minimum number, so that indices that are known are within their axes.
        counted: the first number, and the end, of values that hold consecutive numbers.
    """

    def __init__(self, graph: Graph, room: int) -> None:
        self.graph, self.room, self.most, self.least = graph, room, room, 0
        self.truth: dict[Value, ValueType | None] = {v: v.type for v in graph.values.values()}
        self._node: Node | None = None
        self._leading = 0
        self.count = graph.add_input(graph.fresh_name(COUNT), TensorType(int64, (1,)))
        self.counted: dict[Value, tuple[int, Dim]] = {}
        self._sizes: dict[tuple[Dim, ...], Value] = {}
        self._there: dict[tuple[Grown, int], Value] = {}
        self._read: dict[Value, Value] = {}

    @property
    def node(self) -> Node:
        """The node that is being rewritten."""
        if self._node is None:
            raise ValueError("no node is being rewritten")
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node = node

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def error(self, reason: str) -> UnsupportedError:
        """Return an error about the node being rewritten, if any."""
        where = "" if self._node is None else f"node '{self._node.name}' ({self._node.kind}): "
        return UnsupportedError(f"{where}{reason}; a size that grows has no bucket")

    def fixed(self, size: Dim) -> int:
        """Return the size of an axis in the bucket; raises UnsupportedError if unknown."""
        if isinstance(size, Grown) and size.step < 0:
            self.most = min(self.most, size.first // -size.step)
            return size.first
        if isinstance(size, Grown):
            self.most = min(self.most, self.room - -(-size.first // size.step))
            return size.step * self.room
        if not isinstance(size, int):
            raise self.error(f"the size '{size}' is not known")
        return size

    def need_index(self, index: Dim, size: Dim) -> None:
        """Limit the growth steps to those for which an axis of this size has an index."""
        if not isinstance(index, int) or not isinstance(size, Grown):
            return
        spare = size.first + index if index < 0 else size.first - index - 1
        if size.step < 0:
            self.most = min(self.most, spare // -size.step)
        else:
            self.least = max(self.least, -(spare // size.step))

    def may_index(self, places: Value, size: Dim) -> bool:
        """Whether indices in an axis of this size need no check; may limit the growth steps.

        They are consecutive numbers, or computed from constants for an axis that does not grow.
        """
        value = places
        while (found := self.counted.get(value)) is None:
            node = value.producer
            if node is None or not (node.op.view or isinstance(node.op, _SAME_NUMBERS)):
                return not isinstance(size, Grown) and _is_constant(places)
            value = operand(node, 0)
        first, end = found
        if isinstance(size, int) and isinstance(end, Grown) and end.step > 0:
            self.most = min(self.most, (size - end.first) // end.step)
            return first >= 0
        return first >= 0 and (end == size or combined(size, end, -1) is not None)

    def shape(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        """Return the sizes of several axes in the bucket."""
        return tuple(self.fixed(size) for size in dims)

    def dims(self, value: Value | None) -> tuple[Dim, ...]:
        """Return the actual sizes of a tensor; raises UnsupportedError if the rank is unknown."""
        type_ = None if value is None else self.truth.get(value, value.type)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise self.error("the rank of a tensor is not known")
        return type_.shape

    def grown(self, value: Value | None) -> dict[int, Grown]:
        """Return the growing axes of a tensor; none if it is omitted."""
        if value is None:
            return {}
        type_ = self.truth.get(value, value.type)
        shape = type_.shape if isinstance(type_, TensorType) else None
        return {i: size for i, size in enumerate(shape or ()) if isinstance(size, Grown)}

    def known(self, value: Value | None) -> tuple[Dim, ...] | None:
        """Return the elements of a tensor if all are sizes or numbers; else None."""
        if value is None:
            return None
        type_ = self.truth.get(value, value.type)
        ints = type_.ints if isinstance(type_, TensorType) else None
        if ints is None or not all(isinstance(each, int | Grown) for each in ints):
            return None
        return ints

    def numbers(self, value: Value | None) -> tuple[int, ...] | None:
        """Return the elements of a constant integer tensor; else None."""
        ints = self.known(value)
        if ints is None:
            return None
        found = tuple(each for each in ints if isinstance(each, int))
        return found if len(found) == len(ints) else None

    def need_closed(self, value: Value | None, axes: Sequence[int]) -> None:
        """Raise UnsupportedError if a tensor grows along some axes."""
        if any(axis in axes for axis in self.grown(value)):
            raise self.error("it combines elements along an axis that grows")

    def added(self, a: Dim, b: Dim) -> Dim:
        """Return a + b; raises UnsupportedError if that is not a size."""
        found = a + b if isinstance(a, int) and isinstance(b, int) else combined(a, b, 1)
        if found is None:
            raise self.error("it combines sizes that grow differently")
        return found

    # ── values ───────────────────────────────────────────────────────────────────────────────

    def add(self, op: Op, *inputs: Value | None) -> Value:
        """Insert a node before the one being rewritten; return its result."""
        name = f"{self.node.name}.{type(op).__name__.lower()}"
        return self._insert(op, inputs, name, self.node, (self.node,))

    def _lead(self, op: Op, *inputs: Value | None) -> Value:
        """Insert a node at the front of the graph, after others inserted there."""
        nodes = self.graph.nodes
        before = nodes[self._leading] if self._leading < len(nodes) else None
        self._leading += 1
        return self._insert(op, inputs, f"{COUNT}.{type(op).__name__.lower()}", before)

    def _insert(
        self,
        op: Op,
        inputs: Sequence[Value | None],
        name: str,
        before: Node | None,
        origin: Sequence[Node] = (),
    ) -> Value:
        made = self.graph.insert(op, inputs, name=name, before=before, origin=origin)
        infer_node(made)
        return made.output

    def constant(self, numbers: Any, dtype: DType = int64) -> Value:
        """Add a constant."""
        return self.graph.constant(np.asarray(numbers, dtype))

    def true_sizes(self, sizes: tuple[Dim, ...]) -> Value:
        """Return actual sizes as data, int64 [number of sizes]."""
        if sizes not in self._sizes:
            grown = [each if isinstance(each, Grown) else None for each in sizes]
            if not any(grown):
                self._sizes[sizes] = self.constant(sizes)
                return self._sizes[sizes]
            firsts = [each.first if each else size for each, size in zip(grown, sizes, strict=True)]
            found = self.count
            steps = [each.step if each else 0 for each in grown]
            if steps != [1]:
                found = self._lead(Mul(), found, self.constant(steps))
            if any(firsts):
                found = self._lead(Add(), found, self.constant(firsts))
            self._sizes[sizes] = found
        return self._sizes[sizes]

    def read(self, value: Value | None) -> Value | None:
        """Return a value as data: with actual elements if it is computed from sizes."""
        if value is None or value.data is not None or not self.is_known(value):
            return value
        if value not in self._read:
            type_, ints = self.truth[value], self.known(value)
            assert isinstance(type_, TensorType)
            assert ints is not None
            found = self.true_sizes(ints)
            if type_.shape != (len(ints),):
                shape = self.constant(type_.dims)
                found = self._lead(Reshape(), found, shape)
            if type_.dtype != int64:
                found = self._lead(Cast(to=type_.dtype), found)
            self._read[value] = found
        return self._read[value]

    def is_known(self, value: Value) -> bool:
        """Whether all elements of a growing value are known as sizes."""
        type_ = self.truth.get(value)
        if not isinstance(type_, TensorType) or type_.value is None or type_.known is not None:
            return False
        return self.known(value) is not None

    def there(self, size: Grown, rank: int, axis: int) -> Value:
        """Return a mask of valid indices along an axis: bool, size 1 along other axes."""
        behind = rank - 1 - axis
        if (size, behind) not in self._there:
            places = np.arange(self.fixed(size)).reshape(-1, *(1,) * behind)
            true = self.true_sizes((size,))
            found = self._lead(Less(), self.constant(places), true)
            self._there[size, behind] = found
        return self._there[size, behind]

    def hidden(self, value: Value, axes: Sequence[int], fill: Any) -> Value:
        """Return a tensor with the padding along some axes replaced by `fill`."""
        dims = self.dims(value)
        type_ = value.tensor
        for axis in axes:
            if fill == -np.inf and axis == len(dims) - 1 and _are_scores(value):
                continue
            size = dims[axis]
            if isinstance(size, Grown):
                there = self.there(size, len(dims), axis)
                value = self.add(Where(), there, value, self.constant(fill, type_.dtype))
        return value

    def vector(self, size: Dim, batch: int) -> Value:
        """Return a size repeated for the batch: int64 [batch]."""
        found = self.true_sizes((size,))
        return found if batch == 1 else self.add(Expand(), found, self.constant([batch]))

    # ── rewriting ────────────────────────────────────────────────────────────────────────────

    def set_inputs(self, inputs: Sequence[Value | None]) -> None:
        """Replace the inputs of the node."""
        self.graph.set_inputs(self.node, inputs)

    def read_inputs(self) -> None:
        """Make the node read actual elements where they are computed from sizes."""
        self.set_inputs([self.read(value) for value in self.node.inputs])

    def replace(self, *values: Value) -> None:
        """Replace the node's results by `values`."""
        for old, new in zip(self.node.outputs, values, strict=True):
            self.truth[new] = self.truth[old]
            wanted = self.truth[old]
            assert isinstance(wanted, TensorType)
            if self.shape(wanted.shape or ()) != new.tensor.shape:
                raise self.error(f"{new.type} would replace {wanted}")
        self.graph.replace(self.node, values)

    def check(self) -> None:
        """Re-infer the node; raise UnsupportedError if its results have unexpected types."""
        node = self.node
        for value in node.outputs:
            value.type = None
        try:
            infer_node(node)
        except (ModelError, ShapeError) as error:
            raise self.error(f"cannot be padded: {error}") from error
        for value in node.outputs:
            wanted, found = self.truth[value], value.type
            if not isinstance(wanted, TensorType) or wanted.shape is None:
                raise self.error(f"its result is {wanted}")
            known = self.shape(wanted.shape)
            if not isinstance(found, TensorType) or found.shape != known:
                raise self.error(f"its result is {found}, not {wanted.with_shape(known)}")


def _is_constant(value: Value) -> bool:
    """Whether a value is computed from constants alone."""
    found, waiting = {value}, [value]
    while waiting:
        value = waiting.pop()
        if value.producer is None and value.data is None:
            return False
        read = () if value.producer is None else value.producer.distinct_reads
        waiting += [each for each in read if each not in found]
        found.update(read)
    return True


def _are_scores(value: Value) -> bool:
    """Whether a tensor has scores of an attention that are -inf for keys that are not there."""
    node = value.producer
    while node is not None and isinstance(node.op, Cast):
        value, node = operand(node, 0), operand(node, 0).producer
    if node is None or not isinstance(node.op, Attention) or value not in node.outputs[3:]:
        return False
    return node.op.qk_matmul_output_mode == 2 and any(node.inputs[6:7])


def operand(node: Node, index: int) -> Value:
    """Return an input that is never omitted."""
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"node '{node.name}' has no input {index}")
    return value


def fill_of(dtype: DType, sign: int) -> Any:
    """Return the largest (sign 1) or smallest (-1) number of a dtype."""
    if dtype.kind in "iu":
        bounds: Array = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        return bounds[1 if sign > 0 else 0]
    if dtype.kind == "b":
        return sign > 0
    return sign * np.inf
