"""A model file as plain Python: what `parse` reads, `upgrade` rewrites and `bind` understands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ....runtime.ir.types import Array, ValueType

FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of a function's node that stands for an attribute of the function."""

    name: str


@dataclass(frozen=True, slots=True)
class RawNode:
    """A node as the file has it.

    Attributes:
        op: name of the operator or function.
        domain: "" for ai.onnx.
        overload: which of several functions of one name.
        name: the file's name for it, or "".
        inputs: names of what it reads; "" where an optional input is left out.
        outputs: names of what it computes; "" where an optional output is left out.
        attributes: int, float, str, array, `RawGraph`, `ValueType`, `Reference` or a tuple.
        opset: version of `domain` that it is written in, or None where the file imports none.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""
    domain: str = ""
    overload: str = ""
    opset: int | None = None

    @property
    def result(self) -> str:
        """The first output that is not left out, or ""."""
        return next(filter(None, self.outputs), "")

    @property
    def where(self) -> str:
        """How messages call it; a node without a name goes by what it computes."""
        kind = f"{self.domain}::{self.op}" if self.domain else self.op
        if self.name or not self.result:
            return f"node '{self.name}' ({kind})"
        return f"node that computes '{self.result}' ({kind})"

    @property
    def bodies(self) -> Iterator[RawGraph]:
        """The graphs among the attributes."""
        for value in self.attributes.values():
            for item in items(value):
                if isinstance(item, RawGraph):
                    yield item

    def change(self, **changes: Any) -> RawNode:
        """Return the node with other fields."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, eq=False)
class RawGraph:
    """A graph or control-flow body as the file has it.

    Attributes:
        name: the file's name for it.
        inputs: declared types of the inputs, by name.
        outputs: names of the results.
        constants: the initializers.
        declared: types of inner values and outputs, as far as the file declares them.
        nodes: in the file's order.
    """

    name: str
    inputs: Mapping[str, ValueType | None]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    declared: Mapping[str, ValueType]
    nodes: tuple[RawNode, ...]


@dataclass(frozen=True, slots=True)
class RawFunction:
    """A model-local function; `attributes` holds the defaults, None where there is none."""

    key: FunctionKey
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    nodes: tuple[RawNode, ...]

    @property
    def where(self) -> str:
        """How messages call it."""
        domain, name, overload = self.key
        return f"function '{domain}::{name}{':' + overload if overload else ''}'"


@dataclass(frozen=True, slots=True)
class RawModel:
    """A model file, read but not understood yet."""

    graph: RawGraph
    functions: Mapping[FunctionKey, RawFunction]
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    metadata: Mapping[str, str]


def items(value: Any) -> tuple[Any, ...]:
    """Return the elements of an attribute that is a list, or the attribute as the only one."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


def domain_of(text: str) -> str:
    """Return the domain by the name that tercet knows: ai.onnx is the empty one."""
    return "" if text == "ai.onnx" else text
