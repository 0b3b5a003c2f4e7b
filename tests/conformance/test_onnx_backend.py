"""The ONNX backend interface: as ONNX's documentation calls it, and as its runner does."""

from __future__ import annotations

import unittest
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.backend.test import loader
from onnx.backend.test.runner import Runner

from tercet import BackendUnavailable, InputError, UsageError, available
from tercet.onnx_backend import TercetBackend, cuda
from tercet.onnx_backend import numpy as on_numpy

numpy_backend: Any = on_numpy  # results have fields that no type knows
X = np.array([-1, 2], np.float32)
RELU = helper.make_node("Relu", ["x"], ["y"])


def model_of(*nodes: Any, inputs: int = 1) -> Any:
    names = "xzw"[:inputs]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in names]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["n"])]
    return helper.make_model(helper.make_graph(nodes, "g", values, outputs))


class TestRunning:
    def test_inputs_are_a_list_a_dict_or_one_array(self) -> None:
        prepared = numpy_backend.prepare(model_of(RELU))
        for inputs in ([X], (X,), {"x": X}, X):
            found = prepared.run(inputs)
            assert found[0].tolist() == [0, 2]
            assert found.y is found["y"] is found[0]

    def test_inputs_that_do_not_fit(self) -> None:
        prepared = numpy_backend.prepare(model_of(RELU))
        with pytest.raises(InputError, match="2 inputs were given; the model takes 1: x"):
            prepared.run([X, X])
        with pytest.raises(InputError, match="no input 'z'"):
            prepared.run({"z": X})
        with pytest.raises(UsageError, match="no option 'fast'"):
            prepared.run([X], fast=True)

    def test_run_model(self) -> None:
        add = helper.make_node("Add", ["x", "z"], ["y"])
        (y,) = numpy_backend.run_model(model_of(add, inputs=2), [X, X], device="CPU")
        assert y.tolist() == [-2, 4]

    def test_options_are_those_of_load(self) -> None:
        prepared = numpy_backend.prepare(model_of(RELU), "CPU", rtol=1e-3, stop_at=0)
        assert prepared.model.options.stop_at == 0
        with pytest.raises(UsageError, match="no option 'nonsense'"):
            numpy_backend.prepare(model_of(RELU), nonsense=1)


