"""Merges consecutive linear layers without an activation in between."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph
from ...ir.types import Array
from ...ops.conv import Conv, convolves_pixels
from ...ops.matmul import Gemm
from ..driver import Context
from ..fusion import Found, Fusion, Outcome, fuse
from ..linear import LAYER, LinearLayer, as_linear, layer_of, rebuilt
from ..pattern import Apply
from ..rounding import Exact


def _build(found: Found) -> Outcome:
    first, second = layer_of(found), as_linear(found.top)
    if first is None or second is None or _expands(first, second):
        return None
    merged = _merge_gemm(first, second) or _merge_conv(first, second)
    if merged is None:
        return None
    return rebuilt(found.graph, first, Exact.of(merged[0]), merged[1], scaled=False)


FUSIONS = (Fusion(Apply((Conv, Gemm), LAYER), _build, text="{new} took over {kind} '{anchor}'"),)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge Gemm into Gemm, and a 1x1 Conv into the preceding Conv, where that is cheaper.

    ``(x A + a) B + b = x (A B) + (a B + b)``, computed in float64. The merged weight may have no
    more elements than both together, or a low-rank bottleneck would be expanded.
    """
    return fuse(graph, context, FUSIONS)


def _expands(first: LinearLayer, second: LinearLayer) -> bool:
    """Whether the merged weight has more elements than both together."""
    together = first.weight.size + second.weight.size
    return first.weight.size * second.channels > first.channels * together


def _merge_gemm(first: LinearLayer, second: LinearLayer) -> tuple[Array, Array] | None:
    one, two = first.node.op, second.node.op
    if not isinstance(one, Gemm) or not isinstance(two, Gemm) or two.transA:
        return None
    a, b = first.weight.astype(np.float64), second.weight.astype(np.float64)
    a, b = a.T if one.transB else a, b.T if two.transB else b
    if _rows(first.bias) != 1 or _rows(second.bias) != 1:
        return None
    row = np.broadcast_to(first.bias.reshape(1, -1), (1, a.shape[1]))
    bias = (row @ b * two.alpha + second.bias).reshape(-1)
    weight = a @ b * two.alpha  # the first alpha stays an attribute of the result
    return (weight.T if one.transB else weight), bias


def _rows(bias: Array) -> int:
    return 1 if bias.ndim < 2 else bias.shape[0]


def _merge_conv(first: LinearLayer, second: LinearLayer) -> tuple[Array, Array] | None:
    one, two = first.node.op, second.node.op
    if not isinstance(one, Conv) or not isinstance(two, Conv) or one.group != 1 or two.group != 1:
        return None
    if not convolves_pixels(second.node):
        return None
    mix = second.weight.astype(np.float64).reshape(second.weight.shape[:2])
    weight = np.tensordot(mix, first.weight.astype(np.float64), 1)
    return weight, mix @ first.bias + second.bias
