"""QONNX's operators, held against QONNX's implementation; tools/workshop/qonnx_files.py ran it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.importers.onnx.contrib.catalogue import QONNX

from ..packages import needs_cuda
from .stored import arrays

MODEL = Path(__file__).parent / "qonnx.onnx"
LAYERS = MODEL.with_stem("qonnx_layers")


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
def test_samples(options: Any) -> None:
    wanted = arrays(MODEL, "output/")
    with tercet.load(MODEL, **options) as model:
        found = model.run(arrays(MODEL, "input/"))
    assert len(wanted) > 40
    for name, result in wanted.items():
        assert found[name].dtype == result.dtype
        np.testing.assert_allclose(found[name], result, 1e-6, 1e-7, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
def test_layers(options: Any) -> None:
    """Lowered ones, and those with the channels last."""
    wanted = arrays(LAYERS, "output/")
    with tercet.load(LAYERS, **options) as model:
        found = model.run(arrays(LAYERS, "input/"))
    assert found.keys() == wanted.keys()
    for name, result in wanted.items():
        assert found[name].shape == result.shape
        np.testing.assert_allclose(found[name], result, 1e-5, 1e-5, err_msg=name)


@pytest.mark.parametrize("domain", QONNX)
def test_other_names_of_the_domain(domain: str) -> None:
    model = onnx.load(MODEL)
    model.opset_import[1].domain = domain
    for node in model.graph.node:
        node.domain = domain
    with tercet.load(model) as loaded:
        assert loaded.run(arrays(MODEL, "input/")).keys() == arrays(MODEL, "output/").keys()


@needs_cuda
@pytest.mark.parametrize("model", [MODEL, LAYERS], ids=["samples", "layers"])
def test_cuda_leaves_nothing(model: Path) -> None:
    found = tercet.inspect(model, placement="cuda", target="sm_90a").placement
    assert found
    assert all(row.backend == "plan" or row.backend.startswith("cuda") for row in found)


def test_operators_of_hardware_are_refused_with_a_recipe() -> None:
    model = onnx.load(MODEL)
    model.graph.node[0].op_type = "GenericPartition"
    with pytest.raises(tercet.UnsupportedError, match="use the file of Brevitas"):
        tercet.load(model)


@pytest.mark.parametrize(
    ("operator", "attribute", "value", "message"),
    [
        ("Im2Col", "pad_amount", [1, 1], "must be of two axes"),
        ("QuantAvgPool2d", "data_layout", "NCWH", "expected NCHW or NHWC"),
    ],
)
def test_layers_that_nobody_could_build_are_errors(
    operator: str, attribute: str, value: Any, message: str
) -> None:
    model = onnx.load(LAYERS)
    node = next(node for node in model.graph.node if node.op_type == operator)
    kept = [each for each in node.attribute if each.name != attribute]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(attribute, value)])
    with pytest.raises(tercet.ModelError, match=message):
        tercet.load(model)


def test_a_mode_of_rounding_that_nobody_knows_is_an_error() -> None:
    model = onnx.load(MODEL)
    (mode,) = (a for a in model.graph.node[0].attribute if a.name == "rounding_mode")
    mode.s = b"NEAREST"
    with pytest.raises(tercet.ModelError, match="rounding_mode='NEAREST'"):
        tercet.load(model)
