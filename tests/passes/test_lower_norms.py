"""Scales and shifts of normalizations that differ from row to row, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet

from .graphs import optimised_file

CASES = {
    "one per row": ("4,3,1", "4,3,1", -1, True),
    "of some rows": ("3,1", "5", -1, True),
    "a shift per row": ("5", "4,1,1", -1, True),
    "of all elements": ("4,3,5", "3,5", -1, True),
    "of rows of two axes": ("4,1,5", "1,5", 1, True),
    "one per element": ("5", "1,1,5", -1, False),
    "one for all": ("1", "1", -1, False),
    "of two axes": ("3,5", "3,1", 1, False),
}


@pytest.mark.parametrize("outputs", ["y", "y, mean, deviation"])
@pytest.mark.parametrize("case", CASES)
def test_against_onnxruntime(case: str, outputs: str) -> None:
    scale, shift, axis, is_lowered = CASES[case]
    proto = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[4,3,5] x, float[{scale}] s, float[{shift}] t) => ({outputs}) {{
            {outputs} = LayerNormalization <axis = {axis}> (x, s, t)
        }}"""
    )
    _, log = optimised_file(proto)
    assert ("lower_norms" in log.counts) is is_lowered
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.standard_normal(
            [size.dim_value for size in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in proto.graph.input
    }
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    names = [value.name for value in proto.graph.output]
    wanted = session.run(names, feeds)
    with tercet.load(proto, "numpy") as model:
        found = model.run(feeds)
    for name, want in zip(names, wanted, strict=True):
        np.testing.assert_allclose(found[name], np.asarray(want), rtol=1e-5, atol=1e-6)
