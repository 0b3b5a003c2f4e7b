"""`Graph` → ModelProto, so that onnxruntime can say whether an import kept its meaning."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tercet.runtime.dtypes import TO_ONNX
from tercet.runtime.ir import Graph, Node, Value
from tercet.runtime.op import Op, Tensor
from tercet.runtime.types import TensorType

#: An opset that onnxruntime knows well and in which every upgraded operator means the same.
OPSET = 21


def to_model(graph: Graph) -> onnx.ModelProto:
    """Return a model that computes what `graph` does."""
    return helper.make_model(
        to_proto(graph, {}), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
    )


def to_proto(graph: Graph, outer: Mapping[Value, str]) -> onnx.GraphProto:
    names = {value: value.name for value in graph.values.values()}
    names |= outer
    proto = onnx.GraphProto(name=graph.name or "graph")
    proto.input.extend(_info(value.name, value) for value in graph.inputs)
    proto.output.extend(_info(name, value) for name, value in graph.outputs.items())
    for value in graph.constants:
        assert value.data is not None
        proto.initializer.append(numpy_helper.from_array(value.data, value.name))
    proto.node.extend(_node(node, names) for node in graph.nodes)
    for name, value in graph.outputs.items():
        if names[value] != name:
            proto.node.append(helper.make_node("Identity", [names[value]], [name]))
    return proto


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    if not isinstance(value.type, TensorType):
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, TO_ONNX[value.type.dtype], value.type.shape)


def _node(node: Node, names: Mapping[Value, str]) -> onnx.NodeProto:
    captures = iter(node.captures)
    attributes: dict[str, Any] = {}
    for name, value in _changed(node.op).items():
        if isinstance(value, Graph):
            actual = {formal: names[next(captures)] for formal in value.captures}
            attributes[name] = to_proto(value, actual)
        elif isinstance(value, Tensor):
            attributes[name] = numpy_helper.from_array(value.array)
        elif isinstance(value, np.dtype):
            attributes[name] = TO_ONNX[value]
        elif name != "num_outputs" or len(node.inputs) == 1:  # a file has no sizes then
            attributes[name] = value
    return helper.make_node(
        type(node.op).__name__,
        [names[v] if v else "" for v in node.inputs],
        [v.name for v in node.outputs],
        name=node.name,
        domain=node.op.domain,
        **attributes,
    )


def _changed(op: Op) -> dict[str, Any]:
    """Return the attributes that differ from their defaults."""
    values = {f.name: (getattr(op, f.name), f.default) for f in fields(op)}
    return {
        name: value
        for name, (value, default) in values.items()
        if value is not default and value != default
    }
