"""Operators: a frozen dataclass of the specification's attributes, and a shape rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields, replace
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_type_hints,
)

import numpy as np

from .types import Array, ValueType

if TYPE_CHECKING:
    from .graph import Graph

#: Every declared operator by (domain, name); `ai.onnx` is the empty domain.
OPERATORS: dict[tuple[str, str], type[Op]] = {}

Inferred = ValueType | tuple[ValueType | None, ...] | None
#: How operators are dataclasses. Their methods are those of `Op`: compiling them for each class
#: would take a third of the time in which this package is imported.
FIELDS_ONLY: Mapping[str, bool] = {"kw_only": True, "init": False, "repr": False, "eq": False}
C = TypeVar("C")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def op_base(cls: type[C]) -> type[C]:
    """Declare a base class of operators: its annotated attributes are fields of its subclasses."""
    return dataclass(**FIELDS_ONLY)(cls)


@op_base
class Op:
    """Base class of all operators.

    A subclass has the specification's attributes as fields with their defaults, and one method,
    `infer`, whose parameters are the operator's inputs: those without a default are required, those
    with the default None are optional, and ``*name`` is variadic.

    Attributes:
        domain: the specification's domain, "" for ai.onnx.
        outputs: minimum and maximum number of outputs; None for no upper bound.
        view: whether the output is the first input's memory with another shape.
        deterministic: False for operators that draw random numbers.
        dense: whether it multiplies matrices, so that planning pays off even for shapes that occur
            once.
    """

    domain: ClassVar[str] = ""
    outputs: ClassVar[tuple[int, int | None]] = (1, 1)
    view: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True
    dense: ClassVar[bool] = False

    def __init__(self, /, **given: Any) -> None:
        """Set the attributes; those that are not given have their defaults."""
        defaults = _defaults(type(self))
        wrong = (_required(type(self)) - given.keys()) | (given.keys() - defaults.keys())
        if wrong:
            problem = "lacks" if wrong.isdisjoint(given) else "does not have"
            listed = ", ".join(sorted(wrong))
            raise TypeError(f"{type(self).__name__} {problem} the attributes {listed}")
        self.__dict__.update(defaults, **given)  # in the order of the fields

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        """Whether both are the same operator with equal attributes."""
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def infer(self, *inputs: Any, **_: Any) -> Inferred:
        """Return the type of every output, given the types of the inputs (None: omitted).

        Types may lack a shape or have symbolic dimensions; unknown results are None, and a single
        None means that nothing is known about any output.

        Raises:
            ShapeError: the operator does not accept these types.
        """
        raise TypeError(f"{type(self).__name__} declares no shape rule")

    def body_inputs(self, *inputs: Any, **_: Any) -> tuple[tuple[ValueType | None, ...], ...]:
        """Return the input types of every body in `graphs`, given those of the node.

        Raises:
            ShapeError: the operator does not accept these types.
        """
        return tuple(() for _ in self.graphs())

    def may_skip(self, *inputs: Any, **_: Any) -> bool:
        """Whether a body may not run for inputs of these types, so that it need not be valid."""
        return False

    def result_count(self) -> int:
        """Return the number of results that the bodies give; 0 if they do not decide it."""
        return 0

    def widened(
        self, body: Graph, inputs: tuple[ValueType | None, ...]
    ) -> tuple[ValueType | None, ...]:
        """Return types that the inputs of a body have in every iteration.

        Args:
            body: inferred for `inputs`.
            inputs: the types of the first iteration, or wider ones that this method returned.

        Raises:
            ShapeError: there are no such types.
        """
        return inputs

    def graphs(self) -> tuple[Graph, ...]:
        """Return the graphs among the attributes, in field order."""
        names = body_names(type(self))
        if not names:
            return ()
        found = (getattr(self, name) for name in names)
        return tuple(graph for graph in found if graph is not None)

    def __str__(self) -> str:
        """Return the name and the attributes that differ from their defaults."""
        shown = ", ".join(
            f"{f.name}={_text(value)}"
            for f in fields(self)
            if (value := getattr(self, f.name)) is not f.default and value != f.default
        )
        return f"{type(self).__name__}({shown})"


def _text(value: Any) -> str:
    text = f"<graph {value.name}>" if hasattr(value, "nodes") else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _declares_fields(cls: type[Op]) -> bool:
    """Whether a class adds attributes; otherwise all that a dataclass has is inherited."""
    own = vars(cls).get("__annotations__", {}).values()
    return any("ClassVar" not in str(annotation) for annotation in own)


T = TypeVar("T", bound=Op)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def op(cls: type[T]) -> type[T]:
    """Declare an operator: make the class a frozen dataclass and register it by domain and name.

    Defaults are rounded to float32, like float attributes in files.
    """
    for name, value in list(vars(cls).items()):
        if isinstance(value, float):
            setattr(cls, name, float(np.float32(value)))
    made = op_base(cls) if _declares_fields(cls) else cls
    key = (made.domain, made.__name__)
    if key in OPERATORS:
        raise TypeError(f"operator {key} is declared twice")
    OPERATORS[key] = made
    return made


class TensorAttribute:
    """A tensor attribute: an array that compares and hashes by value."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorAttribute):
            return NotImplemented
        a, b = self.array, other.array
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()

    def __hash__(self) -> int:
        return hash((self.array.dtype, self.array.shape))

    def __repr__(self) -> str:
        return f"Tensor({self.array.dtype}{list(self.array.shape)})"


