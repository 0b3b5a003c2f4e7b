"""From `Graph` to ModelProto, for files and for libraries that take ONNX models.

Names of values and nodes are kept as far as possible: results have their external names, and names
in a body, which are separate in a `Graph`, get a number if they are taken outside. A body's
captures get the names of the outer values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import field
from itertools import islice

from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper

from ....runtime.base.record import record
from ....runtime.errors import LimitError, UnsupportedError
from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import DType
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.hints import shown
from ....runtime.ir.types import Array, TensorType
from ..source.limits import Limits
from .encode import Store, attribute, embedded, packed_size, value_info
from .sparse import FORMAT as SPARSE_FORMAT
from .versions import live_outputs, results_of, schema_of, versions_for, written, written_inputs

#: Maximum bytes of embedded constants; the rest of the 2 GB is for everything else.
MAX_BYTES = Limits().file_bytes - (32 << 20)

#: The IR version that introduced an element type.
_FORMATS: dict[DType, int] = {
    **dict.fromkeys(dtypes.FLOAT8S, 9),
    dtypes.int4: 10,
    dtypes.uint4: 10,
    dtypes.float4e2m1: 11,
    dtypes.float8e8m0: 12,
    dtypes.int2: 13,
    dtypes.uint2: 13,
    **dict.fromkeys(dtypes.FLOAT6S, 14),
}
#: The IR version from which on initializers need not be inputs.
_MIN_FORMAT = 4


@record
class About:
    """Metadata of a file.

    Attributes:
        producer: the program that writes it.
        version: version of that program.
        metadata: further properties.
        doc: a description.
    """

    producer: str = "tercet"
    version: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    doc: str = ""


def export(
    graph: Graph,
    *,
    opsets: Mapping[str, int] | None = None,
    at_least: Mapping[str, int] | None = None,
    about: About | None = None,
    store: Store = embedded,
) -> ModelProto:
    """Return a model equivalent to `graph`.

    Args:
        graph: with inferred types; not modified.
        opsets: exact versions to write, by domain ("" is ai.onnx).
        at_least: for other domains, a minimum version: the lowest one from there on in which every
            node can be written unchanged. Domains in neither use the newest.
        about: metadata of the file.
        store: makes the message of each constant; `embedded` embeds the elements, and `smaller`
            makes sparse ones.

    Raises:
        UnsupportedError: a node cannot be written in the requested opset; names it.
        UsageError: there is no such opset.
        LimitError: the constants exceed the 2 GB of a message.
    """
    if store is embedded and constant_bytes(graph) > MAX_BYTES:
        raise LimitError(
            f"the constants take {constant_bytes(graph)} bytes; a model in memory can hold "
            f"{MAX_BYTES}: write it to a file, with external data"
        )
    versions = versions_for(graph, opsets, at_least)
    about = about or About()
    model = ModelProto(
        ir_version=_format(graph, versions),
        producer_name=about.producer,
        producer_version=about.version,
        doc_string=about.doc,
    )
    writer = _Writer(versions, results_of(graph), store)
    writer.main(model.graph, graph)
    if writer.has_sparse:
        model.ir_version = max(model.ir_version, SPARSE_FORMAT)
    for domain, version in versions.items():
        model.opset_import.append(helper.make_opsetid(domain, version))
    helper.set_model_props(model, dict(about.metadata))
    return model


def constant_bytes(graph: Graph) -> int:
    """Return the bytes of all constants in a file, bodies included."""
    held = {id(data): data for each in graph.graphs() for data in _arrays(each)}
    return sum(map(packed_size, held.values()))


def _arrays(graph: Graph) -> list[Array]:
    return [value.data for value in graph.constants if value.data is not None]


def _format(graph: Graph, versions: Mapping[str, int]) -> int:
    """Return the lowest IR version for these opsets and element types."""
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    found = max(_MIN_FORMAT, helper.find_min_ir_version_for(imports, ignore_unknown=True))
    for each in graph.graphs():
        for value in each.values.values():
            if isinstance(value.type, TensorType):
                found = max(found, _FORMATS.get(value.type.dtype, 0))
    return found


class _Names:
    """Names of one graph's values in the file.

    Args:
        taken: names in use.
        is_main: whether results have external names; a body's are identified by position.
    """

    def __init__(self, taken: Set[str], *, is_main: bool) -> None:
        self.is_main = is_main
        self._taken = set(taken)
        self._names: dict[Value, str] = {}

    def __contains__(self, value: Value) -> bool:
        return value in self._names

    def __getitem__(self, value: Value) -> str:
        return self._names[value]

    def give(self, value: Value, name: str) -> None:
        """Assign a name to a value."""
        self._names[value] = name

    def fresh(self, wanted: str) -> str:
        """Reserve and return an unused name."""
        name, number = wanted, 0
        while name in self._taken or not name:
            number += 1
            name = f"{wanted}.{number}"
        self._taken.add(name)
        return name

    def inside(self, body: Graph, captured: Iterable[str]) -> _Names:
        """Return the names of a body, which must differ from the outer ones."""
        inner = _Names(self._taken, is_main=False)
        for value, name in zip(body.captures, captured, strict=False):
            inner.give(value, name)
        for value in body.inputs:
            inner.give(value, inner.fresh(value.name))
        return inner


class _Writer:
    """Writes the graphs of one model.

    Args:
        versions: of every domain.
        results: see `results_of`.
        store: makes the message of a constant.

    Attributes:
        has_sparse: whether it has made a sparse one.
    """

    def __init__(self, versions: Mapping[str, int], results: Set[Value], store: Store) -> None:
        self._versions = versions
        self._results = results
        self._store = store
        self._outside: dict[int, str] = {}
        self.has_sparse = False

    def main(self, proto: GraphProto, graph: Graph) -> None:
        """Write the main graph; constants shared by several graphs are written there once."""
        names = _Names({*(v.name for v in graph.inputs), *graph.outputs}, is_main=True)
        for value in graph.inputs:
            names.give(value, value.name)
        for label, value in graph.outputs.items():
            if value not in names:
                names.give(value, label)
        proto.name = graph.name or "graph"
        for value in graph.constants:
            self._constant(proto, value, names)
        for value in _shared(graph):
            if id(value.data) not in self._outside:
                self._constant(proto, value, names)
        self._graph(proto, graph, names)
        read = _reads(proto)
        for held in (proto.initializer, proto.sparse_initializer):
            for i in reversed(range(len(held))):  # older forms have attributes instead
                if _name_of(held[i]) not in read:
                    del held[i]

    def _graph(self, proto: GraphProto, graph: Graph, names: _Names) -> GraphProto:
        """Write a graph whose inputs, captures and constants are named."""
        for value in graph.values.values():
            if value.producer is not None and value not in names:
                names.give(value, names.fresh(value.name))
        proto.input.extend(value_info(names[v], shown(v)) for v in graph.inputs)
        proto.node.extend(self._node(node, names) for node in graph.nodes)
        self._write_results(proto, graph, names)
        results = {entry.name for entry in proto.output}
        for node in graph.nodes:
            infos = (value_info(names[v], shown(v)) for v in node.outputs)
            known = (info for info in infos if info.HasField("type") and info.name not in results)
            proto.value_info.extend(known)
        return proto

    def _constant(self, proto: GraphProto, value: Value, names: _Names) -> None:
        data = value.data
        assert data is not None
        if not names.is_main and id(data) in self._outside:
            names.give(value, self._outside[id(data)])
            return
        if value not in names:
            names.give(value, names.fresh(value.name))
        held = self._store(names[value], data)
        if isinstance(held, SparseTensorProto):
            proto.sparse_initializer.append(held)
            self.has_sparse = True
        else:
            proto.initializer.append(held)
        if names.is_main:
            self._outside.setdefault(id(data), names[value])

    def _write_results(self, proto: GraphProto, graph: Graph, names: _Names) -> None:
        """Write the results; an Identity where one has another name or comes from outside."""
        own = {entry.name for entry in proto.input}
        own.update(map(_name_of, (*proto.initializer, *proto.sparse_initializer)))
        own.update(names[value] for node in graph.nodes for value in node.outputs)
        for label, value in graph.outputs.items():
            name = names[value]
            if name != label if names.is_main else name not in own:
                result = label if names.is_main else names.fresh(label)
                if result in own:
                    raise UnsupportedError(f"'{label}' is a result and another value, too")
                proto.node.append(helper.make_node("Identity", [name], [result], name=result))
                name = result
            own.discard(name)
            proto.output.append(value_info(name, shown(value)))

    def _node(self, node: Node, names: _Names) -> NodeProto:
        version = self._versions[node.op.domain]
        schema = schema_of(type(node.op), version)
        outputs = live_outputs(node, schema, self._results)
        proto = NodeProto(
            op_type=type(node.op).__name__,
            domain=node.op.domain,
            name=node.name,
            input=[names[v] if v is not None else "" for v in written_inputs(node, version)],
            output=[names[v] if v is not None else "" for v in outputs],
        )
        if node.origin != (node.name,):
            proto.doc_string = f"stands for {', '.join(node.origin)}"
        captured = iter([names[value] for value in node.captures])
        for name, value in written(node, schema, version).items():
            if isinstance(value, Graph):
                body = self._body(value, names.inside(value, captured))
                proto.attribute.append(helper.make_attribute(name, body))
            else:
                known = schema.attributes.get(name) if schema is not None else None
                proto.attribute.append(attribute(name, value, known.type if known else None))
        return proto

    def _body(self, body: Graph, names: _Names) -> GraphProto:
        proto = GraphProto(name=body.name or "body")
        for value in body.constants:
            self._constant(proto, value, names)
        return self._graph(proto, body, names)


def _name_of(held: TensorProto | SparseTensorProto) -> str:
    return held.values.name if isinstance(held, SparseTensorProto) else held.name


def _reads(proto: GraphProto) -> set[str]:
    """Return the names that a graph and its bodies read, and those of its results."""
    found = {entry.name for entry in proto.output}
    for node in proto.node:
        found.update(node.input)
        for entry in node.attribute:
            if entry.HasField("g"):
                found |= _reads(entry.g)
    return found


def _shared(graph: Graph) -> Iterator[Value]:
    """Yield the constants of bodies that occur in several graphs; they are written once."""
    places = Counter(id(data) for each in graph.graphs() for data in _arrays(each))
    bodies = islice(graph.graphs(), 1, None)
    for value in (value for body in bodies for value in body.constants):
        if places[id(value.data)] > 1:
            yield value
