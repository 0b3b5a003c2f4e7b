"""ModelProto → plain Python: every field read once, checked, and freed of protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    StringStringEntryProto,
    TypeProto,
    ValueInfoProto,
)

from ...runtime.types import (
    Array,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
)
from .source import Source
from .tensors import TensorReader

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
    def where(self) -> str:
        """How messages call it; a node without a name goes by what it computes."""
        kind = f"{self.domain}::{self.op}" if self.domain else self.op
        if self.name or not self.outputs:
            return f"node '{self.name}' ({kind})"
        return f"node that computes '{self.outputs[0]}' ({kind})"

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


def parse(proto: ModelProto, source: Source) -> RawModel:
    """Read a whole model.

    Raises:
        ModelError: something contradicts the ONNX specification.
        LimitError: something exceeds the limits.
    """
    return _Parser(source).model(proto)


# The members of AttributeProto that hold a value, by its `type`.
_MEMBERS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_TYPES = {member: number for number, member in _MEMBERS.items()}


class _Parser:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._tensors = TensorReader(source)
        self._nodes = 0
        self._depth = 0

    def model(self, proto: ModelProto) -> RawModel:
        opsets = self._opsets(proto.opset_import, "model") or {"": 1}  # IR versions 1 and 2
        functions: dict[FunctionKey, RawFunction] = {}
        for each in proto.functions:
            function = self._function(each)
            if function.key in functions:
                raise self._source.error("is defined twice", function.where)
            functions[function.key] = function
        producer = f"{self._name(proto.producer_name)} {self._name(proto.producer_version)}"
        return RawModel(
            graph=self._graph(proto.graph, opsets),
            functions=functions,
            opsets=opsets,
            ir_version=proto.ir_version,
            producer=producer.strip(),
            metadata=self._metadata(proto.metadata_props),
        )

    def _name(self, value: str | bytes, where: str | None = None) -> str:
        return self._source.name(value, where)

    def _metadata(self, entries: Iterable[StringStringEntryProto]) -> dict[str, str]:
        return {self._name(e.key): self._source.text(e.value, "metadata") for e in entries}

    def _opsets(self, imports: Iterable[OperatorSetIdProto], where: str) -> dict[str, int]:
        opsets: dict[str, int] = {}
        for each in imports:
            domain = domain_of(self._name(each.domain, where))
            if opsets.setdefault(domain, each.version) != each.version:
                raise self._source.error(f"imports domain '{domain}' in two versions", where)
            if each.version < 1:
                found = f"imports version {each.version} of domain '{domain or 'ai.onnx'}'"
                raise self._source.error(found, where)
        return opsets

    def _function(self, proto: FunctionProto) -> RawFunction:
        key = (
            domain_of(self._name(proto.domain)),
            self._name(proto.name),
            self._name(getattr(proto, "overload", "")),
        )
        attributes: dict[str, Any] = {self._name(name): None for name in proto.attribute}
        where = f"function '{key[0]}::{key[1]}'"
        opsets = self._opsets(proto.opset_import, where)
        for each in proto.attribute_proto:
            name, value = self._attribute(each, opsets, where)
            attributes[name] = value
        return RawFunction(
            key=key,
            inputs=self._distinct(proto.input, where),
            outputs=self._distinct(proto.output, where),
            attributes=attributes,
            nodes=tuple(self._node(n, opsets) for n in proto.node),
        )

    def _distinct(self, names: Iterable[str], where: str) -> tuple[str, ...]:
        found = tuple(self._name(name, where) for name in names)
        if len(set(found)) != len(found) or "" in found:
            raise self._source.error("has two parameters of one name, or one without", where)
        return found

    def _graph(self, proto: GraphProto, opsets: Mapping[str, int]) -> RawGraph:
        if self._depth > self._source.limits.depth:
            raise self._source.limit(f"more than {self._depth - 1} bodies inside one another")
        self._depth += 1
        where = f"graph '{self._name(proto.name)}'"
        inputs: dict[str, ValueType | None] = {}
        for info in proto.input:
            name = self._name(info.name, where)
            if not name or name in inputs:
                found = f"has two inputs named '{name}'" if name else "has an input without a name"
                raise self._source.error(found, where)
            inputs[name] = self._declared(info)
        declared: dict[str, ValueType] = {}
        for info in (*proto.value_info, *proto.output):
            if (type_ := self._declared(info)) is not None:
                declared.setdefault(self._name(info.name), type_)
        graph = RawGraph(
            name=self._name(proto.name),
            inputs=inputs,
            outputs=tuple(self._name(info.name, where) for info in proto.output),
            constants=self._constants(proto, where),
            declared=declared,
            nodes=tuple(self._node(n, opsets) for n in proto.node),
        )
        self._depth -= 1
        return graph

    def _constants(self, proto: GraphProto, where: str) -> dict[str, Array]:
        constants: dict[str, Array] = {}

        def add(raw: str | bytes, data: Array) -> None:
            name = self._name(raw, where)
            if not name or name in constants:
                found = f"two initializers named '{name}'" if name else "an unnamed initializer"
                raise self._source.error(f"has {found}", where)
            constants[name] = data

        for tensor in proto.initializer:
            add(tensor.name, self._tensors.read(tensor))
        for sparse in proto.sparse_initializer:
            add(sparse.values.name, self._tensors.read_sparse(sparse))
        return constants

    def _node(self, proto: NodeProto, opsets: Mapping[str, int]) -> RawNode:
        self._nodes += 1
        if self._nodes > self._source.limits.nodes:
            raise self._source.limit(f"has more than {self._source.limits.nodes} nodes")
        domain = domain_of(self._name(proto.domain))
        node = RawNode(
            op=self._name(proto.op_type),
            inputs=_trimmed(self._name(name) for name in proto.input),
            outputs=_trimmed(self._name(name) for name in proto.output),
            name=self._name(proto.name),
            domain=domain,
            overload=self._name(getattr(proto, "overload", "")),
            opset=opsets.get(domain),
        )
        if not proto.attribute:
            return node
        attributes: dict[str, Any] = {}
        for each in proto.attribute:
            name, value = self._attribute(each, opsets, node.where)
            if name in attributes:
                raise self._source.error(f"has attribute '{name}' twice", node.where)
            attributes[name] = value
        return node.change(attributes=attributes)

    def _attribute(
        self, proto: AttributeProto, opsets: Mapping[str, int], where: str
    ) -> tuple[str, Any]:
        name = self._name(proto.name, where)
        if proto.ref_attr_name:
            return name, Reference(self._name(proto.ref_attr_name, where))
        held = [f.name for f, _ in proto.ListFields() if f.name in _TYPES]
        kind = proto.type
        if kind == AttributeProto.UNDEFINED and len(held) == 1:
            kind = _TYPES[held[0]]  # IR versions 1 and 2 have no `type`
        member = _MEMBERS.get(kind)
        if member is None:
            raise self._source.error(f"attribute '{name}' has unknown type {kind}", where)
        if held not in ([], [member]):
            type_ = AttributeProto.AttributeType.Name(kind)
            found = f"attribute '{name}' is declared {type_} but holds {' and '.join(held)}"
            raise self._source.error(found, where)
        return name, self._value(getattr(proto, member), member, opsets, f"{where}: '{name}'")

    def _value(self, value: Any, member: str, opsets: Mapping[str, int], where: str) -> Any:
        match member:
            case "f" | "i":
                return value
            case "floats" | "ints":
                return tuple(value)
            case "s":
                return self._source.text(value, where)
            case "t":
                return self._tensors.read(value, where)
            case "sparse_tensor":
                return self._tensors.read_sparse(value, where)
            case "g":
                return self._graph(value, opsets)
            case "tp":
                return self._type(value, where)
            case _:
                one = {"strings": "s", "tensors": "t", "graphs": "g", "type_protos": "tp"}
                each = one.get(member, "sparse_tensor")
                return tuple(self._value(v, each, opsets, where) for v in value)

    def _declared(self, info: ValueInfoProto) -> ValueType | None:
        where = f"value '{self._name(info.name)}'"
        return self._type(info.type, where) if info.HasField("type") else None

    def _type(self, proto: TypeProto, where: str, depth: int = 0) -> ValueType | None:
        kind = proto.WhichOneof("value")
        if kind is None:
            return None
        if depth > self._source.limits.depth:
            raise self._source.limit(f"declares a type of more than {depth - 1} levels", where)
        if kind == "tensor_type":
            return self._tensor_type(proto.tensor_type, where)
        if kind == "sequence_type":
            element = self._type(proto.sequence_type.elem_type, where, depth + 1)
            if isinstance(element, TensorType | OptionalType | None):
                return SequenceType(element)
        elif kind == "optional_type":
            element = self._type(proto.optional_type.elem_type, where, depth + 1)
            if isinstance(element, TensorType | SequenceType | None):
                return OptionalType(element)
        elif kind == "map_type":
            element = self._type(proto.map_type.value_type, where, depth + 1)
            if isinstance(element, TensorType):
                return MapType(self._source.dtype(proto.map_type.key_type, where), element)
        raise self._source.error(f"declares a {kind} that tercet has no values for", where)

    def _tensor_type(self, proto: TypeProto.Tensor, where: str) -> TensorType | None:
        if proto.elem_type == 0:
            return None
        dtype = self._source.dtype(proto.elem_type, where)
        if not proto.HasField("shape"):
            return TensorType(dtype)
        if len(proto.shape.dim) > self._source.limits.rank:
            raise self._source.limit(f"has {len(proto.shape.dim)} axes", where)
        return TensorType(dtype, tuple(self._dim(d, where) for d in proto.shape.dim))

    def _dim(self, proto: Any, where: str) -> Dim:
        """Return a declared dimension; exporters write -1, or an empty name, for unknown ones."""
        if proto.HasField("dim_value"):
            return proto.dim_value if proto.dim_value >= 0 else None
        return self._name(proto.dim_param, where) or None


def _trimmed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without those at the end that stand for something left out."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)
