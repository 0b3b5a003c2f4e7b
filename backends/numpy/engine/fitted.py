"""Tensors without elements whose sizes are not those that a Concat needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....runtime.ir.types import HostValue
from ....runtime.ops.movement import that_add_nothing


def fitted(values: Sequence[HostValue], axis: int) -> Sequence[HostValue]:
    """Return what a Concat joins, where tensors that add nothing have sizes that fit.

    Some are results of a Loop without iterations, of which only the number of axes is known.
    """
    arrays = [data for data in values if isinstance(data, np.ndarray)]
    nothing = that_add_nothing([data.shape for data in arrays], axis)
    if len(arrays) < len(values) or not any(nothing):
        return values
    fitting = next(data for data in arrays if data.size).take([], axis)
    return [
        fitting if is_nothing else data for data, is_nothing in zip(arrays, nothing, strict=True)
    ]
