"""Compute queries, keys and values of an Attention as one product of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array
from ..ops.attention import Attention, RotaryEmbedding
from ..ops.elementwise import Add
from ..ops.matmul import MatMul
from ..ops.movement import Split
from .driver import Context
from .editing import Builder
from .pattern import pairs


@dataclass(frozen=True, slots=True)
class _Layer:
    """x @ weight + bias, both constants.

    Attributes:
        nodes: the product and the sum, in this order.
        x: what is multiplied.
        weight: [k, n].
        bias: [n], or None where there is no sum.
    """

    nodes: tuple[Node, ...]
    x: Value
    weight: Array
    bias: Array | None

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.weight.shape[1]

    @property
    def addend(self) -> Array:
        """The bias, zeros where there is none."""
        return np.zeros(self.width, self.weight.dtype) if self.bias is None else self.bias


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge the linear layers before an Attention that read the same tensor.

    Two or three products with constant weights become one, whose weights stand side by side; a
    Split after it gives the parts.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Attention):
            continue
        operands = dict.fromkeys(_unturned(value) for value in node.inputs[:3] if value)
        found = [one for value in operands if (one := _layer(graph, value)) is not None]
        alike = [[other for other in found if _are_alike(one, other)] for one in found]
        layers = max(alike, key=len, default=list[_Layer]())
        if len(layers) < 2:
            continue
        new = _rewrite(graph, layers)
        yield f"{new.kind} '{new.name}' computes {len(layers)} products with '{layers[0].x.name}'"


def _unturned(value: Value) -> Value:
    """Return what a RotaryEmbedding rotates, or the value itself."""
    node = value.producer
    if node is None or not isinstance(node.op, RotaryEmbedding) or node.inputs[0] is None:
        return value
    return node.inputs[0]


def _layer(graph: Graph, value: Value) -> _Layer | None:
    """Return the linear layer that gives an operand which no other node reads."""
    if len(value.consumers) != 1 or graph.is_output(value):
        return None
    node, bias = value.producer, None
    nodes: tuple[Node, ...] = ()
    if node is not None and isinstance(node.op, Add):
        for addend, product in pairs(node):
            if addend.data is not None and graph.sole_consumer(product) is node:
                nodes, bias, value = (node,), addend.data, product
                break
        node = value.producer
    if node is None or not isinstance(node.op, MatMul) or node.inputs[0] is None:
        return None
    weight = node.inputs[1].data if node.inputs[1] is not None else None
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[1:]):
        return None
    return _Layer((node, *nodes), node.inputs[0], weight, bias)


def _are_alike(one: _Layer, other: _Layer) -> bool:
    return one.x is other.x and one.weight.dtype == other.weight.dtype


def _rewrite(graph: Graph, layers: list[_Layer]) -> Node:
    first = layers[0]
    place = {node: i for i, node in enumerate(graph.nodes)}
    before = min((one.nodes[0] for one in layers), key=place.__getitem__)
    origin = tuple(node for one in layers for node in one.nodes)
    name = before.name
    add = Builder(graph, before)
    weight = np.concatenate([one.weight for one in layers], axis=1)
    stored = graph.constant(weight, f"{name}.weights")
    new = Builder(graph, before, name, origin).node(MatMul(), first.x, stored)
    value = new.output
    if any(one.bias is not None for one in layers):
        biases = [one.addend for one in layers]
        bias = graph.constant(np.concatenate(biases), f"{name}.bias")
        value = add(Add(), value, bias, name=f"{name}.sum")
    sizes = add.integers((one.width for one in layers), f"{name}.widths")
    op = Split(axis=-1, num_outputs=len(layers))
    split = add.node(op, value, sizes, outputs=len(layers), name=f"{name}.parts")
    for one, part in zip(layers, split.outputs, strict=True):
        graph.redirect(one.nodes[-1].output, part)
        for node in reversed(one.nodes):
            graph.remove(node)
    graph.rename(new, name)
    return new
