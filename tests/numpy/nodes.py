"""Models of a few nodes whose values may be of any kind, run by tercet and by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TypeProto, helper

import tercet

Array = np.ndarray[Any, Any]

ML = "ai.onnx.ml"


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Return a node; names are separated by spaces, and ``-`` stands for one that is left out."""
    takes, gives = (["" if n == "-" else n for n in text.split()] for text in (inputs, outputs))
    return helper.make_node(op, takes, gives, **attributes)


def type_of(value: Any) -> TypeProto:
    """Return the type to declare for an input: nothing is said about shapes."""
    if isinstance(value, list):
        return helper.make_sequence_type_proto(type_of(value[0]))
    if isinstance(value, dict):
        key, element = next(iter(value.items()))
        kind = object if isinstance(element, str) else None
        data = np.array(element, np.float32 if type(element) is float else kind)
        of_key = helper.np_dtype_to_tensor_dtype(np.dtype(object if isinstance(key, str) else int))
        return helper.make_map_type_proto(of_key, type_of(data))
    number = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_type_proto(number, [None] * value.ndim)


def model_of(
    nodes: Sequence[NodeProto], feeds: Mapping[str, Any], outputs: str, opset: int = 21
) -> ModelProto:
    """Return a model with inputs of the feeds' types."""
    inputs = [helper.make_value_info(name, type_of(value)) for name, value in feeds.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs.split()]
    graph = helper.make_graph(nodes, "nodes", inputs, results)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def drawn(model: ModelProto, seed: int) -> dict[str, Array]:
    """Return inputs of the sizes that a model declares: floats, or 1 to 5 for integers."""
    rng, found = np.random.default_rng(seed), dict[str, Array]()
    for each in model.graph.input:
        declared = each.type.tensor_type
        shape = [dim.dim_value for dim in declared.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(declared.elem_type)
        numbers = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(1, 6, shape)
        found[each.name] = numbers.astype(dtype)
    return found


def run(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return what tercet computes."""
    with tercet.load(model) as loaded:
        return list(loaded.run(feeds).values())


def by_onnxruntime(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return what onnxruntime computes."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feeds)


def assert_same(got: Any, want: Any, rtol: float = 1e-6) -> None:
    """Compare arrays, lists and maps."""
    if isinstance(want, list):
        assert isinstance(got, list)
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b, rtol)
    elif isinstance(want, dict):
        assert got == want
    else:
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol, 1e-6)
        else:
            assert got.tolist() == want.tolist()


def check(nodes: Sequence[NodeProto], feeds: Mapping[str, Any], outputs: str = "y") -> None:
    """Compare tercet with onnxruntime."""
    model = model_of(nodes, feeds, outputs)
    for got, want in zip(run(model, feeds), by_onnxruntime(model, feeds), strict=True):
        assert_same(got, want)


def texts(*values: str) -> Array:
    return np.array(values, object)
