"""Values and nodes; a `Graph` keeps both in order."""

from __future__ import annotations

from typing import cast

from ..text import printable
from .op import Op
from .types import Array, TensorType, ValueType, constant_type


class Value:
    """A graph input, a constant, or one result of a node. Compared by identity.

    Attributes:
        name: unique in its graph.
        type: dtype and shape as far as inputs and operators prove them; None if unknown.
        declared: the type declared in the file: a hint, see `hints`.
        data: the elements of a constant, read-only; else None.
        producer: the node that computes it, or None for inputs, captures and constants.
        consumers: the nodes that read it, with the number of times each does.
    """

    __slots__ = ("consumers", "data", "declared", "name", "producer", "type")

    def __init__(
        self,
        name: str,
        type: ValueType | None = None,
        *,
        data: Array | None = None,
        producer: Node | None = None,
        declared: ValueType | None = None,
    ) -> None:
        self.name, self.declared = name, declared
        self.type: ValueType | None = type
        self.data: Array | None = None
        self.producer = producer
        self.consumers: dict[Node, int] = {}
        if data is not None:
            self.fix(data)

    def __repr__(self) -> str:
        return printable(f"%{self.name}: {self.type or '?'}")

    def fix(self, data: Array) -> None:
        """Turn it into a constant with these elements, which become read-only."""
        self.type = type_ = constant_type(data)
        self.data = type_.value

    def twin(self, name: str) -> Value:
        """Return another value with this type and data, without a producer."""
        return Value(name, self.type, data=self.data, declared=self.declared)

    @property
    def is_constant(self) -> bool:
        """Whether the elements are part of the model."""
        return self.data is not None

    @property
    def known(self) -> Array | None:
        """All elements of a tensor that is constant or known to inference; else None."""
        if self.data is not None or not isinstance(self.type, TensorType):
            return self.data
        return self.type.known

    @property
    def tensor(self) -> TensorType:
        """The type of a tensor; raises TypeError for other values."""
        type_ = self.type
        if not isinstance(type_, TensorType):
            raise TypeError(f"'{self.name}' is {type_ or 'of unknown type'}, not a tensor")
        return type_


class Node:
    """One operator applied to values. Compared by identity.

    Attributes:
        op: the operator and its attributes.
        inputs: its inputs, None for omitted optional ones.
        captures: outer values that its bodies read, in the order of `op.graphs()` and of each
            body's `Graph.captures`.
        outputs: one `Value` each.
        position: increases along the graph's order; set by `Graph`.
        name: its name in the file, unique in its graph.
        origin: names of all nodes of the file that it stands for.
    """

    __slots__ = ("__weakref__", "captures", "inputs", "name", "op", "origin", "outputs", "position")

    def __init__(self, op: Op, name: str, origin: tuple[str, ...]) -> None:
        self.op = op
        self.name = name
        self.origin = origin
        self.position = 0.0
        self.inputs: tuple[Value | None, ...] = ()
        self.captures: tuple[Value, ...] = ()
        self.outputs: tuple[Value, ...] = ()

    def __repr__(self) -> str:
        reads = ", ".join(f"%{v.name}" if v else "_" for v in self.inputs)
        gives = ", ".join(map(repr, self.outputs))
        return printable(f"{gives} = {self.op}({reads})  # {self.name}")

    @property
    def kind(self) -> str:
        """The operator's name, with its domain unless that is ai.onnx."""
        domain, name = self.op.domain, type(self.op).__name__
        return f"{domain}::{name}" if domain else name

    @property
    def operands(self) -> tuple[Value, ...]:
        """Every input that is given, in order; one that is given twice is there twice."""
        if None not in self.inputs:
            return cast("tuple[Value, ...]", self.inputs)
        return tuple(value for value in self.inputs if value is not None)

    @property
    def captured(self) -> dict[Value, Value]:
        """What each capture of its bodies stands for."""
        formal = [value for body in self.op.graphs() for value in body.captures]
        return dict(zip(formal, self.captures, strict=True))

    @property
    def distinct_reads(self) -> tuple[Value, ...]:
        """Every value that it depends on, each once: inputs, then captures."""
        read = self.inputs + self.captures
        if None not in read and (len(read) == 1 or (len(read) == 2 and read[0] is not read[1])):
            return cast("tuple[Value, ...]", read)  # those of most nodes
        found = dict.fromkeys(read)
        found.pop(None, None)
        return tuple(cast("dict[Value, None]", found))

    @property
    def output(self) -> Value:
        """The first output."""
        return self.outputs[0]

    def signature(self) -> str:
        """Return its input and output types, for messages."""
        takes = ", ".join(str(v.type or "?") if v else "_" for v in self.inputs)
        return f"({takes}) -> {', '.join(str(v.type or '?') for v in self.outputs)}"
