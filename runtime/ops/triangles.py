"""Which matrices of [..., n, n] are known to be triangular, by the nodes that make them."""

from __future__ import annotations

import numpy as np

from ..ir.graph import Value
from ..ir.types import TensorType
from .elementwise import Add, Cast, Neg, Sub, Where
from .shape import Trilu


def is_below_diagonal(value: Value) -> bool:
    """Whether a computed matrix has only zeros on its diagonal and above it."""
    size = _size(value)
    while (node := value.producer) is not None and isinstance(node.op, (Neg, Cast)):
        value = node.operands[0]
    if node is None:
        return False
    if isinstance(node.op, Trilu):
        offset = (*node.inputs, None)[1]
        known = None if offset is None else offset.data
        return not node.op.upper and known is not None and int(known.item()) < 0
    if not isinstance(node.op, Where):
        return False
    condition, *values = node.operands
    if condition.data is None or condition.data.shape[-2:] != (size, size):
        return False
    above = condition.data[..., np.triu(np.ones((size, size), np.bool_))]
    return any(
        value.data is not None and not value.data.any() and bool((above == chosen).all())
        for value, chosen in zip(values, (True, False), strict=True)
    )


def is_unit_lower(value: Value) -> bool:
    """Whether a computed matrix has ones on its diagonal and zeros above it."""
    node = value.producer
    if node is None or not isinstance(node.op, (Add, Sub)):
        return False
    first, second = node.operands
    if isinstance(node.op, Add) and second.data is not None:
        first, second = second, first
    return is_identity(first) and is_below_diagonal(second)


def is_identity(value: Value) -> bool:
    """Whether a constant is one identity matrix, for all matrices of a stack."""
    data, size = value.data, _size(value)
    if data is None or data.size != size * size:
        return False
    return np.array_equal(data.reshape(size, size), np.eye(size))


def _size(value: Value) -> int:
    """Return the known number of rows and columns, or 0."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if shape is None or len(shape) < 2:
        return 0
    *_, rows, columns = shape
    return rows if isinstance(rows, int) and rows == columns else 0
