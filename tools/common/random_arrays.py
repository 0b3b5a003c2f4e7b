"""Random elements of any dtype, and whether memory has room for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...runtime.base.host_memory import memory
from ...runtime.errors import InputError
from ...runtime.ir.dtypes import INTEGERS, bool_, int32, int64, string
from ...runtime.ir.types import Array, TensorType

#: Bytes of each number as the generator draws it: float64 or int64.
_DRAWN = 8


def random_array(
    generator: np.random.Generator, wanted: TensorType, limits: Sequence[int]
) -> Array:
    """Return random elements; see `inputs.random_inputs`.

    Args:
        generator: is drawn from.
        wanted: the type and shape.
        limits: what integers must be below, if they index axes.
    """
    dtype, shape = wanted.dtype, wanted.dims
    if dtype == bool_:
        return generator.integers(0, 2, shape).astype(bool_)
    if dtype == string:
        return generator.integers(0, 10, shape).astype(str).astype(string)
    if dtype in INTEGERS:
        maximum = 9 if dtype in (int32, int64) else min(127, _greatest(dtype))
        return generator.integers(0, min((maximum + 1, *limits)), shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def check_room(name: str, wanted: TensorType, held: int) -> None:
    """Raise InputError if memory has no room for an input.

    Args:
        name: of the input.
        wanted: its type and shape.
        held: bytes of the inputs before it.
    """
    numbers = prod(wanted.dims)
    nbytes = numbers * wanted.dtype.itemsize
    which = f"input '{name}': {wanted} takes {nbytes / 2**30:,.1f} GiB"
    remedy = "give smaller sizes (--shape, --dim; shapes, dims), or the array in a file"
    if prod(dim for dim in wanted.dims if dim) >= 1 << 48:  # numpy counts empty arrays, too
        raise InputError(f"{which}, and no machine has room for it; {remedy}")
    if held + nbytes + numbers * _DRAWN > memory():
        raise InputError(
            f"{which}, and {numbers * _DRAWN / 2**30:,.1f} GiB more while it is drawn; there are "
            f"{memory() / 2**30:,.1f} GiB of memory; {remedy}"
        )


def _greatest(dtype: np.dtype) -> int:
    """Return the largest integer of a dtype, sub-byte ones included."""
    names = {"int2": 1, "uint2": 3, "int4": 7, "uint4": 15}
    return names.get(dtype.name) or int(np.iinfo(dtype).max)
