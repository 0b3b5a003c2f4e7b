"""Classical machine learning: conversion between maps (dictionaries) and tensors.

A map's values are Python or numpy numbers, or strings; a Python float stands for a float32.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import DType, float32, int64, string
from ....runtime.ir.types import Array
from ....runtime.ops.ml import CastMap, DictVectorizer, ZipMap
from ..engine.registry import kernel
from ..numerics.convert import convert


def _dtype_of(value: Any) -> DType:
    """Return the dtype of a map's value."""
    if isinstance(value, np.generic):
        return value.dtype
    return string if isinstance(value, str) else int64 if isinstance(value, int) else float32


def _values(x: dict[Any, Any]) -> tuple[Array, DType]:
    """Return the values of a map in order, and their dtype; float32 for an empty one."""
    dtype = _dtype_of(next(iter(x.values()), 0.0))
    return np.array(list(x.values()), dtype), dtype


@kernel(ZipMap)
def zip_map(op: ZipMap, x: Array) -> list[dict[Any, float]]:
    """Return a map from class label to score for every row."""
    labels = op.classlabels_strings or op.classlabels_int64s or ()
    rows = np.atleast_2d(x)
    if rows.shape[1] != len(labels):
        raise ValueError(f"{rows.shape[1]} scores in a row, and {len(labels)} class labels")
    if not labels:
        return [{} for _ in rows]
    # Lists of columns: one of each row would be as many objects again to be collected.
    return list(map(dict, map(zip, repeat(labels), zip(*rows.T.tolist(), strict=True))))


@kernel(DictVectorizer)
def dict_vectorizer(op: DictVectorizer, x: dict[Any, Any]) -> Array:
    """Return the values of the vocabulary's keys as a row; 0, or "", for missing keys."""
    vocabulary = op.string_vocabulary or op.int64_vocabulary or ()
    _, dtype = _values(x)
    none = "" if dtype == string else 0
    return np.array([[x.get(key, none) for key in vocabulary]], dtype)


@kernel(CastMap)
def cast_map(op: CastMap, x: dict[int, Any]) -> Array:
    """Return the values as [1, count], by ascending key or with the key as index."""
    to = {"TO_FLOAT": float32, "TO_STRING": string, "TO_INT64": int64}[op.cast_to]
    keys = sorted(x)
    found, _ = _values({key: x[key] for key in keys})
    if op.map_form == "DENSE":
        return convert(found, to)[np.newaxis]
    if keys and (keys[0] < 0 or keys[-1] >= op.max_map):
        raise IndexError(f"keys from {keys[0]} to {keys[-1]}; max_map={op.max_map} places")
    result = np.full((1, op.max_map), "" if to == string else 0, to)
    result[0, keys] = convert(found, to)
    return result
