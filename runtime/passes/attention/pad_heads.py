"""Pads heads of attentions to multiples of eight elements where weights can have zeros for more.

Kernels for 16-bit floats read heads in words of eight. With ten elements they take pairs, and the
parts of a product that do not begin at a word are copied. Queries and keys that are divided by
their norms (SwinV2) have the same norms with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer_node
from ...ir.op import Op
from ...ir.types import Array
from ...ops.attention import Attention
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.movement import Split
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import shape_of
from ..pattern import without_addend
from .cosine_heads import Heads, before_norms

#: Elements per word.
WORD = 8
#: How many times as large heads may become at most.
LARGER = 2


@record
class _Layer:
    """A linear layer whose columns are the heads of some operands of an attention.

    Attributes:
        product: the MatMul with a constant matrix.
        addend: the Add of a bias, or None.
        split: what separates the operands, or None for a single one.
        parts: the operands, in order.
    """

    product: Node
    addend: Node | None
    split: Node | None
    parts: tuple[Value, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Pad heads of 16-bit attentions between linear layers.

    Queries, keys and values get columns of zeros, and the layer behind has rows of zeros for them.
    An infinity or NaN that a layer reads may so become a NaN in other columns.
    """
    if context.options.precision not in ("float16", "bfloat16"):
        return
    for node in list(graph.nodes):
        found = _found(graph, node)
        if found is None:
            continue
        operands, layers, behind, sizes = found
        _pad(graph, node, operands, layers, behind, sizes)
        yield f"heads of '{node.name}' have {_padded(max(sizes))} elements instead of {max(sizes)}"