def with_tensors(value: Any) -> Any:
    """Return an attribute, or a list of them, whose arrays compare and hash by value."""
    if isinstance(value, tuple):
        return tuple(map(with_tensors, cast("tuple[Any, ...]", value)))
    return TensorAttribute(cast("Array", value)) if isinstance(value, np.ndarray) else value


def with_arrays(value: Any) -> Any:
    """Return what `with_tensors` was given."""
    if isinstance(value, tuple):
        return tuple(map(with_arrays, cast("tuple[Any, ...]", value)))
    return value.array if isinstance(value, TensorAttribute) else value


R = TypeVar("R")


def per_operator(function: Callable[[type[Op]], R]) -> Callable[[type[Op]], R]:
    """Cache the result of a function per operator class.

    The class holds the result, so classes of custom operators are freed with their models.
    """
    key = f"_{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def call(operator: type[Op]) -> R:
        try:
            return operator.__dict__[key]
        except KeyError:
            found = function(operator)
            setattr(operator, key, found)
            return found

    return call


@per_operator
def body_names(operator: type[Op]) -> tuple[str, ...]:
    """Return the names of the graph attributes."""
    return tuple(f.name for f in fields(operator) if "Graph" in str(f.type))


@per_operator
def attributes(operator: type[Op]) -> tuple[str, ...]:
    """Return the names of an operator's attributes."""
    return tuple(f.name for f in fields(operator))


@per_operator
def _defaults(operator: type[Op]) -> dict[str, Any]:
    """Return the defaults of the attributes; those of required ones are None."""
    return {f.name: None if f.default is MISSING else f.default for f in fields(operator)}


@per_operator
def _required(operator: type[Op]) -> frozenset[str]:
    """Return the names of the attributes that have no default."""
    return frozenset(f.name for f in fields(operator) if f.default is MISSING)


@per_operator
def arity(operator: type[Op]) -> tuple[int, int | None]:
    """Return the minimum and maximum number of inputs; None for no upper bound."""
    parameters = list(inspect.signature(operator.infer).parameters.values())[1:]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    minimum = sum(p.default is p.empty for p in named)
    return minimum, None if variadic else len(named)


@per_operator
def input_names(operator: type[Op]) -> tuple[str, ...]:
    """Return the names of the inputs; a variadic operator's last one covers all further ones."""
    return tuple(inspect.signature(operator.infer).parameters)[1:]


@per_operator
def input_kinds(operator: type[Op]) -> tuple[tuple[type, ...], ...]:
    """Return, for each input, the classes of types that `infer` accepts; NoneType if optional."""
    hints = get_type_hints(operator.infer)
    return tuple(get_args(hints[name]) or (hints[name],) for name in input_names(operator))


def with_attributes(op: Op, **changes: object) -> Op:
    """Return a copy of `op` with other attributes."""
    unknown = set(changes) - set(attributes(type(op)))
    if unknown:
        raise TypeError(f"{op} has no attribute {sorted(unknown)}")
    return replace(op, **changes)
