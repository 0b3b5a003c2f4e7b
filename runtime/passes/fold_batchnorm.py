"""Let a convolution or Gemm do the work of the BatchNormalization behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir import Graph, Node
from ..ops.matmul import Gemm
from ..ops.norm import BatchNormalization
from .driver import Context
from .linear import as_linear, has_rank, rebuild, substitute
from .rounding import Unfit, refusal


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``scale * (conv(x) - mean) / sqrt(var + eps) + shift`` into weight and bias.

    ``w' = w * s`` and ``b' = (b - mean) * s + shift`` with ``s = scale / sqrt(var + eps)`` per
    output channel, computed in float64. Conv, ConvTranspose (grouped too) and Gemm, with or
    without a bias; the convolution must have no other reader.
    """
    for norm in list(graph.nodes):
        op, source = norm.op, norm.inputs[0] if norm.inputs else None
        if not isinstance(op, BatchNormalization) or source is None or not _is_inference(norm, op):
            continue
        linear = as_linear(source.producer)
        if linear is None or graph.sole_consumer(source) is not norm:
            continue
        if isinstance(linear.node.op, Gemm) and not has_rank(source, 2):
            continue
        constants = [v.data for v in norm.inputs[1:5] if v is not None and v.data is not None]
        scale, shift, mean, var = (data.astype(np.float64) for data in constants)
        if {scale.shape, shift.shape, mean.shape, var.shape} != {(linear.channels,)}:
            continue
        chain = (linear.node, norm)
        try:
            with np.errstate(all="ignore"):
                factor = scale / np.sqrt(var + op.epsilon)
                bias = (linear.bias - mean) * factor + shift
                new = rebuild(graph, linear, linear.scaled(factor), bias, chain)
        except Unfit as error:
            context.refused.append(refusal(chain, error))
            continue
        substitute(graph, chain, new)
        yield f"{new.kind} '{new.name}' took over BatchNormalization '{norm.name}'"


def _is_inference(norm: Node, op: BatchNormalization) -> bool:
    return (
        not op.training_mode
        and len(norm.outputs) == 1
        and all(v is not None and v.data is not None for v in norm.inputs[1:5])
    )
