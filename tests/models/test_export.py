"""Every optional and every light model: optimised, written as ONNX, and run by onnxruntime.

The bounds are those of `tools.model_table`: what onnxruntime's own optimisations change, or a few
units in the last place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import tercet
from tercet.importers.onnx import load
from tercet.importers.onnx.writing.export import export
from tercet.tools.workshop.light_models import NAMES as LIGHT
from tercet.tools.workshop.light_models import light_inputs
from tercet.tools.workshop.model_table import check, read_index

from ..importers.same import assert_same
from .slim import exact_logits, slim_model
from .test_shared_models import NAMES

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


@pytest.mark.parametrize("name", NAMES)
def test_shared_model(name: str, shared_models: Path) -> None:
    folder = shared_models / name
    with tercet.load(folder / "model.onnx") as model:
        proto = exported(model)
    results = list(check(folder, read_index(shared_models)[name], cast("Any", OnnxRuntime(proto))))
    assert results
    assert not [str(result) for result in results if not result.ok]


@pytest.mark.parametrize("name", LIGHT)
def test_light_model(name: str) -> None:
    """The optimised file is no further from float64 than twice what rounding did before."""
    proto = slim_model(name)
    feeds = light_inputs(proto)
    with tercet.load(proto) as model:
        (found,) = OnnxRuntime(exported(model)).run(feeds).values()
    exact = exact_logits(name)
    (plain,) = OnnxRuntime(proto).run(feeds).values()
    rounding, distance = (np.linalg.norm(x - exact) for x in (plain, found))
    assert 0 < rounding < 1e-5 * np.linalg.norm(exact)
    assert distance <= 2 * rounding
