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


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
def test_samples(options: Any) -> None:
    wanted = arrays(MODEL, "output/")
    with tercet.load(MODEL, **options) as model:
        found = model.run(arrays(MODEL, "input/"))
    assert len(wanted) > 40
    for name, result in wanted.items():
        assert found[name].dtype == result.dtype
        np.testing.assert_allclose(found[name], result, 1e-6, 1e-7, err_msg=name)


@pytest.mark.parametrize("domain", QONNX)
def test_other_names_of_the_domain(domain: str) -> None:
    model = onnx.load(MODEL)
    model.opset_import[1].domain = domain
    for node in model.graph.node:
        node.domain = domain
    with tercet.load(model) as loaded:
        assert loaded.run(arrays(MODEL, "input/")).keys() == arrays(MODEL, "output/").keys()


@needs_cuda
def test_cuda_leaves_nothing() -> None:
    found = tercet.inspect(MODEL, placement="cuda", target="sm_90a").placement
    assert found
    assert all(row.backend == "plan" or row.backend.startswith("cuda") for row in found)


def test_operators_of_hardware_are_refused_with_a_recipe() -> None:
    model = onnx.load(MODEL)
    model.graph.node[0].op_type = "Im2Col"
    with pytest.raises(tercet.UnsupportedError, match="use the file of Brevitas"):
        tercet.load(model)


def test_a_mode_of_rounding_that_nobody_knows_is_an_error() -> None:
    model = onnx.load(MODEL)
    (mode,) = (a for a in model.graph.node[0].attribute if a.name == "rounding_mode")
    mode.s = b"NEAREST"
    with pytest.raises(tercet.ModelError, match="rounding_mode='NEAREST'"):
        tercet.load(model)
