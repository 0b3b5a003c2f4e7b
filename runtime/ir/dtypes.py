"""Element types: numpy's dtypes, with ml_dtypes for those that numpy lacks.

A dtype is a `numpy.dtype` everywhere in tercet; strings are `object` arrays of `str`. Sub-byte
types (int4, float4_e2m1fn, ...) take one byte per element in memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

DType = np.dtype[Any]

float16: DType = np.dtype(np.float16)
float32: DType = np.dtype(np.float32)
float64: DType = np.dtype(np.float64)
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
float8e4m3fn: DType = np.dtype(ml_dtypes.float8_e4m3fn)
float8e4m3fnuz: DType = np.dtype(ml_dtypes.float8_e4m3fnuz)
float8e5m2: DType = np.dtype(ml_dtypes.float8_e5m2)
float8e5m2fnuz: DType = np.dtype(ml_dtypes.float8_e5m2fnuz)
float8e8m0: DType = np.dtype(ml_dtypes.float8_e8m0fnu)
float6e2m3: DType = np.dtype(ml_dtypes.float6_e2m3fn)
float6e3m2: DType = np.dtype(ml_dtypes.float6_e3m2fn)
float4e2m1: DType = np.dtype(ml_dtypes.float4_e2m1fn)
int2: DType = np.dtype(ml_dtypes.int2)
int4: DType = np.dtype(ml_dtypes.int4)
int8: DType = np.dtype(np.int8)
int16: DType = np.dtype(np.int16)
int32: DType = np.dtype(np.int32)
int64: DType = np.dtype(np.int64)
uint2: DType = np.dtype(ml_dtypes.uint2)
uint4: DType = np.dtype(ml_dtypes.uint4)
uint8: DType = np.dtype(np.uint8)
uint16: DType = np.dtype(np.uint16)
uint32: DType = np.dtype(np.uint32)
uint64: DType = np.dtype(np.uint64)
complex64: DType = np.dtype(np.complex64)
complex128: DType = np.dtype(np.complex128)
bool_: DType = np.dtype(np.bool_)
string: DType = np.dtype(object)

#: ONNX's `TensorProto.DataType` numbers.
BY_ONNX: dict[int, DType] = {
    1: float32,
    2: uint8,
    3: int8,
    4: uint16,
    5: int16,
    6: int32,
    7: int64,
    8: string,
    9: bool_,
    10: float16,
    11: float64,
    12: uint32,
    13: uint64,
    14: complex64,
    15: complex128,
    16: bfloat16,
    17: float8e4m3fn,
    18: float8e4m3fnuz,
    19: float8e5m2,
    20: float8e5m2fnuz,
    21: uint4,
    22: int4,
    23: float4e2m1,
    24: float8e8m0,
    25: uint2,
    26: int2,
    27: float6e2m3,
    28: float6e3m2,
}
TO_ONNX: dict[DType, int] = {dtype: number for number, dtype in BY_ONNX.items()}

SIGNED = frozenset({int2, int4, int8, int16, int32, int64})
UNSIGNED = frozenset({uint2, uint4, uint8, uint16, uint32, uint64})
INTEGERS = SIGNED | UNSIGNED
FEW_BITS = frozenset({int2, int4, uint2, uint4})
FLOATS = frozenset({float16, bfloat16, float32, float64})
FLOAT8S = frozenset({float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float8e8m0})
FLOAT6S = frozenset({float6e2m3, float6e3m2})
COMPLEX = frozenset({complex64, complex128})

_NAMES: dict[DType, str] = {string: "string", bool_: "bool"}


@cache
def name_of(dtype: DType) -> str:
    """Return the printable name of `dtype`: ``float32``, ``bool``, ``string``, ``bfloat16``."""
    return _NAMES.get(dtype, dtype.name)


def bits_of(dtype: DType) -> int:
    """Return the bits per element in an ONNX file (4 for int4, 2 for int2)."""
    if dtype in FLOAT6S:
        return 6
    if dtype in (int4, uint4, float4e2m1):
        return 4
    if dtype in (int2, uint2):
        return 2
    return 8 * dtype.itemsize
