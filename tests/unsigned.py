"""Bytes as onnxruntime multiplies them rightly on every processor.

On x86 without VNNI it adds two products of uint8 by int8 in 16 bits, and a sum that needs more
stops at their end. Numbers of uint8 whose zero point is 128 more are the same numbers, and it adds
products of uint8 by uint8 in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

K = TypeVar("K", int, str)


class Factor(NamedTuple):
    """Where an operator has a factor: positions or names of inputs."""

    factor: Any
    other: Any
    zero: Any
    #: Has the shape of zero points that are left out; None where that is a scalar's.
    like: Any = None


FACTORS: Mapping[str, tuple[Factor, ...]] = {
    "MatMulInteger": (Factor(1, 0, 3), Factor(0, 1, 2)),
    "ConvInteger": (Factor(1, 0, 3), Factor(0, 1, 2)),
    "QLinearMatMul": (Factor(3, 0, 5),),
    "QLinearConv": (Factor(3, 0, 5), Factor("w", "x", "w_zero_point")),
    "MatMulIntegerToFloat": (Factor("B", "A", "b_zero", "b_scale"),),
    "DynamicQuantizeMatMul": (Factor("B", "A", "b_zero", "b_scale"),),
    "QGemm": (Factor("B", "A", "b_zero_point"),),
    "QAttention": (Factor("weight", "input", "weight_zero_point", "weight_scale"),),
    "DynamicQuantizeLSTM": (Factor("W", "X", "W_zero"), Factor("R", "X", "R_zero")),
}


def unsigned(op: str, inputs: Mapping[K, Any]) -> dict[K, Any]:
    """Return the inputs of a node, with factors of int8 as uint8 where the other one is unsigned.

    Args:
        op: the operator.
        inputs: by position or by name; None where one is left out.
    """
    found = dict(inputs)
    for at in FACTORS.get(op, ()):
        factor, other = inputs.get(at.factor), inputs.get(at.other)
        if factor is None or other is None or factor.dtype != np.int8 or other.dtype == np.int8:
            continue
        zero = inputs.get(at.zero)
        if zero is None:
            zero = np.zeros(() if at.like is None else inputs[at.like].shape, np.int8)
        found[at.factor], found[at.zero] = _moved(factor), _moved(zero)
    return found


def unsigned_at(op: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Do the same for inputs in their order."""
    found = unsigned(op, dict(enumerate(inputs)))
    return tuple(found.get(i) for i in range(max(found, default=-1) + 1))


def _moved(x: np.ndarray) -> np.ndarray:
    return np.asarray(x.view(np.uint8) ^ 128)
