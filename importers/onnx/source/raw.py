"""A model file as plain Python: the result of `parse`, rewritten by `upgrade`, read by `bind`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ....runtime.base.record import record
from ....runtime.ir.types import Array, ValueType

FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""


@record
class Reference:
    """A reference to an attribute of the enclosing function."""

    name: str


@record
class RawNode:
    """A node as in the file.

    Attributes:
        op: name of the operator or function.
        domain: "" for ai.onnx.
        overload: which of several functions of one name.
        name: its name in the file, or "".
        inputs: input names; "" for omitted optional inputs.
        outputs: output names; "" for omitted optional outputs.
        attributes: int, float, str, array, `RawGraph`, `ValueType`, `Reference` or a tuple.
        opset: imported version of `domain`, or None.
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
        """The first output that is not omitted, or ""."""
        return next(filter(None, self.outputs), "")

    @property
    def where(self) -> str:
        """Its description in messages; a node without a name is described by its outputs."""
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
        """Return a copy with other fields."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, eq=False)
class RawGraph:
    """A graph or control-flow body as in the file.

    Attributes:
        name: its name in the file.
        inputs: declared types of the inputs, by name.
        outputs: names of the results.
        constants: the initializers.
        declared: declared types of inner values and outputs.
        nodes: in the file's order.
    """

    name: str
    inputs: Mapping[str, ValueType | None]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    declared: Mapping[str, ValueType]
    nodes: tuple[RawNode, ...]


@record
class RawFunction:
    """A model-local function; `attributes` holds defaults, None where there is none."""

    key: FunctionKey
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    nodes: tuple[RawNode, ...]

    @property
    def where(self) -> str:
        """Its description in messages."""
        domain, name, overload = self.key
        return f"function '{domain}::{name}{':' + overload if overload else ''}'"


@record
class RawModel:
    """A parsed model file, not yet bound; `warnings` are irregularities that were found so far."""

    graph: RawGraph
    functions: Mapping[FunctionKey, RawFunction]
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    metadata: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def items(value: Any) -> tuple[Any, ...]:
    """Return the elements of a list attribute, or a scalar attribute as a single element."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


def domain_of(text: str) -> str:
    """Return the canonical domain: ai.onnx is the empty one."""
    return "" if text == "ai.onnx" else text
