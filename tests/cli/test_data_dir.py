"""Weights in another folder than the model's, on every command that reads a model."""

from pathlib import Path

import onnx
import pytest

from .conftest import Tercet
from .models import classifier


@pytest.fixture
def apart(folder: Path) -> Path:
    """A model without the weights that it keeps beside it, and the folder that has them."""
    weights = folder / "weights"
    weights.mkdir()
    file = weights / "apart.onnx"
    onnx.save_model(
        classifier(), file, save_as_external_data=True, location="apart.data", size_threshold=0
    )
    return file.rename(folder / "apart.onnx")


@pytest.mark.parametrize(
    "words",
    [
        "run apart.onnx --repeat 0",
        "inspect apart.onnx",
        "compare apart.onnx -b numpy -b onnxruntime -b onnx.reference --repeat 1",
        "export apart.onnx written.onnx",
        "simplify apart.onnx written.onnx",
    ],
)
def test_weights_in_another_folder(tercet: Tercet, apart: Path, words: str) -> None:
    refused = tercet(*words.split())
    assert (refused.code, refused.out) == (2, "")
    assert "is not there; expected in" in refused.err
    assert tercet(*words.split(), "--external-data-dir", "weights").code == 0
    assert tercet(*words.split()).code == 2, "the folder is for one command"
