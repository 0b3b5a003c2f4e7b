"""Custom operators: a function on arrays, and optionally a shape rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, make_dataclass
from inspect import Parameter, signature
from operator import index
from typing import Any, ClassVar, cast

import numpy as np

from ..base.arguments import refused
from ..base.record import record
from ..base.scoped import Scoped
from ..errors import OperatorError, ShapeRuleError, TercetError, UsageError
from .dtypes import TO_ONNX
from .graph import Node, Value
from .op import FIELDS_ONLY, Inferred, Op, attributes, op_base, with_arrays, with_tensors
from .types import Array, Dim, HostValue, NotStaticError, TensorType, ValueType


@record
class CustomOperator:
    """The implementation of a custom operator.

        def swish(x, *, beta=1.0):
            return x / (1 + np.exp(-beta * x))

        tercet.load(path, operators={("my.domain", "Swish"): swish})

    Attributes:
        function: takes the inputs as arrays by position (None for an omitted optional input, whose
            parameter must default to None) and the attributes by keyword; returns an array, or a
            tuple with one entry per output. Its inputs are read-only.
        infer: takes the `TensorType`s of the inputs and the attributes in the same way and returns
            the type of the result, or a tuple of types. A rule that reads ``dims`` before they are
            known is asked again when they are. Without a rule, shapes are known only after the
            operator has run, and dependent nodes are planned then.
        kernels: functions by backend name that provide a native implementation: for ``cuda`` a
            `tercet.CudaKernel`, or a list of them, from the inputs, then the outputs (objects with
            ``dims``, ``dtype`` and ``size``; None if omitted or unused), and the attributes by
            keyword; or a string, the reason why it has none. They need `infer`. `function` is their
            reference.
    """

    function: Callable[..., Any]
    infer: Callable[..., Inferred] | None = None
    kernels: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict[str, Callable[..., Any]], hash=False
    )


Given = Mapping[tuple[str, str], CustomOperator | Callable[..., Any]]
#: Operators known to every model loaded within a block, by domain and name.
OPERATORS_AROUND = Scoped[tuple[str, str], CustomOperator | Callable[..., Any]]("operators")


@op_base
class Custom(Op):
    """Base class of custom operators.

    Attributes:
        definition: the implementation.
    """

    outputs: ClassVar[tuple[int, int | None]] = (1, None)
    definition: ClassVar[CustomOperator]

    def given(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return {name: with_arrays(getattr(self, name)) for name in attributes(type(self))}


def run_custom(node: Node, inputs: Sequence[HostValue]) -> tuple[HostValue, ...]:
    """Run the function of a custom node on read-only inputs.

    Raises:
        OperatorError: the function raised, or its result does not fit the node's outputs.
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
    """Return a read-only view of a value, whose memory has other readers."""
    if isinstance(value, list):
        return [_read_only(each) for each in value]
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _result(data: Any, value: Value, where: str) -> HostValue:
    """Return the value of an output; raises OperatorError if it is invalid."""
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
    """Return the type of an attribute with this default."""
    if isinstance(default, bool | str):
        return type(default)
    return int | float if isinstance(default, int | float) else Any


def declare(domain: str, name: str, given: CustomOperator | Callable[..., Any]) -> type[Op]:
    """Return the `Op` class of a custom operator.

    Args:
        domain: its domain in the file.
        name: its name in the file.
        given: the function, or a `CustomOperator`.

    Raises:
        UsageError: the function's parameters do not determine the inputs and attributes.
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
            default = with_tensors(parameter.default)
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
    return make_dataclass(name, fields, bases=(Custom,), namespace=own, **FIELDS_ONLY)


def _given_type(found: Any) -> ValueType | None:
    """Return a result of a shape rule; raises ShapeRuleError if it is no type that ONNX has."""
    rule = "the operator's shape rule gives"
    if not isinstance(found, ValueType | None):
        raise ShapeRuleError(
            f"{rule} {type(found).__name__}; expected a type, as its parameters are, such as "
            "x.with_shape((2, 3))"
        )
    if not isinstance(found, TensorType):
        return found
    given: Any = found.dtype
    try:
        dtype = np.dtype(given)
    except TypeError:
        dtype = None
    if given is None or dtype is None or dtype not in TO_ONNX:
        raise ShapeRuleError(f"{rule} the dtype {given!r}, which ONNX does not have")
    try:
        shape = None if found.shape is None else tuple(map(_given_dim, found.shape))
    except (TypeError, ValueError):
        raise ShapeRuleError(
            f"{rule} the shape {found.shape!r}; expected a tuple of sizes, which are integers from "
            "0, names, or None if unknown"
        ) from None
    return TensorType(dtype, shape, found.value)


def _given_dim(dim: Any) -> Dim:
    if dim is None or isinstance(dim, str):
        return dim
    if index(dim) < 0:
        raise ValueError(dim)
    return index(dim)


def _rule(definition: CustomOperator, inputs: list[Parameter]) -> Callable[..., Inferred]:
    """Return the method `infer`, whose parameters declare the operator's inputs."""

    def infer(self: Custom, *types: ValueType | None) -> Inferred:
        if definition.infer is None:
            return None
        try:
            found: Any = definition.infer(*types, **self.given())
        except TercetError:
            raise
        except NotStaticError:  # the sizes are known when it is planned
            return None
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ShapeRuleError(f"the operator's shape rule raised {said}") from error
        if isinstance(found, tuple):
            return tuple(map(_given_type, cast("tuple[Any, ...]", found)))
        return _given_type(found)

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    kinds = {p.name: ValueType if p.default is p.empty else ValueType | None for p in inputs}
    shown = signature(infer).replace(parameters=[own, *inputs])
    vars(infer).update(__signature__=shown)
    infer.__annotations__ = kinds
    return infer


def with_custom(
    known: Mapping[tuple[str, str], type[Op]],
    given: Given,
) -> dict[tuple[str, str], type[Op]]:
    """Return all known operators: built-in, those of `OPERATORS_AROUND`, and the user's.

    Raises:
        UsageError: a key is not a pair of domain and name.
    """
    operators = dict(known)
    for key, each in {**OPERATORS_AROUND.get(), **given}.items():
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
