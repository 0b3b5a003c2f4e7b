"""Models and graphs from ONNX's text, and onnxruntime's results."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, parser

from tercet.importers.onnx import load
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.verify import verify


def model(text: str, opset: int = 21, ir: int = 10) -> ModelProto:
    imports = f'"" : {opset}, "me" : 1, "ai.onnx.ml" : 5'
    return parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> {text}")


def graph_of(text: str, opset: int = 21, ir: int = 10) -> Graph:
    graph = load(model(text, opset, ir)).graph
    verify(graph)
    return graph


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def run(proto: ModelProto, **inputs: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, inputs)]
