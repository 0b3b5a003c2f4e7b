"""A model of one node, whose inputs have the types of given values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, defs
from onnx.helper import (
    make_empty_tensor_value_info,
    make_graph,
    make_map_type_proto,
    make_model,
    make_opsetid,
    make_sequence_type_proto,
    make_tensor_type_proto,
    make_tensor_value_info,
    make_value_info,
    np_dtype_to_tensor_dtype,
)

_DEFAULT = ("", "ai.onnx")


def model_of(
    node: NodeProto,
    feeds: Mapping[str, Any],
    opset: int | None = None,
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
) -> ModelProto:
    """Return a model of one node.

    Args:
        node: the node.
        feeds: value by name, for its inputs and for what its bodies read.
        opset: of the node's domain; the newest if None. Other domains have their newest.
        outputs_info: dtype and shape of the node's outputs, if they are known.
    """
    names = [name for name in node.output if name]
    outputs = (
        [make_empty_tensor_value_info(name) for name in names]
        if outputs_info is None
        else [_output(name, info) for name, info in zip(names, outputs_info, strict=True)]
    )
    inputs = [make_value_info(name, type_of(value)) for name, value in feeds.items()]
    graph = make_graph([node], node.name or node.op_type, inputs, outputs)
    opsets = {domain: _newest(domain) for domain in {"", *_domains(node)}}
    if opset is not None:
        opsets["" if node.domain in _DEFAULT else node.domain] = opset
    return make_model(graph, opset_imports=[make_opsetid(*pair) for pair in opsets.items()])


def type_of(value: Any) -> TypeProto:
    """Return the ONNX type of a value; of what has no element it is that of a float tensor."""
    if value is None:
        return make_tensor_type_proto(TensorProto.FLOAT, None)
    if isinstance(value, list):
        element = type_of(value[0]) if value else type_of(None)
        if element.HasField("tensor_type"):
            element.tensor_type.ClearField("shape")  # those of the other elements may differ
        return make_sequence_type_proto(element)
    if isinstance(value, Mapping):
        key, element = next(iter(value.items()), ("", np.float32(0)))
        kind = TensorProto.STRING if isinstance(key, str) else TensorProto.INT64
        return make_map_type_proto(kind, type_of(np.asarray(element)))
    return make_tensor_type_proto(_element_type(value.dtype), value.shape)


def _element_type(dtype: Any) -> int:
    is_text = np.dtype(dtype).kind in "OU"
    return TensorProto.STRING if is_text else np_dtype_to_tensor_dtype(np.dtype(dtype))


def _output(name: str, info: tuple[Any, tuple[int, ...]]) -> ValueInfoProto:
    dtype, shape = info
    return make_tensor_value_info(name, _element_type(dtype), shape)


def _domains(node: NodeProto) -> Iterator[str]:
    """Yield the domains of a node and of all nodes in its bodies."""
    yield "" if node.domain in _DEFAULT else node.domain
    for attribute in node.attribute:
        bodies: list[GraphProto] = [attribute.g, *attribute.graphs]
        for body in bodies:
            for inner in body.node:
                yield from _domains(inner)


def _newest(domain: str) -> int:
    """Return a domain's newest opset, 1 for a domain that `onnx` does not know."""
    if domain == "":
        return defs.onnx_opset_version()
    known = (s.since_version for s in defs.get_all_schemas() if s.domain == domain)
    return max(known, default=1)
