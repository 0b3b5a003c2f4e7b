"""Fold zero padding into the pads of the Conv or AveragePool behind it."""

from __future__ import annotations

from collections.abc import Iterator
from operator import lt

import numpy as np

from ..ir import Graph, Node
from ..op import with_attributes
from ..ops.conv import Conv
from ..ops.movement import Pad
from ..ops.pool import AveragePool
from ..types import TensorType
from .driver import Context


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Let a window read zeros beside its input instead of an input with zeros around it.

    The Pad must add zeros, on spatial axes alone, and its window must read nothing else; one that
    averages must count the zeros, and must not have fewer elements at an edge (`ceil_mode`).
    """
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, Conv | AveragePool) or op.auto_pad not in ("NOTSET", "VALID"):
            continue
        if isinstance(op, AveragePool) and not _counts_zeros(op):
            continue
        pad = node.inputs[0].producer if node.inputs[0] else None
        if pad is None or graph.sole_consumer(pad.output) is not node:
            continue
        added = _spatial_zeros(pad)
        if added is None:
            continue
        if isinstance(op, AveragePool) and not all(map(lt, added, op.kernel_shape * 2)):
            continue  # a window would lie in the padding alone
        pads = op.pads if op.pads and op.auto_pad == "NOTSET" else (0,) * len(added)
        total = tuple(a + b for a, b in zip(pads, added, strict=True))
        graph.set_op(node, with_attributes(op, pads=total, auto_pad="NOTSET"))
        graph.set_inputs(node, (pad.inputs[0], *node.inputs[1:]))
        node.origin = (*pad.origin, *node.origin)
        graph.remove(pad)
        yield f"Pad '{pad.name}' became part of {node.kind} '{node.name}'"


def _counts_zeros(op: AveragePool) -> bool:
    """Whether a zero in the padding counts as one in the input does."""
    unpadded = not op.pads or not any(op.pads) or op.auto_pad == "VALID"
    return bool(op.count_include_pad) and not op.ceil_mode and unpadded


def _spatial_zeros(node: Node) -> tuple[int, ...] | None:
    """Return the zeros that a Pad adds before, then behind each spatial axis; None for others."""
    data, pads, *rest = (*node.inputs, None, None)
    if not isinstance(node.op, Pad) or node.op.mode != "constant" or data is None or pads is None:
        return None
    value, axes = rest[:2]
    type_ = data.type
    if pads.data is None or not isinstance(type_, TensorType) or type_.rank is None:
        return None
    if value is not None and (value.data is None or np.any(value.data)):
        return None
    if axes is not None and axes.data is None:
        return None
    rank = type_.rank
    along = range(rank) if axes is None or axes.data is None else axes.data.tolist()
    before, behind = [0] * rank, [0] * rank
    count = pads.data.size // 2
    for i, axis in enumerate(along):
        before[axis], behind[axis] = int(pads.data[i]), int(pads.data[count + i])
    if rank < 3 or any(before[:2] + behind[:2]) or min(before + behind) < 0:
        return None
    return (*before[2:], *behind[2:])
