"""Two constants of one shape, interleaved: some rows of one, then as many of the other.

So one product with both weights yields the results of both next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ..recipe.operands import Packed, Tensor, as_it_is
from .pack import copy_rows

#: Adjacent rows of one constant.
INTERLEAVE = 8


def interleaved(one: Packed, other: Packed) -> Packed:
    """Return the interleaved rows of two constants, as many each, a multiple of `INTERLEAVE`."""
    pack = partial(_interleave, one.pack, other.pack, len(one.sources))
    return Packed((*one.sources, *other.sources), ("interleaved", one.layout, other.layout), pack)


def interleaved_biases(
    biases: Sequence[Tensor | Packed | None], n: int, dtype: DType
) -> Packed | None:
    """Return two interleaved biases of `n` elements, zeros for an absent one; None for both."""
    if not any(biases):
        return None
    one, other = (_bias(bias, n, dtype) for bias in biases)
    return interleaved(one, other)


def _bias(bias: Tensor | Packed | None, n: int, dtype: DType) -> Packed:
    if isinstance(bias, Tensor):
        return Packed((bias.value,), "as it is", as_it_is)
    return bias or Packed((), ("zeros", n, dtype), partial(_zeros, n, dtype))


def _zeros(n: int, dtype: DType) -> Array:
    return np.zeros(n, dtype)


def _interleave(
    one: Callable[..., Array], other: Callable[..., Array], count: int, *sources: Array
) -> Array:
    """Return the interleaved rows of two packed arrays; `count` sources are the first's."""
    rows = [one(*sources[:count]), other(*sources[count:])]
    eights = [each.reshape(-1, INTERLEAVE, *each.shape[1:]) for each in rows]
    both = np.empty((len(eights[0]), len(rows), *eights[0].shape[1:]), rows[0].dtype)
    for place, each in enumerate(eights):
        copy_rows(both[:, place], each)
    return both.reshape(-1, *rows[0].shape[1:])
