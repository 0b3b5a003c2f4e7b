"""Tensors without elements whose sizes are not those that a Concat needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....runtime.ir.types import HostValue
from ....runtime.ops.movement import adds_nothing


def fitted(values: Sequence[HostValue], axis: int) -> Sequence[HostValue]:
    """Return what a Concat joins, where tensors that add nothing have sizes that fit.

    Some are results of a Loop without iterations, of which only the number of axes is known.
    """
    arrays = [data for data in values if isinstance(data, np.ndarray)]
    full = next((data.shape for data in arrays if data.size), None)
    if full is None or len(arrays) < len(values):
        return values
    fitting = [size if i != axis % len(full) else 0 for i, size in enumerate(full)]
    return [
        data if data.size or not adds_nothing(data.shape, full, axis) else data.reshape(fitting)
        for data in arrays
    ]
