"""Lengths that texts are padded to on a device, so that a few plans serve all of them."""

from __future__ import annotations

from collections.abc import Collection

from ..ir.dtypes import FLOATS, INTEGERS
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..ops.elementwise import Cast, Greater, GreaterOrEqual, Less, LessOrEqual
from ..ops.quantize import DynamicQuantizeLinear

_COMPARISONS = (Greater, GreaterOrEqual, Less, LessOrEqual)


def rounded(count: int, least: int = 1) -> int:
    """Return the next power of two, `least` or more."""
    return max(least, 1 << (count - 1).bit_length())


def are_alike(count: int, longer: int, limits: Collection[int]) -> bool:
    """Whether lengths, or their last positions, are on the same sides of all limits."""
    return not any(count - 1 <= limit <= longer for limit in limits)


def limits_of(graph: Graph) -> frozenset[int] | None:
    """Return the lengths from which on positions are computed otherwise.

    Angles of rotations are others in long texts. None if a result depends on what is in positions
    that no other attends to, however many: those of padding take part in the scale of a tensor
    that is quantized as a whole, and in a length that is compared with no constant, or a factor.
    """
    found = set[int]()
    for node in graph.walk():
        if isinstance(node.op, DynamicQuantizeLinear):
            return None
        if not isinstance(node.op, (*_COMPARISONS, Cast)) or not _is_number(node.output):
            continue
        reads = [value.tensor for value in node.operands if isinstance(value.type, TensorType)]
        if not reads or any(each.dtype not in INTEGERS for each in reads):
            continue
        if isinstance(node.op, Cast):
            if node.output.tensor.dtype in FLOATS:
                return None
            continue
        known = [each.known for each in reads if each.known is not None]
        if not known:
            return None
        found.update(int(each.reshape(())) for each in known)
    return frozenset(found)


def _is_number(value: Value) -> bool:
    """Whether a value is a single element that is not known."""
    made = value.type
    is_one = isinstance(made, TensorType) and made.shape is not None and {*made.shape} <= {1}
    return is_one and value.known is None
