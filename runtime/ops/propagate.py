"""Propagation of known elements through the shape arithmetic that exporters write.

`TensorType.value` of a small tensor is either an array of its dtype (all elements known) or an
`object` array of numbers, symbols and None. Results are exactly those of the operator: known
elements are computed by numpy in the tensor's own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir import dtypes
from ..ir.dtypes import DType
from ..ir.types import Array, TensorType

#: Maximum number of elements that are propagated.
MAX_ELEMENTS = 4096

FLOATS = frozenset({dtypes.float16, dtypes.float32, dtypes.float64})
NUMBERS = frozenset(d for d in dtypes.INTEGERS if d.isbuiltin == 1) | FLOATS | {dtypes.bool_}

#: A function of arrays; None if the result is undefined, such as x/0 for integers.
ArrayFunction = Callable[..., Any]
#: Computes an element from operands that are not all numbers: a number, a symbol, or None.
SymbolRule = Callable[..., Any]


def unknown(*operands: Any) -> None:
    """The rule for operators with unknown results unless all operands are numbers."""


def is_small(x: TensorType) -> bool:
    """Whether `x` is a numeric tensor small enough to propagate."""
    if x.dtype not in NUMBERS or not x.is_static:
        return False
    return max(x.dims, default=0) <= MAX_ELEMENTS and x.size <= MAX_ELEMENTS


def elements(x: TensorType) -> Array | None:
    """Return the elements of a small tensor, all None if unknown; None if it is large."""
    if not is_small(x):
        return None
    if x.value is not None:
        return x.value
    return np.full(x.dims, None, object)


def with_value(x: TensorType, value: Array) -> TensorType:
    """Return `x` with these elements, as an array of its dtype if all are known."""
    if not is_small(x) or value.shape != x.shape:
        return x
    if value.dtype == object:
        known = _is_number(value)
        if known.all():
            with np.errstate(all="ignore"):
                value = _dense(value, x.dtype)
        elif not known.any() and all(v is None for v in value.flat):
            return x
    return replace(x, value=value)


def _is_number(value: Array) -> Array:
    if value.dtype != object:
        return np.ones(value.shape, bool)
    flags = [isinstance(v, int | float | np.generic) for v in value.flat]
    return np.array(flags, bool).reshape(value.shape)


def _dense(value: Array, dtype: DType) -> Array:
    """Return an object array of numbers as an array of `dtype`, wrapping like a cast."""
    if dtype in FLOATS:
        return value.astype(np.float64).astype(dtype)
    wrapped = np.array([int(v) % 2**64 for v in value.flat], np.uint64)
    return wrapped.reshape(value.shape).astype(dtype)


def rearrange(result: TensorType, move: Callable[[Array], Array], x: TensorType) -> TensorType:
    """Return `result` with the elements of `x` that `move` selects.

    Args:
        result: type of the result.
        move: a function that moves elements without computing.
        x: the tensor whose elements it moves.
    """
    return combine(result, lambda arrays: move(arrays[0]), x)


def combine(
    result: TensorType, move: Callable[[list[Array]], Array], *inputs: TensorType
) -> TensorType:
    """Return `result` with elements of several `inputs` that `move` selects."""
    if all(x.value is None for x in inputs) or not is_small(result):
        return result
    found = [elements(x) for x in inputs]
    arrays = [a for a in found if a is not None]
    if len(arrays) != len(found):
        return result
    if any(a.dtype == object for a in arrays):
        arrays = [a.astype(object) for a in arrays]
    value: Array = np.asarray(move(arrays), arrays[0].dtype)  # numpy returns 0-d results as scalars
    return with_value(result, value)


def compute(
    result: TensorType,
    function: ArrayFunction,
    *inputs: TensorType,
    symbols: SymbolRule = unknown,
) -> TensorType:
    """Return `result` with the elements that `function` computes.

    Args:
        result: type of the result.
        function: computes arrays of the result's shape from broadcast arrays.
        inputs: the operands.
        symbols: computes an element whose operands are not all numbers.
    """
    if symbols is unknown and any(x.value is None for x in inputs):
        return result
    known = _broadcast_elements(result, inputs)
    if known is None:
        return result
    numbers, exact = known, np.True_
    if any(a.dtype == object for a in known):
        masks = [_is_number(a) for a in known]
        exact = np.logical_and.reduce(masks)
        numbers = [
            _dense(np.where(exact, a, 1), x.dtype) for a, x in zip(known, inputs, strict=True)
        ]
    try:
        with np.errstate(all="ignore"):
            found = function(*numbers)
    except TypeError:  # numpy has no such function for this dtype: -True, for example
        return result
    if found is None or found.dtype != result.dtype:
        return result
    value: Array = np.asarray(found)
    if not exact.all():
        value = value.astype(object)
        operands = ([_scalar(e) for e in a[~exact].tolist()] for a in known)
        found = None if symbols is unknown else [*map(symbols, *operands)]
        value[~exact] = found if found is None else np.fromiter(found, object, len(found))
    return with_value(result, value)


def _broadcast_elements(result: TensorType, inputs: Sequence[TensorType]) -> list[Array] | None:
    """Return the elements of all inputs broadcast to `result`; None if none are known."""
    if all(x.value is None for x in inputs) or not is_small(result):
        return None
    found = [elements(x) for x in inputs]
    fitting = [a for a in found if a is not None and a.ndim <= len(result.dims)]
    if len(fitting) != len(found):
        return None
    return [np.broadcast_to(a, result.dims) for a in fitting]


def _scalar(element: Any) -> Any:
    return element.item() if hasattr(element, "item") else element


def reduce(result: TensorType, function: Callable[[Array], Any], x: TensorType) -> TensorType:
    """Return `result` with the value of `function` on all of `x`, if `x` is known."""
    if x.value is None or not is_small(result) or not is_small(x):
        return result
    data = x.known
    if data is None:
        return result
    with np.errstate(all="ignore"):
        found = function(data)
    if found is None:
        return result
    value: Array = np.asarray(found, result.dtype)
    return with_value(result, value)
