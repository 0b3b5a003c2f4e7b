"""Rewrites a BatchNormalization behind an activated layer as a factor and an addend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.elementwise import Add, Mul
from ...ops.pool import AveragePool, MaxPool
from ..driver import Context, Reason
from ..editing import Builder, drop, dtype_of, rank_of, shape_of, stand_in
from ..fusion import refusal
from ..layouts.sink_transposes import layer_before
from ..norms.fold_batchnorm import folded, written
from ..norms.takers import layer_behind, taking
from ..pointwise import is_elementwise
from ..rounding import Unfit


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``norm(act(conv(x)))`` by ``act(conv(x)) * s + t`` with one s and t per channel.

    An activation between a layer and its normalization (ConvMixer, XCiT) keeps that out of the
    weights, but not out of what the layer does to its results before it stores them. A
    normalization directly behind a layer, which its weights could not take over, stays; so do those
    of images that are behind none. Rows that elementwise nodes compute (residuals of networks of
    graphs) are normalized with these, and images by the pooling that computes them. Where the
    result is added to a tensor, and only layers without padding read the sum, these take over the
    addends: what a layer adds to its results is then that tensor alone.
    """
    for node in list(graph.nodes):
        affine, x = folded(node), node.inputs[0] if node.inputs else None
        rank, dtype = rank_of(x), dtype_of(x)
        if affine is None or x is None or rank is None or dtype is None or rank < 2:
            continue
        layer = layer_before(graph, x)
        if layer is x.producer or not (layer or _are_computed_rows(x) or _is_pooled(graph, x)):
            continue
        by_channel = (-1, *(1,) * (rank - 2))
        try:
            scale, shift = (each.reshape(by_channel) for each in written(node, affine, dtype))
            is_taken = _take_behind(graph, node, affine[1], context)
        except Unfit as error:
            context.refused.append(refusal(graph, {node}, Reason.NUMBERS, str(error)))
            continue
        add = Builder(graph, node, node.name, (node,))
        scaled = add(Mul(), x, add.constant(scale, f"{node.name}.scale"))
        total = (
            scaled if is_taken else add(Add(), scaled, add.constant(shift, f"{node.name}.shift"))
        )
        graph.redirect(node.output, total)
        drop(graph, node)
        yield f"{node.kind} '{node.name}' is a factor and an addend of each channel"


def _are_computed_rows(x: Value) -> bool:
    """Whether an elementwise node computes rows."""
    return rank_of(x) == 2 and x.producer is not None and is_elementwise(x.producer.op)


def _is_pooled(graph: Graph, x: Value) -> bool:
    """Whether an image is a pooling's result that nothing else reads (ENet)."""
    node = graph.made_for_one(x)
    return node is not None and isinstance(node.op, MaxPool | AveragePool)


def _take_behind(graph: Graph, norm: Node, shift: Array, context: Context) -> bool:
    """Have the layers that read the sum of a result and a tensor add `shift`, if they can.

    Raises:
        Unfit: their biases would leave the range of their dtype.
    """
    total = graph.sole_consumer(norm.output)
    if total is None or not isinstance(total.op, Add) or graph.is_output(total.output):
        return False
    if any(
        value.is_constant or shape_of(value) != shape_of(norm.output)
        for value in total.inputs
        if value is not None
    ):
        return False
    affine = np.ones_like(shift), shift
    readers = list(total.output.consumers)
    found = [layer for node in readers if (layer := layer_behind(graph, node, affine)) is not None]
    if not found or len(found) != len(readers):
        return False
    made = [taking(graph, layer, affine, context) for layer in found]
    for layer, new in zip(found, made, strict=True):
        stand_in(graph, [layer.node], layer.node, new.op, new.inputs)
    return True
