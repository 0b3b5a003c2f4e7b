"""From TensorProto and SparseTensorProto to numpy arrays, with every length checked first."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from onnx import SparseTensorProto, TensorProto

from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import DType, bits_of, name_of
from ....runtime.ir.types import Array
from ..source.source import FileSource
from .external import ExternalData

_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_STORED_AS: dict[DType, str] = {
    dtypes.float32: "float_data",
    dtypes.complex64: "float_data",
    dtypes.float64: "double_data",
    dtypes.complex128: "double_data",
    dtypes.int64: "int64_data",
    dtypes.uint32: "uint64_data",
    dtypes.uint64: "uint64_data",
    dtypes.string: "string_data",
}
_ELEMENT: dict[str, DType] = {
    "float_data": dtypes.float32,
    "double_data": dtypes.float64,
    "int32_data": dtypes.int32,
    "int64_data": dtypes.int64,
    "uint64_data": dtypes.uint64,
}


class TensorReader:
    """Reads the tensors of one model.

    Args:
        source: the model's source and limits.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._external = ExternalData(source)

    def read(self, proto: TensorProto, where: str | None = None) -> Array:
        """Return the elements of a tensor, read-only, in its native dtype and shape.

        Args:
            proto: the tensor; external data are mapped.
            where: name in messages for a tensor without one.

        Raises:
            ModelError: the elements do not match dtype and shape, or cannot be read.
            LimitError: the shape exceeds what an array can have.
        """
        name = self._source.name(proto.name)
        where = f"tensor '{name}'" if name or where is None else where
        dtype = self._source.dtype(proto.data_type, where)
        shape = self._shape(proto.dims, dtype, where)
        if proto.HasField("segment"):
            raise self._source.error("is split into segments, which no exporter writes", where)
        if proto.data_location == TensorProto.EXTERNAL:
            if dtype == dtypes.string:
                raise self._source.error("strings cannot be stored as external data", where)
            data = self._decode(
                self._external.read(proto.external_data, _nbytes(dtype, shape), where),
                dtype,
                shape,
                where,
            )
        else:
            data = self._embedded(proto, dtype, shape, where)
        data.setflags(write=False)
        return data

    def read_sparse(self, proto: SparseTensorProto, where: str | None = None) -> Array:
        """Return a sparse tensor as a dense array of its dtype and shape, read-only."""
        values = self.read(proto.values, where)
        where = f"sparse tensor '{self._source.text(proto.values.name)}'"
        indices = self.read(proto.indices, f"indices of {where}")
        shape = self._shape(proto.dims, values.dtype, where)
        if not shape:
            raise self._source.error("has no dims; a sparse tensor has one axis or more", where)
        size = prod(shape)
        if size * values.itemsize > self._source.limits.sparse_bytes:
            limit = self._source.limits.sparse_bytes
            raise self._source.limit(
                f"takes {size * values.itemsize} bytes; {limit} allowed", where
            )
        if indices.dtype != dtypes.int64 or values.ndim != 1:
            raise self._source.error("wants 1-D values and int64 indices", where)
        if indices.shape not in ((len(values),), (len(values), len(shape))):
            found = f"{len(values)} values, but indices of shape {list(indices.shape)}"
            raise self._source.error(found, where)
        bounds = (size,) if indices.ndim == 1 else shape
        if len(values) and not ((indices >= 0) & (indices < np.array(bounds))).all():
            raise self._source.error(f"has indices outside its shape {list(shape)}", where)
        empty = "" if values.dtype == dtypes.string else 0
        dense = np.full(shape, empty, values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
        dense.setflags(write=False)
        return dense

    def _shape(self, dims: Iterable[int], dtype: DType, where: str) -> tuple[int, ...]:
        shape = tuple(dims)
        if any(d < 0 for d in shape):
            raise self._source.error(f"has a negative dimension: {list(shape)}", where)
        if len(shape) > self._source.limits.rank:
            limit = self._source.limits.rank
            raise self._source.limit(f"has {len(shape)} axes; at most {limit} are supported", where)
        if prod(d for d in shape if d) * dtype.itemsize >= 1 << 63:
            raise self._source.limit(f"is too large: shape {list(shape)}", where)
        return shape

    def _embedded(
        self, proto: TensorProto, dtype: DType, shape: tuple[int, ...], where: str
    ) -> Array:
        filled = [name for name in _FIELDS if len(getattr(proto, name))]
        wanted = _STORED_AS.get(dtype, "int32_data")
        if proto.HasField("raw_data"):
            if filled:
                raise self._source.error(f"has raw_data and {filled[0]}", where)
            if dtype == dtypes.string:
                raise self._source.error("strings cannot be stored as raw_data", where)
            held = proto.raw_data
            apart = self._source.apart.get(held) if self._source.apart else None
            raw = np.frombuffer(held, np.uint8) if apart is None else apart
            return self._decode(raw, dtype, shape, where)
        if filled not in ([], [wanted]):
            found = f"is {name_of(dtype)}, stored as {wanted}; found {' and '.join(filled)}"
            raise self._source.error(found, where)
        if dtype == dtypes.string:
            return self._strings(proto, shape, where)
        packed = bits_of(dtype) < 8 and len(proto.int32_data)
        if packed and dtype in dtypes.FLOAT6S:
            return self._sixes(np.array(proto.int32_data), dtype, shape, where)
        elements = np.array(getattr(proto, wanted), _ELEMENT[wanted])
        if wanted == "int32_data":
            elements = self._narrow(elements, dtypes.uint8 if packed else dtype, where)
        elif dtype == dtypes.uint32:
            elements = self._narrow(elements, dtype, where)
        return self._decode(elements.view(np.uint8), dtype, shape, where)

    def _sixes(self, codes: Array, dtype: DType, shape: tuple[int, ...], where: str) -> Array:
        """Return float6 elements, which int32_data holds unpacked, unlike other sub-byte types."""
        if codes.min() < 0 or codes.max() > 0x3F:
            raise self._source.error(f"holds codes of more than 6 bits, no {name_of(dtype)}", where)
        if codes.size != prod(shape):
            found = f"{codes.size} elements for shape {list(shape)}"
            raise self._source.error(found, where)
        return codes.astype(np.uint8).view(dtype).reshape(shape)

    def _narrow(self, elements: Array, dtype: DType, where: str) -> Array:
        """Return elements in the width of `dtype`; floats are given as bits."""
        if dtype == dtypes.bool_:
            return elements != 0
        if dtype not in dtypes.INTEGERS:
            dtype = np.dtype(f"u{dtype.itemsize}")
        if elements.size:
            minimum, maximum = int(elements.min()), int(elements.max())
            bounds = np.iinfo(dtype)
            if minimum < bounds.min or maximum > bounds.max:
                found = minimum if minimum < bounds.min else maximum
                raise self._source.error(f"holds {found}, no {name_of(dtype)}", where)
        return elements.astype(dtype)

    def _strings(self, proto: TensorProto, shape: tuple[int, ...], where: str) -> Array:
        if len(proto.string_data) != prod(shape):
            found = f"{len(proto.string_data)} strings for shape {list(shape)}"
            raise self._source.error(found, where)
        data = np.empty(len(proto.string_data), object)
        data[:] = [self._source.text(item, where) for item in proto.string_data]
        return data.reshape(shape)

    def _decode(self, raw: Array, dtype: DType, shape: tuple[int, ...], where: str) -> Array:
        """Return little-endian bytes as an array, as a view where possible."""
        needed, bits = _nbytes(dtype, shape), bits_of(dtype)
        if raw.nbytes != needed:
            wanted = f"{name_of(dtype)}{list(shape)} takes {needed} bytes"
            raise self._source.error(f"{wanted}; found {raw.nbytes}", where)
        aligned = raw.ctypes.data % dtype.alignment == 0
        if aligned and bits >= 8 and dtype != dtypes.bool_:
            return raw.view(dtype).reshape(shape)
        size, limit = prod(shape) * dtype.itemsize, self._source.limits.copied_bytes
        if size > limit:
            raise self._source.limit(f"has to be copied to {size} bytes; {limit} allowed", where)
        if bits < 8:
            return _unpack(raw, bits, dtype)[: prod(shape)].reshape(shape)
        data = raw != 0 if dtype == dtypes.bool_ else raw.copy().view(dtype)
        return data.reshape(shape)


def _nbytes(dtype: DType, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in a file in bytes."""
    return -(-prod(shape) * bits_of(dtype) // 8)


def _unpack(raw: Array, bits: int, dtype: DType) -> Array:
    """Return sub-byte elements, lowest bits first, as one byte each."""
    if bits == 6:
        raw = np.pad(raw, (0, -raw.size % 3)).reshape(-1, 3)
        words = raw[:, :1] | raw[:, 1:2].astype(np.uint32) << 8 | raw[:, 2:].astype(np.uint32) << 16
        codes = (words >> np.arange(0, 24, 6) & 0x3F).astype(np.uint8).reshape(-1)
        return codes.view(dtype)
    fields = np.stack([raw >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], axis=-1)
    codes = fields.reshape(-1)
    if dtype in dtypes.SIGNED:
        sign = 1 << bits - 1
        return ((codes ^ sign).astype(np.int8) - sign).astype(dtype)
    return codes.astype(dtype) if dtype in dtypes.UNSIGNED else codes.view(dtype)
