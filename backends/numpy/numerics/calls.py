"""Calls as tapes record them: numpy's functions in C, without the Python code around them.

Until such a function computes, its thread holds the GIL, which all other threads wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy._core import multiarray, umath

from ....runtime.ir.types import Array

#: The ufunc of `np.clip`, and what `np.einsum` calls: a sixth and two thirds of their overhead, but
#: not public.
clip: Callable[..., Any] = getattr(umath, "clip", np.clip)
einsum: Callable[..., Any] = getattr(multiarray, "c_einsum", np.einsum)

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
