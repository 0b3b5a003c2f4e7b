"""Selects rows before they are computed, so that unread rows are not computed at all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from ...base.record import record
from ...ir.constraints import takes
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Dim, Shape
from ...ops.attention import Attention
from ...ops.gather import Gather, GatherND
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Concat, Slice, Split, Transpose
from ...ops.norm import LayerNormalization, LogSoftmax, RMSNormalization, Softmax
from ...ops.packed import MatMulBnb4, MatMulNBits
from ...ops.shape import Reshape, Squeeze
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of
from ..pointwise import is_by_place, is_elementwise

#: For each operand the axis of the selection, None if it is unchanged.
Axes = Sequence[int | None]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Move Slice, Gather and GatherND of a few rows before the nodes that compute the rows.

    A classifier reads one token, a decoding loop one row of scores: the last layer then computes
    only that row. A selection moves past a node if each row of the node's result depends on the
    same row of its operands, and only the selection reads it: products, norms, elementwise nodes
    and queries of attention. At most half of the rows are selected, so that nothing grows.
    """
    selections = _Selections(graph)
    found = True
    while found:
        found = False
        for node in reversed(list(graph.nodes)):
            if node in graph and (text := selections.hoist(node)):
                found = True
                yield text


@record
class _Selection:
    """A node that takes some indices along one axis of its first input.

    Attributes:
        node: the node.
        axis: of the input, non-negative.
        most: maximum number of indices.
        is_batched: whether each entry of axis 0 has its own indices along axis 1.
        drops: whether the axis is dropped, with a single index.
    """

    node: Node
    axis: int
    most: int
    is_batched: bool = False
    drops: bool = False

    @classmethod
    def of(cls, node: Node) -> _Selection | None:
        """Return the selection of a node; None if it does anything else."""
        op, shape = node.op, shape_of(node.inputs[0] if node.inputs else None)
        settings = node.inputs[1:]
        if not shape or any(v is not None and v.producer is not None for v in settings):
            return None  # computed indices may come later than the node
        if isinstance(op, Slice):
            return _slice(node, len(shape))
        indices = shape_of(settings[0] if settings else None)
        if indices is None:
            return None
        if isinstance(op, Gather) and len(indices) == 1 and isinstance(indices[0], int):
            return cls(node, op.axis % len(shape), indices[0])
        if isinstance(op, Gather) and not indices and settings[0] and settings[0].is_constant:
            return cls(node, op.axis % len(shape), 1, drops=True)
        if isinstance(op, GatherND) and op.batch_dims == 1 and indices[1:] == (1, 1):
            return cls(node, 1, 1, is_batched=True)
        return None

    @property
    def key(self) -> Hashable:
        """Equal for nodes with the same selection, whatever the axis."""
        op, given = self.node.op, self.node.inputs[1:]
        if isinstance(op, Slice):
            given = (*given[:2], *given[3:])
        return type(op), tuple(map(_content, given))

    def is_few(self, size: Dim) -> bool:
        """Whether at most half of the rows are selected; one row if their number is unknown.

        A single row is not: operands may be broadcast to it.
        """
        return 2 * self.most <= size > 1 if isinstance(size, int) else self.most == 1

    def applied(self, add: Builder, value: Value, axis: int) -> Value:
        """Return the selection of another value along one of its axes, which is kept."""
        op, given = self.node.op, self.node.inputs[1:]
        if isinstance(op, Slice):
            starts, ends, _, *steps = given
            axes = add.integers((axis,), "axis", starts)
            return add(op, value, starts, ends, axes, *steps)
        if isinstance(op, Gather):
            indices = given[0]
            if self.drops and indices is not None and indices.data is not None:
                indices = add.constant(indices.data.reshape(1), indices.name)
            return add(with_attributes(op, axis=axis), value, indices)
        return add(op, value, *given)


def _slice(node: Node, rank: int) -> _Selection | None:
    """Return the selection of a Slice of one axis by constants."""
    data = [None if v is None else v.data for v in node.inputs[1:]]
    if any(v is not None and v.data is None for v in node.inputs[1:]) or len(data) < 3:
        return None
    starts, ends, axes, *steps = ([1] if d is None else d.reshape(-1).tolist() for d in data)
    if data[2] is None or len(axes) != 1 or (steps and steps[0] != [1]):
        return None
    (start,), (end,) = starts, ends
    if start < 0 < end:
        end = 0 if end >= -start else start  # up to the end of the axis
    most = end - start
    return _Selection(node, axes[0] % rank, most) if most > 0 else None


def _can_select(node: Node, maker: Node, axes: Axes) -> bool:
    """Whether ONNX lets a node select from operands: it may lack the format behind a Cast."""
    operands = [v for v, axis in zip(maker.inputs, axes, strict=False) if v and axis is not None]
    return all(takes(type(node.op), value.tensor.dtype) for value in operands)


