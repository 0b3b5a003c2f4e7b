"""What is closed says so, and is no context manager any more."""

from __future__ import annotations

import pytest
from onnx.parser import parse_model

import tercet
from tercet import UsageError

from ..generation.folders import DECODERS

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 4] x) => (float[2, 4] y) { y = Relu (x) }
"""


def test_models() -> None:
    model = tercet.load(parse_model(MODEL))
    assert "closed" not in repr(model)
    with model:
        pass
    assert repr(model).startswith("<tercet.Model numpy, closed (")
    assert "model on numpy, float32, closed</caption>" in model._repr_html_()
    with pytest.raises(UsageError, match="the model is closed"), model:
        pytest.fail("it can be entered")
    model.close()


def test_bound_models() -> None:
    with tercet.load(parse_model(MODEL)) as model:
        with model.bind() as bound:
            assert "closed" not in repr(bound)
        assert repr(bound).endswith(", closed>")
        with pytest.raises(UsageError, match="the bound model is closed"), bound:
            pytest.fail("it can be entered")


def test_generators() -> None:
    with tercet.Generator(DECODERS / "optimum_llama") as generator:
        assert "closed" not in repr(generator)
    assert repr(generator).endswith(", closed>")
    with pytest.raises(UsageError, match="the generator is closed"), generator:
        pytest.fail("it can be entered")
