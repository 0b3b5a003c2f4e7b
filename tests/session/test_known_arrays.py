"""Runs on arrays like those of an earlier run: what they check no more, and what they still do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tercet
from tercet.runtime.errors import (
    InputError,
    ModelFileError,
    PrecisionWarning,
    TercetError,
    TimeLimitError,
    UsageError,
)
from tercet.runtime.session.io_boundary import IOBoundary

Array = np.ndarray[Any, Any]

TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    sums (float[n, 3] x, float[n, 3] z, int64[1] k) => (float[n, 3] y, float[3] s) {
        sum = Add(x, z)
        y = Exp(sum)
        s = ReduceSum <keepdims = 0> (sum, axes)
    }
"""


def loaded(text: str = TEXT, **options: Any) -> tercet.Model:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    return tercet.load(model, **options)


def feeds(rows: int = 2, first: float = 0) -> dict[str, Any]:
    x = np.arange(first, first + 3 * rows, dtype=np.float32).reshape(rows, 3) / 8
    return {"x": x, "z": -2 * x, "k": np.array([1])}


@pytest.fixture
def model() -> Iterator[tercet.Model]:
    """A model that has run on two rows."""
    with loaded() as found:
        found.run(feeds())
        yield found


def test_the_types_of_like_arrays_are_not_checked_again(
    model: tercet.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(IOBoundary, "check")
    for first in range(3):
        given = feeds(first=first)
        found = model.run(dict(reversed(given.items())))
        np.testing.assert_array_equal(found["y"], np.exp(-given["x"]))
        np.testing.assert_array_equal(found["s"], (given["x"] + given["z"]).sum(0))
    assert list(model.run([*feeds().values()])) == ["y", "s"]


def _changed(name: str, value: Any) -> dict[str, Any]:
    return feeds() | {name: value}


UNLIKE = {
    "dtype": _changed("x", np.zeros((2, 3))),
    "other 16-bit floats": _changed("x", np.zeros((2, 3), ml_dtypes.bfloat16)),
    "rank": _changed("z", np.zeros((2, 3, 1), np.float32)),
    "size": _changed("z", np.zeros((2, 4), np.float32)),
    "objects": _changed("x", np.zeros((2, 3), object)),
    "texts": _changed("x", np.zeros((2, 3), "U4")),
    "None": _changed("x", None),
    "no input": _changed("w", np.zeros((2, 3), np.float32)),
    "missing": {name: value for name, value in feeds().items() if name != "z"},
    "renamed": {name.upper(): value for name, value in feeds().items()},
    "masked": _changed("x", np.ma.masked_equal(feeds()["x"], 0)),
}


@pytest.mark.parametrize("given", UNLIKE.values(), ids=UNLIKE)
def test_arrays_unlike_those_are_refused_as_ever(
    model: tercet.Model, given: dict[str, Any]
) -> None:
    with loaded() as fresh, pytest.raises(InputError) as first:
        fresh.run(given)
    with pytest.raises(InputError) as later:
        model.run(given)
    assert str(later.value) == str(first.value)


def _of_others(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {name: data.tolist() for name, data in given.items()}
    yield {name: data.astype(data.dtype.newbyteorder()) for name, data in given.items()}
    yield {name: np.asfortranarray(data) for name, data in given.items()}
    yield {name: np.repeat(data, 2, -1)[..., ::2] for name, data in given.items()}
    yield {name: np.ma.masked_equal(data, 99) for name, data in given.items()}


def test_values_in_other_forms_are_converted_as_ever(model: tercet.Model) -> None:
    given = feeds(first=3)
    for other in (*_of_others(given), *_of_others(given)):
        np.testing.assert_array_equal(model.run(other)["y"], np.exp(-given["x"]))


def test_results_are_the_callers_own(model: tercet.Model) -> None:
    kept = [model.run(feeds(first=first))["y"] for first in range(3)]
    kept[0][:] = 7
    np.testing.assert_array_equal(kept[1], np.exp(-feeds(first=1)["x"]))
    np.testing.assert_array_equal(kept[2], np.exp(-feeds(first=2)["x"]))


def test_other_outputs_and_arguments_take_effect(model: tercet.Model) -> None:
    assert list(model.run(feeds(), ["sum"])) == ["sum"]
    assert list(model.run(feeds(), to="device")) == ["y", "s"]
    with pytest.raises(UsageError, match="neither"):
        model.run(feeds(), to="hosts")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="streams"):
        model.run(feeds(), stream=1)
    with pytest.raises(UsageError, match="timeout"):
        model.run(feeds(), timeout=-1)
    with pytest.raises(TimeLimitError):
        model.run(feeds(), timeout=1e-9)


def test_a_closed_model_does_not_run(model: tercet.Model) -> None:
    model.close()
    with pytest.raises(UsageError, match="closed"):
        model.run(feeds())


def test_programs_that_were_dropped_are_made_again() -> None:
    with loaded(max_plans=1) as model:
        for rows in (1, 2, 3, 2, 1) * 2:
            found = model.run(feeds(rows))["y"]
            np.testing.assert_array_equal(found, np.exp(-feeds(rows)["x"]))


def test_threads_run_on_arrays_of_their_own(model: tercet.Model) -> None:
    def run(first: int) -> bool:
        given = feeds(first=first)
        return all(np.array_equal(model.run(given)["y"], np.exp(-given["x"])) for _ in range(50))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(8)))


