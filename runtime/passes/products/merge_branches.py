"""Merges linear layers that read the same tensor and whose results are added."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.conv import Conv
from ...ops.elementwise import Add, Sub
from ...ops.matmul import Gemm
from ...ops.norm import BatchNormalization
from ..driver import Context, Reason
from ..fusion import Found, Fusion, Outcome, fuse
from ..linear import LinearLayer, as_linear, rebuilt
from ..norms import fold_affine, fold_batchnorm
from ..norms.fold_batchnorm import folded
from ..pattern import Apply
from ..rounding import Exact

_BRANCH = (Conv, Gemm, BatchNormalization)


@record
class _Window:
    """What a convolution reads along each axis: begin, end, kernel, stride, dilation."""

    begins: Array
    ends: Array
    kernel: Array
    strides: Array
    dilations: Array

    @classmethod
    def of(cls, op: Conv, weight: Array) -> _Window | None:
        """Return the window of a Conv; None if its padding depends on the input's size."""
        rank = weight.ndim - 2
        ones, zeros = (1,) * rank, (0,) * (2 * rank)
        if op.auto_pad not in ("NOTSET", "VALID"):
            return None
        pads = np.array((op.pads if op.auto_pad == "NOTSET" else None) or zeros)
        settings = (weight.shape[2:], op.strides or ones, op.dilations or ones)
        return cls(pads[:rank], pads[rank:], *map(np.array, settings))

    @property
    def shrinks(self) -> Array:
        """By how much each result axis is shorter than the input's, at stride 1."""
        return (self.kernel - 1) * self.dilations - self.begins - self.ends

    def offset_in(self, other: _Window) -> tuple[slice, ...] | None:
        """Return which elements of another one's kernel read the same inputs, or None."""
        same = (self.shrinks == other.shrinks).all() and (self.strides == other.strides).all()
        fits = (self.kernel == 1) | (self.dilations == other.dilations)
        steps, rest = np.divmod(other.begins - self.begins, other.dilations)
        if not same or not fits.all() or rest.any():
            return None
        if (steps < 0).any() or (steps + self.kernel > other.kernel).any():
            return None
        return tuple(map(slice, steps.tolist(), (steps + self.kernel).tolist()))


def _build(found: Found) -> Outcome:
    first, second = found.top.inputs
    if first is None or second is None:
        return None
    sign = -1.0 if isinstance(found.top.op, Sub) else 1.0
    one, other = _signed(first, 1.0), _signed(second, sign)
    layer = one or other
    if layer is not None and _holds_infinities(layer.node.inputs[0]):
        return found.refuse(Reason.NUMBERS, "infinities of both branches may have other signs")
    if one is None or other is None or one.node.inputs[0] is not other.node.inputs[0]:
        return _with_affine(found, one, second, sign) or _with_affine(found, other, first, 1.0)
    if isinstance(one.node.op, Gemm) or isinstance(other.node.op, Gemm):
        merged = _of_gemms(one, other)
    else:
        one, other = sorted((one, other), key=lambda layer: -layer.weight.size)
        merged = _of_convolutions(one, other)
    return None if merged is None else rebuilt(found.graph, one, *merged, scaled=False)


def _holds_infinities(value: Value | None) -> bool:
    """Return whether a tensor is made with a constant that has infinities or NaN."""
    node = None if value is None else value.producer
    constants = [] if node is None else [v.data for v in node.distinct_reads if v.data is not None]
    return any(data.dtype in FLOATS and not np.isfinite(data).all() for data in constants)


def _signed(value: Value, sign: float) -> LinearLayer | None:
    """Return the layer that computes a value, multiplied by a sign."""
    layer = as_linear(value.producer)
    if layer is None or sign == 1:
        return layer
    return LinearLayer(layer.node, layer.weight * layer.weight.dtype.type(sign), sign * layer.bias)


