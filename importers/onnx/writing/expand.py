"""Expansion of operators that an opset lacks, mostly by the specification's functions.

Many operators are defined as functions of simpler ones: Swish, Gelu, LayerNormalization. A graph
containing them is written as a model whose nodes call these functions, and read back, which inlines
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper
from onnx.defs import OpSchema

from ....runtime.ir.graph import Graph, Node
from ....runtime.ir.infer import fold_known
from ....runtime.ops import OPERATORS
from ..reading.bind import bind
from ..reading.parse import parse
from ..source.source import FileSource
from .encode import type_proto
from .export import export
from .restate import restated
from .versions import newest, refusal, results_of, schema_of

#: The domain of the functions, which occurs in no file.
_DOMAIN = "tercet.functions"
#: Functions that use other functions.
_MAX_ROUNDS = 8


def expanded(graph: Graph, version: int) -> Graph:
    """Return a graph whose nodes exist in an opset of ai.onnx, as far as possible.

    Args:
        graph: with inferred types; not modified.
        version: the opset.

    Returns:
        A new graph; the same one if nothing can be expanded.
    """
    if not lacking(graph, version):
        return graph
    before, graph = graph, graph.clone()
    if not fold_known(graph):  # known elements need not be inputs
        graph = before
    for _ in range(_MAX_ROUNDS):
        graph = restated(graph, version)
        unknown = lacking(graph, version)
        model = _calling(graph, [n for n in unknown if _schema(n) is not None], centered=True)
        if model is None:
            return graph
        graph = _read_back(model)
    return graph


def defined(graph: Graph, which: Callable[[Node], bool]) -> Graph:
    """Return a graph with the specification's functions in the place of nodes that it defines so.

    Args:
        graph: with inferred types; not modified.
        which: whether to replace a node; of functions that use other functions, theirs as well.

    Returns:
        A new graph; the same one if there is no such node.
    """
    for _ in range(_MAX_ROUNDS):
        own = [node for node in graph.walk() if not node.op.domain and which(node)]
        model = _calling(graph, [node for node in own if _schema(node) is not None])
        if model is None:
            return graph
        graph = _read_back(model)
    return graph


def lacking(graph: Graph, version: int) -> list[Node]:
    """Return the nodes that an opset cannot express."""
    results = results_of(graph)
    own = (node for node in graph.walk() if not node.op.domain)
    return [node for node in own if refusal(node, version, results)]


def _read_back(model: ModelProto) -> Graph:
    source = FileSource()
    graph, _ = bind(parse(model, source), OPERATORS, source)
    fold_known(graph)
    return graph


def _schema(node: Node) -> Any:
    """Return the specification's schema of an operator if it is a function; else None.

    It is an `OpSchema`; onnx's stub lacks everything about functions.
    """
    schema: Any = schema_of(type(node.op), newest()[""])
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    return schema


def _calling(graph: Graph, nodes: Sequence[Node], *, centered: bool = False) -> ModelProto | None:
    """Return the graph as a model with function calls; None if no node can be one.

    Args:
        graph: the graph.
        nodes: those that become calls.
        centered: whether variances are means of squared deviations, see `_center`.
    """
    if not nodes:
        return None
    replaced = set(nodes)
    model = export(graph, opsets=newest())
    for node, proto in _pairs(graph, model.graph):
        schema = _schema(node) if node in replaced else None
        function = _function(proto, node, schema) if schema else None
        if function is None or schema is None:
            continue
        if centered:
            _center(function)
        function.domain, function.name = _DOMAIN, f"{proto.op_type}.{len(model.functions)}"
        _write_defaults(proto, function, schema)
        proto.domain, proto.op_type = function.domain, function.name
        model.functions.append(function)
    if not model.functions:
        return None
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return model


def _pairs(graph: Graph, proto: GraphProto) -> Iterator[tuple[Node, NodeProto]]:
    """Yield the nodes of a graph and its bodies with their messages."""
    for node, written in zip(graph.nodes, proto.node, strict=False):
        yield node, written
        bodies = [entry.g for entry in written.attribute if entry.HasField("g")]
        names = [entry.name for entry in written.attribute if entry.HasField("g")]
        for name, body in zip(names, bodies, strict=True):
            yield from _pairs(getattr(node.op, name), body)


def _function(proto: NodeProto, node: Node, schema: Any) -> FunctionProto | None:
    """Return the definition of one node, for inputs of its types."""
    if schema.has_function:
        function = FunctionProto()
        function.CopyFrom(schema.function_body)
        if proto.op_type == "AffineGrid":
            _keep_batch(function)
        return function
    types = [type_proto(value.type) if value is not None else None for value in node.inputs]
    texts = [b"" if each is None else each.SerializeToString() for each in types]
    made = schema.get_context_dependent_function(proto.SerializeToString(), texts)
    return FunctionProto.FromString(made) if made else None


def _keep_batch(function: FunctionProto) -> None:
    """Let the rows of a matrix lose their own axis alone.

    The specification's function of AffineGrid names none, and a batch of one sample loses its axis.
    """
    for node in function.node:
        for body in (entry.g for entry in node.attribute if entry.HasField("g")):
            for inner in body.node:
                if inner.op_type == "Squeeze" and len(inner.input) == 1:
                    inner.input.append("one_1d")


def _center(function: FunctionProto) -> None:
    """Let variances be means of squared deviations.

    The specification's functions of norms subtract the square of the mean from the mean of squares,
    which leaves no digit of a variance that is small beside the mean.
    """
    made = {name: node for node in function.node for name in node.output}

    def source(node: NodeProto | None) -> NodeProto | None:
        return made.get(node.input[0]) if node is not None and node.input else None

    for variance in [node for node in function.node if node.op_type == "Sub"]:
        of_squares, square = (made.get(name) for name in variance.input)
        squares, mean = source(of_squares), source(square)
        if of_squares is None or square is None or squares is None or mean is None:
            continue
        if not _is_as(of_squares, mean) or mean.op_type != "ReduceMean":
            continue
        x, deviation = mean.input[0], f"{variance.output[0]}.deviation"
        if [mean.output[0] if name == x else name for name in squares.input] != square.input:
            continue
        nodes = [each for each in function.node if each not in (square, squares, of_squares)]
        squares.input[:] = [deviation if name == x else name for name in squares.input]
        of_squares.output[0] = variance.output[0]
        less = helper.make_node("Sub", [x, mean.output[0]], [deviation])
        at = nodes.index(variance)
        nodes[at : at + 1] = [less, squares, of_squares]
        copies = [deepcopy(each) for each in nodes]
        del function.node[:]
        function.node.extend(copies)
        return


def _is_as(a: NodeProto, b: NodeProto) -> bool:
    """Whether a node does to its first input what another one does to its own."""
    same = a.op_type == b.op_type and a.input[1:] == b.input[1:]
    return same and list(a.attribute) == list(b.attribute)


def _write_defaults(proto: NodeProto, function: FunctionProto, schema: OpSchema) -> None:
    """Add attributes with defaults that the function reads to a call."""
    given = {entry.name for entry in proto.attribute}
    known: Mapping[str, OpSchema.Attribute] = schema.attributes
    read = {entry.ref_attr_name for node in function.node for entry in node.attribute}
    for name in sorted(read - given):
        if name in known and known[name].default_value.type:
            proto.attribute.append(known[name].default_value)
    declared = set(function.attribute) | {entry.name for entry in function.attribute_proto}
    for entry in [e for e in proto.attribute if e.name not in declared and e.name not in read]:
        proto.attribute.remove(entry)
