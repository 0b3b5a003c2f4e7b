"""Calls of elementwise operators as tapes record them: the fastest of numpy's for their arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import FEW_BITS, float16, float32, float64
from ....runtime.ir.types import Array
from . import calls
from .convert import is_stored
from .elementwise import Conversion, Function, clip, divide, greatest, least, prelu, relu
from .halves import store, widened

#: Minus infinity, zero and infinity.
_LIMITS = {dtype: np.array((-np.inf, 0, np.inf), dtype) for dtype in (float32, float64)}


def elementwise_call(
    function: Function, *operands: Array | None, out: Array
) -> Callable[[], object]:
    """Return the call ``function(*operands, out=out)`` of a row's function; may be repeated."""
    dtypes = {x.dtype for x in operands if x is not None}
    if float16 in dtypes and (float32 in dtypes or _is_single(function)):
        return partial(_with_singles, function, *operands, out=out)
    x, *bounds = operands
    if isinstance(function, Conversion) and x is not None and is_stored(x.dtype, out.dtype):
        is_numpy_s = float16 not in (x.dtype, out.dtype) and out.dtype not in FEW_BITS
        return partial(np.copyto, out, x, "unsafe") if is_numpy_s else partial(store, out, x)
    limits = None if x is None or x.dtype != out.dtype else _LIMITS.get(out.dtype)
    if limits is None or function not in (clip, relu, greatest, least):
        return calls.calling(function, *operands, out=out)
    low, zero, high = (limits[i : i + 1].reshape(()) for i in range(3))
    if function in (greatest, least):
        pair = _with_number(operands, out)
        if pair is None:
            return calls.calling(function, *operands, out=out)
        many, number = pair
        ends = (number, high) if function is greatest else (low, number)
        return calls.calling(calls.clip, many, *ends, out=out)
    if function is relu:
        return calls.calling(calls.clip, x, zero, high, out=out)
    given = (*bounds, None, None)
    low, high = (
        limit if bound is None else bound.reshape(())
        for bound, limit in zip(given, (low, high), strict=False)
    )
    return calls.calling(calls.clip, x, low, high, out=out)


def _with_number(operands: tuple[Array | None, ...], out: Array) -> tuple[Array, Array] | None:
    """Return an operand with the shape of the result, and a number; None for others.

    numpy's maximum with a number takes three times as long as its clip.
    """
    if len(operands) != 2:
        return None
    few, many = sorted((x for x in operands if x is not None), key=np.size)
    return (many, few.reshape(())) if few.size == 1 and many.shape == out.shape else None


def _is_single(function: Function) -> bool:
    """Whether numpy's loops convert halves to float32 and back one by one."""
    return isinstance(function, np.ufunc) or function in _SINGLES


#: Functions of the table for which that is true of what they call.
_SINGLES = frozenset({divide, clip, relu, prelu, greatest, least})


def _with_singles(function: Function, *operands: Array | None, out: Array) -> None:
    """Call a row's function with halves as float32, which numpy converts one by one."""
    single = np.empty(out.shape, float32) if out.dtype == float16 else out
    function(*(x if x is None else widened(x) for x in operands), out=single)
    if single is not out:
        store(out, single)
