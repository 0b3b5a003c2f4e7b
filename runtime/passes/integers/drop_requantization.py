"""Keeps integers between two equal quantizations if they are only moved."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.dtypes import float32, int8, uint8
from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer_node
from ...ops.gather import Gather
from ...ops.movement import Concat, Slice, Transpose
from ...ops.pool import MaxPool
from ...ops.quantize import DequantizeLinear, QuantizeLinear
from ..driver import Context
from ..editing import Builder, drop, dtype_of

EXACT = (int8, uint8)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop a QuantizeLinear that undoes a DequantizeLinear with the same scale and zero point.

    Quantizers put both around every operator, including those that compute nothing; these move the
    integers directly instead. With 8 bits every integer round-trips exactly. What a Concat joins is
    quantized part by part where that undoes one of them. With ``Options.integers`` the greatest of
    a window is one of integers, too.
    """
    for node in list(graph.nodes):
        if isinstance(node.op, QuantizeLinear) and _quantizes_parts(graph, node):
            yield f"QuantizeLinear '{node.name}' is applied to the parts of a Concat"
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, QuantizeLinear):
            continue
        movers, origin = _movers(graph, node, pools=bool(context.options.integers))
        if origin is None or not _is_undone(origin, node):
            continue
        if any(isinstance(mover.op, MaxPool) for mover in movers) and _falls(origin):
            continue
        source = origin.inputs[0]
        assert source is not None
        if movers:
            graph.set_inputs(movers[0], (source, *movers[0].inputs[1:]))
            for mover in movers:
                infer_node(mover)
            source = movers[-1].output
        graph.replace(node, (source,))
        drop(graph, origin)
        yield f"QuantizeLinear '{node.name}' undid DequantizeLinear '{origin.name}'"


def _quantizes_parts(graph: Graph, node: Node) -> bool:
    """Move a QuantizeLinear in front of a Concat, if that undoes the DequantizeLinear of a part."""
    joined, *numbers = node.inputs
    concat = joined.producer if joined is not None else None
    if joined is None or concat is None or not isinstance(concat.op, Concat):
        return False
    if graph.sole_consumer(joined) is not node or any(_number(v) is None for v in numbers):
        return False
    origins = [_origin(graph, part) for part in concat.operands]
    if not any(origin is not None and _is_undone(origin, node) for origin in origins):
        return False
    add = Builder(graph, node, node.name, (node,))
    parts = [add(node.op, part, *numbers) for part in concat.operands]
    whole = Builder(graph, node, concat.name, (concat,))(concat.op, *parts)
    graph.replace(node, (whole,))
    drop(graph, concat)
    return True


def _origin(graph: Graph, value: Value) -> Node | None:
    """Return the DequantizeLinear of a tensor that is only moved, and that only one node reads."""
    node = value.producer
    while node is not None and not isinstance(node.op, DequantizeLinear):
        if graph.sole_consumer(value) is None or not moves(node):
            return None
        value = node.operands[0]
        node = value.producer
    return node


def _movers(graph: Graph, node: Node, *, pools: bool) -> tuple[list[Node], Node | None]:
    """Return the moves before a QuantizeLinear, and the DequantizeLinear before them.

    Args:
        graph: the graph.
        node: the QuantizeLinear.
        pools: whether a MaxPool counts as a move.
    """
    found: list[Node] = []
    value, reader = node.inputs[0], node
    while value is not None and (producer := value.producer) is not None:
        if isinstance(producer.op, DequantizeLinear):
            return found[::-1], producer
        if graph.sole_consumer(value) is not reader:
            break
        if not (moves(producer) or (pools and takes_greatest(producer))):
            break
        found.append(producer)
        value, reader = producer.inputs[0], producer
    return [], None


def moves(node: Node) -> bool:
    """Whether a node only moves elements of what it reads first."""
    return node.op.view or isinstance(node.op, Transpose | Gather | Slice)


def takes_greatest(node: Node) -> bool:
    """Whether a node is a MaxPool that does not say where the greatest of each window is."""
    return isinstance(node.op, MaxPool) and len(node.outputs) == 1


def _falls(node: Node) -> bool:
    """Whether a DequantizeLinear makes less of more."""
    return (_number(node.inputs[1]) or 0) < 0


def _is_undone(first: Node, then: Node) -> bool:
    """Whether a QuantizeLinear inverts a DequantizeLinear."""
    start, scale, *_ = numbers = (*first.inputs, None)[:3]
    source, result = dtype_of(start), dtype_of(then.output)
    if source not in EXACT or source != result or getattr(then.op, "precision", None):
        return False
    by_one = [_number(value) for value in numbers[1:]]
    again = [_number(value) for value in (*then.inputs, None)[1:3]]
    if dtype_of(scale) != float32 or dtype_of(first.output) != float32:
        return False
    return None not in by_one and by_one == again and by_one[0] not in (0, np.inf)


def _number(value: Value | None) -> float | None:
    """Return a one-element constant, 0 if omitted; None for others."""
    if value is None:
        return 0.0
    data = value.data
    return float(data.reshape(())) if data is not None and data.size == 1 else None
