"""Whether a loaded model gives the same bits again after it has run on other inputs.

What differs then was left by an earlier run (a sum that is not reset, a buffer that is not written
completely) or depends on which of two threads is faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import numpy as np

from ...runtime.errors import TercetError, TercetWarning
from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.types import Array, HostValue
from ..common.nested import flat


def run_on_others(
    run: Callable[[dict[str, Any]], Mapping[str, HostValue]], feeds: Mapping[str, HostValue]
) -> tuple[Mapping[str, HostValue], Mapping[str, HostValue]]:
    """Run a model on other inputs; return these and the results, none where it refuses them.

    Vectors of integers are others as well, unless it refuses that: they may be sizes or axes.

    Args:
        run: the model.
        feeds: its inputs; the others have the same types.
    """
    others = {name: _changed(value) for name, value in feeds.items()}
    as_before = {n: feeds[n] if _may_be_sizes(value) else value for n, value in others.items()}
    for each in (others, as_before):
        with warnings.catch_warnings(), suppress(TercetError):
            warnings.simplefilter("ignore", TercetWarning)
            return each, run(each)
    return {}, {}


def _may_be_sizes(value: HostValue) -> bool:
    return isinstance(value, np.ndarray) and value.ndim < 2 and value.dtype not in FLOATS


def _changed(value: HostValue) -> HostValue:
    """Return the elements in reverse order; floats that are the same then, by half."""
    if not isinstance(value, np.ndarray):
        return value
    other = np.ascontiguousarray(value.ravel()[::-1].reshape(value.shape))
    if value.dtype in FLOATS and same_bits(value, other):
        return (value.astype(np.float64) / 2).astype(value.dtype)
    return other


def is_repeated(found: Mapping[str, HostValue], again: Mapping[str, HostValue]) -> bool:
    """Whether two runs gave the same bits."""
    pairs = zip_longest(flat(found).values(), flat(again).values())
    return all(a is not None and b is not None and same_bits(a, b) for a, b in pairs)


def rarest(runs: int) -> float:
    """Return the share of runs in which something must be wrong to be found in 95 % of cases.

    Args:
        runs: number of runs whose results are compared.
    """
    return 1 - 0.05 ** (1 / runs)


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays have equal shapes and bits, or equal strings."""
    if a.dtype == object or b.dtype == object:
        return bool(np.array_equal(a, b))
    return a.shape == b.shape and a.tobytes() == b.tobytes()
