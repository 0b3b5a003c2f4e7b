"""Inputs and outputs as callers see them, and the checks of their values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np

from ..base import arguments
from ..base.record import record
from ..errors import InputError, did_you_mean
from ..ir.dtypes import FLOATS, INTEGERS, DType, name_of, string
from ..ir.graph import Value
from ..ir.hints import shown
from ..ir.types import (
    Array,
    Dim,
    HostValue,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    ValueType,
    are_plain_maps,
)
from ..ops.shapes import MAX_RANK
from ..plan.backend import Stream
from ..plan.exchange import Exchange, Lent
from ..text import printable
from .dlpack import on_host, place_name, place_of

#: The most missing inputs that a message lists.
_LISTED = 8


@record
class TensorInfo:
    """An input or output as callers see it.

    Attributes:
        name: its name in the file.
        dtype: element type of a tensor; None for sequences, optionals and maps.
        shape: symbolic dimensions by name, unknown ones None; None if the rank is unknown.
        type: the complete type.
        needs: of a model's inputs, the symbols that can have one size only, with that size.
        indexes: of a model's inputs, the sizes of the axes that its elements index.
    """

    name: str
    dtype: DType | None
    shape: Shape | None
    type: ValueType | None = field(default=None, repr=False)
    needs: Mapping[str, int] = field(default_factory=dict[str, int], compare=False, repr=False)
    indexes: frozenset[Dim] = field(default_factory=frozenset[Dim], compare=False, repr=False)

    def __str__(self) -> str:
        if self.dtype is None:
            return printable(f"{self.name}: {self.type or '?'}")
        return printable(f"{self.name}: {TensorType(self.dtype, self.shape)}")

    @classmethod
    def of(cls, value: Value, name: str | None = None) -> TensorInfo:
        """Describe an input or output of a graph, optionally under another name."""
        type_ = shown(value)
        if isinstance(type_, TensorType):
            return cls(name or value.name, type_.dtype, type_.shape, type_)
        return cls(name or value.name, None, None, type_)


def check_lent(info: TensorInfo, value: Any, exchange: Exchange, stream: Stream) -> Lent:
    """Validate and wrap a caller's input in device memory.

    Args:
        info: the input.
        value: an array with ``__dlpack__`` or ``__cuda_array_interface__``.
        exchange: of the model's device.
        stream: will read the elements, and waits for them.

    Raises:
        InputError: its type does not fit, or it is on another device.
    """
    try:
        lent = exchange.take(value, stream)
    except InputError as error:
        raise InputError(f"input '{info.name}' {error}") from error
    if not isinstance(info.type, TensorType):
        raise InputError(f"input '{info.name}' is {info.type}; it must be on the host")
    _check_type(info, info.type, lent.type.dtype, lent.type.dims)
    return lent


def check_value(info: TensorInfo, value: Any) -> HostValue:
    """Validate and convert a caller's input.

    Args:
        info: the input.
        value: an array-like; a list, a dictionary or None for a sequence, map or optional.

    Raises:
        InputError: its type does not fit.
    """
    return _check(info, info.type, value)


def by_name(infos: Sequence[TensorInfo], given: Any) -> Mapping[str, Any]:
    """Return inputs by name; they may be given by position, or a single one alone.

    Raises:
        InputError: there are too many or too few.
    """
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    if given is None and not infos:
        return {}
    arrays = cast("Sequence[Any]", given) if isinstance(given, tuple | list) else (given,)
    if len(arrays) != len(infos) or given is None:
        count = "no" if given is None else len(arrays)
        were = "input was" if count == 1 else "inputs were"
        raise InputError(
            f"{count} {were} given; the model takes {len(infos)}, in a dict by name or in a list "
            f"by position: {', '.join(map(str, infos)) or 'none'}"
        )
    return {info.name: data for info, data in zip(infos, arrays, strict=True)}


def refuse_unknown(infos: Sequence[TensorInfo], names: Iterable[Any]) -> None:
    """Raise InputError for a name that is not an input."""
    known = [info.name for info in infos]
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"inputs: the key {arguments.shown(name)} is not the name of an input (str)"
            )
        if name not in known:
            raise InputError(
                f"the model has no input '{name}'{did_you_mean(name, known)} "
                f"(inputs: {', '.join(map(str, infos))})"
            )


def missing(
    infos: Sequence[TensorInfo], given: Container[str], needed: Container[str] | None = None
) -> InputError:
    """Return the error for the inputs that are not given.

    Args:
        infos: the model's inputs.
        given: names of those that are given.
        needed: names of those that must be; all if None.
    """
    lacking = [each for each in infos if each.name not in given]
    lacking = [each for each in lacking if needed is None or each.name in needed]
    if len(lacking) == 1:
        return InputError(f"input '{lacking[0].name}' is missing; the model expects {lacking[0]}")
    expected = ", ".join(map(str, lacking[:_LISTED]))
    more = f" and {len(lacking) - _LISTED} more" if len(lacking) > _LISTED else ""
    return InputError(f"{len(lacking)} inputs are missing; the model expects {expected}{more}")


def values_of(infos: Sequence[TensorInfo], given: Any) -> dict[str, Any]:
    """Return host values for all inputs of a model; device arrays stay where they are.

    Raises:
        InputError: a name, dtype or shape does not fit.
    """
    named = by_name(infos, given)
    refuse_unknown(infos, named)
    found: dict[str, Any] = {}
    for info in infos:
        if info.name not in named:
            raise missing(infos, named)
        value = named[info.name]
        is_there = place_of(value) is not None
        found[info.name] = value if is_there else check_value(info, value)
    return found


def _check(info: TensorInfo, type_: ValueType | None, value: Any) -> HostValue:
    if isinstance(type_, OptionalType):
        return None if value is None else _check(info, type_.element, value)
    if isinstance(type_, SequenceType):
        if not isinstance(value, list | tuple):
            raise InputError(f"input '{info.name}' is {_kind(value)}; the model expects {info}")
        elements = cast("Sequence[Any]", value)
        return [_check(info, type_.element, element) for element in elements]
    if isinstance(type_, MapType):
        if not isinstance(value, Mapping):
            raise InputError(f"input '{info.name}' is {_kind(value)}; the model expects {info}")
        pairs = cast("Mapping[Any, Any]", value).items()
        return {_key(info, type_, key): _element(info, type_, each) for key, each in pairs}
    if isinstance(type_, TensorType):
        return _check_array(info, type_, _array_of(info, type_.dtype, value))
    return value


def _array_of(info: TensorInfo, dtype: DType, value: Any) -> Array:
    try:
        data = as_array(value)
        kind = data.dtype.kind if data.size else "i"
        if not _holds_python_numbers(value) or dtype not in _FROM_PYTHON.get(kind, ()):
            return data
        with np.errstate(over="raise"):
            return np.asarray(value, dtype)
    except InputError as error:
        raise InputError(f"input '{info.name}' {error}") from error
    except (OverflowError, FloatingPointError) as error:
        raise InputError(f"input '{info.name}': {error}; the model expects {info}") from error


#: What numbers of Python, alone or in lists, become by the kind of the array that numpy makes of
#: them. They have no dtype, so they take that of the input, as in numpy's arithmetic.
_FROM_PYTHON = {"f": FLOATS, "i": FLOATS | INTEGERS}


def _holds_python_numbers(value: Any) -> bool:
    while isinstance(value, list | tuple):
        if not value:
            return True
        value = cast("Sequence[Any]", value)[0]
    return type(value) in (int, float)


def as_array(value: Any) -> Array:
    """Return a value as a numpy array in native byte order, by DLPack if numpy cannot read it.

    Raises:
        InputError: it is not an array, or not on the host.
    """
    data = _as_stored(value)
    return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))


def _as_stored(value: Any) -> Array:
    if type(value) is np.ndarray:
        return cast("Array", value)
    if isinstance(value, np.ma.MaskedArray):
        masked = cast("Any", value)
        if np.ma.is_masked(masked):
            raise InputError("has masked elements; give array.filled(VALUE)")
        value = masked.data
    if isinstance(value, np.ndarray):  # np.matrix, np.memmap: as a plain array
        return cast("Array", value).view(np.ndarray)
    place = place_of(value)
    if place is not None:
        raise InputError(f"is on {place_name(place)}; a numpy array on the host is needed")
    exports = hasattr(value, "__dlpack__")
    if hasattr(value, "__array__") or not exports:
        try:
            return np.asarray(value)
        except (TypeError, RuntimeError, ValueError, OverflowError) as error:
            if not exports:
                raise InputError(f"is not an array: {error}") from error
    try:
        return on_host(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"cannot be read through DLPack: {error}") from error


def _key(info: TensorInfo, type_: MapType, key: Any) -> Any:
    if type_.key == string and isinstance(key, str):
        return key
    if type_.key != string and np.asarray(key).dtype.kind in "iu":
        return int(key)
    raise InputError(f"input '{info.name}' has the key {key!r}; the model expects {info}")


def _element(info: TensorInfo, type_: MapType, value: Any) -> Any:
    """Return an element of a map: a number as a numpy scalar, a string as it is."""
    if not isinstance(type_.element, TensorType) or np.ndim(value):
        return _check(info, type_.element, value)
    dtype = type_.element.dtype
    data = np.asarray(value)
    if (dtype == string) != (data.dtype.kind in "UTO"):
        raise InputError(f"input '{info.name}' has the value {value!r}; the model expects {info}")
    return value if dtype == string else data.astype(dtype)[()]


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def _check_array(info: TensorInfo, type_: TensorType, data: Array) -> Array:
    if data.ndim > MAX_RANK:
        raise InputError(
            f"input '{info.name}' has {data.ndim} axes; at most {MAX_RANK} are supported"
        )
    if type_.dtype == string:
        data = _texts_of(info, data)
    elif data.dtype == string:
        kinds = sorted({type(each).__name__ for each in data.flat})
        raise InputError(
            f"input '{info.name}' holds objects ({', '.join(kinds)}); the model expects {info}"
        )
    _check_type(info, type_, data.dtype, data.shape)
    return data


def _texts_of(info: TensorInfo, data: Array) -> Array:
    try:
        return as_texts(data)
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"input '{info.name}': {error}") from error


def _check_type(
    info: TensorInfo,
    type_: TensorType,
    dtype: DType,
    shape: tuple[int, ...],
) -> None:
    """Raise InputError unless an array of this dtype and shape fits the input."""
    if dtype != type_.dtype:
        wanted = "str" if type_.dtype == string else f"'{name_of(type_.dtype)}'"
        remedy = f" (convert with array.astype({wanted}))"
        remedy = remedy if np.can_cast(dtype, np.complex128, "same_kind") else ""
        given = "string" if dtype.kind in "SUT" else name_of(dtype)
        raise InputError(f"input '{info.name}' has dtype {given}; the model expects {info}{remedy}")
    if type_.shape is None:
        return
    if len(shape) != len(type_.shape):
        raise InputError(
            f"input '{info.name}' has shape {list(shape)}; "
            f"the model expects an array of rank {len(type_.shape)}: {info}"
        )
    for axis, (found, wanted) in enumerate(zip(shape, type_.shape, strict=True)):
        if isinstance(wanted, int) and found != wanted:
            raise InputError(
                f"input '{info.name}' has shape {list(shape)}; axis {axis} must be {wanted}: {info}"
            )


def as_texts(data: Array) -> Array:
    """Return an array of strings, or of UTF-8 bytes, as an array of `str`; any other as it is."""
    if data.dtype.kind == "S":
        data = np.char.decode(data, "utf-8")
    if data.dtype.kind in "UT":
        return data.astype(object)
    if data.dtype == object and not all(isinstance(text, str) for text in data.flat):
        kinds = sorted({type(text).__name__ for text in data.flat})
        raise InputError(f"an array of objects must contain only str; found {', '.join(kinds)}")
    return data


def owned(results: Mapping[str, HostValue], feeds: Mapping[str, HostValue]) -> dict[str, HostValue]:
    """Return results that are the caller's own; see `Owned`."""
    own = Owned(feeds.values())
    return {name: own(value) for name, value in results.items()}


