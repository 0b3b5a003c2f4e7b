"""Operators of AMD Quark, held against its own: tools/workshop/quark_files.py ran it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.importers.onnx.contrib.catalogue import QUARK

from ..packages import needs_cuda
from .stored import arrays

MODEL = Path(__file__).parent / "quark.onnx"
FORMER = {
    "ExtendedQuantizeLinear": "VitisQuantizeLinear",
    "ExtendedDequantizeLinear": "VitisDequantizeLinear",
    "MXQuantizeDequantize": "MXFixNeuron",
    "BFPQuantizeDequantize": "BFPFixNeuron",
}


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
def test_samples(options: Any) -> None:
    wanted = arrays(MODEL, "output/")
    with tercet.load(MODEL, **options) as model:
        found = model.run(arrays(MODEL, "input/"))
    assert len(wanted) > 60
    for name, result in wanted.items():
        np.testing.assert_array_equal(found[name], result, err_msg=name)


def test_sizes_that_are_symbols() -> None:
    model = onnx.load(MODEL)
    for each in model.graph.input:
        for axis, size in enumerate(each.type.tensor_type.shape.dim):
            size.dim_param = f"{each.name}_{axis}"
    for each in model.graph.output:
        each.type.tensor_type.ClearField("shape")
    inputs = arrays(MODEL, "input/")
    with tercet.load(model) as loaded:
        found = loaded.run(inputs)
    for name, result in arrays(MODEL, "output/").items():
        np.testing.assert_array_equal(found[name], result, err_msg=name)


def test_names_of_the_former_domain() -> None:
    model = onnx.load(MODEL)
    model.opset_import[1].domain = QUARK[1]
    for node in model.graph.node:
        node.domain, node.op_type = QUARK[1], FORMER[node.op_type]
    with tercet.load(model) as loaded:
        found = loaded.run(arrays(MODEL, "input/"))
    np.testing.assert_array_equal(found["s0_y"], arrays(MODEL, "output/")["s0_y"])


@needs_cuda
def test_cuda_leaves_nothing() -> None:
    found = tercet.inspect(MODEL, placement="cuda", target="sm_90a").placement
    assert found
    assert all(row.backend == "plan" or row.backend.startswith("cuda") for row in found)


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("element_dtype", "fp8", "element_dtype='fp8'; expected int8, fp8_e5m2"),
        ("rounding_mode", 3, "rounding_mode=3; expected 0, 1 or 2"),
        ("axis", 2, "axis=2 and block_size=32 do not fit"),
    ],
)
def test_what_contradicts_the_operator(attribute: str, value: Any, said: str) -> None:
    model = onnx.load(MODEL)
    node = model.graph.node[0]
    kept = [each for each in node.attribute if each.name != attribute]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(attribute, value)])
    with pytest.raises(tercet.ModelError, match=said):
        tercet.load(model)


def test_operators_of_hardware_are_refused_with_a_recipe() -> None:
    model = onnx.load(MODEL)
    model.graph.node[0].op_type = "ExtendedLSTM"
    with pytest.raises(tercet.UnsupportedError, match="AMD Quark"):
        tercet.load(model)
