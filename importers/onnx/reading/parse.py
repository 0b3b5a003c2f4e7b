"""From ModelProto to plain Python: every field is read once and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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

from ....runtime.ir.dtypes import INTEGERS, DType, name_of, string
from ....runtime.ir.types import (
    Array,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
)
from ..source.raw import FunctionKey, RawFunction, RawGraph, RawModel, RawNode, Reference, domain_of
from ..source.source import FileSource
from ..upgrading.rewrite import NEWEST
from .tensors import TensorReader


def parse(proto: ModelProto, source: FileSource) -> RawModel:
    """Parse a whole model.

    Raises:
        ModelError: something violates the ONNX specification.
        UnsupportedError: its opset is newer than supported.
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
    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._tensors = TensorReader(source)
        self._nodes = 0
        self._depth = 0
        self._warnings: list[str] = []

    def model(self, proto: ModelProto) -> RawModel:
        imports = self._opsets(proto.opset_import, proto.graph.node, "model")
        opsets = imports or {"": 1}  # IR versions 1 and 2
        functions: dict[FunctionKey, RawFunction] = {}
        for each in proto.functions:
            function = self._function(each)
            if function.key in functions:
                raise self._source.error("is defined twice", function.where)
            functions[function.key] = function
        producer = f"{self._name(proto.producer_name)} {self._name(proto.producer_version)}"
        graph = self._graph(proto.graph, opsets)
        return RawModel(
            graph=graph,
            functions=functions,
            opsets=opsets,
            ir_version=proto.ir_version,
            producer=producer.strip(),
            metadata=self._metadata(proto.metadata_props),
            warnings=tuple(self._warnings),
        )

    def _name(self, value: str | bytes, where: str | None = None) -> str:
        return self._source.name(value, where)

    def _metadata(self, entries: Iterable[StringStringEntryProto]) -> dict[str, str]:
        return {self._name(e.key): self._source.text(e.value, "metadata") for e in entries}

    def _opsets(
        self, imports: Iterable[OperatorSetIdProto], nodes: Iterable[NodeProto], where: str
    ) -> dict[str, int]:
        """Return the versions of domains; of one that no node is of, there may be several.

        skl2onnx imports ONNX's domain twice, and ONNX's converter raises only one of the two.
        """
        opsets: dict[str, int] = {}
        for each in imports:
            domain = domain_of(self._name(each.domain, where))
            is_new = opsets.setdefault(domain, each.version) == each.version
            if not is_new and self._has(nodes, domain):
                raise self._source.error(f"imports domain '{domain}' in two versions", where)
            found = f"imports version {each.version} of domain '{domain or 'ai.onnx'}'"
            if each.version < 1:
                raise self._source.error(found, where)
            if each.version > NEWEST.get(domain, each.version):
                reason = f"{found}; tercet knows it up to version {NEWEST[domain]}"
                raise self._source.unsupported(reason, where)
        return opsets

    def _has(self, nodes: Iterable[NodeProto], domain: str) -> bool:
        """Whether one of the nodes, or of those in their bodies, is of a domain."""
        return any(
            domain_of(self._name(node.domain)) == domain
            or any(
                self._has(body.node, domain) for a in node.attribute for body in (a.g, *a.graphs)
            )
            for node in nodes
        )

    def _function(self, proto: FunctionProto) -> RawFunction:
        key = (
            domain_of(self._name(proto.domain)),
            self._name(proto.name),
            self._name(proto.overload),
        )
        attributes: dict[str, Any] = {self._name(name): None for name in proto.attribute}
        where = f"function '{key[0]}::{key[1]}'"
        opsets = self._opsets(proto.opset_import, proto.node, where)
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
            raise self._source.limit(f"has more than {self._depth - 1} bodies inside one another")
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
        """Return the initializers by name; of several that are alike the last one, as onnxruntime.

        Quantizers that see the same weights twice write such files.
        """
        constants: dict[str, Array] = {}

        def add(raw: str | bytes, data: Array) -> None:
            name = self._name(raw, where)
            if not name:
                raise self._source.error("has an unnamed initializer", where)
            if (first := constants.get(name)) is not None:
                if (first.dtype, first.shape) != (data.dtype, data.shape):
                    found = f"has two initializers named '{name}', of different types"
                    raise self._source.error(found, where)
                self._warnings.append(
                    f"{where}: of several initializers named '{name}' the last one is meant"
                )
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
            outputs=tuple(self._name(name) for name in proto.output),
            name=self._name(proto.name),
            domain=domain,
            overload=self._name(proto.overload),
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
                return _text_or_bytes(value)
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
            return SequenceType(self._type(proto.sequence_type.elem_type, where, depth + 1))
        if kind == "optional_type":
            return OptionalType(self._type(proto.optional_type.elem_type, where, depth + 1))
        if kind == "map_type":
            element = self._type(proto.map_type.value_type, where, depth + 1)
            return MapType(self._key(proto.map_type.key_type, where), element)
        shown = kind.replace("_", " ")
        raise self._source.unsupported(f"declares a {shown}, of which tercet has no values", where)

    def _key(self, number: int, where: str) -> DType:
        key = self._source.dtype(number, where)
        if key != string and key not in INTEGERS:
            raise self._source.error(f"declares a map with keys of {name_of(key)}", where)
        return key

    def _tensor_type(self, proto: TypeProto.Tensor, where: str) -> TensorType | None:
        if proto.elem_type == 0:
            return None
        dtype = self._source.dtype(proto.elem_type, where)
        if not proto.HasField("shape"):
            return TensorType(dtype)
        if len(proto.shape.dim) > self._source.limits.rank:
            limit = self._source.limits.rank
            reason = f"has {len(proto.shape.dim)} axes; at most {limit} are supported"
            raise self._source.limit(reason, where)
        return TensorType(dtype, tuple(self._dim(d, where) for d in proto.shape.dim))

    def _dim(self, proto: Any, where: str) -> Dim:
        """Return a declared dimension; exporters write -1, "?" or "" for unknown ones."""
        if proto.HasField("dim_value"):
            return proto.dim_value if proto.dim_value >= 0 else None
        name = self._name(proto.dim_param, where)
        return name if name.strip(" ?") else None


def _trimmed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without trailing omitted ones."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def _text_or_bytes(value: str | bytes) -> str | bytes:
    """Return the text of an attribute; operators of other domains also keep bytes there."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value
