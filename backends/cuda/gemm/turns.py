"""Two constants of one shape, interleaved: some rows of one, then as many of the other.

So one product with both weights yields the results of both next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ..recipe.operands import Packed, Tensor

#: Adjacent rows of one constant.
TURN = 8


def in_turns(one: Packed, other: Packed) -> Packed:
    """Return the interleaved rows of two constants; both have as many, a multiple of `TURN`."""
    pack = partial(_turns, one.pack, other.pack, len(one.sources))
    return Packed((*one.sources, *other.sources), ("in turns", one.layout, other.layout), pack)


def biases_in_turns(
    biases: Sequence[Tensor | Packed | None], n: int, dtype: DType
) -> Packed | None:
    """Return two interleaved biases of `n` elements, zeros for an absent one; None for both."""
    if not any(biases):
        return None
    one, other = (_bias(bias, n, dtype) for bias in biases)
    return in_turns(one, other)


def _bias(bias: Tensor | Packed | None, n: int, dtype: DType) -> Packed:
    if isinstance(bias, Tensor):
        return Packed((bias.value,), "as it is", lambda data: data)
    return bias or Packed((), ("zeros", n, dtype), lambda: np.zeros(n, dtype))


def _turns(
    one: Callable[..., Array], other: Callable[..., Array], count: int, *sources: Array
) -> Array:
    """Return the interleaved rows of two packed arrays; `count` sources are the first's."""
    rows = [one(*sources[:count]), other(*sources[count:])]
    both = np.stack([r.reshape(-1, TURN, *r.shape[1:]) for r in rows], axis=1)
    return both.reshape(-1, *rows[0].shape[1:])
