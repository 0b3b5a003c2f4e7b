"""Moves views between elementwise nodes behind them, so that these are one chain."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir.chains import chain_before
from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv, ConvTranspose
from ...ops.elementwise import Cast
from ...ops.matmul import MatMul
from ...ops.movement import Slice, Split, Transpose
from ...ops.norm import BatchNormalization
from ...ops.pool import AveragePool, MaxPool
from ...ops.reduce import Cumulative
from ...ops.resize import Resize
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, drop, is_static, shape_of, static_size
from ..pointwise import by_place, inputs_with, is_elementwise
from .sink_transposes import layer_before

Dims = tuple[int, ...]

#: Operators of images, which are channels-last in memory.
_IMAGES = (Conv, ConvTranspose, BatchNormalization, AveragePool, MaxPool, Resize)
#: Maximum number of nodes before another operand that are viewed with it, or looked at.
_DEPTH = 6


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace f(view(g(x)), y) by view(f(g(x), view'(y))), where g and f are elementwise.

    Exporters split and merge axes between them (chunks of state space models, gates behind heads).
    g may end with a running sum, or be a stack of products, which computes f as it stores them. The
    tensor between is not stored then; y has as many elements, or all or one along the axes that a
    view splits or merges. Images stay, as they may not be in the order of a view.
    """
    for node in list(graph.nodes):
        if node not in graph or not _is_plain(node) or _widens(node):
            continue
        for value in node.distinct_reads:
            source = _viewed(graph, value)
            if source is not None and _join(graph, node, value, source):
                yield f"{node.kind} '{node.name}' computes before views what is behind them"
                break


def _is_plain(node: Node) -> bool:
    """Whether a node is elementwise, and all sizes are known."""
    read = by_place(node)
    return bool(read) and all(map(is_static, (node.output, *read)))


def _widens(node: Node) -> bool:
    """Whether a node is a Cast to a larger type, which is not stored for the sake of a view."""
    sizes = (v.tensor.dtype.itemsize for v in (node.outputs[0], node.operands[0]))
    return isinstance(node.op, Cast) and next(sizes) > next(sizes)


def _viewed(graph: Graph, value: Value) -> Value | None:
    """Return the elementwise result, running sum or products that views make a value of, if any.

    Only they read it, and one another.
    """
    node = next((each for each in chain_before(graph, value) if not _is_view(each)), None)
    if node is None or node is value.producer or _is_image(node.output):
        return None
    return node.output if _is_chained(node) or _is_stack(node) else None


def _is_chained(node: Node | None) -> bool:
    """Whether a node is elementwise or a running sum, not only the Cast of another result."""
    while node is not None and isinstance(node.op, Cast):
        node = node.operands[0].producer
    return node is not None and (_is_plain(node) or isinstance(node.op, Cumulative))


def _is_stack(node: Node) -> bool:
    """Whether a node multiplies several matrices, each by one of its own, as an Einsum may."""
    if not isinstance(node.op, MatMul):
        return False
    return (static_size((shape_of(node.operands[1]) or ())[:-2]) or 0) > 1


def _is_view(node: Node) -> bool:
    """Whether a node only gives other sizes to axes, or moves some of size 1."""
    if isinstance(node.op, RESHAPES):
        return is_static(node.operands[0])
    if not isinstance(node.op, Transpose) or not is_static(node.output):
        return False
    dims = node.operands[0].tensor.dims
    moved = [axis for axis in node.op.order(len(dims)) if dims[axis] != 1]
    return moved == sorted(moved)


def _is_image(value: Value) -> bool:
    """Whether elementwise nodes compute a value from what convolutions store."""
    todo = [value]
    for each in todo:
        node = each.producer
        if node is not None and isinstance(node.op, _IMAGES):
            return True
        near = node is not None and len(todo) < 2 * _DEPTH
        if near and node is not None and (is_elementwise(node.op) or _is_view(node)):
            todo += node.distinct_reads
    return False


