"""Types of values: dtype and shape, with symbolic and unknown dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from itertools import chain
from math import prod
from sys import getsizeof
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np

from ..base.record import record
from .dtypes import COMPLEX, INTEGERS, DType, int64, name_of, string

#: Approximate overhead in bytes of a dictionary entry.
ENTRY = 100
_PLAIN = {float, int, str}
#: An integer, the name of a symbol ("batch"), or None for an unknown size.
Dim = int | str | None
Shape = tuple[Dim, ...]
Array = np.ndarray[Any, Any]


def _dim_text(dim: Dim) -> str:
    return "?" if dim is None else str(dim)


class NotStaticError(ValueError):
    """The sizes of a type are needed before they are known."""


class _Checked:
    """What a type has been found to be, which is no field of it."""

    __slots__ = ("_dims",)
    _dims: tuple[int, ...]


@record
class TensorType(_Checked):
    """Dtype and shape of a tensor, and its elements if known.

    Attributes:
        dtype: element type.
        shape: one `Dim` per axis, or None if the rank is unknown.
        value: the elements of a constant; or an `object` array of `Dim` for integer tensors
            computed from shapes, with some elements known. Ignored by equality and hashing.
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
        if hasattr(self, "_dims"):
            return True
        if self.shape is None:
            return False
        for dim in self.shape:  # noqa: SIM110 - a generator takes twice as long, as planning shows
            if not isinstance(dim, int):
                return False
        return True

    @property
    def rank(self) -> int | None:
        """Number of axes, or None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as integers; raises NotStaticError if it is not static."""
        try:
            return self._dims
        except AttributeError:  # the first time that it is asked for
            if not self.is_static:
                raise NotStaticError(f"{self} has no static shape") from None
        self._dims = cast("tuple[int, ...]", self.shape)
        return self._dims

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
        """All elements as an array of `dtype`, or None unless all are known."""
        if self.value is None or self.value.dtype == self.dtype:
            return self.value
        if all(isinstance(d, int) for d in self.value.flat):
            return self.value.astype(self.dtype)
        return None

    @property
    def ints(self) -> tuple[Dim, ...] | None:
        """The elements of an integer tensor in C order, unknown ones as None; None if all are.

        Those of other tensors, too, if they are whole numbers; else None.
        """
        if self.value is None:
            return None
        if self.value.dtype == object:
            return tuple(self.value.flat)
        if self.dtype not in INTEGERS and not _are_whole(self.value):
            return None
        return tuple(int(v) for v in self.value.flat)

    @property
    def elements(self) -> tuple[Dim, ...] | bytes | None:
        """What tells types with other elements apart, in C order; None if none are known."""
        if self.value is None:
            return None
        return tuple(self.value.flat) if self.value.dtype == object else self.value.tobytes()

    def with_shape(self, shape: Shape | None) -> TensorType:
        """Return a type with this dtype and another shape."""
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        """Return a type with this shape and another dtype."""
        return TensorType(dtype, self.shape)

    def without_value(self) -> TensorType:
        """Return the type without known elements."""
        return self if self.value is None else replace(self, value=None)


def _are_whole(data: Array) -> bool:
    """Whether numbers are integers; complex ones are not."""
    if data.dtype in COMPLEX:
        return False
    numbers = data.astype(np.float64)
    return bool((np.isfinite(numbers) & (np.trunc(numbers) == numbers)).all())


@record
class SequenceType:
    """A list of values of one type."""

    element: ValueType | None = None

    def __str__(self) -> str:
        return f"sequence({self.element or '?'})"


@record
class OptionalType:
    """A value that may be absent."""

    element: ValueType | None = None

    def __str__(self) -> str:
        return f"optional({self.element or '?'})"


@record
class MapType:
    """A dictionary of ai.onnx.ml; scalars in it are numpy scalars."""

    key: DType
    element: ValueType | None

    def __str__(self) -> str:
        return f"map({name_of(self.key)}, {self.element or '?'})"


#: Read-only views of constants by the id of their array, which the view keeps alive.
_VIEWS: WeakValueDictionary[int, Array] = WeakValueDictionary()

ValueType = TensorType | SequenceType | OptionalType | MapType

#: A value while a model runs on the host: an array, a list for a sequence, a dictionary
#: for a map, or None for an empty optional.
HostValue = Array | list[Any] | dict[Any, Any] | None


def constant_type(data: Array) -> TensorType:
    """Return the type of a constant, with a read-only view of its elements.

    There is one view per array: graphs and backends identify constants by their arrays.
    """
    if not data.flags.writeable:
        return TensorType(data.dtype, data.shape, data)
    view = _VIEWS.get(id(data))
    if view is None or view.base is not data:
        _VIEWS[id(data)] = view = data.view()
        view.flags.writeable = False
    return TensorType(data.dtype, data.shape, view)


def dims_type(dims: Shape) -> TensorType:
    """Return the type of a 1-D int64 tensor with these dimensions as elements."""
    value = np.empty(len(dims), object)
    value[:] = dims
    return TensorType(int64, (len(dims),), value)


def type_of(data: HostValue, declared: ValueType | None = None) -> ValueType | None:
    """Return the type of a value.

    Args:
        data: the value.
        declared: the graph's type for it, for properties that the value itself does not show.
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


def are_plain_maps(values: Sequence[object]) -> bool:
    """Whether values are dictionaries of Python's numbers and texts."""
    if {*map(type, values)} != {dict}:
        return False
    held = chain.from_iterable(map(dict[Any, Any].values, cast("Sequence[dict[Any, Any]]", values)))
    return _PLAIN.issuperset(map(type, held))


def bytes_of(data: Array | dict[object, object]) -> int:
    """Return the bytes of an array or map, including the characters of strings.

    Shared elements, and axes along which an array is broadcast, count once.
    """
    if isinstance(data, dict):
        return ENTRY * len(data)
    nbytes = data.nbytes
    if data.base is None and not data.dtype.hasobject:
        return nbytes
    if 0 in data.strides:
        repeated = (n for n, stride in zip(data.shape, data.strides, strict=True) if stride == 0)
        nbytes //= max(1, prod(repeated))
    if data.dtype == string and data.size:
        stored = data[..., *(slice(None if stride else 1) for stride in data.strides)]
        nbytes += sum(map(getsizeof, {id(text): text for text in stored.flat}.values()))
    return nbytes
