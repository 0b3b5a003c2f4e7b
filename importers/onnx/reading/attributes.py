"""Attributes of the file as fields of an operator, by the types of the fields."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from onnx import TensorProto

from ....runtime.errors import did_you_mean
from ....runtime.ir.dtypes import BY_ONNX, DType
from ....runtime.ir.graph import Graph
from ....runtime.ir.op import Op, TensorAttribute, attributes, per_operator, with_tensors
from ....runtime.ir.types import MapType, OptionalType, SequenceType, TensorType, ValueType
from ..source.raw import items

_VALUE_TYPES = (TensorType, SequenceType, OptionalType, MapType)
#: Names that operator modules import for type checkers only.
_NAMES = {
    "Graph": Graph,
    "TensorAttribute": TensorAttribute,
    "DType": DType,
    "ValueType": ValueType,
}


class Mismatch(Exception):
    """An attribute that does not fit; the text gives the reason."""


def make(operator: type[Op], values: Mapping[str, Any]) -> Op:
    """Return the operator with these attributes: int, float, str, arrays, graphs, types, tuples.

    Raises:
        Mismatch: an attribute is unknown, missing or of the wrong type.
    """
    known = attributes(operator)
    for name in values:
        if name not in known:
            raise Mismatch(f"has unknown attribute '{name}'{did_you_mean(name, known)}")
    convert = _converters(operator)
    given = {name: convert[name](name, value) for name, value in values.items()}
    for field in fields(operator):
        if field.name not in given and field.default is field.default_factory is MISSING:
            raise Mismatch(f"lacks the attribute '{field.name}'")
    return operator(**given)


def convert(hint: Any, name: str, value: Any) -> Any:
    """Return an attribute of the file as a value of type `hint`.

    Raises:
        Mismatch: it has another type.
    """
    return _converter(hint)(name, value)


def _members(hint: Any) -> list[Any]:
    """Return the members of a union, without None."""
    if get_origin(hint) in (Union, types.UnionType):
        return [m for m in get_args(hint) if m is not type(None)]
    return [hint]


Converter = Callable[[str, Any], Any]


@per_operator
def _converters(operator: type[Op]) -> dict[str, Converter]:
    hints = get_type_hints(operator, localns=_NAMES)
    return {name: _converter(hints[name]) for name in attributes(operator)}


def _converter(hint: Any) -> Converter:
    members = _members(hint)
    if all(member in _VALUE_TYPES for member in members):
        return _plain(_VALUE_TYPES, "a type")
    if len(members) > 1:
        return _first_of([_converter(member) for member in members])
    kind = members[0]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _list_of(_converter(arguments[0]))
    if origin is Literal:
        return _one_of(arguments)
    if origin is np.dtype or kind is np.dtype:
        return _dtype if kind is hint else _optional_dtype
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    raise TypeError(f"no attribute of a file can become a {kind}")


def _kind(value: Any) -> str:
    names = {int: "an integer", float: "a float", str: "a string", np.ndarray: "a tensor"}
    names |= {tuple: "a list", Graph: "a graph", bytes: "bytes that are not UTF-8 text"}
    return next((text for kind, text in names.items() if isinstance(value, kind)), "a type")


def _plain(kinds: tuple[type, ...], wanted: str) -> Converter:
    def convert(name: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            raise Mismatch(f"attribute '{name}' must be {wanted}, not {_kind(value)}")
        return value

    return convert


def _tensor(name: str, value: Any) -> TensorAttribute:
    return TensorAttribute(_plain((np.ndarray,), "a tensor")(name, value))


def _bool(name: str, value: Any) -> bool:
    return bool(_plain((int,), "0 or 1")(name, value))


def _of_any_kind(name: str, value: Any) -> Any:
    return with_tensors(value)


_SIMPLE: dict[Any, Converter] = {
    Any: _of_any_kind,
    int: _plain((int,), "an integer"),
    float: _plain((float,), "a float"),
    str: _plain((str,), "a string"),
    bool: _bool,
    TensorAttribute: _tensor,
    Graph: _plain((Graph,), "a graph"),
}


def _dtype(name: str, value: Any) -> DType:
    number = _plain((int,), "the number of an element type")(name, value)
    if number not in BY_ONNX:
        raise Mismatch(f"attribute '{name}': {number} is not an element type")
    return BY_ONNX[number]


def _optional_dtype(name: str, value: Any) -> DType | None:
    """Return a dtype; UNDEFINED, the default that some tools write out, is none."""
    return None if value == TensorProto.UNDEFINED else _dtype(name, value)


def _list_of(convert: Converter) -> Converter:
    def convert_all(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple):
            raise Mismatch(f"attribute '{name}' must be a list, not {_kind(value)}")
        return tuple(convert(name, item) for item in items(value))

    return convert_all


def _one_of(allowed: tuple[Any, ...]) -> Converter:
    def convert(name: str, value: Any) -> Any:
        if value not in allowed:
            words = [str(word) for word in allowed]
            hint = did_you_mean(str(value), words)
            raise Mismatch(f"attribute '{name}' is {value!r}, not one of {', '.join(words)}{hint}")
        return value

    return convert


def _first_of(converters: list[Converter]) -> Converter:
    def convert(name: str, value: Any) -> Any:
        refusals: list[Mismatch] = []
        for each in converters:
            try:
                return each(name, value)
            except Mismatch as refusal:
                refusals.append(refusal)
        raise refusals[0]

    return convert
