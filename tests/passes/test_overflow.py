"""Half precision that meets numbers which no analysis of the graph could foresee."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet
from tercet.runtime.errors import PrecisionWarning


def network(scale: float = 1.0) -> ModelProto:
    """Return x → Gemm 'first' → Relu → Gemm 'second' → y."""
    weights = [np.eye(4, dtype=np.float32) * np.float32(s) for s in (scale, 1)]
    nodes = [
        helper.make_node("Gemm", ["x", "a"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "middle"),
        helper.make_node("Gemm", ["r", "b"], ["y"], "second"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    stored = [numpy_helper.from_array(w, n) for w, n in zip(weights, "ab", strict=True)]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def warned(source: ModelProto, x: Any, runs: int = 1, **options: Any) -> list[str]:
    with tercet.load(source, **options) as model, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(runs):
            model.run({"x": np.asarray(x, np.float32)})
    assert all(issubclass(each.category, PrecisionWarning) for each in seen)
    return [str(each.message) for each in seen]


def test_the_first_node_is_named() -> None:
    (text,) = warned(network(20.0), np.full((2, 4), 1e4), precision="float16")
    assert "node 'first' (Gemm)" in text
    assert "--keep-float32 first" in text
    assert "'y'" in text
    assert not warned(
        network(20.0),
        np.full((2, 4), 1e4),
        precision="float16",
        keep_float32=("first", "second", "middle"),
    )


def test_an_input_beyond_the_range_is_named() -> None:
    (text,) = warned(network(), np.full((2, 4), 1e5), precision="float16")
    assert "node 'first' (Gemm) reads 'x'" in text


def test_it_is_said_once() -> None:
    assert len(warned(network(), np.full((2, 4), 1e5), runs=3, precision="float16")) == 1


def test_a_host_that_takes_too_long_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with tercet.load(network(20.0), precision="float16") as model:
        monkeypatch.setattr(model._watch, "patience", 0.0)
        with pytest.warns(PrecisionWarning, match="'y' has infinities or NaN. Whether .* unknown"):
            model.run({"x": np.full((2, 4), 1e4, np.float32)})


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_where_nothing_overflows(precision: str) -> None:
    assert not warned(network(20.0), np.full((2, 4), 1e4), precision=precision)


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_what_float32_has_as_well_is_no_news(number: float) -> None:
    assert not warned(network(), np.full((2, 4), number), runs=5, precision="float16")


def test_intermediate_tensors_are_watched_as_well() -> None:
    x = np.full((2, 4), 1e4, np.float32)
    with (
        tercet.load(network(20.0), precision="float16") as model,
        pytest.warns(PrecisionWarning, match="'first'"),
    ):
        model.run({"x": x}, outputs=["h"])
