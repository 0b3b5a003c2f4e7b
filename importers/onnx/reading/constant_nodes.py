"""The elements of Constant nodes."""

from __future__ import annotations

import numpy as np

from ....runtime.errors import did_you_mean
from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import DType
from ....runtime.ir.types import Array
from ..source.raw import RawNode, items
from ..source.source import FileSource

#: The type of each attribute of Constant, and the dtype of the resulting tensor.
_CONSTANTS: dict[str, tuple[type, DType | None]] = {
    "value": (np.ndarray, None),
    "sparse_value": (np.ndarray, None),
    "value_float": (float, dtypes.float32),
    "value_floats": (float, dtypes.float32),
    "value_int": (int, dtypes.int64),
    "value_ints": (int, dtypes.int64),
    "value_string": (str, dtypes.string),
    "value_strings": (str, dtypes.string),
}


def elements_of(node: RawNode, source: FileSource) -> Array:
    """Return the elements of a Constant node; raises ModelError for anything but one attribute."""
    if len(node.attributes) != 1:
        raise source.error(f"has {len(node.attributes)} attributes instead of one", node.where)
    ((name, value),) = node.attributes.items()
    if name not in _CONSTANTS:
        known = did_you_mean(name, list(_CONSTANTS))
        raise source.error(f"has unknown attribute '{name}'{known}", node.where)
    element, dtype = _CONSTANTS[name]
    if name.endswith("s") != isinstance(value, tuple) or not all(
        isinstance(item, element) for item in items(value)
    ):
        raise source.error(f"attribute '{name}' is of another type", node.where)
    if dtype is None:
        return value
    data = np.array(value, dtype)
    data.setflags(write=False)
    return data
