"""Lengths that texts are padded to on a device, so that a few plans serve all of them."""

from __future__ import annotations

from ..ir.graph import Graph
from ..ops.quantize import DynamicQuantizeLinear


def rounded(count: int, least: int = 1) -> int:
    """Return the next power of two, `least` or more."""
    return max(least, 1 << (count - 1).bit_length())


def mixes_positions(graph: Graph) -> bool:
    """Whether a result depends on what is in positions that no other attends to.

    Those of padding take part in the scale of a tensor that is quantized as a whole.
    """
    return any(isinstance(node.op, DynamicQuantizeLinear) for node in graph.walk())
