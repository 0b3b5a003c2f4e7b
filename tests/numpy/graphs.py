"""Small models of a few nodes, and what they give node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

import tercet
from tercet.runtime.control.program import Program
from tercet.runtime.plan.plan import Plan

from ..randomness import restarting

Array = np.ndarray[Any, Any]
RNG = restarting(7)


def random(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, list(inputs), [output], **attributes)


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in inputs.items()
    ]
    stored = [numpy_helper.from_array(x, name) for name, x in constants.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "small", types, results, stored)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node_by_node(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return every tensor of a model, each node run as a separate model."""
    values = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer} | dict(feeds)
    for each in proto.graph.node:
        inputs = {name: values[name] for name in each.input if name}
        alone = model([each], inputs, {}, each.output)
        with tercet.load(alone, stop_at=0) as one:
            values |= one.run(inputs)
    return values


def steps(plan: Plan | Program) -> list[str]:
    """Return the operators of each step."""
    return [" + ".join(n.kind for n in row.nodes) for row in plan.rows if row.kind == "step"]
