"""Rewrites normalizations whose scales or shifts are not one for each element of a row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

import numpy as np

from ...ir.graph import Graph, Node
from ...ir.types import Array, Dim
from ...ops.elementwise import Add, Mul
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, dtype_of, shape_of, static_dims

Dims = tuple[Dim, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``norm(x, s, t)`` by ``norm(x, 1) * s + t``.

    ONNX lets scale and shift broadcast to all of x. Kernels and the patterns below take one element
    per element of a row, or one for all; an elementwise operator is as good for others. Constants
    that broadcast inside a row are written out instead.
    """
    for node in list(graph.nodes):
        if not isinstance(node.op, LayerNormalization | RMSNormalization):
            continue
        x, *shapes = (shape_of(value) for value in node.operands)
        if x is None or None in shapes:
            continue
        row = x[normalize_axis(node.op.axis, len(x)) :]
        given = [_without_ones(shape or ()) for shape in shapes]
        if not all(_repeats(shape, x) for shape in given):
            continue  # a factor with more places than x has would repeat x
        if any(len(shape) > len(row) for shape in given):
            _lower(graph, node, static_dims(row))
            yield f"scales of {node.kind} '{node.name}' differ from row to row: they are factors"
        elif _broadcast(row, given):
            sizes, data = static_dims(row), [each.data for each in node.operands[1:]]
            known = [each for each in data if each is not None]
            if sizes is not None and len(known) == len(data):
                _write_out(graph, node, known, sizes)
            else:
                _lower(graph, node, sizes)
            yield f"scales of {node.kind} '{node.name}' are not one per element of a row"


def _without_ones(shape: Dims) -> Dims:
    """Return a shape without sizes of 1 in front."""
    return tuple(dropwhile(lambda size: size == 1, shape))


def _repeats(shape: Dims, whole: Dims) -> bool:
    """Whether a parameter of this shape is known to be broadcast to a whole of that."""
    pairs = zip(shape[::-1], whole[::-1], strict=False)
    return len(shape) <= len(whole) and all(a == 1 or a == b is not None for a, b in pairs)


def _broadcast(row: Dims, given: list[Dims]) -> bool:
    """Whether parameters, not all of them numbers, vary along other axes than those of a row."""
    pairs = [pair for shape in given for pair in zip(shape[::-1], row[::-1], strict=False)]
    return len(set(map(len, given))) > 1 or any(a == 1 != b for a, b in pairs)


def _write_out(graph: Graph, node: Node, parameters: list[Array], row: tuple[int, ...]) -> None:
    """Replace constants, which may have more axes of size 1 than a row has, by some of its size."""
    cut = (data.reshape(data.shape[max(0, data.ndim - len(row)) :]) for data in parameters)
    written = (graph.constant(np.broadcast_to(data, row)) for data in cut)
    graph.set_inputs(node, (node.operands[0], *written))


def _lower(graph: Graph, node: Node, row: tuple[int, ...] | None) -> None:
    x, scale, *shift = node.operands
    add = Builder(graph, node, node.name, (node,))
    ones = add.constant(np.ones(row or 1, dtype_of(scale)), "ones")
    y, *statistics = add.node(node.op, x, ones, outputs=len(node.outputs)).outputs
    y = add(Mul(), y, scale)
    y = add(Add(), y, *shift) if shift else y
    graph.replace(node, [y, *statistics])
