"""Let a convolution or Gemm do the work of the BatchNormalization behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Node
from ..ir.types import Array
from ..ops.matmul import Gemm
from ..ops.norm import BatchNormalization
from .driver import Context
from .editing import rank_of
from .fusion import Found, Fusion, Outcome, fuse
from .linear import LAYER, layer_of, rebuilt
from .pattern import Apply


def _is_inference(norm: Node) -> bool:
    constants = norm.inputs[1:5]
    return (
        not getattr(norm.op, "training_mode", 0)
        and len(norm.outputs) == 1
        and all(v is not None and v.data is not None for v in constants)
    )


def folded(norm: Node) -> tuple[Array, Array] | None:
    """Return what a BatchNormalization of constants multiplies and adds by channel (float64).

    None for one in training, or whose constants differ in shape.
    """
    if not isinstance(norm.op, BatchNormalization) or not _is_inference(norm):
        return None
    constants = [v.data for v in norm.inputs[1:5] if v is not None and v.data is not None]
    scale, shift, mean, var = (data.astype(np.float64) for data in constants)
    if len({scale.shape, shift.shape, mean.shape, var.shape}) != 1:
        return None
    factor = scale / np.sqrt(var + norm.op.epsilon)
    return factor, shift - mean * factor


def _build(found: Found) -> Outcome:
    norm, linear = found.top, layer_of(found)
    affine = folded(norm)
    if linear is None or affine is None or affine[0].shape != (linear.channels,):
        return None
    if isinstance(linear.node.op, Gemm) and rank_of(norm.inputs[0]) != 2:
        return None
    scale, shift = affine
    return rebuilt(found.graph, linear, linear.scaled(scale), linear.bias * scale + shift)


FUSIONS = (
    Fusion(
        Apply(BatchNormalization, LAYER, where=_is_inference),
        _build,
        text="{new} took over {kind} '{anchor}'",
    ),
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``scale * (conv(x) - mean) / sqrt(var + eps) + shift`` into weight and bias.

    ``w' = w * s`` and ``b' = (b - mean) * s + shift`` with ``s = scale / sqrt(var + eps)`` per
    output channel, computed in float64. Conv, ConvTranspose (grouped too) and Gemm, with or
    without a bias; the convolution must have no other reader.
    """
    return fuse(graph, context, FUSIONS)
