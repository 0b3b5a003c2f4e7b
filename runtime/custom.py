"""Operators that users bring: a function on arrays, and a shape rule if they have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from inspect import Parameter, signature
from typing import Any, ClassVar

from .arguments import refused
from .errors import UsageError
from .op import Inferred, Op, attributes
from .types import ValueType


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """How to run an operator that ONNX does not have.

        def swish(x, *, beta=1.0):
            return x / (1 + np.exp(-beta * x))

        tercet.load(path, operators={("my.domain", "Swish"): swish})

    Attributes:
        function: takes the inputs as arrays by position (None where an optional one is left out,
            which needs the default None) and the attributes by keyword; returns an array, or a
            tuple of them. It must not write to its inputs.
        infer: takes the `TensorType`s of the inputs and the attributes in the same way and returns
            the type of the result, or a tuple of types. Without it sizes are known only when the
            operator has run, and what depends on them is planned then.
    """

    function: Callable[..., Any]
    infer: Callable[..., Inferred] | None = None


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

    def call(self, *inputs: Any) -> Any:
        """Run the user's function."""
        return self.definition.function(*inputs, **self.given())


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
    inputs: list[Parameter] = []
    fields: list[Any] = []
    for parameter in signature(definition.function).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY:
            default = parameter.default
            kind = type(default) if isinstance(default, int | float | str) else Any
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
        return definition.infer(*types, **self.given())

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    kinds = {p.name: ValueType if p.default is p.empty else ValueType | None for p in inputs}
    shown = signature(infer).replace(parameters=[own, *inputs])
    vars(infer).update(__signature__=shown)
    infer.__annotations__ = kinds
    return infer


def with_custom(
    known: Mapping[tuple[str, str], type[Op]],
    given: Mapping[tuple[str, str], CustomOperator | Callable[..., Any]],
) -> dict[tuple[str, str], type[Op]]:
    """Return the operators that are known, and those that a user brings.

    Raises:
        UsageError: a key is no pair of domain and name.
    """
    operators = dict(known)
    for key, each in given.items():
        match key:
            case (str() as domain, str() as name):
                is_op = isinstance(each, type) and issubclass(each, Op)
                made = each if is_op else declare(domain, name, each)
                operators["" if domain == "ai.onnx" else domain, name] = made
            case _:
                raise UsageError(f"operators: {key!r} is no pair (domain, name)")
    return operators