def _of_convolutions(large: LinearLayer, small: LinearLayer) -> tuple[Exact, Array] | None:
    one, two = large.node.op, small.node.op
    if not isinstance(one, Conv) or not isinstance(two, Conv) or one.group != two.group:
        return None
    if large.weight.dtype != small.weight.dtype or large.weight.shape[:2] != small.weight.shape[:2]:
        return None
    outer, inner = _Window.of(one, large.weight), _Window.of(two, small.weight)
    place = None if outer is None or inner is None else inner.offset_in(outer)
    if place is None:
        return None

    def rows(part: slice) -> Array:
        weight = large.weight[part].astype(np.float64)
        weight[(..., *place)] += small.weight[part]
        return weight

    return Exact(large.weight.shape, rows), large.bias + small.bias


def _with_affine(found: Found, layer: LinearLayer | None, value: Value, sign: float) -> Outcome:
    """Return a convolution with its input, optionally batch-normalized, added."""
    if layer is None or not isinstance(layer.node.op, Conv) or layer.node not in found.match.nodes:
        return None
    op, x = layer.node.op, layer.node.inputs[0]
    channels, depth = layer.weight.shape[:2]
    affine = np.ones(channels), np.zeros(channels)
    if value is not x:
        norm = value.producer
        known = None if norm is None or norm.inputs[0] is not x else folded(norm)
        if known is None:
            return None
        affine = known
    window = _Window.of(op, layer.weight)
    if window is None or {part.shape for part in affine} != {(channels,)}:
        return None
    point = np.ones(layer.weight.ndim - 2, int)
    itself = _Window(0 * point, 0 * point, point, point, point)
    place = itself.offset_in(window)
    if channels != depth * op.group or place is None:
        return None
    old, factors, centre = layer.weight, sign * affine[0], tuple(part.start for part in place)

    def rows(part: slice) -> Array:
        weight, places = old[part].astype(np.float64), np.arange(channels, dtype=np.int64)[part]
        weight[(np.arange(len(weight)), places % depth, *centre)] += factors[part]
        return weight

    weight, bias = Exact(old.shape, rows), layer.bias + sign * affine[1]
    return rebuilt(found.graph, layer, weight, bias, scaled=False)


def _of_gemms(one: LinearLayer, other: LinearLayer) -> tuple[Exact, Array] | None:
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

    def rows(part: slice) -> Array:
        return one.weight[part].astype(np.float64) + other.weight[part]

    return Exact(one.weight.shape, rows), one.bias + other.bias


def _sources(value: Value | None) -> set[Value | None]:
    """Return what a value may be a linear function of: itself, and its layer's input."""
    node = None if value is None else value.producer
    return {value} if node is None or type(node.op) not in _BRANCH else {value, node.inputs[0]}


def _share_input(node: Node) -> bool:
    """Whether both operands are linear functions of one tensor."""
    first, second = node.inputs
    return first is not second and bool(_sources(first) & _sources(second))


_LAYER = Apply((Conv, Gemm))

FUSIONS = tuple(
    Fusion(
        Apply(kind, *operands, where=_share_input),
        _build,
        text="{new} took over the addend of {kind} '{anchor}'",
    )
    for kind, operands in (
        ((Add, Sub), (_LAYER, _LAYER)),
        ((Add, Sub), (_LAYER, "other")),
        (Sub, ("other", _LAYER)),
    )
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge two layers that read the same tensor and are added: ``x A + x B = x (A + B)``.

    A smaller kernel is part of the larger one; the tensor itself, or a BatchNormalization of it,
    is a convolution with one number per channel. Networks trained with branches (RepVGG, MobileOne,
    FastViT) become plain ones: scales and norms of a sum are folded into the merged layer, which
    may then be merged with another. Sums are computed in float64. An infinity in an image is NaN in
    the sum of branches that multiply it by numbers of different signs, and infinite in the merged
    layer; so images that are made with constant infinities keep their branches.
    """
    merged = True
    while merged:
        merged = False
        for text in fuse(graph, context, FUSIONS):
            merged = True
            yield text
        if merged:
            yield from fold_batchnorm.run(graph, context)
            yield from fold_affine.run(graph, context)
