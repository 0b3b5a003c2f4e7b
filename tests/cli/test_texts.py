"""Models as texts on the command line."""

from pathlib import Path

import onnx

from .conftest import Tercet


def test_export_converts_to_text_and_back(tercet: Tercet) -> None:
    assert tercet("export", "classifier.onnx", "m.onnxtxt").code == 0
    assert "opset_import" in Path("m.onnxtxt").read_text()
    assert tercet("run", "m.onnxtxt", "--repeat", "0").code == 0
    assert tercet("inspect", "m.onnxtxt").code == 0
    assert tercet("compare", "m.onnxtxt", "-b", "numpy", "-b", "onnxruntime").code == 0
    assert tercet("export", "m.onnxtxt", "again.onnx").code == 0
    onnx.checker.check_model(onnx.load("again.onnx"))
    done = tercet("export", "classifier.onnx", "m.txt")
    assert (done.code, ".onnxtxt" in done.err) == (2, True)