def _join(graph: Graph, node: Node, value: Value, source: Value) -> bool:
    """Compute a node before the views of an operand, if the other ones can be read there."""
    dims, before = node.output.tensor.dims, source.tensor.dims
    read = by_place(node)
    others = [v for v in read if v is not value]
    if value not in read or value.tensor.dims != dims:
        return False
    if not all(_fits(v, dims, before) for v in others):
        return False
    whole = [v for v in others if v.tensor.dims == dims]
    if any(layer_before(graph, v) or _is_image(v) for v in whole):
        return False  # a layer computes this node as it stores its results
    add = Builder(graph, node, node.name, (node,))
    known = {v: _as_before(add, v, dims, before) for v in others} | {value: source}
    graph.redirect(node.output, add.shaped(add(node.op, *inputs_with(node, known)), dims))
    drop(graph, node)
    return True


def _fits(value: Value, dims: Dims, before: Dims) -> bool:
    """Whether an operand can be viewed as it is before views: all elements, or by those axes."""
    if value.tensor.dims == dims:
        return value.data is None and not (_is_part(value) and dims[-1:] != before[-1:])
    return value.tensor.size == 1 or _broadcast(value, dims, before) is not None


def _is_part(value: Value) -> bool:
    """Whether a value is part of the rows of a tensor, whose views would be copies."""
    for _ in range(_DEPTH):
        node = value.producer
        if node is None or not (is_elementwise(node.op) or _is_view(node)):
            return node is not None and isinstance(node.op, Slice | Split)
        value = node.operands[0]
    return True


def _broadcast(value: Value, dims: Dims, before: Dims) -> Dims | None:
    """Return the sizes of an operand before views, all or 1 of axes that these split or merge.

    None if it has only some of them, or there are no elements.
    """
    own = (1,) * (len(dims) - len(value.tensor.dims)) + value.tensor.dims
    after = [(n, size) for n, size in zip(dims, own, strict=True) if n != 1]
    left = [(axis, n) for axis, n in enumerate(before) if n != 1]
    found = [1] * len(before)
    while left and after and 0 not in dims:
        axes, sizes = [left.pop(0)], [after.pop(0)]
        while (one := prod(n for _, n in axes)) != (other := prod(n for n, _ in sizes)):
            rest, group = (left, axes) if one < other else (after, sizes)
            if not rest:
                return None
            group.append(rest.pop(0))
        if all(size == n for n, size in sizes):
            for axis, n in axes:
                found[axis] = n
        elif any(size != 1 for _, size in sizes):
            return None
    return None if left or after else tuple(found)


def _as_before(add: Builder, value: Value, dims: Dims, before: Dims) -> Value:
    """Return an operand as it is before views, through elementwise nodes of its own."""
    if value.tensor.dims == dims:
        return _whole(add, value, before, _DEPTH)
    if value.tensor.size == 1:
        return value if len(value.tensor.dims) <= len(before) else add.shaped(value, ())
    sizes = _broadcast(value, dims, before)
    assert sizes is not None, "it fits"
    return add.shaped(value, sizes)


def _whole(add: Builder, value: Value, before: Dims, depth: int) -> Value:
    """Return all elements of a value in other sizes; see `_as_before`."""
    node = value.producer
    while node is not None and _is_view(node):
        value = node.operands[0]
        node = value.producer
    if value.tensor.dims == before:
        return value
    is_own = add.graph.sole_consumer(value) is not None
    if node is None or not depth or not is_own or not _is_plain(node):
        return add.shaped(value, before)
    read = by_place(node)
    if any(v.tensor.dims != value.tensor.dims and v.tensor.size != 1 for v in read):
        return add.shaped(value, before)
    whole = [v for v in read if v.tensor.dims == value.tensor.dims]
    known = {v: _whole(add, v, before, depth - 1) for v in whole}
    return Builder(add.graph, add.before, node.name, (node,))(node.op, *inputs_with(node, known))
