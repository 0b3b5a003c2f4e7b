"""Types of values: dtype and shape, with symbolic and unknown dimensions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from sys import getsizeof
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np

from .dtypes import DType, int64, name_of, string

#: About what an entry of a dictionary takes beside its elements.
_ENTRY = 100
#: An integer, the name of a symbol ("batch"), or None for a size that nobody knows yet.
Dim = int | str | None
Shape = tuple[Dim, ...]
Array = np.ndarray[Any, Any]


def _dim_text(dim: Dim) -> str:
    return "?" if dim is None else str(dim)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Dtype and shape of a tensor, and its elements where they are known.

    Attributes:
        dtype: element type.
        shape: one `Dim` an axis, or None where not even the rank is known.
        value: the elements of a constant; or an `object` array of `Dim` for integer tensors that
            are computed from shapes and of which some elements are known. Takes no part in
            equality or hashing.
    """

    dtype: DType
    shape: Shape | None = None
    value: Array | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{name_of(self.dtype)}[...]"
        return f"{name_of(self.dtype)}[{','.join(map(_dim_text, self.shape))}]"

    @property
    def is_static(self) -> bool:
        """Whether every dimension is an integer."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def rank(self) -> int | None:
        """Number of axes, or None where it is unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as integers; raises ValueError where it is not static."""
        if self.shape is None:
            raise ValueError(f"{self} has no static shape")
        for dim in self.shape:
            if not isinstance(dim, int):
                raise ValueError(f"{self} has no static shape")
        return cast("tuple[int, ...]", self.shape)

    @property
    def size(self) -> int:
        """Number of elements of a static type."""
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of a static type in C order."""
        return self.size * self.dtype.itemsize

    @property
    def known(self) -> Array | None:
        """All elements as an array of `dtype`, or None unless every one of them is known."""
        if self.value is None or self.value.dtype == self.dtype:
            return self.value
        if all(isinstance(d, int) for d in self.value.flat):
            return self.value.astype(self.dtype)
        return None

    @property
    def ints(self) -> tuple[Dim, ...] | None:
        """The elements of an integer tensor in C order, unknown ones as None; None if all are."""
        if self.value is None:
            return None
        if self.value.dtype == object:
            return tuple(self.value.flat)
        return tuple(int(v) for v in self.value.flat)

    def with_shape(self, shape: Shape | None) -> TensorType:
        """Return the type of other tensors of this dtype."""
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        """Return the type of another tensor of this shape."""
        return TensorType(dtype, self.shape)

    def without_value(self) -> TensorType:
        """Return the type alone, its elements forgotten."""
        return self if self.value is None else replace(self, value=None)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type."""

    element: ValueType | None = None

    def __str__(self) -> str:
        return f"sequence({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent."""

    element: ValueType | None = None

    def __str__(self) -> str:
        return f"optional({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary, as `ai.onnx.ml` has them. A scalar that it holds is a scalar of numpy's."""

    key: DType
    element: ValueType | None

    def __str__(self) -> str:
        return f"map({name_of(self.key)}, {self.element or '?'})"


#: Views of constants by the id of the array, which each keeps alive.
_VIEWS: WeakValueDictionary[int, Array] = WeakValueDictionary()

ValueType = TensorType | SequenceType | OptionalType | MapType

#: What a value is while a model runs on the host: an array, the list of a sequence, the dictionary
#: of a map, or None for an optional without an element.
HostValue = Array | list[Any] | dict[Any, Any] | None


def constant_type(data: Array) -> TensorType:
    """Return the type of a constant with these elements, of which it has a view to read alone.

    Constants of one array have one view: graphs and backends know constants by their arrays.
    """
    if not data.flags.writeable:
        return TensorType(data.dtype, data.shape, data)
    view = _VIEWS.get(id(data))
    if view is None or view.base is not data:
        _VIEWS[id(data)] = view = data.view()
        view.flags.writeable = False
    return TensorType(data.dtype, data.shape, view)


def dims_type(dims: Shape) -> TensorType:
    """Return the type of a 1-D int64 tensor whose elements are these dimensions."""
    value = np.empty(len(dims), object)
    value[:] = dims
    return TensorType(int64, (len(dims),), value)


def type_of(data: HostValue, declared: ValueType | None = None) -> ValueType | None:
    """Return the type of a value.

    Args:
        data: the value.
        declared: what the graph says about it, for what the value itself does not tell.
    """
    if isinstance(data, np.ndarray):
        return TensorType(data.dtype, data.shape)
    if isinstance(data, list):
        if isinstance(declared, SequenceType):
            return declared
        first = type_of(data[0]) if data else None
        element = first.with_shape(None) if isinstance(first, TensorType) else None
        return SequenceType(element)
    if data is None and not isinstance(declared, OptionalType):
        return OptionalType()
    return declared


def bytes_of(data: Array | dict[object, object]) -> int:
    """Return the bytes that an array or a map takes, the characters of strings with them.

    Elements that are one object, and axes along which an array repeats, count once.
    """
    if isinstance(data, dict):
        return _ENTRY * len(data)
    repeated = (n for n, stride in zip(data.shape, data.strides, strict=True) if stride == 0)
    nbytes = data.nbytes // max(1, prod(repeated))
    if data.dtype == string and data.size:
        stored = data[..., *(slice(None if stride else 1) for stride in data.strides)]
        nbytes += sum(map(getsizeof, {id(text): text for text in stored.flat}.values()))
    return nbytes
