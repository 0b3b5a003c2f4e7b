"""Convolutions and Gemms as linear maps with constant weights, for several passes."""

from __future__ import annotations

from math import prod

import numpy as np

from ..base.record import record
from ..ir.dtypes import DType
from ..ir.graph import Graph, Node
from ..ir.op import with_attributes
from ..ir.types import Array
from ..ops.conv import Conv, ConvTranspose
from ..ops.matmul import Gemm
from .fusion import Found, Replacement
from .pattern import Apply
from .rounding import Exact, check, narrowed, product, rounded_bias

#: Operators that `as_linear` supports.
LAYER = Apply((Conv, ConvTranspose, Gemm), name="layer")


@record
class LinearLayer:
    """A Conv, ConvTranspose or Gemm whose weight and bias are constants of float type.

    Attributes:
        node: the node.
        weight: its second input.
        bias: float64 addend per output channel, [channels]; for a Gemm of any shape that broadcasts
            over rows, with `beta` multiplied in.
    """

    node: Node
    weight: Array
    bias: Array

    @property
    def channels(self) -> int:
        """Number of output channels, or columns."""
        op = self.node.op
        if isinstance(op, Conv):
            return self.weight.shape[0]
        if isinstance(op, ConvTranspose):
            return self.weight.shape[1] * op.group
        return self.weight.shape[0 if getattr(op, "transB", 0) else 1]

    def scaled(self, scale: Array) -> Exact:
        """Return the weight with each output channel multiplied by `scale` (float64 [channels])."""
        op, w = self.node.op, self.weight
        if isinstance(op, Conv):
            return product(w, scale.reshape(-1, *[1] * (w.ndim - 1)))
        if isinstance(op, ConvTranspose):
            by_group = w.reshape(op.group, len(w) // op.group, *w.shape[1:])
            factor = scale.reshape(op.group, 1, w.shape[1], *[1] * (w.ndim - 2))
            return Exact.of(product(by_group, factor).all.reshape(w.shape))
        return product(w, scale[:, None] if getattr(op, "transB", 0) else scale)

    def narrowed(self, weight: Exact, *, scaled: bool, also: tuple[DType, ...] = ()) -> Array:
        """Return another weight of this map in the dtype of its own.

        Args:
            weight: the other one.
            scaled: whether it is the map's own with channels scaled.
            also: see `rounding.narrowed`.

        Raises:
            Unfit: a type cannot represent it.
        """
        op, old = self.node.op, self.weight if scaled else None
        if isinstance(op, ConvTranspose):
            whole, before = weight.all, None if old is None else self.by_channel(old)
            for dtype in (self.weight.dtype, *also):
                check(self.by_channel(whole), dtype, before)
            return whole.astype(self.weight.dtype)
        axis = 1 if isinstance(op, Gemm) and not op.transB else 0
        return narrowed(weight, self.weight.dtype, old, axis=axis, also=also)

    def by_channel(self, weight: Array) -> Array:
        """Return a weight of this map with output channels first, [channels, rest]."""
        op = self.node.op
        if isinstance(op, Conv):
            return weight.reshape(len(weight), prod(weight.shape[1:]))
        if isinstance(op, ConvTranspose):
            inner, columns, taps = len(weight) // op.group, weight.shape[1], prod(weight.shape[2:])
            by_group = weight.reshape(op.group, inner, columns, taps).transpose(0, 2, 1, 3)
            return by_group.reshape(op.group * columns, inner * taps)
        return weight if getattr(op, "transB", 0) else weight.T


def as_linear(node: Node | None) -> LinearLayer | None:
    """Return `node` as a linear map with constant weights, or None."""
    if node is None or not isinstance(node.op, Conv | ConvTranspose | Gemm):
        return None
    weight = node.inputs[1]
    addend = node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or weight.data is None or weight.data.dtype.kind != "f":
        return None
    if addend is not None and addend.data is None:
        return None
    linear = LinearLayer(node, weight.data, np.zeros(()))
    if addend is None or addend.data is None:
        bias = np.zeros(linear.channels)
    else:
        bias = addend.data.astype(np.float64) * getattr(node.op, "beta", 1.0)
    return LinearLayer(node, weight.data, bias)


def layer_of(found: Found) -> LinearLayer | None:
    """Return the layer in a match of a pattern with `LAYER`."""
    return as_linear(found.match.made("layer"))


def rebuilt(
    graph: Graph,
    linear: LinearLayer,
    weight: Exact,
    bias: Array,
    *,
    scaled: bool = True,
    also: tuple[DType, ...] = (),
) -> Replacement:
    """Return a layer like another one with other weights, which takes its name.

    Args:
        graph: the graph; constants are added to it.
        linear: the map to copy.
        weight: cast to the old weight's dtype.
        bias: float64, likewise; for a Gemm it replaces ``beta * C``.
        scaled: whether the weight is the old one with channels scaled.
        also: types that have to be able to represent the weight, too.

    Raises:
        Unfit: a dtype cannot represent them; nothing is changed.
    """
    node = linear.node
    made = linear.narrowed(weight, scaled=scaled, also=also)
    addend = rounded_bias(bias, linear.weight.dtype)
    op = with_attributes(node.op, beta=1.0) if isinstance(node.op, Gemm) else node.op
    base = node.inputs[1].name if node.inputs[1] else node.name
    weights = graph.constant(made, f"{base}.folded")
    biases = graph.constant(addend, f"{node.name}.bias")
    return Replacement(op, (node.inputs[0], weights, biases), named=node)
