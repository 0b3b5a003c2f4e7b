"""Add up linear layers that read the same tensor and whose results are added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..ir.graph import Graph, Node
from ..ir.types import Array
from ..ops.conv import Conv
from ..ops.elementwise import Add
from ..ops.matmul import Gemm
from ..ops.norm import BatchNormalization
from .driver import Context
from .fold_batchnorm import folded
from .fusion import Found, Fusion, Outcome, fuse
from .linear import Linear, as_linear, rebuilt
from .pattern import Apply

_BRANCH = (Conv, Gemm, BatchNormalization)


@dataclass(frozen=True, slots=True)
class _Window:
    """Which elements a convolution reads: per spatial axis begin, end, kernel, stride, dilation."""

    begins: Array
    ends: Array
    kernel: Array
    strides: Array
    dilations: Array

    @classmethod
    def of(cls, op: Conv, weight: Array) -> _Window | None:
        """Return that of a Conv; None where its padding depends on the input's size."""
        rank = weight.ndim - 2
        ones, zeros = (1,) * rank, (0,) * (2 * rank)
        if op.auto_pad not in ("NOTSET", "VALID"):
            return None
        pads = np.array((op.pads if op.auto_pad == "NOTSET" else None) or zeros)
        settings = (weight.shape[2:], op.strides or ones, op.dilations or ones)
        return cls(pads[:rank], pads[rank:], *map(np.array, settings))

    @property
    def shrinks(self) -> Array:
        """By how much each axis of the result is shorter than that of the input, at stride 1."""
        return (self.kernel - 1) * self.dilations - self.begins - self.ends

    def offset_in(self, other: _Window) -> tuple[slice, ...] | None:
        """Return which elements of another one's kernel read what this one reads, or None."""
        same = (self.shrinks == other.shrinks).all() and (self.strides == other.strides).all()
        fits = (self.kernel == 1) | (self.dilations == other.dilations)
        steps, rest = np.divmod(other.begins - self.begins, other.dilations)
        if not same or not fits.all() or rest.any():
            return None
        if (steps < 0).any() or (steps + self.kernel > other.kernel).any():
            return None
        return tuple(map(slice, steps.tolist(), (steps + self.kernel).tolist()))


def _build(found: Found) -> Outcome:
    sides = [value.producer for value in found.top.reads]
    if len(sides) != 2 or any(node is None or not node.inputs for node in sides):
        return None
    first, second = (node for node in sides if node is not None)
    if first.inputs[0] is not second.inputs[0]:
        return None
    layers = [as_linear(node) for node in (first, second)]
    if layers[0] is None:
        layers.reverse()
        first, second = second, first
    one, other = layers
    if one is None:
        return None
    if other is None:
        merged = _with_norm(one, second)
        return None if merged is None else rebuilt(found.graph, one, *merged, scaled=False)
    if isinstance(one.node.op, Gemm) or isinstance(other.node.op, Gemm):
        merged = _of_gemms(one, other)
    else:
        one, other = sorted((one, other), key=lambda layer: -layer.weight.size)
        merged = _of_convolutions(one, other)
    return None if merged is None else rebuilt(found.graph, one, *merged, scaled=False)


def _of_convolutions(large: Linear, small: Linear) -> tuple[Array, Array] | None:
    one, two = large.node.op, small.node.op
    if not isinstance(one, Conv) or not isinstance(two, Conv) or one.group != two.group:
        return None
    if large.weight.dtype != small.weight.dtype or large.weight.shape[:2] != small.weight.shape[:2]:
        return None
    outer, inner = _Window.of(one, large.weight), _Window.of(two, small.weight)
    place = None if outer is None or inner is None else inner.offset_in(outer)
    if place is None:
        return None
    weight = large.weight.astype(np.float64)
    weight[(..., *place)] += small.weight
    return weight, large.bias + small.bias


def _with_norm(layer: Linear, norm: Node) -> tuple[Array, Array] | None:
    """Return a convolution that does what a BatchNormalization beside it does, too."""
    op, affine = layer.node.op, folded(norm)
    if not isinstance(op, Conv) or affine is None:
        return None
    scale, shift = affine
    channels, depth = layer.weight.shape[:2]
    window = _Window.of(op, layer.weight)
    if window is None or {scale.shape, shift.shape} != {(channels,)}:
        return None
    if channels != depth * op.group:
        return None
    point = np.ones(layer.weight.ndim - 2, int)
    itself = _Window(0 * point, 0 * point, point, point, point)
    place = itself.offset_in(window)
    if place is None:
        return None
    weight = layer.weight.astype(np.float64)
    rows = np.arange(channels, dtype=np.int64)
    centre = tuple(part.start for part in place)
    weight[(rows, rows % depth, *centre)] += scale
    return weight, layer.bias + shift


def _of_gemms(one: Linear, other: Linear) -> tuple[Array, Array] | None:
    first, second = one.node.op, other.node.op
    if not isinstance(first, Gemm) or not isinstance(second, Gemm):
        return None
    alike = (first.transA, first.transB, first.alpha) == (
        second.transA,
        second.transB,
        second.alpha,
    )
    if not alike or one.weight.shape != other.weight.shape:
        return None
    if one.weight.dtype != other.weight.dtype or max(one.bias.ndim, other.bias.ndim) > 1:
        return None
    return one.weight.astype(np.float64) + other.weight, one.bias + other.bias


FUSIONS = (
    Fusion(
        Apply(Add, Apply(_BRANCH), Apply(_BRANCH)),
        _build,
        text="{new} took over what {kind} '{anchor}' adds to it",
    ),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Make one layer of two that read the same tensor and are added: ``x A + x B = x (A + B)``.

    A smaller kernel lies within the larger one, and a BatchNormalization is a convolution whose
    kernel is one number a channel. Networks that are trained with branches (RepVGG, MobileOne)
    become plain ones so. The sums are computed in float64.
    """
    return fuse(graph, context, FUSIONS)
