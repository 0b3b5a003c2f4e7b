"""Let a convolution, Gemm or batch-norm do the scaling and shifting behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir import Graph, Node
from ..ops.conv import Conv, ConvTranspose
from ..ops.elementwise import Add, Div, Mul, Sub
from ..ops.matmul import Gemm
from ..ops.norm import BatchNormalization
from ..types import Array
from .driver import Context
from .editing import rank_of
from .fusion import Found, Fusion, Outcome, Replacement, fuse
from .linear import layer_of, rebuilt
from .pattern import Apply, Var
from .rounding import check, rounded_bias

_LAYER = Apply((Conv, ConvTranspose, Gemm, BatchNormalization), name="layer")
_CONSTANT = Var("constant", lambda value: value.data is not None)


def _affine(found: Found) -> tuple[Array, Array] | None:
    """Return scale and shift per channel (float64), or None if the constant varies elsewhere."""
    value, other, op = found["layer"], found["constant"].data, found.top.op
    rank = rank_of(value)
    if rank is None or other is None:
        return None
    axis = rank - 1 if isinstance(found.match.made("layer").op, Gemm) else 1
    if other.ndim > rank or other.dtype != value.tensor.dtype or other.dtype.kind != "f":
        return None
    shape = (1,) * (rank - other.ndim) + other.shape
    if any(size != 1 for i, size in enumerate(shape) if i != axis):
        return None
    values = other.astype(np.float64).reshape(-1)
    is_first = found.top.inputs[0] is value
    one, zero = np.ones(1), np.zeros(1)
    if isinstance(op, Add):
        return one, values
    if isinstance(op, Mul):
        return values, zero
    if isinstance(op, Sub):
        return (one, -values) if is_first else (-one, values)
    return (1 / values, zero) if is_first and values.all() else None


def _build(found: Found) -> Outcome:
    affine = _affine(found)
    if affine is None:
        return None
    scale, shift = affine
    linear, layer = layer_of(found), found.match.made("layer")
    if linear is None:
        is_fixed = isinstance(layer.op, BatchNormalization) and not layer.op.training_mode
        return _rescaled(found, layer, scale, shift) if is_fixed else None
    if not {scale.size, shift.size} <= {1, linear.channels}:
        return None
    weight = linear.scaled(np.broadcast_to(scale, linear.channels))
    return rebuilt(found.graph, linear, weight, linear.bias * scale + shift)


def _rescaled(found: Found, norm: Node, scale: Array, shift: Array) -> Replacement | None:
    old = [v.data for v in norm.inputs[1:3] if v is not None and v.data is not None]
    if len(old) != 2 or len(norm.outputs) != 1 or not {scale.size, shift.size} <= {1, old[0].size}:
        return None
    weight = old[0].astype(np.float64) * scale
    check(weight, old[0].dtype, old[0], "scales")
    shifts = rounded_bias(old[1].astype(np.float64) * scale + shift, old[1].dtype)
    inputs = list(norm.inputs)
    for i, data in enumerate((weight.astype(old[0].dtype), shifts), 1):
        inputs[i] = found.graph.constant(data, f"{norm.name}.{i}")
    return Replacement(norm.op, inputs, named=norm)


FUSIONS = tuple(
    Fusion(Apply(kinds, *operands), _build, text="{new} took over {kind} '{anchor}'")
    for kinds, operands in (
        ((Add, Mul, Sub, Div), (_LAYER, _CONSTANT)),
        (Sub, (_CONSTANT, _LAYER)),
    )
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``y * s + t`` (Mul, Div, Add, Sub of a constant per channel) into what computes `y`.

    Weight and bias of a Conv, ConvTranspose or Gemm, or scale and shift of a BatchNormalization
    in inference, are changed instead, in float64. Nobody else may read `y`.
    """
    return fuse(graph, context, FUSIONS)