def test_a_custom_operator_may_run_its_own_model() -> None:
    def halved(x: Array) -> Array:
        return x if (x < 1).all() else model.run({"x": x / 2})["y"]

    text = """
        <ir_version: 10, opset_import: ["": 21, "my.domain": 1]>
        nested (float[2] x) => (float[2] y) { y = my.domain.Halved(x) }
    """
    operators = {("my.domain", "Halved"): halved}
    with tercet.load(onnx.parser.parse_model(text), operators=operators) as model:
        for start in (0.5, 6, 5, 7):
            x = np.full(2, start, np.float32)
            want = x / 2 ** max(0, int(np.floor(np.log2(start))) + 1)
            np.testing.assert_array_equal(model.run({"x": x})["y"], want)


def test_overflow_in_half_precision_is_seen_in_any_run() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        two (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {20, 0, 0, 20}> {
            first = Gemm(x, w)
            y = Gemm(first, w)
        }
    """
    with tercet.load(onnx.parser.parse_model(text), precision="float16") as model:
        for _ in range(2):
            model.run({"x": np.ones((2, 2), np.float32)})
        with pytest.warns(PrecisionWarning):
            model.run({"x": np.full((2, 2), 1e4, np.float32)})


def test_texts_are_checked_in_each_run() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        texts (string[2] x, float[2] z) => (string[2] y) { y = Identity(x) }
    """
    with tercet.load(onnx.parser.parse_model(text)) as model:
        z = np.zeros(2, np.float32)
        for _ in range(2):
            model.run({"x": np.array(["a", "b"], object), "z": z})
            model.run({"x": np.array(["a", "b"]), "z": z})
            with pytest.raises(InputError, match=r"input 'x': .* only str"):
                model.run({"x": np.array(["a", 1], object), "z": z})


def test_results_between_plans_are_the_callers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        texts (string[2] x, float[2] z) => (string[2] y, float[2] w, float[2] v) {
            y = Identity(x)
            w = Identity(z)
            v = Relu(z)
        }
    """
    with tercet.load(onnx.parser.parse_model(text)) as model:
        model.run({"x": np.array(["a", "b"], object), "z": np.ones(2, np.float32)})
        monkeypatch.delattr(IOBoundary, "check")
        x, z = np.array(["c", "d"], object), np.full(2, 3, np.float32)
        found = model.run({"x": x, "z": z})
        assert [data.tolist() for data in found.values()] == [["c", "d"], [3, 3], [3, 3]]
        assert not any(np.shares_memory(found["w"], data) for data in (z, found["v"]))
        assert found["y"] is not x


def test_elements_that_choose_a_program_are_read_in_each_run() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        shapes (float[6] x, int64[2] k) => (float[a, b] y) { y = Reshape(x, k) }
    """
    with tercet.load(onnx.parser.parse_model(text)) as model:
        x = np.arange(6, dtype=np.float32)
        for shape in ((2, 3), (3, 2), (2, 3), (6, 1), (1, 6)):
            assert model.run({"x": x, "k": np.array(shape)})["y"].shape == shape


def test_mapped_weights_are_checked_in_each_run(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (1, 64)) for n in "xy")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    made = helper.make_model(helper.make_graph([node], "g", [x], [y], [weight]), ir_version=10)
    path = tmp_path / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="data", size_threshold=0)
    with tercet.load(path) as model:
        given = {"x": np.ones((1, 64), np.float32)}
        for _ in range(2):
            assert model.run(given)["y"].tolist() == [[64] * 64]
        os.truncate(tmp_path / "data", 64)
        with pytest.raises(ModelFileError, match="had 16384 bytes"):
            model.run(given)


def test_errors_of_data_leave_the_model_as_it_was() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        taken (float[3] x, int64[2] k) => (float[2] y) { y = Gather(x, k) }
    """
    x = np.arange(3, dtype=np.float32)
    with tercet.load(onnx.parser.parse_model(text)) as model:
        for _ in range(3):
            with pytest.raises(TercetError, match="Gather"):
                model.run({"x": x, "k": np.array([0, 5])})
            assert model.run({"x": x, "k": np.array([2, 0])})["y"].tolist() == [2, 0]
