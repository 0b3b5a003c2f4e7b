"""Removes zero filters and columns where the next layer can absorb their constant outputs."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node
from ...ir.types import Array, Dim
from ...ops import elementwise as ew
from ...ops.conv import Conv
from ...ops.matmul import Gemm
from ..driver import Context, Reason
from ..editing import stand_in
from ..fusion import refusal
from ..linear import LinearLayer, as_linear, rebuilt
from ..rounding import Unfit, product

#: Elementwise functions that may be between two layers.
_ACTIVATIONS = (
    ew.Clip,
    ew.Elu,
    ew.Gelu,
    ew.HardSigmoid,
    ew.HardSwish,
    ew.LeakyRelu,
    ew.Relu,
    ew.Sigmoid,
    ew.Softplus,
    ew.Swish,
    ew.Tanh,
)


@record
class _Layers:
    """Two layers, and the activations between them, without other readers."""

    first: LinearLayer
    between: tuple[Node, ...]
    second: LinearLayer


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Remove zero filters of a Conv, or columns of a Gemm, from it and the next layer.

    Only with `Options.finite`, for the reason given in `fold_zero_weights`. The output of such a
    unit is its bias, which an activation maps to another constant. The next layer multiplies it by
    weights; the product is added to that layer's bias. A Conv with padding has zeros next to the
    constant, which must then be zero itself.
    """
    if not context.options.finite:
        return
    for node in list(graph.nodes):
        layers = _layers(graph, node) if node in graph else None
        found = layers and _constants(layers, context)
        if layers is None or found is None:
            continue
        dead, values = found
        try:
            _rebuild(graph, layers, dead, values)
        except Unfit as error:
            nodes = (layers.first.node, node)
            context.refused.append(refusal(graph, nodes, Reason.NUMBERS, str(error)))
            continue
        first, count = layers.first.node, int(dead.sum())
        yield f"{count} zero units of {first.kind} '{first.name}' became bias of '{node.name}'"


def _layers(graph: Graph, node: Node) -> _Layers | None:
    second = as_linear(node)
    if second is None:
        return None
    between: list[Node] = []
    value = node.inputs[0]
    while value is not None and value.producer is not None:
        maker = value.producer
        if graph.sole_consumer(value) is None:
            return None
        if not isinstance(maker.op, _ACTIVATIONS):
            first = as_linear(maker)
            fits = first is not None and _are_alike(first, second)
            return _Layers(first, tuple(reversed(between)), second) if first and fits else None
        if any(v is not None and v.data is None for v in maker.inputs[1:]):
            return None
        between.append(maker)
        value = maker.inputs[0]
    return None


def _are_alike(first: LinearLayer, second: LinearLayer) -> bool:
    """Whether the units of the first layer are the inputs of the second."""
    one, two = first.node.op, second.node.op
    if isinstance(one, Conv) and isinstance(two, Conv):
        return one.group == two.group == 1
    return isinstance(one, Gemm) and isinstance(two, Gemm) and not two.transA


def _by_unit(linear: LinearLayer) -> Array:
    """Return the weights [units, rest]."""
    op, w = linear.node.op, linear.weight
    if isinstance(op, Gemm) and not op.transB:
        return w.T
    return w.reshape(len(w), prod(w.shape[1:]))


def _is_padded(linear: LinearLayer) -> bool:
    op = linear.node.op
    return isinstance(op, Conv) and op.may_pad


def _constants(layers: _Layers, context: Context) -> tuple[Array, Array] | None:
    """Return which units of the first layer are constant, and their input to the second."""
    first = layers.first
    if first.bias.ndim > 1 and first.bias.shape[0] != 1:
        return None
    dead: Array = np.logical_not(_by_unit(first).any(1))
    if not dead.any():
        return None
    values = np.broadcast_to(first.bias.reshape(-1), first.channels).astype(first.weight.dtype)
    for node in layers.between:
        others = [None if v is None else v.data for v in node.inputs[1:]]
        found = context.evaluate(node.op, [values, *others], 1)
        if found is None:
            return None
        values = np.asarray(found[0])
    if _is_padded(layers.second):
        dead = np.logical_and(dead, values == 0)
    return (dead, values[dead].astype(np.float64)) if dead.any() and not dead.all() else None


def _rebuild(graph: Graph, layers: _Layers, dead: Array, values: Array) -> None:
    first, second, live = layers.first, layers.second, ~dead
    of_gemm = isinstance(second.node.op, Gemm)
    axis = 0 if of_gemm and not getattr(second.node.op, "transB", 0) else 1
    lost = second.weight.astype(np.float64).compress(dead, axis)
    if of_gemm:
        addend = np.tensordot(values, lost, (0, axis)) * getattr(second.node.op, "alpha", 1.0)
    else:
        addend = lost.reshape(*lost.shape[:2], prod(lost.shape[2:])).sum(2) @ values
    new = _exchange(graph, second, second.weight.compress(live, axis), second.bias + addend)
    axis = 1 if isinstance(first.node.op, Gemm) and not first.node.op.transB else 0
    bias = np.broadcast_to(first.bias.reshape(-1), first.channels)[live]
    _exchange(graph, first, first.weight.compress(live, axis), bias)
    value = new.inputs[0]
    for _ in range(len(layers.between) + 1):
        if value is None or value.producer is None:
            break
        shape: list[Dim] = list(value.tensor.shape or ())
        if shape:
            shape[1] = int(live.sum())
            value.type = value.tensor.with_shape(tuple(shape))
        value = value.producer.inputs[0]


def _exchange(graph: Graph, linear: LinearLayer, weight: Array, bias: Array) -> Node:
    """Replace a layer by one with other weights."""
    new = rebuilt(graph, linear, product(weight, np.ones(1)), bias, scaled=False)
    return stand_in(graph, {linear.node}, linear.node, new.op, new.inputs)
