"""Calls as tapes record them: numpy's functions in C, without the Python code around them.

Until such a function computes, its thread holds the GIL, which all other threads wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy._core import multiarray, umath

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.types import Array

#: The ufunc of `np.clip`, and what `np.einsum` calls: a sixth and two thirds of their overhead, but
#: not public.
clip: Callable[..., Any] = getattr(umath, "clip", np.clip)
einsum: Callable[..., Any] = getattr(multiarray, "c_einsum", np.einsum)

#: What `np.copyto` calls: two thirds of its overhead, but not public.
_copy: Callable[..., Any] = getattr(np.copyto, "_implementation", np.copyto)

#: What `np.dot` calls: half of `np.matmul`'s overhead, but not public.
_dot: Callable[..., Any] = getattr(np.dot, "_implementation", np.dot)
#: Maximum bytes of a product's result that `np.dot` fills with zeros in less time than it saves.
_FILLED = 1 << 14

#: Ufuncs that refuse their result as a third operand.
_BY_NAME = {np.maximum, np.minimum}


def calling(
    function: Callable[..., object], *operands: Array | None, out: Array
) -> Callable[[], object]:
    """Return the call ``function(*operands, out=out)``."""
    if function is np.negative and out.dtype.kind in "if" and not out.flags.forc:
        return partial(np.multiply, *operands, -1, out)  # numpy 2.4 negates the wrong elements
    if function is clip or (isinstance(function, np.ufunc) and function not in _BY_NAME):
        return partial(function, *operands, out)
    return partial(function, *operands, out=out)


def summing(subscripts: str, *operands: Array, out: Array) -> Callable[[], Any]:
    """Return the call ``np.einsum(subscripts, *operands, out=out)``."""
    return partial(einsum, subscripts, *operands, out=out)


def direct(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call with the same effect that numpy starts sooner, where there is one.

    It takes results by position faster than by name. Single elements without axes need no iterator,
    which takes as long as the rest of a call on a few elements.
    """
    if not isinstance(call, partial):
        return call
    function, operands, named = call.func, call.args, call.keywords
    if function is np.copyto:
        return partial(_copy, *operands, **named)
    if not isinstance(function, np.ufunc) or function.nout != 1:
        return call
    out = named["out"] if "out" in named else operands[-1]
    inputs: tuple[Any, ...] = operands[: function.nin]
    if len(inputs) != function.nin or not isinstance(out, np.ndarray):
        return call
    if function.signature is None and any(_fills(x, out) for x in inputs):
        inputs = tuple(map(_without_axes, inputs))
    if named.keys() <= {"out"} and function not in _BY_NAME:
        if function is np.matmul and (matrices := _matrices(inputs[0], inputs[1], out)):
            return partial(_dot, *matrices)
        return partial(function, *inputs, out)
    return partial(function, *inputs, *operands[function.nin :], **named)


def multiplying(a: Array, b: Array, out: Array) -> Callable[[Array], object]:
    """Return a function that computes ``a @ b`` into `out` for any array of the shape of `a`."""
    if (matrices := _matrices(a, b, out)) is None:
        return lambda left: np.matmul(left, b, out)
    matrix, product, shape = matrices[1], matrices[2], a.shape[-2:]
    return lambda left: _dot(left.reshape(shape), matrix, product)


def _fills(x: object, out: Array) -> bool:
    return isinstance(x, np.ndarray) and x.shape == out.shape and x.size > 1


def _without_axes(x: Any) -> Any:
    return x.reshape(()) if isinstance(x, np.ndarray) and x.size == 1 else x


def _matrices(a: Array, b: Array, out: Array) -> tuple[Array, Array, Array] | None:
    """Return operands and result of a small product as matrices; None if it is not one of BLAS.

    `np.dot` and `np.matmul` call the same functions of BLAS for contiguous matrices of any order.
    """
    found = [x.reshape(x.shape[-2:]) for x in (a, b, out) if prod(x.shape[:-2]) == 1 < x.ndim]
    if len(found) < 3 or not all(x.flags.forc and x.flags.aligned for x in found):
        return None
    if not found[2].flags.c_contiguous or np.may_share_memory(a, b):
        return None
    is_blas = {x.dtype for x in found} in ({float32}, {float64})
    (rows, terms), columns = found[0].shape, found[1].shape[1]
    if not is_blas or out.nbytes > _FILLED or min(terms, max(rows, columns)) < 2:
        return None
    return found[0], found[1], found[2]
