"""Attributes of operators as arrays."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import DType
from ....runtime.ir.op import Op
from ....runtime.ir.prepared import prepared
from ....runtime.ir.types import Array


@prepared
def attribute(op: Op, name: str, dtype: DType, default: tuple[float, ...] = ()) -> Array:
    """Return a list among the attributes as an array, that of the default if it is not set."""
    found = np.array(getattr(op, name) or default, dtype)
    found.flags.writeable = False
    return found
