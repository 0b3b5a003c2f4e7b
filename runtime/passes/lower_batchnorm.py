"""Rewrites a BatchNormalization behind an activated layer as a factor and an addend."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph
from ..ops.elementwise import Add, Mul
from .driver import Context, Reason
from .editing import Builder, drop, dtype_of, rank_of
from .fold_batchnorm import folded
from .fusion import refusal
from .rounding import Unfit, rounded_bias
from .sink_transposes import layer_before


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``norm(act(conv(x)))`` by ``act(conv(x)) * s + t`` with one s and t per channel.

    An activation between a layer and its normalization (ConvMixer, XCiT) keeps that out of the
    weights, but not out of what the layer does to its results before it stores them. A
    normalization directly behind a layer, which its weights could not take over, stays.
    """
    for node in list(graph.nodes):
        affine, x = folded(node), node.inputs[0] if node.inputs else None
        rank, dtype = rank_of(x), dtype_of(x)
        if affine is None or x is None or rank is None or dtype is None or rank < 2:
            continue
        layer = layer_before(graph, x)
        if layer is None or layer is x.producer:
            continue
        by_channel = (-1, *(1,) * (rank - 2))
        try:
            scale, shift = (rounded_bias(each, dtype).reshape(by_channel) for each in affine)
        except Unfit as error:
            context.refused.append(refusal(graph, {node}, Reason.NUMBERS, str(error)))
            continue
        add = Builder(graph, node, node.name, (node,))
        scaled = add(Mul(), x, add.constant(scale, f"{node.name}.scale"))
        total = add(Add(), scaled, add.constant(shift, f"{node.name}.shift"))
        graph.redirect(node.output, total)
        drop(graph, node)
        yield f"{node.kind} '{node.name}' is a factor and an addend of each channel"
