"""Self-contained models with embedded external data, for libraries with their own file rules."""

from __future__ import annotations

import os
from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ....runtime.ir.dtypes import bits_of
from ..reading.external import ExternalData
from ..reading.read import read
from ..reading.texts import Loadable
from ..source.limits import Limits


def self_contained(
    model: Loadable,
    external_data_dir: str | os.PathLike[str] | None = None,
) -> ModelProto:
    """Return a copy of a model with all tensors embedded; see `load` for arguments and errors."""
    proto, source = read(model, Limits(), external_data_dir)
    whole = ModelProto()
    whole.CopyFrom(proto)
    external = ExternalData(source)
    for tensor in _tensors(whole):
        if (apart := source.apart.get(tensor.raw_data)) is not None:
            tensor.raw_data = apart.tobytes()
        elif tensor.data_location == TensorProto.EXTERNAL:
            where = f"tensor '{tensor.name}'"
            bits = bits_of(source.dtype(tensor.data_type, where))
            count = 1
            for size in tensor.dims:
                count *= size
            data = external.read(tensor.external_data, -(-count * bits // 8), where)
            tensor.raw_data = data.tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return whole


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from _in_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _in_node(node)


def _in_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _in_node(node)


def _in_node(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _in_graph(attribute.g)
        for graph in attribute.graphs:
            yield from _in_graph(graph)
