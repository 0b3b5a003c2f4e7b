"""What is odd about a file and does no harm: its user hears of it, once."""

import pytest
from onnx import ModelProto, parser

import tercet


@pytest.fixture
def model() -> ModelProto:
    found = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) { h = Neg (x)  y = Relu (h) }"""
    )
    found.graph.node.reverse()
    return found


def test_load_warns(model: ModelProto) -> None:
    with pytest.warns(tercet.ModelWarning, match="nodes were not in order") as caught:
        tercet.load(model)
    assert len(caught) == 1


@pytest.mark.filterwarnings("ignore::tercet.ModelWarning")
def test_inspect_shows_it(model: ModelProto) -> None:
    found = tercet.inspect(model)
    assert "nodes were not in order" in str(found)
    assert len(found.source.warnings) == 1