def _norm_of_row(
    maker: Node, selection: _Selection
) -> LayerNormalization | RMSNormalization | None:
    """Return the norm of a single row without its axis, so that no view separates its reader."""
    op = maker.op
    is_norm = isinstance(op, LayerNormalization | RMSNormalization)
    return op if is_norm and selection.drops else None


def _content(value: Value | None) -> Hashable:
    """Return what identifies a list of indices."""
    return value if value is None or value.data is None else tuple(value.data.reshape(-1).tolist())


@dataclass(slots=True)
class _Selections:
    """Selections already created, one per value."""

    graph: Graph
    made: dict[Hashable, Value] = field(default_factory=dict[Hashable, Value])

    def hoist(self, node: Node) -> str:
        """Move a selection before the producer of its input; return a description."""
        selection = _Selection.of(node)
        data = node.inputs[0] if node.inputs else None
        maker = None if data is None else data.producer
        if selection is None or data is None or maker is None:
            return ""
        shape, equal = shape_of(data), self._of_all_results(maker, selection)
        if shape is None or not equal:
            return ""
        axes = _axes(maker, shape, selection)
        if axes is None or not selection.is_few(shape[selection.axis]):
            return ""
        if not _can_select(node, maker, axes):
            return ""
        if isinstance(maker.op, Attention) and not self._is_computed(maker.inputs[0], selection):
            return ""
        add = Builder(self.graph, maker, maker.name, (maker,))
        inputs = list(maker.inputs)
        for i, axis in enumerate(axes):
            value = inputs[i]
            if axis is not None and value is not None:
                inputs[i] = self._selected(selection, value, axis)
        op = maker.op
        if isinstance(op, Reshape):  # 0 keeps the size: a Slice may end after the last row
            behind = selection.axis + 1
            sizes = (size if isinstance(size, int) else 0 for size in shape[behind:])
            op, inputs[1] = Reshape(), add.integers((*(0 for _ in range(behind)), *sizes), "shape")
        norm = _norm_of_row(maker, selection)
        if norm is not None:
            inputs[0] = add(Squeeze(), inputs[0], add.integers((selection.axis,), "axis"))
            op = with_attributes(norm, axis=norm.axis % len(shape) - len(shape))
        new = add.node(op, *inputs, outputs=len(maker.outputs))
        for old, result in zip(maker.outputs, new.outputs, strict=True):
            if (own := equal.get(old)) is None:
                continue
            reader = own.node
            if own.drops and norm is None:
                place = add.integers((own.axis,), "axis")
                at = Builder(self.graph, reader, reader.name, (reader,))
                result = at(Squeeze(), result, place)
            self.graph.replace(reader, (result,))
        drop(self.graph, maker)
        self.graph.rename(new, maker.name)
        return f"'{node.name}' selects before {type(maker.op).__name__} '{maker.name}'"

    def _of_all_results(self, maker: Node, selection: _Selection) -> dict[Value, _Selection]:
        """Return the only readers of a node's results if all select the same rows, or {}.

        Several results are the parts of a Split, whose rows are those of its operand.
        """
        found = dict[Value, _Selection]()
        for value in filter(self.graph.is_read, maker.outputs):
            reader = self.graph.sole_consumer(value)
            own = None if reader is None else _Selection.of(reader)
            if reader is None or own is None or value not in reader.inputs[:1]:
                return {}
            if (own.key, own.axis) != (selection.key, selection.axis):
                return {}
            found[value] = own
        return found if len(found) == 1 or isinstance(maker.op, Split) else {}

    def _is_computed(self, queries: Value | None, selection: _Selection) -> bool:
        """Whether queries can be selected before they are computed, or from the parts of rows."""
        maker, shape = None if queries is None else queries.producer, shape_of(queries)
        if queries is None or maker is None or shape is None:
            return False
        is_alone = self.graph.sole_consumer(queries) is not None
        is_part = isinstance(maker.op, Split)
        return is_alone and (is_part or _axes(maker, shape, selection) is not None)

    def _selected(self, selection: _Selection, value: Value, axis: int) -> Value:
        """Return the selection of an operand, reusing that of another reader."""
        key = value, axis, selection.key
        known = self.made.get(key)
        if known is None or known.producer is None or known.producer not in self.graph:
            nodes = self.graph.nodes
            after = 0 if value.producer is None else nodes.index(value.producer) + 1
            add = Builder(self.graph, nodes[after], f"{value.name}.rows", (selection.node,))
            known = self.made[key] = selection.applied(add, value, axis)
        return known


# ── what computes rows from rows ─────────────────────────────────────────────────────────────────


