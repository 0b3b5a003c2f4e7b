"""What belongs to regions: what the real parser and builder were found to take; needs neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tercet.backends.tensorrt.claims import refusal
from tercet.importers import onnx as importer
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.matmul import MatMul

F, D, I32, I64, B8, U8, I4 = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT4,
)
Input = tuple[int, Sequence[int]]


def said(
    operator: str,
    inputs: Sequence[Input | np.ndarray | np.generic | None],
    outputs: Sequence[Input] = ((F, ()),),
    opset: int = 22,
    unknown: frozenset[str] = frozenset(),
    **attributes: Any,
) -> str:
    """Return why a node is refused: inputs are types, or arrays where they are constants."""
    names = ["" if each is None else f"x{i}" for i, each in enumerate(inputs)]
    given = [
        helper.make_tensor_value_info(name, *each)
        for name, each in zip(names, inputs, strict=True)
        if isinstance(each, tuple)
    ]
    constants = [
        numpy_helper.from_array(np.asarray(each), name)
        for name, each in zip(names, inputs, strict=True)
        if isinstance(each, np.ndarray | np.generic)
    ]
    results = [helper.make_tensor_value_info(f"y{i}", *each) for i, each in enumerate(outputs)]
    node = helper.make_node(operator, names, [each.name for each in results], **attributes)
    proto = helper.make_graph([node], "g", given, results, constants)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    graph = importer.load(model).graph
    infer(graph)
    (found,) = [node for node in graph.nodes if node.kind == operator]
    return refusal(graph, found, lambda name: name not in unknown, "TensorRT 11")


IMAGE: Input = (F, (1, 2, 5, 5))
POOLED: Sequence[Input] = ((F, (1, 2, 2, 2)),)


@pytest.mark.parametrize(
    ("arguments", "attributes", "reason"),
    [
        (("Relu", [IMAGE], [IMAGE]), {}, ""),
        (("Relu", [(D, (2,))], [(D, (2,))]), {}, "'x0' has dtype float64"),
        (("Relu", [(F, (0, 2))], [(F, (0, 2))]), {}, "'x0' has no elements"),
        (("Relu", [(F, (1,) * 9)], [(F, (1,) * 9)]), {}, "'x0' has 9 axes"),
        (("Slice", [(B8, (4,)), np.array([0]), np.array([2])], [(B8, (2,))]), {}, ""),
        (("Equal", [(B8, (4,)), (B8, (4,))], [(TensorProto.BOOL, (4,))]), {}, ""),
        (("Add", [(B8, (4,)), (B8, (4,))], [(B8, (4,))]), {}, "'x0' has dtype int8"),
        # windows
        (("MaxPool", [IMAGE], POOLED), {"kernel_shape": [2, 2], "strides": [2, 2]}, ""),
        (("MaxPool", [IMAGE], [(F, (1, 2, 3, 3))]), {"kernel_shape": [2, 2], "dilations": [2, 2]},
         "dilations=(2, 2): its windows have no dilation"),
        (("AveragePool", [(F, (1, 2, 4, 4))], POOLED),
         {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, ""),
        (("AveragePool", [(F, (1, 3, 2, 2))], [(F, (1, 3, 1, 1))]),
         {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1] * 4, "ceil_mode": 1},
         "ceil_mode=1: it would add windows that start after the last element"),
        (("LpPool", [IMAGE], [(F, (1, 2, 4, 4))]), {"kernel_shape": [2, 2], "p": 3},
         "p=3: it supports the norms 1 and 2"),
        (("MaxPool", [IMAGE], [(F, (1, 2, 4, 4)), (I64, (1, 2, 4, 4))]), {"kernel_shape": [2, 2]},
         "it has only the first result, and 'y1' is read"),
        # operands that are to be constants
        (("CumSum", [(F, (2, 3)), (I32, ())], [(F, (2, 3))]), {},
         "its input 'axis' is not a constant"),
        (("CumSum", [(F, (2, 3)), np.array(1)], [(F, (2, 3))]), {}, ""),
        # forms that it does not have
        (("Mod", [(F, (3,)), (F, (3,))], [(F, (3,))]), {"fmod": 1}, ""),
        (("Mod", [(I32, (3,)), (I32, (3,))], [(I32, (3,))]), {}, ""),
        (("ScatterND", [(F, (4,)), (I64, (1, 1)), (F, (1,))], [(F, (4,))]), {"reduction": "add"},
         "reduction=add: it only replaces elements"),
        (("MatMul", [(F, (4,)), (F, (2, 4, 1))], [(F, (2, 1))]), {},
         "a vector times several matrices"),
        (("MatMul", [(F, (4,)), (F, (4, 1))], [(F, (1,))]), {}, ""),
        (("GRU", [(F, (2, 1, 3)), (F, (1, 6, 3)), (F, (1, 6, 2))], [(F, (2, 1, 1, 2))]),
         {"hidden_size": 2, "layout": 1}, "layout=1: it supports layout 0"),
        # quantization
        (("QuantizeLinear", [IMAGE, np.float32(2), np.int8(0)], [(B8, IMAGE[1])]), {}, ""),
        (("QuantizeLinear", [IMAGE, np.float32(2), np.int8(3)], [(B8, IMAGE[1])]), {},
         "its zero point is not 0"),
        (("QuantizeLinear", [IMAGE, np.float32(2), (B8, ())], [(B8, IMAGE[1])]), {},
         "its input 'zero_point' is not a constant"),
        (("DequantizeLinear", [(I32, (4,)), np.float32(2)], [(F, (4,))]), {},
         "'x0' has dtype int32"),
        (("DequantizeLinear", [(U8, (4,)), np.float32(2)], [(F, (4,))]), {},
         "'x0' has dtype uint8"),
        (("DequantizeLinear", [(I4, (4,)), np.float32(2)], [(F, (4,))]), {},
         "'x0' has dtype int4"),
        # what is newer is written as other operators, and those count
        (("RMSNormalization", [(F, (2, 4)), (F, (4,))], [(F, (2, 4))], 23), {}, ""),
        (("RMSNormalization", [(F, (2, 4)), (F, (4,))], [(F, (2, 4))], 23, frozenset(["Mul"])), {},
         "the parser of TensorRT 11 does not know Mul"),
        (("RMSNormalization", [(F, (2, 4)), (F, (4,))], [(F, (2, 4))], 23,
          frozenset(["RMSNormalization"])), {}, ""),
        (("TensorScatter", [(F, (2, 4, 5)), (F, (2, 1, 5)), (I64, (2,))], [(F, (2, 4, 5))], 24), {},
         "regions are written in opset 22: there is no TensorScatter in opset 22"),
    ],
)  # fmt: skip
def test_refusals(arguments: Any, attributes: dict[str, Any], reason: str) -> None:
    assert said(*arguments, **attributes) == reason


def test_a_matrix_times_itself() -> None:
    graph = Graph("square")
    x = graph.add_input("x", TensorType(float32, (4, 4)))
    node = graph.insert(MatMul(), [x, x])
    graph.set_outputs({"y": node.output})
    infer(graph)
    assert refusal(graph, node, lambda name: True, "TensorRT 11") == ""