class Owned:
    """Makes results the caller's own: none shares memory with another, an input or the model.

    Args:
        feeds: the caller's inputs.
    """

    def __init__(self, feeds: Iterable[HostValue]) -> None:
        # Ids suffice: their objects live at least as long.
        self._taken = {id(data) for value in feeds for data in _held_in(value)}

    def __call__(self, value: HostValue) -> HostValue:
        """Return a result, copied if necessary."""
        if isinstance(value, list):
            return self._maps(value) if are_plain_maps(value) else [*map(self, value)]
        if isinstance(value, dict):
            return {key: self(element) for key, element in value.items()}
        if not isinstance(value, np.ndarray):
            return value
        is_new = value.flags.owndata and value.flags.writeable and id(value) not in self._taken
        self._taken.add(id(value))
        return value if is_new else value.copy()

    def _maps(self, maps: list[Any]) -> list[Any]:
        """Return maps without arrays, copied unless they are all new."""
        ids = {*map(id, maps)}
        is_new = len(ids) == len(maps) and self._taken.isdisjoint(ids)
        self._taken |= ids
        return maps if is_new else list(map(dict[Any, Any].copy, maps))


def _held_in(value: Any) -> Iterator[Array | dict[Any, Any]]:
    """Yield the arrays and maps contained in a value."""
    if isinstance(value, np.ndarray | dict):
        yield value
    if isinstance(value, list | dict):
        held = cast("Iterable[Any]", value.values() if isinstance(value, dict) else value)
        for element in held:
            yield from _held_in(element)
