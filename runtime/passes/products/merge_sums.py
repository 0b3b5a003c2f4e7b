"""Merges 1x1 convolutions of different images whose results are added."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.graph import Graph
from ...ops.conv import Conv, convolves_pixels
from ...ops.elementwise import Add
from ...ops.movement import Concat
from ..driver import Context
from ..editing import shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..linear import LinearLayer, as_linear
from ..pattern import Apply
from ..rounding import rounded_bias


def _build(found: Found) -> Outcome:
    one, other = (as_linear(value.producer) for value in found.top.operands)
    if one is None or other is None or not _is_pointwise(one) or not _is_pointwise(other):
        return None
    images = one.node.operands[0], other.node.operands[0]
    if images[0] is images[1]:
        return None  # their weights are added instead
    weights = one.weight, other.weight
    channels = sum(weight.shape[1] for weight in weights)
    if one.channels != other.channels or one.channels < channels:
        return None
    if weights[0].dtype != weights[1].dtype or not _are_alike(one, other):
        return None
    bias = rounded_bias(one.bias + other.bias, weights[0].dtype)
    add = found.builder(found.top.name, found.graph.in_order((one.node, other.node)))
    x = add(Concat(axis=1), *images)
    constants = np.concatenate(weights, 1), bias
    w, b = (add.constant(array, f"{found.top.name}.merged") for array in constants)
    return Replacement(Conv(pads=(0,) * (2 * one.weight.ndim - 4)), (x, w, b))


def _is_pointwise(layer: LinearLayer) -> bool:
    """Whether a layer is a convolution of one group that reads every pixel for itself."""
    return convolves_pixels(layer.node) and getattr(layer.node.op, "group", 1) == 1


def _are_alike(one: LinearLayer, other: LinearLayer) -> bool:
    """Whether the results have one shape for certain, so that neither is broadcast."""
    shapes = [shape_of(layer.node.output) for layer in (one, other)]
    return shapes[0] == shapes[1] and shapes[0] is not None and None not in shapes[0]


FUSIONS = (
    Fusion(
        Apply(Add, Apply(Conv), Apply(Conv)),
        _build,
        text="{new} computes the sum of two convolutions at '{anchor}'",
    ),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge two 1x1 convolutions whose results are added: ``x A + z B = (x, z) (A, B)``.

    The last layer of a residual block and a projection of its input, as at the beginning of a
    ResNet, have many channels as results, and fewer as images: one convolution of both images,
    side by side, neither stores nor reads a sum in between. The result has at least as many
    channels as both images, so that no more bytes are moved even where a Concat copies them.
    """
    return fuse(graph, context, FUSIONS)
