"""Imported graphs on their way to onnxruntime, which says whether an import kept its meaning."""

from onnx import ModelProto

from tercet.importers.onnx.writing.export import export
from tercet.runtime.ir.graph import Graph

#: An opset that onnxruntime knows well and in which every upgraded operator means the same.
OPSET = 21


def to_model(graph: Graph) -> ModelProto:
    """Return a model that computes what `graph` does."""
    return export(graph, opsets={"": OPSET})
