"""Operators that users bring: a function on arrays, and a shape rule if they have one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, make_dataclass
from inspect import Parameter, signature
from typing import Any, ClassVar, cast

import numpy as np

from ..base.arguments import refused
from ..errors import OperatorError, ShapeError, TercetError, UsageError
from .dtypes import TO_ONNX
from .graph import Node, Value
from .op import Inferred, Op, attributes
from .types import Array, HostValue, TensorType, ValueType


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """How to run an operator that ONNX does not have.

        def swish(x, *, beta=1.0):
            return x / (1 + np.exp(-beta * x))

        tercet.load(path, operators={("my.domain", "Swish"): swish})

    Attributes:
        function: takes the inputs as arrays by position (None where an optional one is left out,
            which needs the default None) and the attributes by keyword; returns an array, or a
            tuple of as many as the node has outputs. Its inputs are read-only.
        infer: takes the `TensorType`s of the inputs and the attributes in the same way and returns
            the type of the result, or a tuple of types. Without it sizes are known only when the
            operator has run, and what depends on them is planned then.
        kernels: functions by name of a backend that give its own form of the operator: for
            ``cuda`` a `tercet.CudaKernel`, or a list of them, of the inputs, then the outputs
            (objects with ``dims``, ``dtype`` and ``size``; None for what is left out or not read),
            and the attributes by keyword; or a text, why there is none for these. They need
            `infer`. `function` is what they are compared with.
    """

    function: Callable[..., Any]
    infer: Callable[..., Inferred] | None = None
    kernels: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict[str, Callable[..., Any]], hash=False
    )


Given = Mapping[tuple[str, str], CustomOperator | Callable[..., Any]]
_AROUND: ContextVar[Given] = ContextVar("operators", default={})  # noqa: B039 - never changed


@dataclass(frozen=True, kw_only=True, repr=False)
class Custom(Op):
    """Base class of the operators that users bring.

    Attributes:
        definition: how to run it.
    """

    outputs: ClassVar[tuple[int, int | None]] = (1, None)
    definition: ClassVar[CustomOperator]

    def given(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return {name: getattr(self, name) for name in attributes(type(self))}


def run_custom(node: Node, inputs: Sequence[HostValue]) -> tuple[HostValue, ...]:
    """Run the function of a node on read-only inputs.

    Raises:
        OperatorError: the function raised, or gave something else than the node's results.
    """
    op = node.op
    if not isinstance(op, Custom):
        raise TypeError(f"{op} is none of the user's operators")
    where = f"node '{node.name}' ({node.kind})"
    try:
        found: Any = op.definition.function(*map(_read_only, inputs), **op.given())
    except Exception as error:
        said = f"the operator's function raised {type(error).__name__}: {error}"
        raise OperatorError(f"{where}: {said}") from error
    results = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
    if len(results) != len(node.outputs):
        raise OperatorError(
            f"{where}: the operator's function returned {len(results)} results; "
            f"the node has {len(node.outputs)}"
        )
    pairs = zip(results, node.outputs, strict=True)
    return tuple(_result(data, value, f"{where}: {value.name!r}") for data, value in pairs)


def _read_only(value: HostValue) -> HostValue:
    """Return a value that cannot be written to; its memory is read elsewhere, too."""
    if isinstance(value, list):
        return [_read_only(each) for each in value]
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _result(data: Any, value: Value, where: str) -> HostValue:
    """Return what a function gave for an output; raises OperatorError if that is no such value."""
    if isinstance(data, list):
        items = cast("list[Any]", data)
        return [_result(each, Value(value.name), where) for each in items]
    if data is None or isinstance(data, dict):
        return cast("dict[Any, Any] | None", data)
    kind = cast("type[object]", type(data))
    if not issubclass(kind, np.ndarray | np.generic) or issubclass(kind, np.ma.MaskedArray):
        raise OperatorError(f"{where} is {kind.__name__}; expected a numpy array")
    array: Array = np.asarray(data)
    array = array.astype(object) if array.dtype.kind in "UT" else array
    if array.dtype not in TO_ONNX:
        raise OperatorError(f"{where} is an array of {array.dtype}, which ONNX does not have")
    declared, wanted = value.declared, value.type
    if wanted is None and isinstance(declared, TensorType):
        wanted = declared.with_shape(None)
    if isinstance(wanted, TensorType) and not _fits(array, wanted):
        found = TensorType(array.dtype, array.shape)
        raise OperatorError(f"{where} is {found}; the shape rule, or the model, says {wanted}")
    return array


def _fits(array: Array, type_: TensorType) -> bool:
    if array.dtype != type_.dtype or type_.shape is None:
        return array.dtype == type_.dtype
    sizes = zip(array.shape, type_.shape, strict=False)
    same = all(not isinstance(wanted, int) or size == wanted for size, wanted in sizes)
    return same and array.ndim == len(type_.shape)


def _kind_of(default: object) -> Any:
    """Return the type that an attribute has whose default is this one."""
    if isinstance(default, bool | str):
        return type(default)
    return int | float if isinstance(default, int | float) else Any


def declare(domain: str, name: str, given: CustomOperator | Callable[..., Any]) -> type[Op]:
    """Return the class of an operator that a user brings.

    Args:
        domain: its domain in the file.
        name: its name there.
        given: the function, or the function with a shape rule.

    Raises:
        UsageError: the function's parameters do not tell the inputs and the attributes.
    """
    definition = given if isinstance(given, CustomOperator) else CustomOperator(given)
    if not callable(definition.function):
        raise refused(f"operators[{(domain, name)}]", given, "a function on arrays")
    if definition.kernels and definition.infer is None:
        raise UsageError(f"operator '{domain}::{name}': kernels need infer, the rule of its shapes")
    inputs: list[Parameter] = []
    fields: list[Any] = []
    for parameter in signature(definition.function).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY:
            default = parameter.default
            kind = _kind_of(default)
            required = default is Parameter.empty
            fields.append((parameter.name, kind) if required else (parameter.name, kind, default))
        elif parameter.kind is Parameter.VAR_KEYWORD:
            raise UsageError(
                f"operator '{domain}::{name}': name its attributes as keyword-only parameters "
                f"instead of **{parameter.name}"
            )
        else:
            inputs.append(parameter)
    own = {"domain": domain, "definition": definition, "infer": _rule(definition, inputs)}
    return make_dataclass(
        name, fields, bases=(Custom,), namespace=own, frozen=True, kw_only=True, repr=False
    )


def _rule(definition: CustomOperator, inputs: list[Parameter]) -> Callable[..., Inferred]:
    """Return the method `infer`, whose parameters tell what the operator's inputs are."""

    def infer(self: Custom, *types: ValueType | None) -> Inferred:
        if definition.infer is None:
            return None
        try:
            found: Any = definition.infer(*types, **self.given())
        except TercetError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ShapeError(f"the operator's shape rule raised {said}") from error
        results = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
        for each in results:
            if not isinstance(each, ValueType | None):
                given = type(each).__name__
                raise ShapeError(f"the operator's shape rule gives {given}; expected a TensorType")
        return cast("Inferred", found)

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    kinds = {p.name: ValueType if p.default is p.empty else ValueType | None for p in inputs}
    shown = signature(infer).replace(parameters=[own, *inputs])
    vars(infer).update(__signature__=shown)
    infer.__annotations__ = kinds
    return infer


@contextmanager
def operators_in(given: Given) -> Generator[None]:
    """Let every model that is loaded in the block know these operators."""
    token = _AROUND.set({**_AROUND.get(), **given})
    try:
        yield
    finally:
        _AROUND.reset(token)


def with_custom(
    known: Mapping[tuple[str, str], type[Op]],
    given: Given,
) -> dict[tuple[str, str], type[Op]]:
    """Return the operators that are known, those of `operators_in`, and those that a user brings.

    Raises:
        UsageError: a key is not a pair of domain and name.
    """
    operators = dict(known)
    for key, each in {**_AROUND.get(), **given}.items():
        match key:
            case (str() as domain, str() as name):
                is_op = isinstance(each, type) and issubclass(cast("type[Any]", each), Op)
                made = (
                    cast("type[Op]", each)
                    if is_op
                    else declare(domain, name, cast("CustomOperator | Callable[..., Any]", each))
                )
                operators["" if domain == "ai.onnx" else domain, name] = made
            case _:
                raise UsageError(f"operators: {key!r} is not a pair (domain, name)")
    return operators
