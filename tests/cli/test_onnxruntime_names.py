"""onnxruntime's execution providers and levels of optimisation as runners."""

from __future__ import annotations

from typing import Any

import onnx.parser
import pytest

import tercet
from tercet import BackendUnavailable, UsageError
from tercet.tools.runners.onnxruntime_process import OnnxruntimeProcess
from tercet.tools.runners.onnxruntime_runner import LEVELS, OrtConfig, providers
from tercet.tools.runners.onnxruntime_server import Setup

from .models import classifier

ort: Any = pytest.importorskip("onnxruntime")


def test_a_name_may_have_a_provider_and_a_level() -> None:
    assert OrtConfig.of("onnxruntime") == OrtConfig("cpu", "all")
    assert OrtConfig.of("onnxruntime:CUDA") == OrtConfig("cuda", "all")
    assert OrtConfig.of("onnxruntime:cpu:none") == OrtConfig("cpu", "none")
    assert providers()["cuda"] == "CUDAExecutionProvider"
    assert all(hasattr(ort.GraphOptimizationLevel, level) for level in LEVELS.values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("onnxruntime:cudda", "did you mean 'cuda'"),
        ("onnxruntime:cpu:bascic", "did you mean 'basic'"),
        ("onnxruntime:", "onnxruntime:PROVIDER:LEVEL"),
        ("onnxruntime:cpu:all:more", "onnxruntime:PROVIDER:LEVEL"),
    ],
)
def test_a_wrong_name_is_refused_with_what_there_is(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tercet.compare(classifier(), ["numpy", name], dims={"batch": 1})


def test_a_provider_that_this_build_lacks_is_unavailable() -> None:
    lacking = providers().keys() - {p.removesuffix("ExecutionProvider").lower()
                                    for p in ort.get_available_providers()}  # fmt: skip
    names = ["numpy", f"onnxruntime:{min(lacking)}"]
    for function in (tercet.compare, tercet.compare_layers, tercet.bisect, tercet.bench):
        with pytest.raises(BackendUnavailable, match=r"this build of onnxruntime lacks"):
            function(classifier(), names, dims={"batch": 1})


def test_levels_are_compared_in_all_tools() -> None:
    names = ["onnxruntime", "onnxruntime:cpu:none"]
    found = tercet.compare(classifier(), names, dims={"batch": 2}, repeat=0)
    assert found.ok
    assert "optimisations none" in str(found)
    assert tercet.compare_layers(classifier(), names, dims={"batch": 2}).ok
    cases = tercet.bench(classifier(), names, dims={"batch": 2}, duration=0.01, warm_up=0.0).cases
    assert [case.runner for case in cases] == names


def test_a_level_changes_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[Any] = []
    opened = OnnxruntimeProcess.open

    def open_(process: OnnxruntimeProcess, model: Any, setup: Setup) -> Any:
        levels.append(setup.level)
        return opened(process, model, setup)

    monkeypatch.setattr(OnnxruntimeProcess, "open", open_)
    names = ["onnxruntime", "onnxruntime:cpu:basic"]
    tercet.compare(classifier(), names, dims={"batch": 1}, repeat=0)
    assert levels == ["ORT_ENABLE_ALL", "ORT_ENABLE_BASIC"]


@pytest.mark.parametrize("name", ["onnxruntime", "onnx.reference"])
def test_an_output_that_is_listed_twice_is_compared_twice(name: str) -> None:
    """As torch.onnx.export lists an input that a model gives back twice."""
    text = """<ir_version: 8, opset_import: ["": 15]>
    g (float[2] x) => (float[2] y, float[2] z) { y = Relu (x) z = Neg (x) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output.append(proto.graph.output[0])
    with pytest.warns(tercet.ModelWarning, match="lists an output twice"):
        found = tercet.compare(proto, ["numpy", name], repeat=0)
    names = [each.output for row in found.results for each in row.agreements]
    assert (found.ok, names) == (True, ["y", "z", "y.1"])


def test_floats_of_eight_bits_are_no_bytes() -> None:
    """onnxruntime gives their bytes, of outputs and of what decides in between."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]>
        g (float[64] x) => (float8e4m3fn[64] y, float[64] z) {
            y = Cast <to = 17> (x) z = Cast <to = 1> (y) }""")
    found = tercet.compare(model, ["onnxruntime", "numpy"], repeat=0)
    assert found.verdict == "ok", found
