"""Flattening of lists, dictionaries and optionals among results to named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...runtime.ir.dtypes import float32, name_of, string
from ...runtime.ir.types import Array, HostValue


def flat(values: Mapping[str, HostValue]) -> dict[str, Array]:
    """Return all arrays among values by name; absent optionals are omitted.

    Elements of a list are named ``name[0]``, ``name[1]``, ..., those of a dictionary
    ``name['key']``. A list of dictionaries from the same keys to scalars, as classifiers return, is
    one array ``name`` with a row per dictionary and a column per key; the keys in order are
    ``name[keys]``.
    """
    found: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, list):
            found |= _table(name, value) or flat({f"{name}[{i}]": v for i, v in enumerate(value)})
        elif isinstance(value, dict):
            found |= flat({f"{name}[{key!r}]": item for key, item in value.items()})
        elif value is not None:
            found[name] = as_array(value)
    return found


def as_array(value: Any) -> Array:
    """Return an array or scalar as an array; a string as an array of `str`, a float as float32."""
    if isinstance(value, str):
        return np.array(value, string)
    return np.array(value, float32) if type(value) is float else np.asarray(value)


def _table(name: str, rows: list[Any]) -> dict[str, Array]:
    """Return a list of dictionaries as one array and its keys; None if it is not a table."""
    if not rows or not all(isinstance(row, dict) and row for row in rows):
        return {}
    keys = sorted(rows[0])
    if any(row.keys() != rows[0].keys() for row in rows):
        return {}
    cells = [[row[key] for key in keys] for row in rows]
    if not all(np.isscalar(cell) for row in cells for cell in row):
        return {}
    dtype = as_array(cells[0][0]).dtype
    labels = np.array(keys, string if isinstance(keys[0], str) else np.int64)
    return {name: np.array(cells, dtype), f"{name}[keys]": labels}


def type_text(data: Array) -> str:
    """Return dtype and shape of an array: ``float32[1,1000]``."""
    return f"{name_of(data.dtype)}[{','.join(map(str, data.shape))}]"
