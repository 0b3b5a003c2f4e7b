"""Graphs as the passes leave them, written as ONNX, and run by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import tercet
from tercet.importers.onnx import load
from tercet.importers.onnx.writing.export import export

from ..importers.same import assert_same

Array = np.ndarray[Any, Any]


class OnnxRuntime:
    """A model on onnxruntime, without its optimisations."""

    def __init__(self, model: ModelProto) -> None:
        ort = pytest.importorskip("onnxruntime")
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        source, providers = model.SerializeToString(), ["CPUExecutionProvider"]
        self.session = ort.InferenceSession(source, options, providers=providers)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, dict(feeds)), strict=True))


def exported(model: tercet.Model) -> ModelProto:
    """Return the optimised graph as a checked file that comes back as the same graph."""
    proto = export(model.graph, at_least=model.source.opsets)
    onnx.checker.check_model(proto, full_check=True)
    assert_same(model.graph, load(proto.SerializeToString()).graph)
    return proto
