"""Folds a BatchNormalization into the layers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array
from ..ops.conv import Conv
from ..ops.elementwise import Add, Mul
from ..ops.matmul import Gemm
from ..ops.movement import Transpose
from ..ops.pool import AveragePool
from .driver import Context, Reason
from .editing import Builder, drop, rank_of, stand_in
from .fold_batchnorm import folded, written
from .fusion import Replacement, refusal
from .linear import LinearLayer, as_linear, rebuilt
from .rounding import Exact, Unfit, half_types


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``w @ (x * s + t) + b`` into ``(w * s) @ x + (w @ t + b)``.

    For layers that read the result of a constant BatchNormalization: a Gemm, or a Conv (also
    grouped) without padding, which the shift is not added to. An AveragePool in between commutes
    with it. All readers must be such layers. Blocks of MaxViT and CoAtNet begin with one. One
    between transposes of rows (PatchTST) is a factor and an addend of each column, which other
    passes fold.
    """
    for norm in list(graph.nodes):
        affine = folded(norm) if norm in graph else None
        if affine is None or graph.is_output(norm.output):
            continue
        rows, behind = _rows_around(graph, norm)
        if rows is not None and behind is not None:
            try:
                _write_columns(graph, norm, rows, behind, affine)
            except Unfit as error:
                context.refused.append(refusal(graph, {norm}, Reason.NUMBERS, str(error)))
                continue
            yield f"{norm.kind} '{norm.name}' is a factor and an addend of each column"
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


def _rows_around(graph: Graph, norm: Node) -> tuple[Value | None, Node | None]:
    """Return the rows that a node normalizes transposed, and the node that transposes them back."""
    x = norm.operands[0]
    before, behind = x.producer, graph.sole_consumer(norm.output)
    rank = rank_of(x)
    if before is None or behind is None or rank is None:
        return None, None
    if not isinstance(before.op, Transpose) or not isinstance(behind.op, Transpose):
        return None, None
    order = before.op.order(rank)
    back = tuple(order[axis] for axis in behind.op.order(rank))
    is_back = back == tuple(range(rank)) and order[1:2] == (rank - 1,)
    return (before.operands[0], behind) if is_back else (None, None)


def _write_columns(
    graph: Graph, norm: Node, rows: Value, behind: Node, affine: tuple[Array, Array]
) -> None:
    """Write a normalization of rows, which it reads and stores transposed, as a Mul and an Add."""
    scale, shift = written(norm, affine, rows.tensor.dtype)
    add = Builder(graph, behind, norm.name, (norm, behind))
    scaled = add(Mul(), rows, add.constant(scale, f"{norm.name}.scale"))
    total = add(Add(), scaled, add.constant(shift, f"{norm.name}.shift"))
    graph.redirect(behind.output, total)
    drop(graph, behind)


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
