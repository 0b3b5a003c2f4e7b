"""From arrays, types and attributes to messages of an ONNX file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)
from onnx.defs import OpSchema

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import TO_ONNX, DType, bits_of
from ....runtime.ir.op import TensorAttribute
from ....runtime.ir.types import (
    Array,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    ValueType,
)
from ..source.raw import items

#: Converts a constant and its name to its message in the file.
Store = Callable[[str, Array], TensorProto | SparseTensorProto]

_ATTRIBUTE_TYPES = (TensorType, SequenceType, OptionalType, MapType)


def embedded(name: str, data: Array) -> TensorProto:
    """Return a tensor message with embedded elements."""
    proto = tensor_head(name, data)
    if data.dtype == dtypes.string:
        proto.string_data.extend(str(item).encode() for item in data.flat)
    else:
        proto.raw_data = packed(data).tobytes()
    return proto


def tensor_head(name: str, data: Array) -> TensorProto:
    """Return a tensor message with name, dtype and shape, but without elements."""
    return TensorProto(name=name, data_type=TO_ONNX[data.dtype], dims=data.shape)


def packed(data: Array) -> Array:
    """Return the bytes of an array in a file: little-endian, in C order.

    Sub-byte elements share bytes, lowest bits first.
    """
    flat = np.ascontiguousarray(data).reshape(-1)
    bits = bits_of(data.dtype)
    if bits >= 8:
        return _little_endian(flat).view(np.uint8)
    codes = flat.astype(np.int8).view(np.uint8) if data.dtype in dtypes.INTEGERS else flat
    if bits == 6:
        each = np.unpackbits(codes.view(np.uint8)[:, None], axis=1, count=6, bitorder="little")
        return np.packbits(each, bitorder="little")
    share = 8 // bits
    lanes = np.zeros((-(-flat.size // share), share), np.uint8)
    lanes.reshape(-1)[: flat.size] = codes.view(np.uint8) & (1 << bits) - 1
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(lanes << shifts, axis=1, dtype=np.uint8)


def packed_size(data: Array) -> int:
    """Return the size of `packed`; strings count their text."""
    if data.dtype == dtypes.string:
        return sum(len(str(item).encode()) for item in data.flat)
    return -(-data.size * bits_of(data.dtype) // 8)


def _little_endian(flat: Array) -> Array:
    is_plain = flat.dtype.kind in "iufc" and flat.dtype.itemsize > 1
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False) if is_plain else flat


# ── types ────────────────────────────────────────────────────────────────────────────────────────


def value_info(name: str, type_: ValueType | None) -> ValueInfoProto:
    """Return the declaration of a value; without a type unless it is fully known."""
    proto = type_proto(type_)
    return ValueInfoProto(name=name, type=proto) if proto else ValueInfoProto(name=name)


def type_proto(type_: ValueType | None) -> TypeProto | None:
    """Return the message of a type, or None if a dtype in it is unknown."""
    match type_:
        case TensorType():
            proto = TypeProto()
            proto.tensor_type.elem_type = TO_ONNX[type_.dtype]
            if type_.shape is not None:
                _set_shape(proto.tensor_type, type_.shape)
            return proto
        case SequenceType() if element := type_proto(type_.element):
            return TypeProto(sequence_type=TypeProto.Sequence(elem_type=element))
        case OptionalType() if element := type_proto(type_.element):
            return TypeProto(optional_type=TypeProto.Optional(elem_type=element))
        case MapType() if element := type_proto(type_.element):
            key = TO_ONNX[type_.key]
            return TypeProto(map_type=TypeProto.Map(key_type=key, value_type=element))
        case _:
            return None


def _set_shape(proto: TypeProto.Tensor, shape: Shape) -> None:
    proto.shape.SetInParent()
    for dim in shape:
        entry = proto.shape.dim.add()
        if isinstance(dim, int):
            entry.dim_value = dim
        elif dim is not None:
            entry.dim_param = dim


def type_text(type_: ValueType | None) -> str | None:
    """Return the specification's name of a type, None if unknown."""
    match type_:
        case TensorType():
            return f"tensor({dtype_text(type_.dtype)})"
        case SequenceType():
            element = type_text(type_.element)
            return f"seq({element})" if element else None
        case OptionalType():
            element = type_text(type_.element)
            return f"optional({element})" if element else None
        case MapType():
            element = type_text(type_.element)
            return f"map({dtype_text(type_.key)},{element})" if element else None
        case None:
            return None


def dtype_text(dtype: DType) -> str:
    """Return the specification's name of a dtype: ``float`` for float32."""
    return TensorProto.DataType.Name(TO_ONNX[dtype]).lower()


# ── attributes ───────────────────────────────────────────────────────────────────────────────────


def attribute(name: str, value: Any, kind: OpSchema.AttrType | None) -> AttributeProto:
    """Return the message of an attribute, except for bodies.

    Args:
        name: its name.
        value: a field of an `Op`.
        kind: its type in the specification; None for operators outside it.
    """
    value = type_proto(value) if isinstance(value, _ATTRIBUTE_TYPES) else _plain(value)
    number: Any = kind  # an integer enumeration, which onnx's stub does not declare
    return helper.make_attribute(name, value, attr_type=None if kind is None else int(number.value))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in items(value)]
    if isinstance(value, TensorAttribute):
        return embedded("", value.array)
    if isinstance(value, np.dtype):
        return TO_ONNX[value]
    return int(value) if isinstance(value, bool) else value
