"""float6 tensors as files have them: four in three bytes, or one by one in int32_data."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from tercet.importers.onnx.writing.encode import embedded

KINDS = {
    TensorProto.FLOAT6E2M3: ml_dtypes.float6_e2m3fn,
    TensorProto.FLOAT6E3M2: ml_dtypes.float6_e3m2fn,
}


def read(proto: TensorProto) -> Any:
    """Return the tensor as float32, computed by a model that has it as a constant."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("Cast", [proto.name], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "x"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "graph", [x], [y], [proto])
    opsets = [helper.make_opsetid("", 28)]
    with tercet.load(helper.make_model(graph, opset_imports=opsets, ir_version=14)) as model:
        return model.run({"x": np.ones(1, np.float32)})["y"]


@pytest.mark.parametrize("number", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13])
def test_both_forms(number: Any, count: int) -> None:
    codes = np.random.default_rng(count).integers(0, 64, count).astype(np.uint8)
    data = codes.view(KINDS[number])
    want = data.astype(np.float32)
    single = helper.make_tensor("w", number, [count], want)
    assert len(single.int32_data) == count
    for proto in (numpy_helper.from_array(data, "w"), single, embedded("w", data)):
        np.testing.assert_array_equal(read(proto), want)


@pytest.mark.parametrize("number", KINDS)
def test_codes_have_six_bits(number: int) -> None:
    proto = TensorProto(name="w", data_type=number, dims=[2], int32_data=[1, 64])
    with pytest.raises(tercet.ModelError, match="more than 6 bits"):
        read(proto)
    proto = TensorProto(name="w", data_type=number, dims=[3], int32_data=[1, 2])
    with pytest.raises(tercet.ModelError, match="2 elements for shape"):
        read(proto)
