"""Declarations of onnxruntime's operators, derived from the signatures of their functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import DType, name_of

DOMAIN = "com.microsoft"
#: Names of the results; None for omitted outputs that are not computed.
Results = str | tuple[str | None, ...]


@record
class Kind:
    """The dtypes of an input; inputs whose kinds share a letter have the same dtype.

    Attributes:
        letter: of the kind.
        dtypes: those that it has.
        remedy: what to do about others; empty if there is nothing to say.
    """

    letter: str
    dtypes: frozenset[DType]
    remedy: str = ""


T = Annotated[str, Kind("T", dtypes.FLOATS)]
Float32 = Annotated[str, Kind("F", frozenset({dtypes.float32}))]
Int32 = Annotated[str, Kind("M", frozenset({dtypes.int32}))]
Int64 = Annotated[str, Kind("L", frozenset({dtypes.int64}))]
#: Indices: of the same dtype within a node.
Index = Annotated[str, Kind("I", frozenset({dtypes.int32, dtypes.int64}))]
#: Any dtype.
Anything = Annotated[str, Kind("V", frozenset(dtypes.TO_ONNX))]


@record
class Input:
    """One input: name, dtypes, and whether it is optional or variadic."""

    name: str
    kind: Kind
    optional: bool
    variadic: bool


@dataclass(frozen=True)
class Contrib:
    """An operator and the function that defines it.

    Attributes:
        domain: "" for ai.onnx.
        name: the operator's name.
        function: takes a `NodeBuilder`, the inputs and the attributes.
        outputs: minimum and maximum number of outputs.
    """

    domain: str
    name: str
    function: Callable[..., Results]
    outputs: tuple[int, int]

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs, in order."""
        found = list(inspect.signature(self.function).parameters.values())[1:]
        return tuple(
            Input(
                p.name,
                _kind(self._hints[p.name]),
                _is_optional(self._hints[p.name]),
                p.kind is p.VAR_POSITIONAL,
            )
            for p in found
            if p.kind is not p.KEYWORD_ONLY
        )

    @cached_property
    def attributes(self) -> Mapping[str, tuple[Any, Any]]:
        """Type and default of every attribute; `inspect.Parameter.empty` if required.

        Defaults are rounded to float32, as every float attribute in a file is.
        """
        parameters = inspect.signature(self.function).parameters.values()
        return {
            p.name: (self._hints[p.name], _rounded(p.default))
            for p in parameters
            if p.kind is p.KEYWORD_ONLY
        }

    def complaint(self, found: Sequence[DType | None], given: Sequence[bool]) -> str:
        """Return what is wrong with inputs of these dtypes (None: unknown), or ""."""
        inputs = self.inputs
        minimum = sum(not (each.optional or each.variadic) for each in inputs)
        maximum = None if inputs and inputs[-1].variadic else len(inputs)
        if maximum is not None and len(given) > maximum:
            bounds = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
            return f"has {len(given)} inputs; the operator takes {bounds}"
        for i, each in enumerate(inputs):
            if not (each.optional or each.variadic) and not (i < len(given) and given[i]):
                return f"leaves out input {i} ({each.name}), which the operator needs"
        return self._dtype_complaint(found)

    def _dtype_complaint(self, found: Sequence[DType | None]) -> str:
        bound: dict[str, tuple[str, DType]] = {}
        for i, dtype in enumerate(found):
            each = self.inputs[min(i, len(self.inputs) - 1)]
            if dtype is None:
                continue
            if dtype not in each.kind.dtypes:
                allowed = " or ".join(sorted(map(name_of, each.kind.dtypes)))
                remedy = f"; {each.kind.remedy}" if each.kind.remedy else ""
                return f"input {i} ({each.name}) is of {name_of(dtype)}; expected {allowed}{remedy}"
            first, wanted = bound.setdefault(each.kind.letter, (each.name, dtype))
            if dtype != wanted and each.kind.letter != _FREE:
                return (
                    f"input {i} ({each.name}) is of {name_of(dtype)}; "
                    f"expected {name_of(wanted)}, as {first} is"
                )
        return ""


_FREE = "V"
#: Declarations by domain and name.
CONTRIB: dict[tuple[str, str], Contrib] = {}
Function = TypeVar("Function", bound=Callable[..., Results])


def contrib(
    *names: str, outputs: tuple[int, int] = (1, 1), domain: str = DOMAIN
) -> Callable[[Function], Function]:
    """Declare operators defined by a function; see the package docstring."""

    def declare(function: Function) -> Function:
        for name in names:
            CONTRIB[domain, name] = Contrib(domain, name, function, outputs)
        return function

    return declare


def _kind(hint: Any) -> Kind:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (member for member in get_args(hint) if member is not NoneType)
    return next(each for each in get_args(hint)[1:] if isinstance(each, Kind))


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)


def _rounded(value: Any) -> Any:
    return float(np.float32(value)) if isinstance(value, float) else value