def _axes(node: Node, shape: Shape, selection: _Selection) -> Axes | None:
    """Return the axis of each operand along which to select instead of in the result.

    Args:
        node: the producer of the result.
        shape: of the result.
        selection: of the result.
    """
    op, axis, last = node.op, selection.axis, len(shape) - 1
    if isinstance(op, _ROWS) and axis < last:
        return _first(node, axis if rank_of(node.inputs[0]) == len(shape) else None)
    if isinstance(op, MatMul):
        return _product(node, axis, shape)
    if isinstance(op, _ALONG) and op.axis % len(shape) > axis:
        is_behind = all((rank_of(v) or 0) < len(shape) - axis for v in node.inputs[1:])
        return _first(node, axis if is_behind else None)
    if isinstance(op, Gemm) and axis == 0 and not op.transA:
        added = _aligned(node.inputs[2], shape, selection) if len(node.inputs) > 2 else ()
        return None if added is None else (0, None, *added)
    if isinstance(op, Attention):
        return _queries(node, shape, selection)
    if isinstance(op, Transpose) and not selection.is_batched:
        return (op.order(len(shape))[axis],)
    if isinstance(op, Reshape):
        return _kept(node, shape, axis)
    if isinstance(op, Concat) and op.axis % len(shape) not in (axis, 0):
        return [axis] * len(node.inputs)
    if isinstance(op, Split) and op.axis % len(shape) not in (axis, 0):
        return _first(node, axis)
    return _elementwise(node, shape, selection)


#: Operators whose result rows (last axis) each depend on one row of the first operand.
_ROWS = (MatMulNBits, MatMulBnb4)
#: Operators over one axis and all later ones; Softmax over one only.
_ALONG = (LayerNormalization, RMSNormalization, Softmax, LogSoftmax)


def _first(node: Node, axis: int | None) -> Axes | None:
    return None if axis is None else (axis, *(None for _ in node.inputs[1:]))


def _aligned(value: Value | None, shape: Shape, selection: _Selection) -> Axes | None:
    """Return the axis of an operand broadcast to the selected one of the result."""
    sizes = shape_of(value)
    if value is None:
        return (None,)
    if sizes is None:
        return None
    missing = len(shape) - len(sizes)
    axis = selection.axis - missing
    if axis < 0 or sizes[axis] == 1:
        return (None,)
    if sizes[axis] is None or sizes[axis] != shape[selection.axis]:
        return None
    is_whole = not missing and sizes[0] is not None and sizes[0] == shape[0]
    return (axis,) if is_whole or not selection.is_batched else None


def _elementwise(node: Node, shape: Shape, selection: _Selection) -> Axes | None:
    found = list[int | None]()
    if not is_elementwise(node.op):
        return None
    for i, value in enumerate(node.inputs):
        axes = _aligned(value, shape, selection) if is_by_place(node.op, i) else (None,)
        if axes is None:
            return None
        found += axes
    return found


def _product(node: Node, axis: int, shape: Shape) -> Axes | None:
    """Return the rows of the left matrix."""
    left, right = (rank_of(value) for value in node.inputs)
    if left != len(shape) or right is None or axis == len(shape) - 1:
        return None
    return (axis, None) if axis == len(shape) - 2 or right == 2 else None


def _queries(node: Node, shape: Shape, selection: _Selection) -> Axes | None:
    """Return the queries of an attention that does not depend on their positions."""
    op, others = node.op, (*node.inputs[3:], *(None for _ in range(7 - len(node.inputs))))
    assert isinstance(op, Attention)
    mask, *past = others
    is_free = not op.is_causal and op.left_window_size < 0 and op.right_window_size < 0
    axis = len(shape) - 2 if len(shape) == 4 else 1
    if not is_free or any(v is not None for v in past) or selection.axis != axis:
        return None
    if selection.is_batched and (mask is not None or axis != 1):
        return None
    sizes, length = shape_of(mask), (shape_of(node.inputs[0]) or shape)[axis]
    if mask is None:
        return _first(node, axis)
    if sizes is None:
        return None
    if len(sizes) < 2 or sizes[-2] == 1:
        return _first(node, axis)
    if sizes[-2] != length:
        return None
    return (axis, None, None, len(sizes) - 2, *(None for _ in node.inputs[4:]))


def _kept(node: Node, shape: Shape, axis: int) -> Axes | None:
    """Return the axis if a Reshape changes only later axes of known sizes."""
    before = shape_of(node.inputs[0])
    if before is None or len(before) <= axis + 1 or before[: axis + 1] != shape[: axis + 1]:
        return None
    is_known = all(isinstance(size, int) and size > 0 for size in shape[axis + 1 :])
    return (axis, None) if is_known and None not in before[: axis + 1] else None