def _padded(size: int) -> int:
    return -(-size // WORD) * WORD


def _found(
    graph: Graph, node: Node
) -> tuple[list[Heads], list[_Layer], Node, tuple[int, int]] | None:
    """Return an attention's operands, the layers in front and behind it, and the sizes of heads.

    Those of queries and keys, and those of values. None if nothing is to be padded, or not so.
    """
    op, read = node.op, [value for value in node.inputs if value is not None]
    if not isinstance(op, Attention) or op.is_wide or not op.q_num_heads or not op.kv_num_heads:
        return None
    if len(read) > 4 or len(node.inputs) > 4 or any(map(graph.is_read, node.outputs[1:])):
        return None
    q, k, v = node.operands[:3]
    shapes = [shape_of(value) for value in (q, k, v)]
    widths = [None if shape is None or len(shape) != 3 else shape[-1] for shape in shapes]
    if not all(isinstance(width, int) for width in widths):
        return None
    heads = (op.q_num_heads, op.kv_num_heads, op.kv_num_heads)
    of_q, of_k, of_v = (int(w or 0) // n for w, n in zip(widths, heads, strict=True))
    wanted = [(size, _padded(size)) for size in (of_k, of_v)]
    if of_q != of_k or all(size == to for size, to in wanted):
        return None
    if any(to > LARGER * size for size, to in wanted):
        return None
    operands = [before_norms(graph, q), before_norms(graph, k), Heads(v, ())]
    for each, count in zip(operands, heads, strict=True):
        if each.nodes and (shape_of(each.nodes[0].output) or ())[-2:] != (count, of_k):
            return None  # norms of other parts of rows
    layers = _layers(graph, node, operands)
    behind = graph.sole_consumer(node.output)
    if layers is None or behind is None or not isinstance(behind.op, MatMul):
        return None
    matrix = behind.operands[1].data
    if behind.operands[0] is not node.output or matrix is None or matrix.ndim != 2:
        return None
    return operands, layers, behind, (of_k, of_v)


def _layers(graph: Graph, node: Node, operands: Sequence[Heads]) -> list[_Layer] | None:
    """Return the layers that compute operands that only an attention reads, each once."""
    found: dict[Node, _Layer] = {}
    rows = [each.rows for each in operands]
    for value, each in zip(rows, operands, strict=True):
        reader = each.nodes[0] if each.nodes else node
        private = not each.nodes or set(each.nodes[-1].output.consumers) == {node}
        if set(value.consumers) != {reader} or not private:
            return None
        if graph.is_output(value) or rows.count(value) > 1:
            return None
        source, split, parts = value, value.producer, (value,)
        if split is not None and isinstance(split.op, Split):
            source, parts = split.operands[0], split.outputs
            if not is_along_last(split) or not set(parts) <= set(rows):
                return None
        else:
            split = None
        if split is not None and graph.sole_consumer(source) is not split:
            return None
        inner, bias = without_addend(graph, source)
        product = inner.producer
        if product is None or not isinstance(product.op, MatMul):
            return None
        if graph.is_output(inner) or len(inner.consumers) != 1:
            return None
        matrix = product.operands[1].data
        if matrix is None or matrix.ndim != 2 or product.operands[0].data is not None:
            return None
        if bias is not None and bias.shape != matrix.shape[1:]:
            return None
        addend = None if bias is None else source.producer
        found[product] = _Layer(product, addend, split, tuple(parts))
    return list(found.values())


def _pad(
    graph: Graph,
    node: Node,
    operands: Sequence[Heads],
    layers: list[_Layer],
    behind: Node,
    sizes: tuple[int, int],
) -> None:
    op, (q, k, v) = node.op, [each.rows for each in operands]
    assert isinstance(op, Attention)
    assert op.q_num_heads
    assert op.kv_num_heads
    of_k, of_v = sizes
    heads = {q: (op.q_num_heads, of_k), k: (op.kv_num_heads, of_k), v: (op.kv_num_heads, of_v)}
    for layer in layers:
        places, widths, first = list[Array](), list[int](), 0
        for part in layer.parts:
            count, size = heads[part]
            own = _places(count, size)
            places.append(np.where(own < 0, own, own + first))
            widths.append(len(places[-1]))
            first += count * size
        columns = np.concatenate(places)
        x, matrix = layer.product.operands
        assert matrix.data is not None
        wide = graph.constant(_taken(matrix.data, columns, 1), matrix.name)
        made = _replace(graph, layer.product, layer.product.op, [x, wide])
        if layer.addend is not None:
            inputs = [
                value if value.data is None else _wide(graph, value, columns)
                for value in layer.addend.operands
            ]
            made = _replace(graph, layer.addend, Add(), inputs)
        if layer.split is not None:
            given = graph.constant(np.array(widths, np.int64), "sizes")
            _replace(
                graph, layer.split, replace(layer.split.op, num_outputs=len(widths)), [made, given]
            )
    for each, (count, size) in zip(operands, heads.values(), strict=True):
        _widen(graph, each, count, _padded(size))
    scale = op.scale if op.scale is not None else 1 / sqrt(of_k)
    y = _replace(graph, node, replace(op, scale=scale), node.inputs)
    matrix = behind.operands[1]
    assert matrix.data is not None
    rows = graph.constant(_taken(matrix.data, _places(op.q_num_heads, of_v), 0), matrix.name)
    _replace(graph, behind, behind.op, [y, rows])


def _widen(graph: Graph, operand: Heads, heads: int, size: int) -> None:
    """Divide wider heads by their norms.

    Args:
        graph: the graph.
        operand: whose rows are wider already.
        heads: how many there are.
        size: elements of each of them now.
    """
    for node in operand.nodes:
        inputs = list(node.inputs)
        if isinstance(node.op, Reshape):
            known = node.operands[1].known
            assert known is not None
            last = size if node is operand.nodes[0] else heads * size
            inputs[1] = graph.constant(np.array([*known[:-1], last], known.dtype), "shape")
        _replace(graph, node, node.op, inputs)


def _places(heads: int, size: int) -> Array:
    """Return the former column of each column of padded heads, -1 for a new one."""
    places: Array = np.full((heads, _padded(size)), -1)
    places[:, :size] = np.arange(heads * size).reshape(heads, size)
    return places.reshape(-1)


def _wide(graph: Graph, bias: Value, columns: Array) -> Value:
    assert bias.data is not None
    return graph.constant(_taken(bias.data, columns, 0), bias.name)


def _taken(data: Array, places: Array, axis: int) -> Array:
    """Return elements at these places of an axis, zeros for -1."""
    taken = data.take(np.maximum(places, 0), axis)
    kept = (places >= 0).reshape([-1 if i == axis else 1 for i in range(data.ndim)])
    return np.where(kept, taken, data.dtype.type(0))


def _replace(graph: Graph, node: Node, op: Op, inputs: Sequence[Value | None]) -> Value:
    """Replace a node by one with other inputs; return its first result."""
    new = graph.insert(op, inputs, len(node.outputs), name=node.name, before=node, origin=(node,))
    infer_node(new)
    graph.replace(node, new.outputs)
    graph.rename(new, node.name)
    return new.outputs[0]
