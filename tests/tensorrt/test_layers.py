"""What engines say of themselves, as the library's documents describe its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tercet.backends.tensorrt.layers import EngineLayer, layers

FUSED: dict[str, Any] = {
    "Name": "conv + relu",
    "LayerType": "CaskConvolution",
    "Inputs": [{"Name": "x", "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Half NHWC8"}],
    "Outputs": [{"Name": "y", "Dimensions": [1, 8, 8, 8], "Format/Datatype": "Half NHWC8"}],
    "TacticName": "sm89_xmma_fprop",
    "Metadata": "[ONNX Layer: conv]\u001e[ONNX Layer: relu]",
}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"Layers": ["conv + relu"], "Bindings": ["x"]}, (EngineLayer("conv + relu"),)),
        (
            {"Layers": [FUSED]},
            (
                EngineLayer(
                    "conv + relu",
                    "CaskConvolution",
                    ("conv", "relu"),
                    ("x [1, 3, 8, 8] Half NHWC8", "y [1, 8, 8, 8] Half NHWC8"),
                    "sm89_xmma_fprop",
                ),
            ),
        ),
        ({"Layers": [{"Name": "reformat", "Inputs": None}]}, (EngineLayer("reformat"),)),
        ({}, ()),
        ([], ()),
    ],
)
def test_layers(said: Any, found: tuple[EngineLayer, ...]) -> None:
    assert layers(json.dumps(said)) == found


def test_what_is_no_json() -> None:
    assert layers("Layers:\nconv") == ()


def test_lines() -> None:
    (layer,) = layers(json.dumps({"Layers": [FUSED]}))
    assert str(layer).startswith("CaskConvolution | conv + relu | x [1, 3, 8, 8] Half NHWC8; y")
    assert str(EngineLayer("reformat")) == "reformat"
