"""Texts of numbers: ONNX leaves open how many digits a Cast to strings writes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ...runtime.ir.dtypes import FLOATS, DType
from ...runtime.ir.graph import Value
from ...runtime.ir.types import Array, TensorType
from ...runtime.ops.elementwise import Cast
from ...runtime.ops.movement import Transpose

#: Relative, of two texts of one number: onnxruntime writes eight digits.
_EIGHT_DIGITS = 1e-7


def spelled_alike(output: Value | None, reference: Array, found: Array) -> Array:
    """Return what was found, as the reference spells it where both texts mean one number.

    Args:
        output: what was compared; numbers are those that a Cast of floats writes.
        reference: strings.
        found: strings, of any shape.
    """
    dtype = _written(output)
    if dtype is None or reference.shape != found.shape:
        return found
    known = ml_dtypes.finfo(dtype)
    relative, least = max(float(known.eps), _EIGHT_DIGITS), float(known.smallest_subnormal)
    spelled = found.copy()
    for place in np.flatnonzero(np.asarray(reference != found, bool)):
        a, b = _number(reference.flat[place]), _number(found.flat[place])
        if a is None or b is None:
            continue
        if np.isclose(a, b, rtol=relative, atol=least, equal_nan=True):
            spelled.flat[place] = reference.flat[place]
    return spelled


def _written(output: Value | None) -> DType | None:
    """Return of which dtype the numbers are that an output spells; None if it spells none."""
    while output is not None and (node := output.producer) is not None:
        source = node.operands[0]
        if isinstance(node.op, Cast):
            known = source.type.dtype if isinstance(source.type, TensorType) else None
            return known if known in FLOATS else None
        output = source if node.op.view or isinstance(node.op, Transpose) else None
    return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