class TestNodes:
    def test_any_opset(self) -> None:
        """Squeeze has its axes as an attribute until opset 12, as an input since."""
        x = np.ones((1, 2), np.float32)
        old = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
        assert numpy_backend.run_node(old, [x], opset_version=11)[0].shape == (2,)
        new = helper.make_node("Squeeze", ["x", "axes"], ["y"])
        assert numpy_backend.run_node(new, [x, np.array([0])])[0].shape == (2,)

    def test_inputs_that_are_left_out(self) -> None:
        clip = helper.make_node("Clip", ["x", "", "most"], ["y"])
        maximum = np.array(1, np.float32)
        for inputs in ([X, maximum], [X, None, maximum], {"x": X, "most": maximum}):
            assert numpy_backend.run_node(clip, inputs).y.tolist() == [-1, 1]
        with pytest.raises(InputError, match=r"1 inputs were given; .* takes 2: x, most"):
            numpy_backend.run_node(clip, [X])

    def test_outputs_that_are_left_out(self) -> None:
        node = helper.make_node("TopK", ["x", "k"], ["", "at"])
        found = numpy_backend.run_node(node, [X, np.array([1])])
        assert len(found) == 1
        assert found.at.tolist() == [1]

    def test_outputs_info(self) -> None:
        info = [(np.dtype(np.float32), (2,))]
        assert numpy_backend.run_node(RELU, [X], outputs_info=info)[0].shape == (2,)

    def test_strings(self) -> None:
        node = helper.make_node("StringConcat", ["x", "z"], ["y"])
        for kind in (object, str):
            words = np.array(["ab", "c"], kind)
            assert numpy_backend.run_node(node, [words, words]).y.tolist() == ["abab", "cc"]

    def test_sequences(self) -> None:
        node = helper.make_node("SequenceInsert", ["s", "x"], ["y"])
        (made,) = numpy_backend.run_node(node, [[X, X[:1]], X])
        assert [each.tolist() for each in made] == [[-1, 2], [-1], [-1, 2]]
        (made,) = numpy_backend.run_node(node, [[], X])
        assert [each.tolist() for each in made] == [[-1, 2]]

    def test_optionals(self) -> None:
        node = helper.make_node("OptionalHasElement", ["o"], ["y"])
        assert numpy_backend.run_node(node, [X]).y.tolist() is True
        assert numpy_backend.run_node(node, {"o": X}).y.tolist() is True
        nothing = helper.make_node("OptionalHasElement", [], ["y"])
        assert numpy_backend.run_node(nothing, []).y.tolist() is False

    def test_maps(self) -> None:
        words, ml = ["a", "b"], "ai.onnx.ml"
        node = helper.make_node("DictVectorizer", ["x"], ["y"], domain=ml, string_vocabulary=words)
        found = numpy_backend.run_node(node, [{"b": np.float32(2)}])
        assert found.y.reshape(-1).tolist() == [0, 2]

    def test_bodies_read_from_the_inputs(self) -> None:
        branches = [
            helper.make_graph([helper.make_node(kind, ["x"], ["y"])], kind, [], [
                helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
            ])
            for kind in ("Relu", "Neg")
        ]  # fmt: skip
        node = helper.make_node(
            "If", ["cond"], ["y"], then_branch=branches[0], else_branch=branches[1]
        )
        for cond, wanted in ((True, [0, 2]), (False, [1, -2])):
            found = numpy_backend.run_node(node, {"cond": np.array(cond), "x": X})
            assert found.y.tolist() == wanted

    def test_other_domains(self) -> None:
        node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.0)
        assert numpy_backend.run_node(node, [X]).y.tolist() == [0, 1]


class TestDevices:
    def test_numpy_is_on_the_cpu(self) -> None:
        assert numpy_backend.supports_device("CPU")
        assert not numpy_backend.supports_device("CUDA")
        assert not numpy_backend.supports_device("TPU")
        with pytest.raises(UsageError, match="'numpy' runs on CPU, not on CUDA:0"):
            numpy_backend.prepare(model_of(RELU), "CUDA:0")

    def test_cuda_is_not(self) -> None:
        can = any(found.name == "cuda" and found for found in available())
        assert cuda.supports_device("CUDA") == cuda.supports_device("CUDA:0") == can
        assert not cuda.supports_device("CPU")
        assert not cuda.supports_device("CUDA:99")
        if not can:
            with pytest.raises(BackendUnavailable):
                cuda.prepare(model_of(RELU), "CUDA")

    def test_any_backend_has_the_interface(self) -> None:
        class Named(TercetBackend):
            backend = "nowhere"

        with pytest.raises(UsageError, match="no backend 'nowhere'"):
            Named.prepare(model_of(RELU))


def test_is_compatible() -> None:
    assert numpy_backend.is_compatible(model_of(RELU))
    assert not numpy_backend.is_compatible(model_of(RELU), "CUDA")
    unknown = helper.make_node("Frobnicate", ["x"], ["y"])
    assert not numpy_backend.is_compatible(model_of(unknown))


def few() -> Any:
    """Load ONNX's cases of two operators: those of all take seconds to make."""
    node: Any = import_module("onnx.backend.test.case.node")
    for name in ("relu", "sequenceinsert"):
        import_module(f"{node.__name__}.{name}")
    return node._NodeTestCases


@pytest.mark.parametrize("backend", [numpy_backend, numpy_backend.Backend], ids=["module", "class"])
def test_onnx_s_runner_takes_it(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "load_node_model_tests", few)
    runner = Runner(backend, __name__)
    runner.include("test_relu_cpu|test_sequence_insert_at_back_cpu|test_single_relu_model_cpu")
    result = unittest.TestResult()
    runner.test_suite.run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    assert result.testsRun - len(result.skipped) == 3
