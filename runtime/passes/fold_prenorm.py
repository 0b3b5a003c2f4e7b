"""Folds a BatchNormalization into the layers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ..ir.graph import Graph, Node
from ..ir.types import Array
from ..ops.conv import Conv
from ..ops.matmul import Gemm
from ..ops.pool import AveragePool
from .driver import Context, Reason
from .editing import drop, stand_in
from .fold_batchnorm import folded
from .fusion import Replacement, refusal
from .linear import LinearLayer, as_linear, rebuilt
from .rounding import Exact, Unfit, half_types


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``w @ (x * s + t) + b`` into ``(w * s) @ x + (w @ t + b)``.

    For layers that read the result of a constant BatchNormalization: a Gemm, or a Conv (also
    grouped) without padding, which the shift is not added to. An AveragePool in between commutes
    with it. All readers must be such layers. Blocks of MaxViT and CoAtNet begin with one.
    """
    for norm in list(graph.nodes):
        affine = folded(norm) if norm in graph else None
        if affine is None or graph.is_output(norm.output):
            continue
        readers = list(norm.output.consumers)
        found = [
            layer for node in readers if (layer := layer_behind(graph, node, affine)) is not None
        ]
        if not found or len(found) != len(readers):
            continue
        nodes = {norm, *(layer.node for layer in found)}
        try:
            made = [taking(graph, layer, affine, context) for layer in found]
        except Unfit as error:
            context.refused.append(refusal(graph, nodes, Reason.NUMBERS, str(error)))
            continue
        names = ", ".join(f"'{layer.node.name}'" for layer in found)
        for layer, new in zip(found, made, strict=True):
            stand_in(graph, [layer.node], layer.node, new.op, new.inputs)
        x = norm.inputs[0]
        assert x is not None
        graph.redirect(norm.output, x)
        drop(graph, norm)
        yield f"{norm.kind} '{norm.name}' became part of {names} behind it"


def layer_behind(graph: Graph, node: Node, affine: tuple[Array, Array]) -> LinearLayer | None:
    """Return the layer that takes over scale and shift of what a node reads, or None."""
    op = node.op
    if isinstance(op, AveragePool):
        is_mean = not op.count_include_pad or not any(op.pads or ())
        reader = graph.sole_consumer(node.output)
        if reader is None or not is_mean or (op.count_include_pad and op.auto_pad != "NOTSET"):
            return None
        node, op = reader, reader.op
    layer, (scale, _) = as_linear(node), affine
    if layer is None or node.inputs[0] in node.inputs[1:]:
        return None
    if isinstance(op, Conv):
        is_bare = op.auto_pad in ("NOTSET", "VALID") and not any(op.pads or ())
        fits = is_bare and scale.size == layer.weight.shape[1] * op.group
        return layer if fits else None
    if isinstance(op, Gemm) and not op.transA:
        return layer if scale.size == layer.weight.shape[1 if op.transB else 0] else None
    return None


def taking(
    graph: Graph, layer: LinearLayer, affine: tuple[Array, Array], context: Context
) -> Replacement:
    """Return the layer with scale and shift of its input in its weights."""
    scale, shift = affine
    op, wide = layer.node.op, layer.weight.astype(np.float64)
    if isinstance(op, Conv):
        rest = (1,) * (wide.ndim - 2)
        groups = wide.reshape(op.group, len(wide) // op.group, *wide.shape[1:])
        by, more = (each.reshape(op.group, 1, wide.shape[1], *rest) for each in (scale, shift))
        weight = (groups * by).reshape(wide.shape)
        addend = (groups * more).reshape(len(wide), prod(wide.shape[1:])).sum(1)
    else:
        assert isinstance(op, Gemm)
        by, more = (each if op.transB else each[:, None] for each in (scale, shift))
        weight, addend = wide * by, op.alpha * (wide * more).sum(1 if op.transB else 0)
    also = half_types(context.options.precision, layer.weight.dtype)
    exact, bias = Exact.of(weight), layer.bias + addend
    return rebuilt(graph, layer, exact, bias, scaled=False, also=also)
