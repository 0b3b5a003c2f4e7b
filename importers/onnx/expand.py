"""Operators that an opset lacks, written out in others: the specification's own functions.

Many operators are defined as functions of simpler ones: Swish, Gelu, LayerNormalization. A graph
that has them is written as a model whose nodes call these functions, and read back, which inlines
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto, helper
from onnx.defs import OpSchema

from ...runtime import ops as _ops
from ...runtime.ir import Graph, Node
from ...runtime.op import OPERATORS
from .bind import bind
from .encode import type_proto
from .export import export
from .parse import parse
from .source import Source
from .versions import newest, refusal, results_of, schema_of

assert _ops  # importing it declares the operators

#: The domain of the functions, which no file ever has.
_DOMAIN = "tercet.functions"
#: Functions that are made of functions.
_MOST_ROUNDS = 8


def expanded(graph: Graph, version: int) -> Graph:
    """Return a graph whose nodes an opset of ai.onnx has, as far as functions can say the others.

    Args:
        graph: with types inferred; stays as it is.
        version: the opset.

    Returns:
        A new graph; the same one where nothing can be expanded. Nodes of bodies stay.
    """
    for _ in range(_MOST_ROUNDS):
        results = results_of(graph)
        own = (node for node in graph.nodes if not node.op.domain)
        lacking = [node for node in own if refusal(node, version, results)]
        model = _calling(graph, [node for node in lacking if _schema(node) is not None])
        if model is None:
            return graph
        source = Source()
        graph, _ = bind(parse(model, source), OPERATORS, source)
    return graph


def _schema(node: Node) -> Any:
    """Return what the specification says of an operator, if it is a function; None if not.

    It is an `OpSchema`, of which onnx's stub leaves out all that is about functions.
    """
    schema: Any = schema_of(type(node.op), newest()[""])
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    return schema


def _calling(graph: Graph, nodes: Sequence[Node]) -> ModelProto | None:
    """Return the graph as a model in which nodes are calls; None where none can be."""
    if not nodes:
        return None
    by_name = {node.name: node for node in nodes}
    model = export(graph, opsets=newest())
    for proto in model.graph.node:
        node = by_name.get(proto.name)
        schema = _schema(node) if node is not None else None
        function = _function(proto, node, schema) if node is not None and schema else None
        if function is None or schema is None:
            continue
        function.domain, function.name = _DOMAIN, f"{proto.op_type}.{len(model.functions)}"
        _write_defaults(proto, function, schema)
        proto.domain, proto.op_type = function.domain, function.name
        model.functions.append(function)
    if not model.functions:
        return None
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return model


def _function(proto: NodeProto, node: Node, schema: Any) -> FunctionProto | None:
    """Return what one node means, for inputs of its types."""
    if schema.has_function:
        function = FunctionProto()
        function.CopyFrom(schema.function_body)
        return function
    types = [type_proto(value.type) if value is not None else None for value in node.inputs]
    texts = [b"" if each is None else each.SerializeToString() for each in types]
    made = schema.get_context_dependent_function(proto.SerializeToString(), texts)
    return FunctionProto.FromString(made) if made else None


def _write_defaults(proto: NodeProto, function: FunctionProto, schema: OpSchema) -> None:
    """Give a call the attributes that the function reads and that have defaults."""
    given = {entry.name for entry in proto.attribute}
    known: Mapping[str, OpSchema.Attribute] = schema.attributes
    read = {entry.ref_attr_name for node in function.node for entry in node.attribute}
    for name in sorted(read - given):
        if name in known and known[name].default_value.type:
            proto.attribute.append(known[name].default_value)
    declared = set(function.attribute) | {entry.name for entry in function.attribute_proto}
    for entry in [e for e in proto.attribute if e.name not in declared and e.name not in read]:
        proto.attribute.remove(entry)
